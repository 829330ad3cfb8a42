//! A pod's resolver settings: by its policy from the cluster's servers or the host's file, plus its own.

use k8s_openapi::api::core::v1::PodDNSConfig;
use podwright_core::model::Pod;
use podwright_cri::v1::DnsConfig;

use super::NodeFacts;
use super::names::{is_host_network, pod_namespace};

/// The host's resolver file, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDns {
    /// `nameserver` lines, all of them.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// `options`, the last one of a name.
    pub options: Vec<String>,
}

impl HostDns {
    /// Reads a resolv.conf. What makes no sense is skipped.
    pub fn parse(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    // "example.org." and "example.org" are one domain.
                    let domain = |word: &str| word.strip_suffix('.').unwrap_or(word).to_owned();
                    dns.searches = words.filter(|word| *word != ".").map(domain).collect();
                }
                Some("options") => words.for_each(|option| set_option(&mut dns.options, option)),
                _ => {}
            }
        }
        dns
    }
}

/// The pod's resolver settings.
pub(super) fn pod_dns(pod: &Pod, facts: &NodeFacts, host: &HostDns) -> DnsConfig {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let cluster = match policy {
        "None" => return limited(with_own(DnsConfig::default(), spec.and_then(|s| s.dns_config.as_ref()))),
        "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !is_host_network(pod),
    };
    // Without a cluster DNS the pod gets the host's: better than a pod that never starts.
    let dns = if cluster && !facts.cluster_dns.is_empty() {
        DnsConfig {
            servers: facts.cluster_dns.clone(),
            searches: cluster_searches(pod, facts, host),
            options: vec!["ndots:5".into()],
        }
    } else if facts.resolv_conf.is_none() {
        DnsConfig { servers: own_machine(facts), searches: vec![".".into()], options: Vec::new() }
    } else {
        DnsConfig { servers: host.servers.clone(), searches: host.searches.clone(), options: host.options.clone() }
    };
    limited(with_own(dns, spec.and_then(|s| s.dns_config.as_ref())))
}

fn cluster_searches(pod: &Pod, facts: &NodeFacts, host: &HostDns) -> Vec<String> {
    let domain = &facts.cluster_domain;
    if domain.is_empty() {
        return host.searches.clone();
    }
    let own = [format!("{}.svc.{domain}", pod_namespace(pod)), format!("svc.{domain}"), domain.clone()];
    without_repeats(own.into_iter().chain(host.searches.iter().cloned()))
}

/// An empty `resolvConf` setting: look nowhere but here.
fn own_machine(facts: &NodeFacts) -> Vec<String> {
    let loopback = |ip: &String| if ip.contains(':') { "::1".to_owned() } else { "127.0.0.1".to_owned() };
    let servers: Vec<String> = facts.host_ips.iter().map(loopback).collect();
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

/// Resolvers abort or ignore what is beyond these; Kubernetes cuts there.
fn limited(mut dns: DnsConfig) -> DnsConfig {
    dns.servers.truncate(SERVERS_MAX);
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|search| search.len() <= SEARCH_LEN_MAX);
    let length = |searches: &[String]| searches.iter().map(|s| s.len() + 1).sum::<usize>().saturating_sub(1);
    while length(&dns.searches) > SEARCH_LINE_LEN_MAX {
        dns.searches.pop();
    }
    dns
}

/// Adds an option; one of the same name gives way.
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
