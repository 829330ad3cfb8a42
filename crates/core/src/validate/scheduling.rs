//! Where a pod may run: nobody here places pods, but what the API server would refuse is refused.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{Findings, names, shown};

pub(super) fn check(spec: &PodSpec, findings: &mut Findings) {
    for (key, value) in spec.node_selector.iter().flatten() {
        let at = format!("spec.nodeSelector[{}]", shown(key));
        names::qualified(key, &at, findings);
        names::label_value(value, &at, findings);
    }
    if let Some(os) = &spec.os {
        match os.name.as_str() {
            "" => findings.add("spec.os.name", "must be given: linux"),
            name => findings.one_of(Some(name), &["linux", "windows"], "spec.os.name"),
        }
    }
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        names::subdomain(name, "spec.nodeName", findings);
    }
    gates(spec, findings);
    affinity(spec, findings);
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &format!("spec.tolerations[{i}]"), findings);
    }
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        check_spread(constraint, &format!("spec.topologySpreadConstraints[{i}]"), findings);
    }
}

fn gates(spec: &PodSpec, findings: &mut Findings) {
    let mut gates = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        names::qualified(&gate.name, format!("spec.schedulingGates[{i}].name"), findings);
        if !gates.insert(&gate.name) {
            findings.add(format!("spec.schedulingGates[{i}].name"), format!("{} is there twice", shown(&gate.name)));
        }
    }
    if !gates.is_empty() && spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
        findings.add("spec.schedulingGates", "must be empty for a pod that has its node");
    }
}

fn affinity(spec: &PodSpec, findings: &mut Findings) {
    let Some(affinity) = &spec.affinity else { return };
    if let Some(nodes) = &affinity.node_affinity {
        check_nodes(nodes, "spec.affinity.nodeAffinity", findings);
    }
    let near = affinity.pod_affinity.as_ref().map(|pods| {
        let (required, preferred) = (
            &pods.required_during_scheduling_ignored_during_execution,
            &pods.preferred_during_scheduling_ignored_during_execution,
        );
        (required, preferred, "spec.affinity.podAffinity")
    });
    let apart = affinity.pod_anti_affinity.as_ref().map(|pods| {
        let (required, preferred) = (
            &pods.required_during_scheduling_ignored_during_execution,
            &pods.preferred_during_scheduling_ignored_during_execution,
        );
        (required, preferred, "spec.affinity.podAntiAffinity")
    });
    for (required, preferred, at) in [near, apart].into_iter().flatten() {
        for (i, term) in required.iter().flatten().enumerate() {
            check_pods(term, &format!("{at}.{REQUIRED}[{i}]"), findings);
        }
        for (i, WeightedPodAffinityTerm { weight, pod_affinity_term }) in preferred.iter().flatten().enumerate() {
            let at = format!("{at}.{PREFERRED}[{i}]");
            check_weight(*weight, &at, findings);
            check_pods(pod_affinity_term, &format!("{at}.podAffinityTerm"), findings);
        }
    }
}

fn check_nodes(nodes: &NodeAffinity, at: &str, findings: &mut Findings) {
    let required = nodes.required_during_scheduling_ignored_during_execution.as_ref();
    let terms = format!("{at}.{REQUIRED}.nodeSelectorTerms");
    if required.is_some_and(|selector| selector.node_selector_terms.is_empty()) {
        findings.add(&terms, "must have at least one term");
    }
    for (i, term) in required.iter().flat_map(|selector| &selector.node_selector_terms).enumerate() {
        check_term(term, &format!("{terms}[{i}]"), findings);
    }
    for (i, term) in nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten().enumerate() {
        let at = format!("{at}.{PREFERRED}[{i}]");
        check_weight(term.weight, &at, findings);
        check_term(&term.preference, &format!("{at}.preference"), findings);
    }
}

fn check_term(term: &NodeSelectorTerm, at: &str, findings: &mut Findings) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        check_requirement(requirement, &at, findings);
        names::qualified(&requirement.key, format!("{at}.key"), findings);
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let at = format!("{at}.matchFields[{i}]");
        findings.one_of(Some(&requirement.key), &["metadata.name"], format!("{at}.key"));
        findings.one_of(Some(&requirement.operator), &["In", "NotIn"], format!("{at}.operator"));
        if requirement.values.as_ref().map_or(0, Vec::len) != 1 {
            findings.add(format!("{at}.values"), "must have exactly one value");
        }
    }
}

fn check_requirement(requirement: &NodeSelectorRequirement, at: &str, findings: &mut Findings) {
    let values = requirement.values.as_deref().unwrap_or_default();
    if matches!(requirement.operator.as_str(), "Gt" | "Lt") {
        if values.len() != 1 {
            findings.add(format!("{at}.values"), "must have exactly one value for Gt or Lt");
        }
    } else {
        let known = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
        check_operator(&requirement.operator, &known, values, at, findings);
    }
    for (i, value) in values.iter().enumerate() {
        names::label_value(value, format!("{at}.values[{i}]"), findings);
    }
}

