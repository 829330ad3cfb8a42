//! The configuration of the agent, from flags and `KubeletConfiguration`. It is parsed and validated once, in [`AgentConfig::load`].
//!
//! A flag overrides the file, the file overrides the default. Defaults are the Go kubelet's, unless a comment says otherwise.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_agent::host::NodeAllocatable;
use podwright_agent::sources::{Strictness, file as file_source, url as url_source};
use podwright_agent::translate::CgroupDriver;
use podwright_agent::{recorder, rotate};
use podwright_core::NodeConfig;
use podwright_core::image_access::VerificationPolicy;

use crate::run_flags::{LogFormat, RunFlags};

mod allocatable;
mod certificates;
mod cluster;
mod configz;
mod diagnostics;
mod engine;
mod eviction;
mod facts;
mod field_flags;
mod fields;
mod file;
mod images;
mod inputs;
mod logs;
mod network;
mod node;
mod reader;
mod schema;
mod server;
mod shutdown;
mod sources;

pub(crate) use certificates::CertificateConfig;
pub(crate) use cluster::{ClusterConfig, go_arch};
pub(crate) use engine::{CniDirs, EngineConfig};
pub(crate) use facts::HostFacts;
pub(crate) use server::ServerConfig;

use diagnostics::Diagnostics;
use file::KubeletFile;
use inputs::ConfigInputs;

/// Why there is no valid configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The configuration file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file or the flags are not valid.
    #[error("{origin}:\n  {}", errors.join("\n  "))]
    Invalid {
        /// The path of the file, or `the command line`.
        origin: String,
        /// Each begins with its field or flag.
        errors: Vec<String>,
    },
    /// A required fact of the host cannot be read.
    #[error("inspect this host: {0}")]
    Host(#[source] io::Error),
}

impl ConfigError {
    fn invalid(path: &Path, errors: Vec<String>) -> Self {
        Self::Invalid { origin: path.display().to_string(), errors }
    }
}

/// The whole configuration.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    /// The part that core needs.
    pub(crate) node: NodeConfig,
    /// Before anything is reserved.
    pub(crate) capacity: Capacity,
    pub(crate) machine: HostFeatures,
    pub(crate) runtime: RuntimeEndpoints,
    /// Used if `runtime` is the embedded engine.
    pub(crate) engine: EngineConfig,
    pub(crate) dirs: Dirs,
    pub(crate) sources: PodSources,
    /// `None`: the node is standalone.
    pub(crate) cluster: Option<ClusterConfig>,
    /// Of the kernel, or `--hostname-override`; in lower case.
    pub(crate) hostname: String,
    /// Address of the HTTP server; `None`: no HTTP server.
    pub(crate) listen: Option<SocketAddr>,
    /// The kubelet's API; `None`: it is not served.
    pub(crate) server: Option<ServerConfig>,
    /// Address of the plain listener for `/healthz`; `None`: it is off.
    pub(crate) healthz: Option<SocketAddr>,
    /// `volumeStatsAggPeriod`; `None`: sizes of volumes and logs are not measured.
    pub(crate) volume_stats_period: Option<Duration>,
    /// Every field of the configuration with its value, for `/configz`.
    pub(crate) configz: serde_json::Value,
    pub(crate) cgroups: CgroupConfig,
    pub(crate) images: ImageConfig,
    /// Rotation of container logs.
    pub(crate) logs: rotate::RotationConfig,
    /// The agent's own log.
    pub(crate) logging: LoggingConfig,
    pub(crate) dns: DnsConfig,
    /// Containers without a seccomp profile use RuntimeDefault.
    pub(crate) seccomp_default: bool,
    /// How manifests with unknown or unsupported fields are handled.
    pub(crate) strictness: Strictness,
    /// Where to record the inputs of core; `None`: no recording.
    pub(crate) record: Option<recorder::RecorderConfig>,
    /// To be logged when the agent starts.
    pub(crate) warnings: Vec<String>,
}

/// The agent's own log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoggingConfig {
    pub(crate) format: LogFormat,
    /// On the scale of the kubelet's `--v`.
    pub(crate) verbosity: u8,
}

/// Amounts of the resources of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Capacity {
    pub(crate) cpu_millis: i64,
    /// In bytes.
    pub(crate) memory: i64,
    /// Local storage, in bytes.
    pub(crate) ephemeral: i64,
    /// Number of processes and threads.
    pub(crate) pids: i64,
    /// Bytes of huge pages, by resource name.
    pub(crate) huge_pages: BTreeMap<String, i64>,
}

/// The features of the host that containers depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostFeatures {
    /// Huge page sizes that the kernel supports, in bytes.
    pub(crate) huge_page_sizes: Vec<u64>,
    pub(crate) selinux: bool,
    /// The `thermal_throttle` directories of the CPUs; containers must not see them.
    pub(crate) thermal_paths: Vec<String>,
}

