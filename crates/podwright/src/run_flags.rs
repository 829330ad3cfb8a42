//! The flags of `podwright run`, in the names of the Go kubelet, so that a unit file written for it works.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

pub(crate) mod kubelet_flags;

use crate::runtime_handler::RuntimeHandlerFlag;
use kubelet_flags::FieldFlag;

/// The flags of `podwright run`. A flag overrides the configuration file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_line_help = true)]
pub(crate) struct RunFlags {
    /// A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1), YAML or JSON.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    /// Directory for the journal and the volumes of pods. [default: /var/lib/podwright; /var/lib/kubelet when started as kubelet]
    #[arg(long, value_name = "DIR", help_heading = "Configuration")]
    pub(crate) root_dir: Option<PathBuf>,
    /// Directory for sockets and other data that is not needed after a reboot.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_RUN_DIR",
        hide_env_values = true,
        default_value = "/run/podwright",
        help_heading = "Configuration"
    )]
    pub(crate) run_dir: PathBuf,
    /// Directory for links to the logs of all containers, for log collectors.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_LOG_LINK_DIR",
        hide_env = true,
        default_value = "/var/log/containers",
        help_heading = "Configuration"
    )]
    pub(crate) container_logs_dir: PathBuf,

    /// A directory of pod manifests, or a single manifest file.
    #[arg(long, value_name = "PATH", help_heading = "Pods")]
    pub(crate) pod_manifest_path: Option<PathBuf>,
    /// Read manifest files of any name, not only *.yaml, *.yml and *.json. On when started as kubelet.
    #[arg(long, help_heading = "Pods")]
    pub(crate) manifest_all_names: bool,
    /// Reject manifests with unknown or unsupported fields instead of logging a warning.
    #[arg(long, help_heading = "Pods")]
    pub(crate) strict: bool,
    /// URL of a pod manifest or a list of pods.
    #[arg(long, value_name = "URL", help_heading = "Pods")]
    pub(crate) manifest_url: Option<String>,
    /// HTTP header for --manifest-url, as NAME:VALUE. May be repeated.
    #[arg(long, value_name = "HEADER", help_heading = "Pods")]
    pub(crate) manifest_url_header: Vec<String>,

    /// Kubeconfig file for the API server. Without it the node is standalone.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Kubeconfig file with the credentials of a node that joins: requests the certificate that --kubeconfig then uses.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// Create the Node object in the API server if it does not exist. [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Cluster"
    )]
    pub(crate) register_node: Option<bool>,
    /// Taints of the Node object when it is created, as KEY=VALUE:EFFECT.
    #[arg(long, value_name = "TAINTS", value_delimiter = ',', help_heading = "Cluster")]
    pub(crate) register_with_taints: Vec<String>,

    /// Directory of the node's certificates. [default: pki in the root directory]
    #[arg(long, value_name = "DIR", help_heading = "Cluster")]
    pub(crate) cert_dir: Option<PathBuf>,

    /// CRI socket of another container runtime, e.g. unix:///run/containerd/containerd.sock. [default: embedded, the engine of the
    /// agent itself; unix:///run/containerd/containerd.sock when started as kubelet]
    #[arg(long, value_name = "ENDPOINT", help_heading = "Runtime")]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// CRI socket of the image service, if it differs from the runtime's.
    #[arg(long, value_name = "ENDPOINT", help_heading = "Runtime")]
    pub(crate) image_service_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EmbeddedEngineFlags,

    /// Name of the node, instead of the hostname.
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) hostname_override: Option<String>,
    /// IP address of the node, or one IPv4 and one IPv6 address.
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_ip: Vec<String>,
    /// Labels of the node, as KEY=VALUE.
    #[arg(long, value_name = "LABELS", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_labels: Vec<String>,

    /// Serve /healthz, /readyz, /livez, /pods and /metrics over HTTP on this address.
    #[arg(long, value_name = "ADDRESS", help_heading = "Logging and monitoring")]
    pub(crate) listen: Option<SocketAddr>,
    /// Log verbosity; 4 and higher is for debugging. [default: 0]
    #[arg(short = 'v', long = "v", value_name = "N", help_heading = "Logging and monitoring")]
    pub(crate) verbosity: Option<u8>,
    #[command(flatten)]
    pub(crate) observability: ObservabilityFlags,

    /// The program was started as `kubelet`: the kubelet's defaults apply.
    #[arg(skip)]
    pub(crate) as_kubelet: bool,
    /// Kubelet flags that set a field of `KubeletConfiguration`.
    #[arg(skip)]
    pub(crate) field_flags: Vec<FieldFlag>,
    /// Kubelet flags that were given but have no effect.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

