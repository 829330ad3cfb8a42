//! Fields of the pod spec.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use super::{FieldErrors, container, names, quoted, resources, scheduling, security, volume};

pub(super) fn check(spec: &PodSpec, errors: &mut FieldErrors) {
    if !counts(spec, errors) {
        return;
    }
    let volumes = volume::check(spec, errors);
    container::check_all(spec, &volumes, errors);
    resources::check_pod_level(spec, errors);
    security::check_pod(spec, errors);
    errors.one_of(spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"], "spec.restartPolicy");
    errors.at_least(spec.termination_grace_period_seconds, 0, "spec.terminationGracePeriodSeconds");
    if let Some(deadline) = spec.active_deadline_seconds.filter(|d| !(1..=i64::from(i32::MAX)).contains(d)) {
        errors.add("spec.activeDeadlineSeconds", format!("{deadline} must be between 1 and {}", i32::MAX));
    }
    dns(spec, errors);
    names_of_hosts(spec, errors);
    scheduling::check(spec, errors);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        names::qualified(&gate.condition_type, format!("spec.readinessGates[{i}].conditionType"), errors);
    }
    resource_claims(spec, errors);
}

/// Whether the lists are short enough to check their entries. The limits are not those of the API server: its pods are bounded by
/// the size of its store, manifests are not, and a pod of ten thousand containers would delay all others.
fn counts(spec: &PodSpec, errors: &mut FieldErrors) -> bool {
    let init = spec.init_containers.as_ref().map_or(0, Vec::len);
    let lists = [
        ("spec.containers", spec.containers.len() + init, MAX_CONTAINERS),
        ("spec.volumes", spec.volumes.as_ref().map_or(0, Vec::len), MAX_VOLUMES),
    ];
    let mut good = true;
    for (path, count, most) in lists.into_iter().filter(|(_, count, most)| count > most) {
        errors.add(path, format!("{count} must be at most {most}"));
        good = false;
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mounts = containers.map(|container| container.volume_mounts.as_ref().map_or(0, Vec::len)).sum::<usize>();
    if mounts > MAX_MOUNTS {
        errors.add("spec.containers", format!("{mounts} volume mounts in all, at most {MAX_MOUNTS} are possible"));
    }
    good && mounts <= MAX_MOUNTS
}

fn dns(spec: &PodSpec, errors: &mut FieldErrors) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of(spec.dns_policy.as_deref(), &policies, "spec.dnsPolicy");
    let config = spec.dns_config.as_ref();
    let servers = config.and_then(|config| config.nameservers.as_ref()).map_or(0, Vec::len);
    if spec.dns_policy.as_deref() == Some("None") && servers == 0 {
        errors.add("spec.dnsConfig.nameservers", "must have at least one address when dnsPolicy is None");
    }
    if let Some(config) = config {
        dns_config(config, errors);
    }
}

fn dns_config(config: &PodDNSConfig, errors: &mut FieldErrors) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > 3 {
        errors.add("spec.dnsConfig.nameservers", "must not have more than 3 addresses");
    }
    for (i, server) in servers.iter().enumerate() {
        errors.ip(server, format!("spec.dnsConfig.nameservers[{i}]"));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > 32 || searches.iter().map(|s| s.len() + 1).sum::<usize>() > 2049 {
        errors.add("spec.dnsConfig.searches", "must not have more than 32 domains or 2048 characters");
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        // Underscores are allowed in search domains.
        let plain = search.strip_suffix('.').unwrap_or(search).replace('_', "x");
        names::subdomain(&plain, format!("spec.dnsConfig.searches[{i}]"), errors);
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.add(format!("spec.dnsConfig.options[{i}].name"), "must be given");
        }
    }
}

fn names_of_hosts(spec: &PodSpec, errors: &mut FieldErrors) {
    for (name, path) in [(&spec.hostname, "spec.hostname"), (&spec.subdomain, "spec.subdomain")] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            names::label(name, path, errors);
        }
    }
    for (name, path) in [
        (&spec.runtime_class_name, "spec.runtimeClassName"),
        (&spec.priority_class_name, "spec.priorityClassName"),
        (&spec.service_account_name, "spec.serviceAccountName"),
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            names::subdomain(name, path, errors);
        }
    }
    hostname_override(spec, errors);
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        errors.ip(&alias.ip, format!("spec.hostAliases[{i}].ip"));
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            names::subdomain(name, format!("spec.hostAliases[{i}].hostnames[{j}]"), errors);
        }
    }
}

fn hostname_override(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(name) = spec.hostname_override.as_deref() else { return };
    let at = "spec.hostnameOverride";
    names::subdomain(name, at, errors);
    if name.len() > 64 {
        errors.add(at, "must not be longer than 64 characters");
    }
    for (other, field) in [(spec.host_network, "hostNetwork"), (spec.set_hostname_as_fqdn, "setHostnameAsFQDN")] {
        if other == Some(true) {
            errors.add(at, format!("must not be given when {field} is true"));
        }
    }
}

/// Resource claims; containers may only use claims of the pod.
fn resource_claims(spec: &PodSpec, errors: &mut FieldErrors) {
    let mut known = BTreeSet::new();
    for (i, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let at = format!("spec.resourceClaims[{i}]");
        names::label(&claim.name, format!("{at}.name"), errors);
        if !known.insert(claim.name.as_str()) {
            errors.add(format!("{at}.name"), format!("{} is taken by another claim", quoted(&claim.name)));
        }
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(name), None) => names::subdomain(name, format!("{at}.resourceClaimName"), errors),
            (None, Some(name)) => names::subdomain(name, format!("{at}.resourceClaimTemplateName"), errors),
            _ => errors.add(at, "must have exactly one of resourceClaimName and resourceClaimTemplateName"),
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
                    errors.add(&at, format!("{} must be one of spec.resourceClaims", quoted(&claim.name)));
                }
                if !used.insert((&claim.name, &claim.request)) {
                    errors.add(at, format!("{} is there twice", quoted(&claim.name)));
                }
            }
        }
    }
}

/// App and init containers of one pod.
const MAX_CONTAINERS: usize = 500;
/// Volumes of one pod.
const MAX_VOLUMES: usize = 1000;
/// Volume mounts of all containers of one pod: mounts are matched with volumes in several places.
const MAX_MOUNTS: usize = 10_000;
