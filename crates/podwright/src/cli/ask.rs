//! The verbs that ask a running agent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::act::{ApplyFlags, DeleteFlags, ExecFlags, LogFlags, RestartFlags, StopFlags, WaitFlags};
use super::target::{Target, TargetParser};

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    Get(GetFlags),
    Describe(DescribeFlags),
    Events(EventFlags),
    Explain(ExplainFlags),
    Apply(ApplyFlags),
    Delete(DeleteFlags),
    Restart(RestartFlags),
    Stop(StopFlags),
    Logs(LogFlags),
    Exec(ExecFlags),
    Wait(WaitFlags),
}

/// `podwright get`
#[derive(Args, Debug)]
pub(crate) struct GetFlags {
    /// What to show; one may be named at once: pod/web.
    #[arg(value_name = "RESOURCE", value_parser = TargetParser::<Resource>::default())]
    pub(crate) target: Target<Resource>,
    /// Only these; static pods may go without the node's name at the end.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<Output>,
    /// Only pods with these labels: `app=web,tier!=db`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    pub(crate) selector: Option<String>,
    /// Then show every change, until interrupted.
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright describe`
#[derive(Args, Debug)]
pub(crate) struct DescribeFlags {
    /// What to describe; it may be named at once: pod/web.
    #[arg(value_name = "RESOURCE", value_parser = TargetParser::<Describable>::default())]
    target: Target<Describable>,
    /// Its name; static pods may go without the node's name at the end.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright events`
#[derive(Args, Debug)]
pub(crate) struct EventFlags {
    /// Only those of this pod.
    #[arg(long = "for", value_name = "POD")]
    pub(crate) of: Option<String>,
    /// Then show every one that happens, until interrupted.
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright explain`
#[derive(Args, Debug)]
pub(crate) struct ExplainFlags {
    /// The pod, as NAME or NAMESPACE/NAME; static pods may go without the node's name at the end.
    pub(crate) pod: String,
    /// The namespace; without it, pods of that name in every namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// Which namespaces.
#[derive(Args, Debug)]
pub(crate) struct Scope {
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    pub(crate) namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

/// Which agent.
#[derive(Args, Debug)]
pub(crate) struct SocketFlags {
    /// The run directory of the agent to ask.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_RUN_DIR",
        hide_env_values = true,
        default_value = "/run/podwright"
    )]
    pub(crate) run_dir: PathBuf,
}

/// What there is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resource {
    /// The pods on this machine.
    #[value(aliases = ["pod", "po"])]
    Pods,
    /// What happened to them.
    #[value(aliases = ["event", "ev"])]
    Events,
}

/// What there is to describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Describable {
    /// A pod.
    #[value(aliases = ["pods", "po"])]
    Pod,
}

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with more columns.
    Wide,
    /// The API's object.
    Json,
    /// The API's object.
    Yaml,
    /// `pod/NAME`, one a line.
    Name,
}

impl GetFlags {
    /// Those that are asked for; none: all.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.target.names(&self.names)
    }
}

impl Scope {
    /// `None`: all.
    pub(crate) fn namespace(&self) -> Option<&str> {
        (!self.all_namespaces).then(|| self.namespace.as_deref().unwrap_or("default"))
    }
}

impl DescribeFlags {
    /// Those that are asked for.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.target.names(&self.names)
    }

    /// The one to look in.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}
