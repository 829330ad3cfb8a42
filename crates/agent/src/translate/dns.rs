//! A pod's resolver settings: from the cluster's servers or the node's resolver file by `dnsPolicy`, plus `dnsConfig`.

use k8s_openapi::api::core::v1::PodDNSConfig;
use podwright_core::model::Pod;
use podwright_cri::v1::DnsConfig;

use super::NodeSettings;
use crate::pod_spec::{is_host_network, pod_namespace};

/// The node's resolver file, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDns {
    /// The `nameserver` lines.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// The `options`; of those with the same name, the last.
    pub options: Vec<String>,
}

impl HostDns {
    /// Parses a resolv.conf. Unknown lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") => dns.servers.extend(fields.next().map(str::to_owned)),
                Some("search") => {
                    // "example.org." and "example.org" are one domain.
                    let without_dot = |domain: &str| domain.strip_suffix('.').unwrap_or(domain).to_owned();
                    dns.searches = fields.filter(|domain| *domain != ".").map(without_dot).collect();
                }
                Some("options") => fields.for_each(|option| set_option(&mut dns.options, option)),
                _ => {}
            }
        }
        dns
    }
}

/// The pod's resolver settings.
pub(super) fn pod_dns(pod: &Pod, settings: &NodeSettings, host: &HostDns) -> DnsConfig {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let cluster = match policy {
        "None" => return truncated(with_own(DnsConfig::default(), spec.and_then(|s| s.dns_config.as_ref()))),
        "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !is_host_network(pod),
    };
    // Without cluster DNS servers the pod gets the node's, so that it can start.
    let dns = if cluster && !settings.cluster_dns.is_empty() {
        DnsConfig {
            servers: settings.cluster_dns.clone(),
            searches: cluster_searches(pod, settings, host),
            options: vec!["ndots:5".into()],
        }
    } else if settings.resolv_conf.is_none() {
        DnsConfig { servers: loopback_servers(settings), searches: vec![".".into()], options: Vec::new() }
    } else {
        DnsConfig { servers: host.servers.clone(), searches: host.searches.clone(), options: host.options.clone() }
    };
    truncated(with_own(dns, spec.and_then(|s| s.dns_config.as_ref())))
}

fn cluster_searches(pod: &Pod, settings: &NodeSettings, host: &HostDns) -> Vec<String> {
    let domain = &settings.cluster_domain;
    if domain.is_empty() {
        return host.searches.clone();
    }
    let own = [format!("{}.svc.{domain}", pod_namespace(pod)), format!("svc.{domain}"), domain.clone()];
    without_repeats(own.into_iter().chain(host.searches.iter().cloned()))
}

/// The servers with an empty `resolvConf` setting: the node itself.
fn loopback_servers(settings: &NodeSettings) -> Vec<String> {
    let loopback = |ip: &String| if ip.contains(':') { "::1".to_owned() } else { "127.0.0.1".to_owned() };
    let servers: Vec<String> = settings.host_ips.iter().map(loopback).collect();
    if servers.is_empty() { vec!["127.0.0.1".into()] } else { servers }
}

fn with_own(mut dns: DnsConfig, own: Option<&PodDNSConfig>) -> DnsConfig {
    let Some(own) = own else { return dns };
    dns.servers = without_repeats(dns.servers.into_iter().chain(own.nameservers.iter().flatten().cloned()));
    dns.searches = without_repeats(dns.searches.into_iter().chain(own.searches.iter().flatten().cloned()));
    for option in own.options.iter().flatten() {
        let Some(name) = &option.name else { continue };
        let text = match option.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name.clone(),
        };
        set_option(&mut dns.options, &text);
    }
    dns
}

/// Resolvers abort or ignore entries beyond these limits; Kubernetes truncates at them.
fn truncated(mut dns: DnsConfig) -> DnsConfig {
    dns.servers.truncate(SERVERS_MAX);
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|search| search.len() <= SEARCH_LEN_MAX);
    let length = |searches: &[String]| searches.iter().map(|s| s.len() + 1).sum::<usize>().saturating_sub(1);
    while length(&dns.searches) > SEARCH_LINE_LEN_MAX {
        dns.searches.pop();
    }
    dns
}

/// Adds an option; one of the same name is replaced.
fn set_option(options: &mut Vec<String>, new: &str) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|old| name(old) == name(new)) {
        Some(old) => *old = new.to_owned(),
        None => options.push(new.to_owned()),
    }
}

fn without_repeats(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    items.for_each(|item| {
        if !kept.contains(&item) {
            kept.push(item);
        }
    });
    kept
}

/// Kubernetes: MaxDNSNameservers.
const SERVERS_MAX: usize = 3;
/// Kubernetes: MaxDNSSearchPaths.
const SEARCHES_MAX: usize = 32;
/// Kubernetes: MaxDNSSearchListChars.
const SEARCH_LINE_LEN_MAX: usize = 2048;
/// A longer one makes some resolvers abort.
const SEARCH_LEN_MAX: usize = 253;
