//! The flags of the commands that show pods and events.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::json_path::{JsonPath, JsonPathError, JsonPathTemplate, parse_columns};
use super::pod_selection::{PodArgumentError, is_other_kind, pod_name};
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
    /// Output format: wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<OutputArgument>,
    /// Do not print the header of the table.
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Add a column with the labels.
    #[arg(long)]
    pub(crate) show_labels: bool,
    /// Sort the list by this field: .metadata.name
    #[arg(long, value_name = "PATH", conflicts_with = "watch")]
    pub(crate) sort_by: Option<JsonPath>,
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
    /// Describe the pods that match this label selector: `app=web,tier!=db`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    pub(crate) selector: Option<String>,
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

/// `podwright status`
#[derive(Args, Debug)]
pub(crate) struct StatusFlags {
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
    /// Print times in UTC instead of the local time zone.
    #[arg(long)]
    pub(crate) utc: bool,
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

/// The argument of `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputArgument {
    Format(Output),
    JsonPath(JsonPathTemplate),
    /// Header and path of each column.
    CustomColumns(Vec<(String, JsonPath)>),
}

/// Why the argument of `-o` is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("must be wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…")]
    Unknown,
    #[error(transparent)]
    Path(#[from] JsonPathError),
}

impl FromStr for OutputArgument {
    type Err = OutputError;

    fn from_str(text: &str) -> Result<Self, OutputError> {
        match text.split_once('=') {
            Some(("jsonpath", template)) => Ok(Self::JsonPath(template.parse()?)),
            Some(("custom-columns", columns)) => Ok(Self::CustomColumns(parse_columns(columns)?)),
            Some(_) => Err(OutputError::Unknown),
            None => Output::from_str(text, false).map(Self::Format).map_err(|_| OutputError::Unknown),
        }
    }
}

impl GetFlags {
    /// The format, if it is neither a JSON path nor custom columns.
    pub(crate) fn format(&self) -> Option<Output> {
        match self.output {
            Some(OutputArgument::Format(output)) => Some(output),
            _ => None,
        }
    }

    /// The names to show; empty: all.
    pub(crate) fn names(&self) -> Result<Vec<&str>, PodArgumentError> {
        let names = self.target.names(&self.names);
        match self.target.kind {
            Resource::Pods => names.into_iter().map(pod_name).collect(),
            Resource::Events => Ok(names),
        }
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
    pub(crate) fn names(&self) -> Result<Vec<&str>, PodArgumentError> {
        self.target.names(&self.names).into_iter().map(pod_name).collect()
    }

    /// The namespace, or `default`.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

impl ExplainFlags {
    /// The pod as NAME or NAMESPACE/NAME. A resource type other than `pod` before the slash is an error.
    pub(crate) fn pod(&self) -> Result<String, PodArgumentError> {
        match (self.pod.split_once('/'), &self.namespace) {
            (Some((kind, _)), _) if is_other_kind(kind) => Err(PodArgumentError::OtherKind { kind: kind.into() }),
            (Some(("pod" | "pods" | "po", name)), Some(namespace)) => Ok(format!("{namespace}/{name}")),
            (Some(("pod" | "pods" | "po", name)), None) => Ok(name.to_owned()),
            (Some(_), _) | (None, None) => Ok(self.pod.clone()),
            (None, Some(namespace)) => Ok(format!("{namespace}/{}", self.pod)),
        }
    }
}
