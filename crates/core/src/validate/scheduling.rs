//! Scheduling fields: not used on a node, but validated as the API server does.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{FieldErrors, names, quoted};

pub(super) fn check(spec: &PodSpec, errors: &mut FieldErrors) {
    for (key, value) in spec.node_selector.iter().flatten() {
        let at = format!("spec.nodeSelector[{}]", quoted(key));
        names::qualified(key, &at, errors);
        names::label_value(value, &at, errors);
    }
    if let Some(os) = &spec.os {
        match os.name.as_str() {
            "" => errors.add("spec.os.name", "must be given: linux"),
            name => errors.one_of(Some(name), &["linux", "windows"], "spec.os.name"),
        }
    }
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        names::subdomain(name, "spec.nodeName", errors);
    }
    gates(spec, errors);
    affinity(spec, errors);
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &format!("spec.tolerations[{i}]"), errors);
    }
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        check_spread(constraint, &format!("spec.topologySpreadConstraints[{i}]"), errors);
    }
}

fn gates(spec: &PodSpec, errors: &mut FieldErrors) {
    let mut gates = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        names::qualified(&gate.name, format!("spec.schedulingGates[{i}].name"), errors);
        if !gates.insert(&gate.name) {
            errors.add(format!("spec.schedulingGates[{i}].name"), format!("{} is there twice", quoted(&gate.name)));
        }
    }
    if !gates.is_empty() && spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
        errors.add("spec.schedulingGates", "must be empty for a pod that has its node");
    }
}

fn affinity(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(affinity) = &spec.affinity else { return };
    if let Some(nodes) = &affinity.node_affinity {
        check_nodes(nodes, "spec.affinity.nodeAffinity", errors);
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
            check_pods(term, &format!("{at}.{REQUIRED}[{i}]"), errors);
        }
        for (i, WeightedPodAffinityTerm { weight, pod_affinity_term }) in preferred.iter().flatten().enumerate() {
            let at = format!("{at}.{PREFERRED}[{i}]");
            check_weight(*weight, &at, errors);
            check_pods(pod_affinity_term, &format!("{at}.podAffinityTerm"), errors);
        }
    }
}

fn check_nodes(nodes: &NodeAffinity, at: &str, errors: &mut FieldErrors) {
    let required = nodes.required_during_scheduling_ignored_during_execution.as_ref();
    let terms = format!("{at}.{REQUIRED}.nodeSelectorTerms");
    if required.is_some_and(|selector| selector.node_selector_terms.is_empty()) {
        errors.add(&terms, "must have at least one term");
    }
    for (i, term) in required.iter().flat_map(|selector| &selector.node_selector_terms).enumerate() {
        check_term(term, &format!("{terms}[{i}]"), errors);
    }
    for (i, term) in nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten().enumerate() {
        let at = format!("{at}.{PREFERRED}[{i}]");
        check_weight(term.weight, &at, errors);
        check_term(&term.preference, &format!("{at}.preference"), errors);
    }
}

fn check_term(term: &NodeSelectorTerm, at: &str, errors: &mut FieldErrors) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        check_requirement(requirement, &at, errors);
        names::qualified(&requirement.key, format!("{at}.key"), errors);
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let at = format!("{at}.matchFields[{i}]");
        errors.one_of(Some(&requirement.key), &["metadata.name"], format!("{at}.key"));
        errors.one_of(Some(&requirement.operator), &["In", "NotIn"], format!("{at}.operator"));
        if requirement.values.as_ref().map_or(0, Vec::len) != 1 {
            errors.add(format!("{at}.values"), "must have exactly one value");
        }
    }
}

fn check_requirement(requirement: &NodeSelectorRequirement, at: &str, errors: &mut FieldErrors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    if matches!(requirement.operator.as_str(), "Gt" | "Lt") {
        if values.len() != 1 {
            errors.add(format!("{at}.values"), "must have exactly one value for Gt or Lt");
        }
    } else {
        let known = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
        check_operator(&requirement.operator, &known, values, at, errors);
    }
    for (i, value) in values.iter().enumerate() {
        names::label_value(value, format!("{at}.values[{i}]"), errors);
    }
}

/// That an operator is known and has values if it needs some.
fn check_operator(operator: &str, known: &[&str], values: &[String], at: &str, errors: &mut FieldErrors) {
    let here = format!("{at}.values");
    match operator {
        "In" | "NotIn" if values.is_empty() => errors.add(here, "must have at least one value for In or NotIn"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.add(here, "must be empty for Exists or DoesNotExist");
        }
        operator => errors.set_one_of(Some(operator), known, format!("{at}.operator")),
    }
}

