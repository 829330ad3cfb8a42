//! The pod as a whole.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use super::{Findings, container, names, resources, scheduling, security, shown, volume};

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
    scheduling::check(spec, findings);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        names::qualified(&gate.condition_type, format!("spec.readinessGates[{i}].conditionType"), findings);
    }
    resource_claims(spec, findings);
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
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            names::subdomain(name, path, findings);
        }
    }
    hostname_override(spec, findings);
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        findings.ip(&alias.ip, format!("spec.hostAliases[{i}].ip"));
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            names::subdomain(name, format!("spec.hostAliases[{i}].hostnames[{j}]"), findings);
        }
    }
}

fn hostname_override(spec: &PodSpec, findings: &mut Findings) {
    let Some(name) = spec.hostname_override.as_deref() else { return };
    let at = "spec.hostnameOverride";
    names::subdomain(name, at, findings);
    if name.len() > 64 {
        findings.add(at, "must not be longer than 64 characters");
    }
    for (other, field) in [(spec.host_network, "hostNetwork"), (spec.set_hostname_as_fqdn, "setHostnameAsFQDN")] {
        if other == Some(true) {
            findings.add(at, format!("must not be given when {field} is true"));
        }
    }
}

/// Devices asked for by claims, and that containers use none that the pod doesn't have.
fn resource_claims(spec: &PodSpec, findings: &mut Findings) {
    let mut known = BTreeSet::new();
    for (i, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let at = format!("spec.resourceClaims[{i}]");
        names::label(&claim.name, format!("{at}.name"), findings);
        if !known.insert(claim.name.as_str()) {
            findings.add(format!("{at}.name"), format!("{} is taken by another claim", shown(&claim.name)));
        }
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(name), None) => names::subdomain(name, format!("{at}.resourceClaimName"), findings),
            (None, Some(name)) => names::subdomain(name, format!("{at}.resourceClaimTemplateName"), findings),
            _ => findings.add(at, "must have exactly one of resourceClaimName and resourceClaimTemplateName"),
        }
    }
    let lists = [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())];
    for (field, list) in lists {
        for (i, container) in list.into_iter().flatten().enumerate() {
            let mut used = BTreeSet::new();
            let claims = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
            for (j, claim) in claims.enumerate() {
                let at = format!("spec.{field}[{i}].resources.claims[{j}]");
                if !known.contains(claim.name.as_str()) {
                    findings.add(&at, format!("{} must be one of spec.resourceClaims", shown(&claim.name)));
                }
                if !used.insert((&claim.name, &claim.request)) {
                    findings.add(at, format!("{} is there twice", shown(&claim.name)));
                }
            }
        }
    }
}
