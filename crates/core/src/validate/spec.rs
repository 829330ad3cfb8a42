//! The pod as a whole.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PodDNSConfig, PodSpec, Toleration};

use super::{Findings, container, names, resources, security, shown, volume};

pub(super) fn check(spec: &PodSpec, findings: &mut Findings) {
    let volumes = volume::check(spec, findings);
    container::check_all(spec, &volumes, findings);
    resources::check_pod_level(spec, findings);
    security::check_pod(spec, findings);
    findings.one_of(spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"], "spec.restartPolicy");
    findings.at_least(spec.termination_grace_period_seconds, 0, "spec.terminationGracePeriodSeconds");
    if let Some(deadline) = spec.active_deadline_seconds.filter(|d| !(1..=i64::from(i32::MAX)).contains(d)) {
        findings.add("spec.activeDeadlineSeconds", format!("{deadline} must be between 1 and {}", i32::MAX));
    }
    dns(spec, findings);
    names_of_hosts(spec, findings);
    scheduling(spec, findings);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        names::qualified(&gate.condition_type, format!("spec.readinessGates[{i}].conditionType"), findings);
    }
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &format!("spec.tolerations[{i}]"), findings);
    }
}

fn dns(spec: &PodSpec, findings: &mut Findings) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    findings.one_of(spec.dns_policy.as_deref(), &policies, "spec.dnsPolicy");
    let config = spec.dns_config.as_ref();
    let servers = config.and_then(|config| config.nameservers.as_ref()).map_or(0, Vec::len);
    if spec.dns_policy.as_deref() == Some("None") && servers == 0 {
        findings.add("spec.dnsConfig.nameservers", "must have at least one address when dnsPolicy is None");
    }
    if let Some(config) = config {
        dns_config(config, findings);
    }
}

fn dns_config(config: &PodDNSConfig, findings: &mut Findings) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > 3 {
        findings.add("spec.dnsConfig.nameservers", "must not have more than 3 addresses");
    }
    for (i, server) in servers.iter().enumerate() {
        findings.ip(server, format!("spec.dnsConfig.nameservers[{i}]"));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > 32 || searches.iter().map(|s| s.len() + 1).sum::<usize>() > 2049 {
        findings.add("spec.dnsConfig.searches", "must not have more than 32 domains or 2048 characters");
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        // Underscores are allowed here: names of services in other systems have them.
        let plain = search.strip_suffix('.').unwrap_or(search).replace('_', "x");
        names::subdomain(&plain, format!("spec.dnsConfig.searches[{i}]"), findings);
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            findings.add(format!("spec.dnsConfig.options[{i}].name"), "must be given");
        }
    }
}

fn names_of_hosts(spec: &PodSpec, findings: &mut Findings) {
    for (name, path) in [(&spec.hostname, "spec.hostname"), (&spec.subdomain, "spec.subdomain")] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            names::label(name, path, findings);
        }
    }
    for (name, path) in [
        (&spec.runtime_class_name, "spec.runtimeClassName"),
        (&spec.priority_class_name, "spec.priorityClassName"),
        (&spec.service_account_name, "spec.serviceAccountName"),
        (&spec.hostname_override, "spec.hostnameOverride"),
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            names::subdomain(name, path, findings);
        }
    }
    if spec.hostname_override.as_ref().is_some_and(|name| name.len() > 64) {
        findings.add("spec.hostnameOverride", "must not be longer than 64 characters");
    }
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        findings.ip(&alias.ip, format!("spec.hostAliases[{i}].ip"));
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            names::subdomain(name, format!("spec.hostAliases[{i}].hostnames[{j}]"), findings);
        }
    }
}

fn scheduling(spec: &PodSpec, findings: &mut Findings) {
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
    let required = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = required.and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    if required.is_some_and(|selector| selector.node_selector_terms.is_empty()) {
        findings.add(at, "must have at least one term");
    }
    for (i, term) in required.iter().flat_map(|selector| &selector.node_selector_terms).enumerate() {
        for (j, requirement) in term.match_expressions.iter().flatten().enumerate() {
            check_requirement(requirement, &format!("{at}[{i}].matchExpressions[{j}]"), findings);
            names::qualified(&requirement.key, format!("{at}[{i}].matchExpressions[{j}].key"), findings);
        }
        for (j, requirement) in term.match_fields.iter().flatten().enumerate() {
            let at = format!("{at}[{i}].matchFields[{j}]");
            findings.one_of(Some(&requirement.key), &["metadata.name"], format!("{at}.key"));
            findings.one_of(Some(&requirement.operator), &["In", "NotIn"], format!("{at}.operator"));
            if requirement.values.as_ref().map_or(0, Vec::len) != 1 {
                findings.add(format!("{at}.values"), "must have exactly one value");
            }
        }
    }
}

fn check_requirement(requirement: &NodeSelectorRequirement, at: &str, findings: &mut Findings) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let here = format!("{at}.values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => findings.add(here, "must have at least one value for In or NotIn"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            findings.add(here, "must be empty for Exists or DoesNotExist");
        }
        "Gt" | "Lt" if values.len() != 1 => findings.add(here, "must have exactly one value for Gt or Lt"),
        "" => findings.add(format!("{at}.operator"), "must be given"),
        operator => {
            let known = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
            findings.one_of(Some(operator), &known, format!("{at}.operator"));
        }
    }
    for (i, value) in values.iter().enumerate() {
        names::label_value(value, format!("{at}.values[{i}]"), findings);
    }
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
