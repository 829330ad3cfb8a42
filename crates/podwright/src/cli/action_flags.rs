//! The flags of the commands that change a pod, or run until they are interrupted.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::pod_selection::PodSelection;
use super::query_flags::SocketFlags;
use crate::go_duration::parse as parse_duration;

/// `podwright apply`
#[derive(Args, Debug)]
pub(crate) struct ApplyFlags {
    /// A YAML or JSON file of pods, a directory of such files, or `-` for stdin. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The namespace of pods without one; a file with another namespace is refused. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Delete and recreate a pod that cannot be updated in place.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only print what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What to do with a file that has unknown fields, which would be dropped.
    #[arg(long, value_name = "HOW", default_value = "strict")]
    pub(crate) validate: FieldValidation,
    /// Also refuse a file with fields that this agent does not support.
    #[arg(long, conflicts_with = "validate")]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// What `podwright apply` does with unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FieldValidation {
    /// Refuse the file.
    #[value(alias = "true")]
    Strict,
    /// Print a warning, and apply the file without the fields.
    Warn,
    /// Apply the file without the fields, and print nothing about them.
    #[value(alias = "false")]
    Ignore,
}

/// `podwright delete`
#[derive(Args, Debug)]
pub(crate) struct DeleteFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// Delete the pods defined in this file. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["selector", "all"])]
    pub(crate) files: Vec<PathBuf>,
    /// Grace period in seconds, instead of the pod's terminationGracePeriodSeconds.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u32>,
    /// The same as --grace-period=1.
    #[arg(long, conflicts_with_all = ["grace_period", "force"])]
    pub(crate) now: bool,
    /// The same as --grace-period=0: kill immediately.
    #[arg(long, conflicts_with = "grace_period")]
    pub(crate) force: bool,
    /// Do not fail if a pod does not exist.
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    /// Wait until the pods are gone.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait for each pod, e.g. 30s. [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright restart`
#[derive(Args, Debug)]
pub(crate) struct RestartFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// Restart only this container.
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright start`
#[derive(Args, Debug)]
pub(crate) struct StartFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright stop`
#[derive(Args, Debug)]
pub(crate) struct StopFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// Grace period in seconds, instead of the pods' terminationGracePeriodSeconds.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u32>,
    /// How long to wait for all pods together, e.g. 2m. [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright logs`
#[derive(Args, Debug)]
pub(crate) struct LogFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// The container. [default: that of the annotation kubectl.kubernetes.io/default-container, else the first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Print the logs of all containers of each pod, init containers first.
    #[arg(long, conflicts_with = "container")]
    pub(crate) all_containers: bool,
    /// Stream the log until the container terminates, also across a restart of the agent.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the log of the previous instance of the container.
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Number of lines from the end of the log to print.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Only print lines newer than this, e.g. 5m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Print the timestamp of each line.
    #[arg(long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright exec`
#[derive(Args, Debug)]
pub(crate) struct ExecFlags {
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The container. [default: that of the annotation kubectl.kubernetes.io/default-container, else the first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Pass stdin to the command.
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Allocate a terminal for the command.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `podwright wait`
#[derive(Args, Debug)]
pub(crate) struct WaitFlags {
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// The condition to wait for: condition=Ready, condition=Ready=false, delete, create, jsonpath='{.status.phase}'=Running.
    #[arg(long = "for", value_name = "WHAT")]
    pub(crate) condition: WaitCondition,
    /// How long to wait for each pod.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// The argument of `podwright wait --for`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// The pod exists.
    Create,
    /// The pod does not exist.
    Delete,
    /// A condition of the status has this value; both are compared without case.
    Condition { kind: String, status: String },
    /// A field exists, and has this value if one is given.
    Field { path: Vec<String>, value: Option<String> },
}

/// Why the argument of `podwright wait --for` is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WaitConditionError {
    #[error("must be condition=NAME[=STATUS], delete, create, or jsonpath='{{.PATH}}'[=VALUE]")]
    Unknown,
    #[error("a JSON path must be in braces: jsonpath='{{.status.phase}}'=Running")]
    Braces,
    #[error("the value of a JSON path must follow `=`")]
    Value,
    #[error("the JSON path is empty")]
    Empty,
}

impl FromStr for WaitCondition {
    type Err = WaitConditionError;

    fn from_str(text: &str) -> Result<Self, WaitConditionError> {
        match text.split_once('=') {
            None if text == "delete" => Ok(Self::Delete),
            None if text == "create" => Ok(Self::Create),
            Some(("condition", condition)) if !condition.is_empty() => {
                let (kind, status) = condition.split_once('=').unwrap_or((condition, "true"));
                Ok(Self::Condition { kind: kind.into(), status: status.into() })
            }
            Some(("jsonpath", path)) => parse_json_path(path),
            _ => Err(WaitConditionError::Unknown),
        }
    }
}

/// Parses `{.a.b[0].c}` or `{.a.b[0].c}=VALUE`.
fn parse_json_path(text: &str) -> Result<WaitCondition, WaitConditionError> {
    let text = text.replace(['\'', '"'], "");
    let (path, rest) =
        text.strip_prefix('{').and_then(|text| text.split_once('}')).ok_or(WaitConditionError::Braces)?;
    let value = match rest {
        "" => None,
        rest => Some(rest.strip_prefix('=').ok_or(WaitConditionError::Value)?.to_owned()),
    };
    let path = path.replace('[', ".").replace(']', "");
    let path: Vec<String> = path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect();
    if path.is_empty() { Err(WaitConditionError::Empty) } else { Ok(WaitCondition::Field { path, value }) }
}

impl DeleteFlags {
    /// The grace period in seconds; `None`: the pod's own.
    pub(crate) fn grace(&self) -> Option<u32> {
        match (self.force, self.now) {
            (true, _) => Some(0),
            (_, true) => Some(1),
            _ => self.grace_period,
        }
    }
}

impl ExecFlags {
    /// The namespace, or `default`.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}
