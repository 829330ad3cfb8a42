//! The verbs that need no agent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `podwright check`
#[derive(Args, Debug)]
pub(crate) struct CheckFlags {
    /// Manifests, directories of them, or - for what comes on stdin.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Take unknown and unsupported fields as errors.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Whose rules count: a node's, which can't have what only an API server has (Secrets, ConfigMaps, claims, service accounts), or
    /// an API server's.
    #[arg(long = "for", value_name = "WHO", default_value = "node")]
    pub(crate) judge: Judge,
    /// In directories, take files of every name, not only *.yaml, *.yml and *.json.
    #[arg(long)]
    pub(crate) all_names: bool,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<CheckOutput>,
}

/// Who is to take a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Judge {
    /// A node by itself: from a file, a URL, or its local API.
    #[default]
    Node,
    /// An API server.
    Api,
}

/// How findings are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckOutput {
    /// One object with all findings, for programs.
    Json,
}

/// `podwright replay`
#[derive(Args, Debug)]
pub(crate) struct ReplayFlags {
    /// The recording.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Show only what concerns this pod: NAME, NAMESPACE/NAME or its UID; static pods may go without the node's name at the end.
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,
    /// Only compare; show nothing of what was decided.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Try a recording of another version too: where decisions differ is then no surprise.
    #[arg(long)]
    pub(crate) any_version: bool,
}

/// Flags of `run` that say what people get to see of it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct WatchingFlags {
    /// Write everything that is decided upon to this file, for `podwright replay`. It holds the pods' specs.
    #[arg(long, value_name = "FILE", help_heading = "Watching it")]
    pub(crate) record: Option<PathBuf>,
    /// What the recording may take; older parts go.
    #[arg(long, value_name = "SIZE", default_value = "256Mi", requires = "record", help_heading = "Watching it")]
    pub(crate) record_max_size: String,
    /// How to log. [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        alias = "log-format",
        env = "PODWRIGHT_LOGGING_FORMAT",
        hide_env_values = true,
        help_heading = "Watching it"
    )]
    pub(crate) logging_format: Option<LogFormat>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people and for journald.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
