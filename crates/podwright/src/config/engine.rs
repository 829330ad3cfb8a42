//! The settings of the embedded engine.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ipnet::IpNet;
use podwright_engine::OciRuntime;

use super::RuntimeEndpoints;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute, text};

/// The names that the engine uses on the host, and the addresses of its pods. Two engines on one host need different ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EngineConfig {
    /// The bridge of the pods, at most 15 bytes.
    pub(crate) bridge: String,
    /// The table of nf_tables.
    pub(crate) table: String,
    /// The cgroup of the shims, below the root of each hierarchy.
    pub(crate) shim_cgroup: String,
    /// `podCIDR`, else the default: at most one range per family. Empty: pods wait for the pod CIDR of the Node object.
    pub(crate) pod_ranges: Vec<IpNet>,
    /// The pod CIDR of the Node object may replace them: none is configured.
    pub(crate) pod_ranges_of_node: bool,
    /// Plugins that connect pods instead of the bridge; bridge, table and ranges have no effect then.
    pub(crate) cni: Option<CniDirs>,
    /// Other OCI runtimes by the name of their handler.
    pub(crate) runtimes: BTreeMap<String, OciRuntime>,
    /// `hosts.toml` files, by the name of the registry.
    pub(crate) registries: PathBuf,
}

/// Where the CNI is on the host. Both are read for each pod, and need not exist at start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CniDirs {
    /// Configurations of networks, of which the first by name is used.
    pub(crate) conf_dir: PathBuf,
    /// Plugins, searched in order.
    pub(crate) bin_dirs: Vec<PathBuf>,
}

pub(super) fn read(
    inputs: &ConfigInputs<'_>,
    runtime: &RuntimeEndpoints,
    diagnostics: &mut Diagnostics,
) -> EngineConfig {
    let flags = &inputs.flags.engine;
    let name = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
    let bridge = name(&flags.engine_bridge, "pw0");
    if !is_link_name(&bridge) {
        diagnostics.error(
            "--engine-bridge",
            format!("{bridge:?} is not a valid name of a link: 1 to 15 letters, digits, - or _"),
        );
    }
    let table = name(&flags.engine_table, "podwright");
    if table.is_empty() {
        diagnostics.error("--engine-table", "must not be empty");
    }
    let shim_cgroup = name(&flags.engine_cgroup, "/podwright-shims");
    if !shim_cgroup.starts_with('/') || shim_cgroup.split('/').any(|part| part == "..") {
        diagnostics.error("--engine-cgroup", format!("{shim_cgroup:?} must be an absolute path without `..`"));
    }
    let registries = flags.engine_registries.as_deref().map_or_else(|| DEFAULT_REGISTRIES.into(), absolute);
    let pod_ranges_of_node = text(&inputs.file.pod_cidr).is_none();
    let pod_ranges = pod_ranges(inputs, runtime, diagnostics);
    let runtimes = flags.engine_runtime_handler.iter().map(|flag| (flag.name.clone(), flag.runtime.clone())).collect();
    let cni = cni(inputs, runtime, diagnostics);
    EngineConfig { bridge, table, shim_cgroup, pod_ranges, pod_ranges_of_node, cni, runtimes, registries }
}

fn cni(inputs: &ConfigInputs<'_>, runtime: &RuntimeEndpoints, diagnostics: &mut Diagnostics) -> Option<CniDirs> {
    let flags = &inputs.flags.engine;
    let conf_dir = flags.engine_cni_conf_dir.as_deref()?;
    if !runtime.is_embedded() {
        diagnostics.warning(CNI_CONF_DIR, "has no effect: the runtime has its own network configuration");
    } else if text(&inputs.file.pod_cidr).is_some() {
        diagnostics.warning(POD_CIDR, format!("has no effect with {CNI_CONF_DIR}: the plugins have their own ranges"));
    }
    let default = [PathBuf::from(DEFAULT_CNI_BIN_DIR)];
    let bin_dirs = if flags.engine_cni_bin_dir.is_empty() { &default[..] } else { &flags.engine_cni_bin_dir };
    if conf_dir.as_os_str().is_empty() {
        diagnostics.error(CNI_CONF_DIR, "must not be empty");
    }
    // Plugins get the directories as one variable, which has no escapes.
    let is_bad = |dir: &&PathBuf| dir.as_os_str().is_empty() || dir.as_os_str().as_bytes().contains(&b':');
    if let Some(dir) = bin_dirs.iter().find(is_bad) {
        diagnostics.error("--engine-cni-bin-dir", format!("{dir:?} must be a directory without `:` in its name"));
    }
    Some(CniDirs { conf_dir: absolute(conf_dir), bin_dirs: bin_dirs.iter().map(|dir| absolute(dir)).collect() })
}

fn pod_ranges(inputs: &ConfigInputs<'_>, runtime: &RuntimeEndpoints, diagnostics: &mut Diagnostics) -> Vec<IpNet> {
    let given = text(&inputs.file.pod_cidr);
    if given.is_some() && !runtime.is_embedded() {
        diagnostics.warning(POD_CIDR, "has no effect: the runtime has its own network configuration");
    }
    if inputs.flags.engine.engine_wait_for_pod_cidr {
        if given.is_some() {
            diagnostics.error("--engine-wait-for-pod-cidr", "contradicts podCIDR (--pod-cidr), which is known");
        }
        return vec![];
    }
    let mut ranges: Vec<IpNet> = vec![];
    for range in given.unwrap_or(DEFAULT_RANGE).split(',').map(str::trim) {
        match range.parse::<IpNet>() {
            Ok(range) if ranges.iter().any(|other| other.addr().is_ipv4() == range.addr().is_ipv4()) => {
                diagnostics.error(POD_CIDR, format!("{range} is the second range of its family; one is possible"));
            }
            Ok(range) => ranges.push(range.trunc()),
            Err(_) => diagnostics.error(POD_CIDR, format!("{range:?} is not a CIDR such as {DEFAULT_RANGE}")),
        }
    }
    ranges
}

/// What the kernel accepts, without what needs quoting elsewhere.
fn is_link_name(name: &str) -> bool {
    (1..=15).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

const POD_CIDR: &str = "podCIDR (--pod-cidr)";
/// The range of the node until it is given one.
const DEFAULT_RANGE: &str = "10.244.0.0/24";
const CNI_CONF_DIR: &str = "--engine-cni-conf-dir";
/// Where most networks install their plugins.
const DEFAULT_CNI_BIN_DIR: &str = "/opt/cni/bin";
/// Where containerd has them.
const DEFAULT_REGISTRIES: &str = "/etc/containerd/certs.d";
