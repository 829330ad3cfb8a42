//! Builds the [`AgentConfig`] from its inputs, section by section.

use std::time::Duration;

use podwright_agent::sources::Strictness;
use podwright_agent::translate::CgroupDriver;
use podwright_core::NodeConfig;

use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute, text};
use super::{
    AgentConfig, Capacity, CgroupConfig, Dirs, EMBEDDED_ENDPOINT, HostFeatures, RuntimeEndpoints, allocatable, cluster,
    configz, engine, eviction, images, logs, network, node, server, sources,
};
use crate::run_flags::kubelet_flags::unsupported;

/// Returns the configuration with its warnings, or all errors.
pub(super) fn read(inputs: &ConfigInputs<'_>, mut diagnostics: Diagnostics) -> Result<AgentConfig, Vec<String>> {
    let to = &mut diagnostics;
    for flag in &inputs.flags.ignored {
        to.warning(flag, unsupported(flag));
    }
    let sources = sources::read(inputs, to);
    let unreserved = allocatable::allocatable(inputs, to);
    let hard = eviction::hard_thresholds(inputs, to);
    let allocatable = allocatable::without_eviction_thresholds(inputs, &unreserved, &hard, to);
    let eviction = eviction::read(inputs, &hard, allocatable::is_enforced(inputs), to);
    let node = NodeConfig { eviction, ..node::read(inputs, &sources, &allocatable, to) };
    let dirs = dirs(inputs);
    let runtime = runtime(inputs, &dirs, to);
    let engine = engine::read(inputs, &runtime, to);
    let config = AgentConfig {
        capacity: allocatable::capacity(inputs),
        configz: configz::with_runtime(inputs.configz.clone(), &runtime, &dirs),
        runtime,
        engine,
        dirs,
        listen: network::listen(inputs, to),
        server: server::read(inputs, to),
        healthz: server::healthz(inputs, to),
        volume_stats_period: server::volume_stats_period(inputs, to),
        cgroups: cgroups(inputs, &unreserved, to),
        images: images::read(inputs, to),
        logs: logs::rotation(inputs, to),
        logging: logs::logging(inputs, to),
        dns: network::dns(inputs, to),
        seccomp_default: inputs.file.seccomp_default.unwrap_or(false),
        strictness: if inputs.flags.strict { Strictness::Strict } else { Strictness::Lenient },
        record: logs::recording(inputs, to),
        cluster: cluster::read(inputs, to),
        machine: host_features(inputs),
        hostname: inputs.hostname(),
        node,
        sources,
        warnings: Vec::new(),
    };
    check_swap(inputs, to);
    cluster::warn_about_proxies(inputs, |name| std::env::var_os(name).is_some_and(|value| !value.is_empty()), to);
    if !diagnostics.errors.is_empty() {
        return Err(diagnostics.errors);
    }
    Ok(AgentConfig { warnings: diagnostics.warnings, ..config })
}

fn runtime(inputs: &ConfigInputs<'_>, dirs: &Dirs, diagnostics: &mut Diagnostics) -> RuntimeEndpoints {
    let (flags, file) = (inputs.flags, &inputs.file);
    let given = flags.container_runtime_endpoint.as_deref().or(text(&file.container_runtime_endpoint));
    // A node whose kubelet is replaced by this program of the same name has its pods in containerd.
    let default = if flags.as_kubelet { KUBELET_ENDPOINT } else { EMBEDDED_ENDPOINT };
    let endpoint = check_endpoint(RUNTIME_ENDPOINT, given.unwrap_or(default), dirs, diagnostics);
    let given = flags.image_service_endpoint.as_deref().or(text(&file.image_service_endpoint));
    let image_endpoint = match given {
        Some(given) => check_endpoint(IMAGE_ENDPOINT, given, dirs, diagnostics),
        None => endpoint.clone(),
    };
    if (endpoint == EMBEDDED_ENDPOINT) != (image_endpoint == EMBEDDED_ENDPOINT) {
        let error = format!(
            "{image_endpoint:?} cannot be combined with the runtime {endpoint:?}: leave it out, or set \
             {RUNTIME_ENDPOINT} to a CRI socket too"
        );
        diagnostics.error(IMAGE_ENDPOINT, error);
    }
    RuntimeEndpoints { endpoint, image_endpoint }
}

