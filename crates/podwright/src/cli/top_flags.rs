//! The flags of `podwright top`.

use clap::{Args, ValueEnum};

use super::pod_selection::{PodArgumentError, pod_name};
use super::query_flags::{Scope, SocketFlags};
use super::target::{Target, TargetParser};

/// `podwright top`
#[derive(Args, Debug)]
pub(crate) struct TopFlags {
    /// The resource type, or one object as TYPE/NAME: pod/web.
    #[arg(value_name = "RESOURCE", value_parser = TargetParser::<MeasuredResource>::default())]
    pub(crate) target: Target<MeasuredResource>,
    /// Only show the pods of these names; the node name at the end of a static pod's name may be omitted.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Show the containers of each pod.
    #[arg(long)]
    pub(crate) containers: bool,
    /// Only show pods that match this label selector: `app=web,tier!=db`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    pub(crate) selector: Option<String>,
    /// Show the largest first. [default: by name]
    #[arg(long, value_name = "WHAT")]
    pub(crate) sort_by: Option<TopOrder>,
    /// Add a line with the sum.
    #[arg(long)]
    pub(crate) sum: bool,
    /// Do not print the header of the table.
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// The resource types of `podwright top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasuredResource {
    /// Pods and their containers.
    #[value(aliases = ["pods", "po"])]
    Pod,
    /// This host.
    #[value(aliases = ["nodes", "no"])]
    Node,
}

/// The order of `podwright top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopOrder {
    Cpu,
    Memory,
}

impl TopFlags {
    /// The names to show; empty: all.
    pub(crate) fn names(&self) -> Result<Vec<&str>, PodArgumentError> {
        let names = self.target.names(&self.names);
        match self.target.kind {
            MeasuredResource::Pod if !names.is_empty() && self.scope.all_namespaces => {
                Err(PodArgumentError::NameInAllNamespaces)
            }
            MeasuredResource::Pod => names.into_iter().map(pod_name).collect(),
            MeasuredResource::Node => Ok(names),
        }
    }
}
