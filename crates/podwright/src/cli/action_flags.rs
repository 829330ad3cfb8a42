//! The flags of the commands that change a pod, or run until they are interrupted.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::query_flags::SocketFlags;
use crate::go_duration::parse as parse_duration;

/// `podwright apply`
#[derive(Args, Debug)]
pub(crate) struct ApplyFlags {
    /// A YAML or JSON file of pods, a directory of such files, or `-` for stdin. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The namespace of pods without one. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Delete and recreate a pod that cannot be updated in place.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only print what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Reject pods with unknown or unsupported fields instead of printing a warning.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright delete`
#[derive(Args, Debug)]
pub(crate) struct DeleteFlags {
    /// The pods: `web`, `pod/web` or `pod web`.
    #[arg(value_name = "POD", required_unless_present = "files")]
    pub(crate) pods: Vec<String>,
    /// Delete the pods defined in this file. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
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
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// Restart only this container.
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright stop`
#[derive(Args, Debug)]
pub(crate) struct StopFlags {
    /// The pods; the node name at the end of a static pod's name may be omitted.
    #[arg(value_name = "POD", required_unless_present = "all")]
    pub(crate) pods: Vec<String>,
    /// Stop all pods of the agent.
    #[arg(long, conflicts_with = "pods")]
    pub(crate) all: bool,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
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
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The container; required if the pod has several.
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Stream the log until the container terminates.
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
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright exec`
#[derive(Args, Debug)]
pub(crate) struct ExecFlags {
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The container. [default: the first container of the pod]
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
    /// The pods: `pod/web` or `web`.
    #[arg(value_name = "POD", required = true)]
    pub(crate) pods: Vec<String>,
    /// The condition to wait for: condition=Ready, condition=Ready=false, delete, create, jsonpath='{.status.phase}'=Running.
    #[arg(long = "for", value_name = "WHAT")]
    pub(crate) condition: WaitCondition,
    /// How long to wait for each pod.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
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
    /// The names of the pods, without a leading resource type as in `delete pod web`.
    pub(crate) fn names(&self) -> &[String] {
        match self.pods.split_first() {
            Some((kind, rest)) if !rest.is_empty() && ["pod", "pods", "po"].contains(&kind.as_str()) => rest,
            _ => &self.pods,
        }
    }

    /// The grace period in seconds; `None`: the pod's own.
    pub(crate) fn grace(&self) -> Option<u32> {
        match (self.force, self.now) {
            (true, _) => Some(0),
            (_, true) => Some(1),
            _ => self.grace_period,
        }
    }
}

macro_rules! in_namespace {
    ($($flags:ident),*) => {
        $(impl $flags {
            /// The namespace, or `default`.
            pub(crate) fn namespace(&self) -> &str {
                self.namespace.as_deref().unwrap_or("default")
            }
        })*
    };
}

in_namespace!(DeleteFlags, RestartFlags, StopFlags, LogFlags, ExecFlags, WaitFlags);
