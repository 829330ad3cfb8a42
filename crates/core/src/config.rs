//! Settings of the node that core needs, parsed and complete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::eviction::EvictionConfig;
use crate::model::Source;
use crate::shutdown::ShutdownPeriods;

/// The node's settings, from flags and `KubeletConfiguration`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Name of the Node object.
    pub node_name: String,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// The node's addresses, for `status.hostIPs`.
    pub host_ips: Vec<String>,
    /// Labels for node selectors and affinity: those of the registration, until the Node object is known.
    pub labels: BTreeMap<String, String>,
    /// Configured sources: a pod without a source is cleaned up once all of these have synced.
    pub sources: BTreeSet<Source>,
    /// `allowedUnsafeSysctls`: names, or prefixes that end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// The runtime supports `supplementalGroupsPolicy`; `None`: it has not reported yet.
    #[serde(default)]
    pub supplemental_groups_policy: Option<bool>,
    /// `maxPods`.
    pub max_pods: usize,
    /// Allocatable CPU in thousandths of a core.
    pub allocatable_cpu_millis: i64,
    /// Allocatable memory in bytes.
    pub allocatable_memory: i64,
    /// Allocatable local storage in bytes.
    pub allocatable_ephemeral: i64,
    /// Allocatable huge pages in bytes, by resource name: `hugepages-2Mi`.
    #[serde(default)]
    pub allocatable_huge_pages: BTreeMap<String, i64>,
    /// Resync period (`syncFrequency`).
    pub sync_frequency: Duration,
    /// Upper bound of the crash back-off (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub backoff_max: Duration,
    /// `runtimeRequestTimeout`.
    pub runtime_request_timeout: Duration,
    /// Grace periods of pods at a shutdown of the host; `None`: pods are not terminated before it.
    #[serde(default)]
    pub shutdown: Option<ShutdownPeriods>,
    /// Eviction; by default it is off.
    #[serde(default)]
    pub eviction: EvictionConfig,
    /// Concurrent RunPodSandbox calls at the start; the number adapts to the runtime (`concurrency`).
    pub sandbox_parallel: usize,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_name: "node".into(),
            boot_id: String::new(),
            host_ips: vec!["127.0.0.1".into()],
            labels: BTreeMap::new(),
            sources: BTreeSet::from([Source::File]),
            allowed_unsafe_sysctls: vec![],
            app_armor: true,
            supplemental_groups_policy: None,
            max_pods: 110,
            allocatable_cpu_millis: 1_000_000,
            allocatable_memory: i64::MAX,
            allocatable_ephemeral: i64::MAX,
            allocatable_huge_pages: BTreeMap::new(),
            sync_frequency: Duration::from_secs(60),
            backoff_max: Duration::from_secs(300),
            runtime_request_timeout: Duration::from_secs(120),
            shutdown: None,
            eviction: EvictionConfig::default(),
            sandbox_parallel: 4,
        }
    }
}
