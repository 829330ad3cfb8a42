//! The verbs that change something, or go on for a while.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::ask::SocketFlags;
use crate::config::duration::parse as parse_duration;

/// `podwright apply`
#[derive(Args, Debug)]
pub(crate) struct ApplyFlags {
    /// A file of pods, YAML or JSON; a directory of them; `-` is stdin. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The namespace of pods that name none. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// A pod that can't be changed so is ended and made anew.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Refuse pods with fields that nobody knows or that do nothing here, instead of warning of them.
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
    /// The pods of these files.
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Seconds the pod may take to end, instead of its own.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u32>,
    /// The same as --grace-period=1.
    #[arg(long, conflicts_with_all = ["grace_period", "force"])]
    pub(crate) now: bool,
    /// The same as --grace-period=0: kill at once.
    #[arg(long, conflicts_with = "grace_period")]
    pub(crate) force: bool,
    /// A pod that isn't there is no failure.
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    /// Wait until the pods are gone.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait for each, e.g. 30s; without it, as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright restart`
#[derive(Args, Debug)]
pub(crate) struct RestartFlags {
    /// The pod; static pods may go without the node's name at the end.
    pub(crate) pod: String,
    /// This container only.
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
    /// The pods; static pods may go without the node's name at the end.
    #[arg(value_name = "POD", required_unless_present = "all")]
    pub(crate) pods: Vec<String>,
    /// Every pod of this agent.
    #[arg(long, conflicts_with = "pods")]
    pub(crate) all: bool,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Seconds the pods may take to end, instead of their own.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u32>,
    /// How long to wait for all of them, e.g. 2m; without it, as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright logs`
#[derive(Args, Debug)]
pub(crate) struct LogFlags {
    /// The pod; static pods may go without the node's name at the end.
    pub(crate) pod: String,
    /// The container, if the pod has several.
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Go on until the container ends.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Of the instance before this one.
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Only this many lines from the end.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Only what is younger than this, e.g. 5m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Each line with its time.
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
    /// The pod; static pods may go without the node's name at the end.
    pub(crate) pod: String,
    /// The container; without it, the first one.
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Pass stdin to the command.
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Give the command a terminal.
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
    /// What to wait for: condition=Ready, condition=Ready=false, delete, create, jsonpath='{.status.phase}'=Running.
    #[arg(long = "for", value_name = "WHAT")]
    pub(crate) awaited: Awaited,
    /// How long, for each pod.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// What can be waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The pod is there.
    Create,
    /// The pod is gone.
    Delete,
    /// A condition has a status.
    Condition { kind: String, status: String },
    /// A field is there, and has this value if one is given.
    Field { path: Vec<String>, value: Option<String> },
}

impl FromStr for Awaited {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "delete" => Ok(Self::Delete),
            None if text == "create" => Ok(Self::Create),
            Some(("condition", condition)) if !condition.is_empty() => {
                let (kind, status) = condition.split_once('=').unwrap_or((condition, "true"));
                Ok(Self::Condition { kind: kind.into(), status: status.into() })
            }
            Some(("jsonpath", path)) => field(path),
            _ => Err("write condition=NAME[=STATUS], delete, create, or jsonpath='{.PATH}'[=VALUE]".into()),
        }
    }
}

/// `{.a.b[0].c}`, with a value behind it or not.
fn field(text: &str) -> Result<Awaited, String> {
    let text = text.replace(['\'', '"'], "");
    let (path, rest) = text
        .strip_prefix('{')
        .and_then(|text| text.split_once('}'))
        .ok_or("a path stands in braces: jsonpath='{.status.phase}'=Running")?;
    let value = match rest {
        "" => None,
        rest => Some(rest.strip_prefix('=').ok_or("the value follows after `=`")?.to_owned()),
    };
    let path = path.replace('[', ".").replace(']', "");
    let path: Vec<String> = path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect();
    if path.is_empty() { Err("the path is empty".into()) } else { Ok(Awaited::Field { path, value }) }
}

impl DeleteFlags {
    /// The pods by name: a word that only says that pods follow is none.
    pub(crate) fn names(&self) -> &[String] {
        match self.pods.split_first() {
            Some((kind, rest)) if !rest.is_empty() && ["pod", "pods", "po"].contains(&kind.as_str()) => rest,
            _ => &self.pods,
        }
    }

    /// The grace that was asked for.
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
            /// The one to look in.
            pub(crate) fn namespace(&self) -> &str {
                self.namespace.as_deref().unwrap_or("default")
            }
        })*
    };
}

in_namespace!(DeleteFlags, RestartFlags, StopFlags, LogFlags, ExecFlags, WaitFlags);