fn check_endpoint(field: &str, given: &str, dirs: &Dirs, diagnostics: &mut Diagnostics) -> String {
    let endpoint = if given.starts_with('/') { format!("unix://{given}") } else { given.to_owned() };
    // The agent itself serves this socket. Who writes what /configz shows to a file gets the same runtime.
    if endpoint == EMBEDDED_ENDPOINT || endpoint == dirs.engine_endpoint() {
        return EMBEDDED_ENDPOINT.to_owned();
    }
    if !endpoint.strip_prefix("unix://").is_some_and(|path| path.starts_with('/')) {
        diagnostics.error(field, format!("{given:?} must be a unix socket, unix:///path, or {EMBEDDED_ENDPOINT}"));
    }
    endpoint
}

fn dirs(inputs: &ConfigInputs<'_>) -> Dirs {
    let pod_logs = text(&inputs.file.pod_logs_dir).map(|dir| inputs.file_path(dir));
    Dirs {
        root: absolute(inputs.flags.root_dir()),
        run: absolute(&inputs.flags.run_dir),
        pod_logs: pod_logs.unwrap_or_else(|| "/var/log/pods".into()),
        container_logs: absolute(&inputs.flags.container_logs_dir),
    }
}

fn cgroups(inputs: &ConfigInputs<'_>, unreserved: &Capacity, diagnostics: &mut Diagnostics) -> CgroupConfig {
    let file = &inputs.file;
    let driver = match text(&file.cgroup_driver).unwrap_or("cgroupfs") {
        "systemd" => CgroupDriver::Systemd,
        "cgroupfs" => CgroupDriver::Cgroupfs,
        other => {
            diagnostics.error(CGROUP_DRIVER, format!("{other:?} must be cgroupfs or systemd"));
            CgroupDriver::Cgroupfs
        }
    };
    let root = text(&file.cgroup_root).unwrap_or("/").to_owned();
    let root = if root.starts_with('/') { root } else { format!("/{root}") };
    if std::path::Path::new(&root).components().any(|part| part == std::path::Component::ParentDir) {
        diagnostics.error("cgroupRoot", "must not contain `..`");
    }
    let cpu_period = file.cpu_cfs_quota_period.unwrap_or(Duration::from_millis(100));
    if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&cpu_period) {
        diagnostics.error("cpuCFSQuotaPeriod", "must be between 1ms and 1s");
    }
    CgroupConfig {
        root,
        driver,
        per_qos: file.cgroups_per_qos.unwrap_or(true),
        node_allocatable: allocatable::enforced(inputs, unreserved, diagnostics),
        pids_limit: file.pod_pids_limit.filter(|limit| *limit > 0),
        cpu_quota: file.cpu_cfs_quota.unwrap_or(true),
        cpu_period,
        single_process_oom_kill: file.single_process_oom_kill.unwrap_or(false),
    }
}

fn host_features(inputs: &ConfigInputs<'_>) -> HostFeatures {
    HostFeatures {
        huge_page_sizes: inputs.facts.huge_pages.iter().map(|pages| pages.size).collect(),
        selinux: inputs.facts.selinux,
        thermal_paths: inputs.facts.thermal_paths.clone(),
    }
}

fn check_swap(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) {
    let swaps = inputs.facts.swaps.join(", ");
    if inputs.file.fail_swap_on.unwrap_or(true) && !swaps.is_empty() {
        let error = format!(
            "swap is on ({swaps}): memory limits would not be enforced. Turn swap off, or set failSwapOn: false"
        );
        diagnostics.error("failSwapOn", error);
    }
}

const CGROUP_DRIVER: &str = "cgroupDriver (--cgroup-driver)";
const RUNTIME_ENDPOINT: &str = "containerRuntimeEndpoint (--container-runtime-endpoint)";
const IMAGE_ENDPOINT: &str = "imageServiceEndpoint (--image-service-endpoint)";
/// The Go kubelet's default: the socket of containerd.
const KUBELET_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