/// The endpoint that stands for the engine in the agent's own process: the default. The socket that the engine is served on
/// ([`Dirs::engine_endpoint`]) means the same.
pub(crate) const EMBEDDED_ENDPOINT: &str = "embedded";

/// The sockets of the container runtime.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuntimeEndpoints {
    /// `unix:///…`, or [`EMBEDDED_ENDPOINT`].
    pub(crate) endpoint: String,
    /// Equal to `endpoint` unless configured; the embedded engine has its own images only.
    pub(crate) image_endpoint: String,
}

impl RuntimeEndpoints {
    /// The engine in the agent's own process.
    pub(crate) fn is_embedded(&self) -> bool {
        self.endpoint == EMBEDDED_ENDPOINT
    }
}

/// The directories of the agent, as absolute paths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dirs {
    pub(crate) root: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) pod_logs: PathBuf,
    pub(crate) container_logs: PathBuf,
}

impl Dirs {
    /// The CRI socket of the embedded engine, for crictl and other clients.
    pub(crate) fn engine_socket(&self) -> PathBuf {
        self.run.join("engine.sock")
    }

    /// The same as an endpoint: `unix:///…`.
    pub(crate) fn engine_endpoint(&self) -> String {
        format!("unix://{}", self.engine_socket().display())
    }
}

/// The sources of static pods; `None`: the source is not used.
#[derive(Clone, Debug)]
pub(crate) struct PodSources {
    pub(crate) file: Option<file_source::FileSourceConfig>,
    pub(crate) url: Option<url_source::UrlSourceConfig>,
}

/// The settings of cgroups.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CgroupConfig {
    /// The parent of `kubepods`; begins with a slash.
    pub(crate) root: String,
    /// `cgroupDriver`, for runtimes that do not report theirs.
    pub(crate) driver: CgroupDriver,
    /// `cgroupsPerQOS`: each pod has its own cgroup.
    pub(crate) per_qos: bool,
    /// The limits of the cgroup of all pods.
    pub(crate) node_allocatable: NodeAllocatable,
    /// Of each pod; `None`: the limit of the node.
    pub(crate) pids_limit: Option<i64>,
    /// CPU limits are enforced with a CFS quota.
    pub(crate) cpu_quota: bool,
    pub(crate) cpu_period: Duration,
    pub(crate) single_process_oom_kill: bool,
}

/// The settings of image pulls and image garbage collection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImageConfig {
    /// Maximum number of parallel pulls.
    pub(crate) parallel: usize,
    /// Pulls per second, and burst; `None`: no limit.
    pub(crate) rate: Option<(u32, u32)>,
    /// Which pods may use images that are on the node.
    pub(crate) verification: VerificationPolicy,
    /// Disk usage in percent above which unused images are removed.
    pub(crate) gc_high: u8,
    /// Disk usage in percent at which the removal stops.
    pub(crate) gc_low: u8,
    /// Younger images are not removed.
    pub(crate) gc_min_age: Duration,
    /// Images that were unused for longer are removed at any disk usage; `None`: no limit.
    pub(crate) gc_max_age: Option<Duration>,
}

/// The DNS settings of pods.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DnsConfig {
    pub(crate) servers: Vec<String>,
    pub(crate) domain: String,
    /// The resolver configuration for pods with dnsPolicy Default; `None`: an empty one.
    pub(crate) resolv_conf: Option<PathBuf>,
}

impl AgentConfig {
    /// Reads the configuration file and the facts of the host, and validates everything.
    pub(crate) fn load(flags: &RunFlags) -> Result<Self, ConfigError> {
        let facts = HostFacts::read(flags.root_dir(), flags.hostname_override.as_deref(), &flags.node_ip)
            .map_err(ConfigError::Host)?;
        let mut document = match &flags.config {
            Some(path) => file::read(path)?,
            None => serde_json::json!({}),
        };
        let origin = flags.config.as_ref().map_or(COMMAND_LINE.into(), |path| path.display().to_string());
        let invalid = |origin: &str| {
            let origin = origin.to_owned();
            move |errors| ConfigError::Invalid { origin, errors }
        };
        field_flags::apply_to(&mut document, &flags.field_flags).map_err(invalid(COMMAND_LINE))?;
        let configz = configz::configz(&document);
        let (file, warnings) = KubeletFile::decode(document).map_err(invalid(&origin))?;
        let base = flags.config.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
        let warnings = warnings.into_iter().map(|warning| format!("{origin}: {warning}")).collect();
        let inputs = ConfigInputs { flags, file, facts, configz, base };
        reader::read(&inputs, Diagnostics { errors: Vec::new(), warnings }).map_err(invalid(&origin))
    }
}

/// The origin of flags in error messages.
const COMMAND_LINE: &str = "the command line";

#[cfg(test)]
mod tests;
