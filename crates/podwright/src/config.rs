//! Flags and `KubeletConfiguration`, parsed once: after [`Config::load`] nothing is optional that must exist.
//!
//! A flag wins over the file, the file over the default. The defaults are the Go kubelet's, except where said.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_agent::host::NodeAllocatable;
use podwright_agent::sources::{Strictness, file as file_source, url as url_source};
use podwright_agent::{recorder, rotate};
use podwright_core::NodeConfig;

use crate::run_flags::{LogFormat, RunFlags};

mod allocatable;
mod check;
mod cluster;
mod facts;
mod field_flags;
mod fields;
mod file;
mod reader;

pub(crate) use cluster::{Cluster, go_arch};
pub(crate) use facts::Facts;

use file::KubeletFile;
use reader::Reader;

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file can't be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something in it, or in the flags, is wrong.
    #[error("{origin}:\n  {}", errors.join("\n  "))]
    Wrong {
        /// The file, or the command line.
        origin: String,
        /// Each with its field or flag.
        errors: Vec<String>,
    },
    /// The machine doesn't tell what must be known.
    #[error("look at this machine: {0}")]
    Machine(#[source] io::Error),
}

impl ConfigError {
    fn wrong(path: &Path, errors: Vec<String>) -> Self {
        Self::Wrong { origin: path.display().to_string(), errors }
    }
}

/// Everything the agent is started with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What core has to know.
    pub(crate) node: NodeConfig,
    /// All the machine has, before anything is reserved.
    pub(crate) capacity: Capacity,
    pub(crate) machine: Machine,
    pub(crate) runtime: Runtime,
    pub(crate) dirs: Dirs,
    pub(crate) sources: Sources,
    /// The cluster the node belongs to, if to any.
    pub(crate) cluster: Option<Cluster>,
    /// As the host calls itself, or is called by a flag.
    pub(crate) hostname: String,
    /// Where to serve HTTP, if at all.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) cgroups: Cgroups,
    pub(crate) images: Images,
    pub(crate) logs: rotate::Config,
    /// The agent's own log.
    pub(crate) logging: Logging,
    pub(crate) dns: Dns,
    /// Containers without a seccomp profile get the runtime's.
    pub(crate) seccomp_default: bool,
    /// What becomes of manifests with fields that do nothing.
    pub(crate) strictness: Strictness,
    /// Where to record what core is told, if anywhere.
    pub(crate) record: Option<recorder::Config>,
    /// What people should know before it starts.
    pub(crate) warnings: Vec<String>,
}

/// How the agent logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Logging {
    pub(crate) format: LogFormat,
    /// The kubelet's numbers.
    pub(crate) verbosity: u8,
}

/// What the machine has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Capacity {
    /// In thousandths of a core.
    pub(crate) cpu_millis: i64,
    /// In bytes.
    pub(crate) memory: i64,
    /// Local storage, in bytes.
    pub(crate) ephemeral: i64,
    /// Processes and threads.
    pub(crate) pids: i64,
    /// Bytes in huge pages, by the resource's name.
    pub(crate) huge_pages: BTreeMap<String, i64>,
}

/// What containers notice of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Machine {
    /// Sizes of huge pages the kernel has, in bytes.
    pub(crate) huge_page_sizes: Vec<u64>,
    /// It has SELinux.
    pub(crate) selinux: bool,
    /// What must not be seen of its temperature.
    pub(crate) thermal_paths: Vec<String>,
}

/// The container runtime.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runtime {
    /// `unix:///…`
    pub(crate) endpoint: String,
    /// The same, unless images have their own.
    pub(crate) image_endpoint: String,
}

/// Where things lie; all absolute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dirs {
    pub(crate) root: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) pod_logs: PathBuf,
    pub(crate) container_logs: PathBuf,
}

/// Where pods come from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) file: Option<file_source::Config>,
    pub(crate) url: Option<url_source::Config>,
}

/// How cgroups are made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cgroups {
    /// Above `kubepods`; begins with a slash.
    pub(crate) root: String,
    /// Pods have cgroups of their own.
    pub(crate) per_qos: bool,
    /// What all pods together are held to.
    pub(crate) node_allocatable: NodeAllocatable,
    /// `None`: as many processes as the node.
    pub(crate) pids_limit: Option<i64>,
    /// CPU limits are enforced.
    pub(crate) cpu_quota: bool,
    pub(crate) cpu_period: Duration,
    pub(crate) single_process_oom_kill: bool,
}

/// How images come and go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Images {
    /// Pulls at once.
    pub(crate) parallel: usize,
    /// Pulls per second, and how many may come at once; `None`: no limit.
    pub(crate) rate: Option<(u32, u32)>,
    /// Percent of the disk above which images are removed.
    pub(crate) gc_high: u8,
    /// Percent down to which.
    pub(crate) gc_low: u8,
    /// Younger ones stay.
    pub(crate) gc_min_age: Duration,
    /// Unused ones older than this go whatever the disk; `None`: they don't.
    pub(crate) gc_max_age: Option<Duration>,
}

/// What pods resolve names with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dns {
    pub(crate) servers: Vec<String>,
    pub(crate) domain: String,
    /// `None`: the host's resolver is not shown to pods.
    pub(crate) resolv_conf: Option<PathBuf>,
}

impl Config {
    /// From the command line, the file it names, and this machine.
    pub(crate) fn load(flags: &RunFlags) -> Result<Self, ConfigError> {
        let facts = Facts::read(flags.root_dir(), flags.hostname_override.as_deref(), &flags.node_ip)
            .map_err(ConfigError::Machine)?;
        let mut document = match &flags.config {
            Some(path) => file::read(path)?,
            None => serde_json::json!({}),
        };
        let origin = flags.config.as_ref().map_or(COMMAND_LINE.into(), |path| path.display().to_string());
        let wrong = |origin: &str| {
            let origin = origin.to_owned();
            move |errors| ConfigError::Wrong { origin, errors }
        };
        field_flags::apply_to(&mut document, &flags.field_flags).map_err(wrong(COMMAND_LINE))?;
        let (file, warnings) = KubeletFile::of(document).map_err(wrong(&origin))?;
        let base = flags.config.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
        let warnings = warnings.into_iter().map(|warning| format!("{origin}: {warning}")).collect();
        let reader = Reader { flags, file, facts, base, errors: Vec::new(), warnings };
        reader.read().map_err(wrong(&origin))
    }
}

/// Where flags come from, in messages.
const COMMAND_LINE: &str = "the command line";

#[cfg(test)]
mod tests;
