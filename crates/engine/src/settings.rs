//! Directories and names of one engine. Two engines on one host need different ones throughout.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};

/// Where an engine keeps its state, and the names that it uses on the host.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Records, images and writable layers are in `engine` below it. Survives reboots.
    pub root_dir: PathBuf,
    /// Sockets, pins and files of running pods. Need not survive a reboot, and is emptied after one.
    pub run_dir: PathBuf,
    /// The cgroup of the zygote and the shims, below the root of each hierarchy.
    pub shim_cgroup: String,
    /// The parent of the cgroups of pods whose request has none, as those of crictl.
    pub pod_cgroup: String,
    /// How pods are connected.
    pub network: NetworkSettings,
    /// Other OCI runtimes by the name of their handler.
    pub runtimes: BTreeMap<String, OciRuntime>,
    /// The soft limit of open files of containers; `None`: that of this process, which may have raised its own.
    pub open_files: Option<u64>,
}

/// Another OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciRuntime {
    /// The program, such as `/usr/sbin/runc`.
    pub path: PathBuf,
    /// Where it keeps its state; `None`: a directory of the engine's run directory.
    pub root: Option<PathBuf>,
}

/// How pods are connected.
#[derive(Clone, Debug)]
pub enum NetworkSettings {
    /// The builtin bridge.
    Bridge {
        /// Name of the bridge, at most 15 bytes.
        bridge: String,
        /// Name of the nf_tables table.
        table: String,
        /// At most one range per family. Empty: no pod is connected before UpdateRuntimeConfig gives one.
        ranges: Vec<IpNet>,
        /// UpdateRuntimeConfig may replace them; else they are configured.
        replaceable: bool,
    },
    /// CNI plugins.
    Cni {
        /// Directory of configurations.
        conf_dir: PathBuf,
        /// Directories of plugins, searched in order.
        bin_dirs: Vec<PathBuf>,
    },
}

impl EngineSettings {
    /// The defaults for these directories.
    pub fn new(root_dir: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> Self {
        let (bridge, table) = ("pw0".into(), "podwright".into());
        let network = NetworkSettings::Bridge { bridge, table, ranges: vec![default_pod_range()], replaceable: true };
        let [shim_cgroup, pod_cgroup] = ["/podwright-shims", "/podwright"].map(String::from);
        Self {
            root_dir: root_dir.into(),
            run_dir: run_dir.into(),
            shim_cgroup,
            pod_cgroup,
            network,
            runtimes: BTreeMap::new(),
            open_files: None,
        }
    }
}

/// The range of the node until it is given one.
pub fn default_pod_range() -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 24))
}
