//! The flags of the commands that need no agent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `podwright check`
#[derive(Args, Debug)]
pub(crate) struct CheckFlags {
    /// Manifest files, directories of manifests, or - for stdin.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Treat unknown and unsupported fields as errors.
    #[arg(long)]
    pub(crate) strict: bool,
    /// The rules to check: those for static pods of a node, which may not refer to API objects (Secrets, ConfigMaps, claims, service
    /// accounts), or those of an API server.
    #[arg(long = "for", value_name = "WHO", default_value = "node")]
    pub(crate) rules: CheckRules,
    /// In directories, read files of any name, not only *.yaml, *.yml and *.json.
    #[arg(long)]
    pub(crate) all_names: bool,
    /// Output format. [default: text]
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<CheckOutput>,
}

/// The rules a manifest is checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckRules {
    /// Static pods, from a file or a URL.
    #[default]
    Node,
    /// Pods submitted to an API server.
    Api,
}

/// Output formats of `podwright check` besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckOutput {
    /// One JSON object with all errors and warnings.
    Json,
}

/// `podwright replay`
#[derive(Args, Debug)]
pub(crate) struct ReplayFlags {
    /// The recording of an agent (`podwright run --record`).
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only show steps of this pod, given as NAME, NAMESPACE/NAME or UID; the node name at the end of a static pod's name may be omitted.
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,
    /// Only compare; do not print the decisions.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Also replay a recording of another version; its decisions may differ.
    #[arg(long)]
    pub(crate) any_version: bool,
}