fn check_pods(term: &PodAffinityTerm, at: &str, errors: &mut FieldErrors) {
    names::qualified(&term.topology_key, format!("{at}.topologyKey"), errors);
    for (i, namespace) in term.namespaces.iter().flatten().enumerate() {
        names::label(namespace, format!("{at}.namespaces[{i}]"), errors);
    }
    check_selector(term.label_selector.as_ref(), &format!("{at}.labelSelector"), errors);
    check_selector(term.namespace_selector.as_ref(), &format!("{at}.namespaceSelector"), errors);
    let (with, without) = (&term.match_label_keys, &term.mismatch_label_keys);
    for (keys, field) in [(with, "matchLabelKeys"), (without, "mismatchLabelKeys")] {
        check_label_keys(keys.as_deref(), term.label_selector.as_ref(), &format!("{at}.{field}"), errors);
    }
}

fn check_weight(weight: i32, at: &str, errors: &mut FieldErrors) {
    if !(1..=100).contains(&weight) {
        errors.add(format!("{at}.weight"), format!("{weight} must be between 1 and 100"));
    }
}

fn check_selector(selector: Option<&LabelSelector>, at: &str, errors: &mut FieldErrors) {
    let Some(selector) = selector else { return };
    for (key, value) in selector.match_labels.iter().flatten() {
        let at = format!("{at}.matchLabels[{}]", quoted(key));
        names::qualified(key, &at, errors);
        names::label_value(value, &at, errors);
    }
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        let values = requirement.values.as_deref().unwrap_or_default();
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        check_operator(&requirement.operator, &known, values, &at, errors);
        names::qualified(&requirement.key, format!("{at}.key"), errors);
        for (j, value) in values.iter().enumerate() {
            names::label_value(value, format!("{at}.values[{j}]"), errors);
        }
    }
}

fn check_label_keys(keys: Option<&[String]>, selector: Option<&LabelSelector>, at: &str, errors: &mut FieldErrors) {
    let Some(keys) = keys.filter(|keys| !keys.is_empty()) else { return };
    if selector.is_none() {
        errors.add(at, "needs a labelSelector too");
    }
    for (i, key) in keys.iter().enumerate() {
        names::qualified(key, format!("{at}[{i}]"), errors);
    }
}

fn check_spread(constraint: &TopologySpreadConstraint, at: &str, errors: &mut FieldErrors) {
    errors.at_least(Some(constraint.max_skew.into()), 1, format!("{at}.maxSkew"));
    if constraint.topology_key.is_empty() {
        errors.add(format!("{at}.topologyKey"), "must be given");
    }
    let unsatisfiable = constraint.when_unsatisfiable.as_str();
    let known = ["DoNotSchedule", "ScheduleAnyway"];
    errors.set_one_of(Some(unsatisfiable), &known, format!("{at}.whenUnsatisfiable"));
    errors.at_least(constraint.min_domains.map(i64::from), 1, format!("{at}.minDomains"));
    if constraint.min_domains.is_some() && unsatisfiable != "DoNotSchedule" {
        errors.add(format!("{at}.minDomains"), "needs whenUnsatisfiable: DoNotSchedule");
    }
    let policies = [
        (&constraint.node_affinity_policy, "nodeAffinityPolicy"),
        (&constraint.node_taints_policy, "nodeTaintsPolicy"),
    ];
    for (policy, field) in policies {
        errors.set_one_of(policy.as_deref(), &["Honor", "Ignore"], format!("{at}.{field}"));
    }
    let selector = constraint.label_selector.as_ref();
    check_selector(selector, &format!("{at}.labelSelector"), errors);
    check_label_keys(constraint.match_label_keys.as_deref(), selector, &format!("{at}.matchLabelKeys"), errors);
}

fn check_toleration(toleration: &Toleration, at: &str, errors: &mut FieldErrors) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        names::qualified(key, format!("{at}.key"), errors);
    } else if operator != "Exists" {
        errors.add(format!("{at}.operator"), "must be Exists when there is no key");
    }
    errors.one_of(Some(operator), &["Equal", "Exists", "Lt", "Gt"], format!("{at}.operator"));
    errors.one_of(Some(effect), &["NoSchedule", "PreferNoSchedule", "NoExecute"], format!("{at}.effect"));
    match operator {
        "Exists" if !value.is_empty() => errors.add(format!("{at}.value"), "must be empty when operator is Exists"),
        "Equal" | "" => names::label_value(value, format!("{at}.value"), errors),
        "Lt" | "Gt" if value.parse::<i64>().is_err() => {
            errors.add(format!("{at}.value"), "must be a whole number for Lt or Gt");
        }
        _ => {}
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        errors.add(format!("{at}.effect"), "must be NoExecute when tolerationSeconds is given");
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
