//! The flags of the commands that show pods and events.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::target::{Target, TargetParser};

/// `podwright get`
#[derive(Args, Debug)]
pub(crate) struct GetFlags {
    /// The resource type, or one object as TYPE/NAME: pod/web.
    #[arg(value_name = "RESOURCE", value_parser = TargetParser::<Resource>::default())]
    pub(crate) target: Target<Resource>,
    /// Only show objects of these names; the node name at the end of a static pod's name may be omitted.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<Output>,
    /// Only show pods that match this label selector: `app=web,tier!=db`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    pub(crate) selector: Option<String>,
    /// After the list, show every change until interrupted.
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
    /// The resource type, or one object as TYPE/NAME: pod/web.
    #[arg(value_name = "RESOURCE", value_parser = TargetParser::<Describable>::default())]
    target: Target<Describable>,
    /// Name of the pod; the node name at the end of a static pod's name may be omitted.
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
    /// Only show events of this pod.
    #[arg(long = "for", value_name = "POD")]
    pub(crate) of: Option<String>,
    /// After the list, show new events until interrupted.
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
    /// The pod, as NAME or NAMESPACE/NAME; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The namespace. [default: all namespaces]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// The namespaces to list.
#[derive(Args, Debug)]
pub(crate) struct Scope {
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    pub(crate) namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

/// How to reach the agent.
#[derive(Args, Debug)]
pub(crate) struct SocketFlags {
    /// The --run-dir of the agent.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_RUN_DIR",
        hide_env_values = true,
        default_value = "/run/podwright"
    )]
    pub(crate) run_dir: PathBuf,
}

/// The resource types of `podwright get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resource {
    /// Pods of this node.
    #[value(aliases = ["pod", "po"])]
    Pods,
    /// Events of pods.
    #[value(aliases = ["event", "ev"])]
    Events,
}

/// The resource types of `podwright describe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Describable {
    /// A pod.
    #[value(aliases = ["pods", "po"])]
    Pod,
}

/// Output formats of `podwright get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with additional columns.
    Wide,
    /// The API object as JSON.
    Json,
    /// The API object as YAML.
    Yaml,
    /// `pod/NAME`, one per line.
    Name,
}

impl GetFlags {
    /// The names to show; empty: all.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.target.names(&self.names)
    }
}

impl Scope {
    /// The namespace; `None`: all namespaces.
    pub(crate) fn namespace(&self) -> Option<&str> {
        (!self.all_namespaces).then(|| self.namespace.as_deref().unwrap_or("default"))
    }
}

impl DescribeFlags {
    /// The names of the pods to describe.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.target.names(&self.names)
    }

    /// The namespace, or `default`.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}