/// That an operator is known and has values if it needs some.
fn check_operator(operator: &str, known: &[&str], values: &[String], at: &str, findings: &mut Findings) {
    let here = format!("{at}.values");
    match operator {
        "In" | "NotIn" if values.is_empty() => findings.add(here, "must have at least one value for In or NotIn"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            findings.add(here, "must be empty for Exists or DoesNotExist");
        }
        operator => findings.given_one_of(Some(operator), known, format!("{at}.operator")),
    }
}

fn check_pods(term: &PodAffinityTerm, at: &str, findings: &mut Findings) {
    names::qualified(&term.topology_key, format!("{at}.topologyKey"), findings);
    for (i, namespace) in term.namespaces.iter().flatten().enumerate() {
        names::label(namespace, format!("{at}.namespaces[{i}]"), findings);
    }
    check_selector(term.label_selector.as_ref(), &format!("{at}.labelSelector"), findings);
    check_selector(term.namespace_selector.as_ref(), &format!("{at}.namespaceSelector"), findings);
    let (with, without) = (&term.match_label_keys, &term.mismatch_label_keys);
    for (keys, field) in [(with, "matchLabelKeys"), (without, "mismatchLabelKeys")] {
        check_label_keys(keys.as_deref(), term.label_selector.as_ref(), &format!("{at}.{field}"), findings);
    }
}

fn check_weight(weight: i32, at: &str, findings: &mut Findings) {
    if !(1..=100).contains(&weight) {
        findings.add(format!("{at}.weight"), format!("{weight} must be between 1 and 100"));
    }
}

fn check_selector(selector: Option<&LabelSelector>, at: &str, findings: &mut Findings) {
    let Some(selector) = selector else { return };
    for (key, value) in selector.match_labels.iter().flatten() {
        let at = format!("{at}.matchLabels[{}]", shown(key));
        names::qualified(key, &at, findings);
        names::label_value(value, &at, findings);
    }
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        let values = requirement.values.as_deref().unwrap_or_default();
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        check_operator(&requirement.operator, &known, values, &at, findings);
        names::qualified(&requirement.key, format!("{at}.key"), findings);
        for (j, value) in values.iter().enumerate() {
            names::label_value(value, format!("{at}.values[{j}]"), findings);
        }
    }
}

fn check_label_keys(keys: Option<&[String]>, selector: Option<&LabelSelector>, at: &str, findings: &mut Findings) {
    let Some(keys) = keys.filter(|keys| !keys.is_empty()) else { return };
    if selector.is_none() {
        findings.add(at, "needs a labelSelector beside it");
    }
    for (i, key) in keys.iter().enumerate() {
        names::qualified(key, format!("{at}[{i}]"), findings);
    }
}

fn check_spread(constraint: &TopologySpreadConstraint, at: &str, findings: &mut Findings) {
    findings.at_least(Some(constraint.max_skew.into()), 1, format!("{at}.maxSkew"));
    if constraint.topology_key.is_empty() {
        findings.add(format!("{at}.topologyKey"), "must be given");
    }
    let unsatisfiable = constraint.when_unsatisfiable.as_str();
    let known = ["DoNotSchedule", "ScheduleAnyway"];
    findings.given_one_of(Some(unsatisfiable), &known, format!("{at}.whenUnsatisfiable"));
    findings.at_least(constraint.min_domains.map(i64::from), 1, format!("{at}.minDomains"));
    if constraint.min_domains.is_some() && unsatisfiable != "DoNotSchedule" {
        findings.add(format!("{at}.minDomains"), "needs whenUnsatisfiable: DoNotSchedule");
    }
    let policies = [
        (&constraint.node_affinity_policy, "nodeAffinityPolicy"),
        (&constraint.node_taints_policy, "nodeTaintsPolicy"),
    ];
    for (policy, field) in policies {
        findings.given_one_of(policy.as_deref(), &["Honor", "Ignore"], format!("{at}.{field}"));
    }
    let selector = constraint.label_selector.as_ref();
    check_selector(selector, &format!("{at}.labelSelector"), findings);
    check_label_keys(constraint.match_label_keys.as_deref(), selector, &format!("{at}.matchLabelKeys"), findings);
}

fn check_toleration(toleration: &Toleration, at: &str, findings: &mut Findings) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        names::qualified(key, format!("{at}.key"), findings);
    } else if operator != "Exists" {
        findings.add(format!("{at}.operator"), "must be Exists when there is no key");
    }
    findings.one_of(Some(operator), &["Equal", "Exists", "Lt", "Gt"], format!("{at}.operator"));
    findings.one_of(Some(effect), &["NoSchedule", "PreferNoSchedule", "NoExecute"], format!("{at}.effect"));
    match operator {
        "Exists" if !value.is_empty() => findings.add(format!("{at}.value"), "must be empty when operator is Exists"),
        "Equal" | "" => names::label_value(value, format!("{at}.value"), findings),
        "Lt" | "Gt" if value.parse::<i64>().is_err() => {
            findings.add(format!("{at}.value"), "must be a whole number for Lt or Gt");
        }
        _ => {}
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        findings.add(format!("{at}.effect"), "must be NoExecute when tolerationSeconds is given");
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
