//! What core knows about the node: name, addresses, labels and limits.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use podwright_core::NodeConfig;
use podwright_core::model::Source;

use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, period};
use super::{Capacity, PodSources, cluster, shutdown};

pub(super) fn read(
    inputs: &ConfigInputs<'_>,
    pod_sources: &PodSources,
    allocatable: &Capacity,
    diagnostics: &mut Diagnostics,
) -> NodeConfig {
    let (file, defaults) = (&inputs.file, NodeConfig::default());
    let mut sources = BTreeSet::from([Source::Local]);
    sources.extend(pod_sources.file.as_ref().map(|_| Source::File));
    sources.extend(pod_sources.url.as_ref().map(|_| Source::Url));
    sources.extend(inputs.flags.kubeconfig.as_ref().map(|_| Source::Api));
    NodeConfig {
        node_name: name(inputs, diagnostics),
        boot_id: inputs.facts.boot_id.clone(),
        host_ips: addresses(inputs, diagnostics),
        labels: cluster::labels(inputs, diagnostics),
        sources,
        allowed_unsafe_sysctls: file.allowed_unsafe_sysctls.clone().unwrap_or_default(),
        app_armor: inputs.facts.app_armor,
        supplemental_groups_policy: None,
        max_pods: diagnostics.integer("maxPods", file.max_pods, 110, 0, 100_000),
        allocatable_cpu_millis: allocatable.cpu_millis,
        allocatable_memory: allocatable.memory_without_huge_pages(),
        allocatable_ephemeral: allocatable.ephemeral,
        allocatable_huge_pages: allocatable.huge_pages.clone(),
        sync_frequency: period(file.sync_frequency, Duration::from_secs(60)),
        backoff_max: backoff_max(inputs, defaults.backoff_max, diagnostics),
        runtime_request_timeout: period(file.runtime_request_timeout, defaults.runtime_request_timeout),
        shutdown: shutdown::read(inputs, diagnostics),
        eviction: defaults.eviction,
        // Measured: with more sandboxes at once all of them together take longer.
        sandbox_parallel: 2 * inputs.facts.cpus,
    }
}

fn name(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> String {
    let name = inputs.hostname();
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |part: &str| {
        let ends = part.bytes().next().is_some_and(inner) && part.bytes().next_back().is_some_and(inner);
        ends && part.bytes().all(|c| inner(c) || c == b'-')
    };
    if !name.split('.').all(is_label) || name.len() > 253 {
        let hint = if inputs.flags.hostname_override.is_some() { "" } else { ": set one with --hostname-override" };
        let error = format!("{name:?} is not a valid node name (letters, digits, dashes and dots){hint}");
        diagnostics.error("--hostname-override", error);
    }
    name
}

/// The addresses of the node: one, unless an IPv4 and an IPv6 address are given.
fn addresses(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Vec<String> {
    const FLAG: &str = "--node-ip";
    let mut parsed = Vec::new();
    for text in &inputs.flags.node_ip {
        match text.trim().parse::<IpAddr>() {
            Ok(ip) => parsed.push(ip),
            Err(_) => diagnostics.error(FLAG, format!("{text:?} is not an IP address")),
        }
    }
    let families: BTreeSet<bool> = parsed.iter().map(IpAddr::is_ipv4).collect();
    if families.len() < parsed.len() {
        diagnostics.error(FLAG, "at most one IPv4 and one IPv6 address");
    }
    for ip in &inputs.facts.foreign_node_ips {
        diagnostics.error(FLAG, format!("no network interface of this host has {ip}"));
    }
    if parsed.len() > 1 && parsed.iter().any(IpAddr::is_unspecified) {
        diagnostics.error(FLAG, "0.0.0.0 and :: cannot be combined with another address");
    }
    // An unspecified address requests any address of its family.
    let family = match parsed.first() {
        Some(ip) if ip.is_unspecified() => Some(ip.is_ipv4()),
        Some(_) => return parsed.iter().map(ToString::to_string).collect(),
        None => None,
    };
    if let Ok(address) = inputs.hostname().parse::<IpAddr>() {
        return vec![address.to_string()];
    }
    let found = &inputs.facts.addresses;
    let chosen = found.iter().find(|ip| family.is_none_or(|v4| v4 == ip.is_ipv4())).or(found.first());
    chosen.map(ToString::to_string).into_iter().collect()
}

fn backoff_max(inputs: &ConfigInputs<'_>, default: Duration, diagnostics: &mut Diagnostics) -> Duration {
    let given = inputs.file.crash_loop_back_off.as_ref().and_then(|c| c.max_container_restart_period);
    let given = given.unwrap_or(default);
    if !(Duration::from_secs(1)..=default).contains(&given) {
        diagnostics.error("crashLoopBackOff.maxContainerRestartPeriod", "must be between 1s and 300s");
    }
    given
}