/// The flags of `podwright run` for the embedded engine: the names that it uses on the host.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EmbeddedEngineFlags {
    /// Bridge that the embedded engine connects pods to. [default: pw0]
    #[arg(long, value_name = "NAME", help_heading = "Runtime")]
    pub(crate) engine_bridge: Option<String>,
    /// Table of nf_tables of the embedded engine. [default: podwright]
    #[arg(long, value_name = "NAME", help_heading = "Runtime")]
    pub(crate) engine_table: Option<String>,
    /// Cgroup of the embedded engine's shims, below the root of each hierarchy. [default: /podwright-shims]
    #[arg(long, value_name = "PATH", help_heading = "Runtime")]
    pub(crate) engine_cgroup: Option<String>,
    /// Pods get addresses only once the Node object has a pod CIDR, instead of those of a default range until then.
    #[arg(long, help_heading = "Runtime")]
    pub(crate) engine_wait_for_pod_cidr: bool,
    /// Directory of CNI configurations: the embedded engine connects pods by their plugins instead of its bridge.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["engine_bridge", "engine_table", "engine_wait_for_pod_cidr"],
        help_heading = "Runtime"
    )]
    pub(crate) engine_cni_conf_dir: Option<PathBuf>,
    /// Directories of CNI plugins, searched in order. [default: /opt/cni/bin]
    #[arg(long, value_name = "DIR", value_delimiter = ',', requires = "engine_cni_conf_dir", help_heading = "Runtime")]
    pub(crate) engine_cni_bin_dir: Vec<PathBuf>,
    /// OCI runtime of the embedded engine for the handler of a RuntimeClass: its name, the program, and where it keeps its state. Can
    /// be repeated.
    #[arg(long, value_name = "NAME=PATH[,root=DIR]", help_heading = "Runtime")]
    pub(crate) engine_runtime_handler: Vec<RuntimeHandlerFlag>,
    /// Mirrors and certificates of registries for the embedded engine, in containerd's format. [default: /etc/containerd/certs.d]
    #[arg(long, value_name = "DIR", help_heading = "Runtime")]
    pub(crate) engine_registries: Option<PathBuf>,
}

/// The flags of `podwright run` for logging and recording.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ObservabilityFlags {
    /// Record all inputs and decisions to this file, for `podwright replay`. The file contains pod specs.
    #[arg(long, value_name = "FILE", help_heading = "Logging and monitoring")]
    pub(crate) record: Option<PathBuf>,
    /// Maximum size of the recording; the oldest parts are dropped.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256Mi",
        requires = "record",
        help_heading = "Logging and monitoring"
    )]
    pub(crate) record_max_size: String,
    /// Log format. [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        alias = "log-format",
        env = "PODWRIGHT_LOGGING_FORMAT",
        hide_env_values = true,
        help_heading = "Logging and monitoring"
    )]
    pub(crate) logging_format: Option<LogFormat>,
}

/// Format of the agent's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text lines, for terminals and journald.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl RunFlags {
    /// The root directory: the flag, or the default of the name the program was started by.
    pub(crate) fn root_dir(&self) -> &Path {
        let default = if self.as_kubelet { "/var/lib/kubelet" } else { "/var/lib/podwright" };
        self.root_dir.as_deref().unwrap_or(Path::new(default))
    }
}
