//! The settings of each component, from the configuration.

use std::path::PathBuf;
use std::sync::Arc;

use podwright_agent::feed::PodFeed;
use podwright_agent::host::{Allocatable, Host, HostConfig, HostPaths, Pool};
use podwright_agent::perform::{PullConfig, PullRecords};
use podwright_agent::sources::{self, Decode};
use podwright_agent::stats::SamplerConfig;
use podwright_agent::translate::{CgroupDriver, NodeSettings};
use podwright_core::gc::ImagePolicy;
use podwright_core::model::Source;
use podwright_cri::{ImageService, RuntimeService};
use podwright_linux::cgroup::CgroupTree;

use crate::cluster::machine_ids;
use crate::config::AgentConfig;

pub(super) fn image_policy(config: &AgentConfig) -> ImagePolicy {
    let images = &config.images;
    let (high_percent, low_percent) = (images.gc_high, images.gc_low);
    ImagePolicy { high_percent, low_percent, min_age: images.gc_min_age, max_age: images.gc_max_age }
}

pub(super) fn decode(config: &AgentConfig, source: Source) -> Decode {
    sources::static_pods(source, &config.node.node_name, config.strictness)
}

pub(super) fn node_facts(
    config: &AgentConfig,
    cgroups: Option<&CgroupTree>,
    cgroup_driver: CgroupDriver,
) -> NodeSettings {
    NodeSettings {
        node_name: config.node.node_name.clone(),
        host_ips: config.node.host_ips.clone(),
        paths: paths(config),
        cluster_dns: config.dns.servers.clone(),
        cluster_domain: config.dns.domain.clone(),
        resolv_conf: config.dns.resolv_conf.clone(),
        cgroup_driver,
        cgroup_v2: cgroups.is_some_and(|tree| tree.version() == podwright_linux::cgroup::CgroupVersion::V2),
        swap_limits: cgroups.is_some_and(CgroupTree::limits_swap),
        cpu_cfs_quota: config.cgroups.cpu_quota,
        cpu_cfs_period_us: i64::try_from(config.cgroups.cpu_period.as_micros()).unwrap_or(100_000),
        single_process_oom_kill: config.cgroups.single_process_oom_kill,
        memory_capacity: config.capacity.memory,
        seccomp_default: config.seccomp_default,
        hugepage_sizes: config.machine.huge_page_sizes.clone(),
        selinux: config.machine.selinux,
        thermal_paths: config.machine.thermal_paths.clone(),
    }
}

pub(super) fn host_config(config: &AgentConfig) -> HostConfig {
    let registers = config.cluster.as_ref().is_some_and(|cluster| cluster.register);
    HostConfig {
        paths: paths(config),
        node_name: config.node.node_name.clone(),
        hostname_label: config.node.labels.get("kubernetes.io/hostname").filter(|_| registers).cloned(),
        host_ips: config.node.host_ips.clone(),
        cluster_domain: config.dns.domain.clone(),
        allocatable: Allocatable {
            cpu_millis: config.node.allocatable_cpu_millis,
            memory: config.node.allocatable_memory,
            ephemeral_storage: config.node.allocatable_ephemeral,
        },
        node_allocatable: config.cgroups.node_allocatable,
        pod_pids_limit: config.cgroups.pids_limit,
        cpu_cfs_quota: config.cgroups.cpu_quota,
        cpu_cfs_period: config.cgroups.cpu_period,
        huge_page_sizes: config.machine.huge_page_sizes.clone(),
        hosts_file: "/etc/hosts".into(),
    }
}

pub(super) fn sampler(
    config: &AgentConfig,
    (runtime, images): (Arc<dyn RuntimeService>, Arc<dyn ImageService>),
    host: &Host,
    feed: &Arc<PodFeed>,
    pool: &Pool,
) -> SamplerConfig {
    SamplerConfig {
        node: config.node.node_name.clone(),
        machine: machine_ids(&config.node.boot_id),
        runtime,
        images,
        feed: Arc::clone(feed),
        paths: paths(config),
        cgroups: host.cgroups().clone(),
        volume_period: config.volume_stats_period,
        pool: pool.clone(),
    }
}

pub(super) fn paths(config: &AgentConfig) -> HostPaths {
    HostPaths {
        root_dir: config.dirs.root.clone(),
        pod_logs_dir: config.dirs.pod_logs.clone(),
        container_logs_dir: config.dirs.container_logs.clone(),
        cgroup_root: config.cgroups.root.clone(),
    }
}

pub(super) fn pulls(config: &AgentConfig, records: PullRecords) -> PullConfig {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let usual = PullConfig::with_defaults(config.dirs.root.clone(), home);
    PullConfig { parallel: config.images.parallel, rate: config.images.rate, records: Some(records), ..usual }
}
