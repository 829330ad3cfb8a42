//! The flags of the engine without an agent.

use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;

use crate::runtime_handler::RuntimeHandlerFlag;

/// `podwright engine`
#[derive(Args, Debug)]
pub(crate) struct EngineFlags {
    /// Directory of records, images and writable layers.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/podwright")]
    pub(crate) root_dir: PathBuf,
    /// Directory of sockets and files of running pods; emptied after a reboot.
    #[arg(long, value_name = "DIR", default_value = "/run/podwright/engine")]
    pub(crate) run_dir: PathBuf,
    /// CRI socket to serve.
    #[arg(long, value_name = "ENDPOINT", default_value = "unix:///run/podwright/engine.sock")]
    pub(crate) listen: String,
    /// Name of the bridge.
    #[arg(long, value_name = "NAME", default_value = "pw0")]
    pub(crate) bridge: String,
    /// Name of the nf_tables table.
    #[arg(long, value_name = "NAME", default_value = "podwright")]
    pub(crate) table: String,
    /// Range of pod addresses, one per family. Without it, that of UpdateRuntimeConfig replaces the default. [default: 10.244.0.0/24]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) pod_cidr: Vec<IpNet>,
    /// Pods get addresses only once UpdateRuntimeConfig has given a range.
    #[arg(long, conflicts_with = "pod_cidr")]
    pub(crate) wait_for_pod_cidr: bool,
    /// Cgroup of the shims.
    #[arg(long, value_name = "PATH", default_value = "/podwright-shims")]
    pub(crate) shim_cgroup: String,
    /// Parent of the cgroups of pods that are run without one, as by crictl.
    #[arg(long, value_name = "PATH", default_value = "/podwright")]
    pub(crate) pod_cgroup: String,
    /// Directory of CNI configurations: pods are connected by its plugins instead of the bridge.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["bridge", "table", "pod_cidr", "wait_for_pod_cidr"])]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// Directories of CNI plugins, searched in order.
    #[arg(long, value_name = "DIR", value_delimiter = ',', default_value = "/opt/cni/bin", requires = "cni_conf_dir")]
    pub(crate) cni_bin_dir: Vec<PathBuf>,
    /// Directory of `<registry>/hosts.toml`: mirrors and certificates of registries, in containerd's format.
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd/certs.d")]
    pub(crate) registry_config_path: PathBuf,
    /// OCI runtime for the handler of a RuntimeClass: its name, the program, and where it keeps its state. Can be repeated.
    #[arg(long, value_name = "NAME=PATH[,root=DIR]")]
    pub(crate) runtime_handler: Vec<RuntimeHandlerFlag>,
    /// Image archives to load before the socket is served.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Vec<PathBuf>,
}
