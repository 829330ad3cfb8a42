//! Admission of a pod: resources, devices, host ports, node affinity, operating system.
//!
//! Used resources are read from the [`Ledger`] alone: a pod is added when it is admitted and removed when its last container was
//! observed dead, or when it was rejected after all. The ledger is never recomputed from existing pods, so a rejected or finished
//! pod never counts against the next. Reasons and messages are the Go kubelet's.

mod affinity;
mod app_armor;
mod extended;
mod sysctl;

use std::collections::{BTreeMap, BTreeSet};

use crate::config::NodeConfig;
use crate::model::{Pod, PodUid, is_sidecar};
use crate::preemption::Shortage;
use crate::qos::{Amounts, HUGEPAGES, pod_requests};

/// Resources of the node that a pod reserves.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Requests {
    /// Thousandths of a core.
    pub cpu_millis: i64,
    /// Bytes of memory.
    pub memory: i64,
    /// Bytes of local storage.
    pub ephemeral: i64,
    /// Bytes of huge pages by resource name.
    #[serde(default)]
    pub huge_pages: BTreeMap<String, i64>,
    /// Host ports that are opened while the pod runs.
    pub host_ports: BTreeSet<HostPort>,
}

/// A host port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    /// 1 to 65535.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The address, `0.0.0.0` for all.
    pub ip: String,
}

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`: `OutOfcpu`, `NodeAffinity`, …
    pub reason: &'static str,
    /// `status.message`.
    pub message: String,
}

/// Reserved resources by pod.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Ledger {
    pods: BTreeMap<PodUid, Requests>,
}

impl Requests {
    /// Requests of the pod, overhead included, and its host ports.
    pub fn of(pod: &Pod) -> Self {
        let amounts = pod_requests(pod);
        let whole = |name: &str| amounts.get(name).map_or(0, |amount| amount.value());
        Self {
            cpu_millis: amounts.get("cpu").map_or(0, |amount| amount.milli_value()),
            memory: whole("memory"),
            ephemeral: whole("ephemeral-storage"),
            huge_pages: huge_pages(&amounts),
            host_ports: host_ports(pod),
        }
    }
}

impl HostPort {
    /// Both cannot be open at the same time.
    fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY_ADDRESS || other.ip == ANY_ADDRESS)
    }
}

impl Ledger {
    /// Adds a pod; a second call replaces its requests.
    pub fn reserve(&mut self, uid: PodUid, requests: Requests) {
        self.pods.insert(uid, requests);
    }

    /// Removes a pod. True if it was there, so that resources were freed.
    pub fn release(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// The pod has reserved resources.
    pub fn contains(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The pods with reserved resources.
    pub(crate) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// Number of pods with reserved resources.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// No pod has reserved resources.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Number and sum of all pods except this one.
    fn used_without(&self, uid: &str) -> (usize, Requests) {
        let mut sum = Requests::default();
        let mut count = 0;
        for (_, taken) in self.pods.iter().filter(|(other, _)| other.as_str() != uid) {
            count += 1;
            sum.cpu_millis = sum.cpu_millis.saturating_add(taken.cpu_millis);
            sum.memory = sum.memory.saturating_add(taken.memory);
            sum.ephemeral = sum.ephemeral.saturating_add(taken.ephemeral);
            for (name, bytes) in &taken.huge_pages {
                let of_size = sum.huge_pages.entry(name.clone()).or_default();
                *of_size = of_size.saturating_add(*bytes);
            }
        }
        (count, sum)
    }
}

/// Decides whether the pod may run next to those in the ledger. The caller adds it to the ledger.
pub fn admit(pod: &Pod, ledger: &Ledger, config: &NodeConfig) -> Result<(), Rejection> {
    check_support(pod, config)?;
    if let Some((rejection, _)) = lacking(pod, ledger, config).into_iter().next() {
        return Err(rejection);
    }
    check_placement(pod, ledger, config)
}

/// As [`admit`], regardless of the resources that pods can free.
pub(crate) fn admit_with_any_resources(pod: &Pod, ledger: &Ledger, config: &NodeConfig) -> Result<(), Rejection> {
    check_support(pod, config)?;
    check_placement(pod, ledger, config)
}

/// The resources that the pod lacks next to those in the ledger.
pub(crate) fn shortages(pod: &Pod, ledger: &Ledger, config: &NodeConfig) -> Vec<Shortage> {
    lacking(pod, ledger, config).into_iter().map(|(_, shortage)| shortage).collect()
}

fn check_support(pod: &Pod, config: &NodeConfig) -> Result<(), Rejection> {
    check_size(pod)?;
    check_os(pod)?;
    check_groups(pod, config.supplemental_groups_policy)?;
    sysctl::check(pod, &config.allowed_unsafe_sysctls)?;
    app_armor::check(pod, config.app_armor)?;
    extended::check(pod, config)
}

/// In the order in which the Go kubelet checks them: the first is reported.
fn lacking(pod: &Pod, ledger: &Ledger, config: &NodeConfig) -> Vec<(Rejection, Shortage)> {
    let requested = Requests::of(pod);
    let (pods, used) = ledger.used_without(pod.metadata.uid.as_deref().unwrap_or_default());
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut lacking = vec![
        lack("OutOfpods", "pods", 1, count(pods), count(config.max_pods)),
        lack("OutOfcpu", "cpu", requested.cpu_millis, used.cpu_millis, config.allocatable_cpu_millis),
        lack("OutOfmemory", "memory", requested.memory, used.memory, config.allocatable_memory),
        lack(
            "OutOfephemeral-storage",
            "ephemeral-storage",
            requested.ephemeral,
            used.ephemeral,
            config.allocatable_ephemeral,
        ),
    ];
    lacking.extend(requested.huge_pages.iter().map(|(name, bytes)| {
        let of = |amounts: &BTreeMap<String, i64>| amounts.get(name).copied().unwrap_or_default();
        lack(out_of(name), name, *bytes, of(&used.huge_pages), of(&config.allocatable_huge_pages))
    }));
    lacking.into_iter().flatten().collect()
}

fn check_placement(pod: &Pod, ledger: &Ledger, config: &NodeConfig) -> Result<(), Rejection> {
    if !affinity::matches(pod, &config.labels, &config.node_name) {
        return Err(predicate(NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector"));
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !node.is_empty() && node != config.node_name {
        return Err(predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    match port_conflict(pod, ledger) {
        Some(_) => Err(predicate(NODE_PORTS, "node(s) didn't have free ports for the requested pod ports")),
        None => Ok(()),
    }
}

/// The first host port of the pod that another pod uses, and that other pod.
pub(crate) fn port_conflict(pod: &Pod, ledger: &Ledger) -> Option<(HostPort, PodUid)> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    host_ports(pod).into_iter().find_map(|port| {
        let conflicts = |(other, taken): &(&PodUid, &Requests)| {
            other.as_str() != uid && taken.host_ports.iter().any(|used| port.conflicts(used))
        };
        let holder = ledger.pods.iter().find(conflicts)?.0.clone();
        Some((port, holder))
    })
}

/// A pod that takes too much memory was decoded without its containers.
fn check_size(pod: &Pod) -> Result<(), Rejection> {
    let has_containers = pod.spec.as_ref().is_some_and(|spec| !spec.containers.is_empty());
    let status = pod.status.as_ref().filter(|status| status.reason.as_deref() == Some(POD_TOO_LARGE));
    match status {
        Some(status) if !has_containers => {
            Err(Rejection { reason: POD_TOO_LARGE, message: status.message.clone().unwrap_or_default() })
        }
        _ => Ok(()),
    }
}

fn check_os(pod: &Pod) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != OS) {
        return Err(Rejection {
            reason: "PodOSSelectorNodeLabelDoesNotMatch",
            message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label".into(),
        });
    }
    if pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).is_some_and(|os| os.name != OS) {
        return Err(Rejection {
            reason: "PodOSNotSupported",
            message: "Failed to admit pod as the OS field doesn't match node OS".into(),
        });
    }
    Ok(())
}

/// A runtime without support for the policy would also add the groups of the image.
fn check_groups(pod: &Pod, supported: Option<bool>) -> Result<(), Rejection> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && supported == Some(false) {
        return Err(Rejection {
            reason: "SupplementalGroupsPolicyNotSupported",
            message: "SupplementalGroupsPolicy=Strict is not supported in this node".into(),
        });
    }
    Ok(())
}

/// `None`: there is enough.
fn lack(reason: &'static str, name: &str, wanted: i64, used: i64, capacity: i64) -> Option<(Rejection, Shortage)> {
    let free = capacity.saturating_sub(used);
    if wanted <= 0 || wanted <= free {
        return None;
    }
    let message =
        format!("Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {capacity}");
    let shortage = Shortage { resource: name.to_owned(), missing: wanted.saturating_sub(free) };
    Some((Rejection { reason, message }, shortage))
}

fn huge_pages(amounts: &Amounts) -> BTreeMap<String, i64> {
    let of_pages = amounts.iter().filter(|(name, _)| name.starts_with(HUGEPAGES));
    of_pages.map(|(name, amount)| (name.clone(), amount.value())).collect()
}

/// `OutOf` and the resource name. A size that no kernel supports appears in the message only.
fn out_of(huge_pages: &str) -> &'static str {
    OUT_OF_PAGES.iter().find(|reason| reason.strip_prefix("OutOf") == Some(huge_pages)).unwrap_or(&"OutOfhugepages")
}

fn predicate(reason: &'static str, description: &str) -> Rejection {
    Rejection { reason, message: format!("Predicate {reason} failed: {description}") }
}

/// Regular init containers release their ports before the app containers start; sidecars do not.
fn host_ports(pod: &Pod) -> BTreeSet<HostPort> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(HostPort {
                port: port.host_port.filter(|number| *number > 0)?,
                protocol: non_empty(port.protocol.as_deref(), "TCP"),
                ip: non_empty(port.host_ip.as_deref(), ANY_ADDRESS),
            })
        })
        .collect()
}

fn non_empty(text: Option<&str>, otherwise: &str) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or(otherwise).into()
}

/// Reason of a pod of an API server that would take too much memory (`decoded_size.rs`). Manifests of other sources are refused.
pub const POD_TOO_LARGE: &str = "PodTooLarge";
/// Kubernetes: the node does not match the pod's node selector or affinity.
pub(crate) const NODE_AFFINITY: &str = "NodeAffinity";
/// Kubernetes: a host port of the pod is in use.
pub(crate) const NODE_PORTS: &str = "NodePorts";
const ANY_ADDRESS: &str = "0.0.0.0";
const OS: &str = "linux";
/// The sizes of huge pages on all architectures of Linux (Documentation/admin-guide/mm/hugetlbpage, arch/*/mm/hugetlbpage.c).
const OUT_OF_PAGES: [&str; 10] = [
    "OutOfhugepages-64Ki",
    "OutOfhugepages-1Mi",
    "OutOfhugepages-2Mi",
    "OutOfhugepages-4Mi",
    "OutOfhugepages-16Mi",
    "OutOfhugepages-32Mi",
    "OutOfhugepages-512Mi",
    "OutOfhugepages-1Gi",
    "OutOfhugepages-2Gi",
    "OutOfhugepages-16Gi",
];

#[cfg(test)]
mod tests;
