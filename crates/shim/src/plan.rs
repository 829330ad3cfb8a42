//! What the launcher executes: flat messages without anything left to look up on the host.
//!
//! ```text
//!  SetupPlan ──▶ the namespaces of a pod      LaunchPlan ──▶ a container's init      ExecPlan ──▶ a process beside it
//! ```
//! The engine compiles an OCI configuration to one of these and sends it in a sealed memfd. Paths are absolute; those of sources
//! are on the host, those of targets are inside the container. Fields are only added, because a shim may be older or newer than the
//! agent.

mod mounts;
mod process;

pub use mounts::{
    CgroupMembership, DeviceNode, IdMapping, MountKind, MountPlan, OverlayLayers, Propagation, RootfsPlan,
};
pub use process::{Capabilities, GroupsPolicy, ProcessPlan, ResolvedUser, ResourceLimit, UserPlan};

/// How the init of a container is started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LaunchPlan {
    /// For messages and for the name of the directory where the root is attached.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The process. Always present in a valid plan.
    #[prost(message, optional, tag = "2")]
    pub process: Option<ProcessPlan>,
    /// The user as the image or the pod names it; resolved in the files of the root.
    #[prost(message, optional, tag = "3")]
    pub user: Option<UserPlan>,
    /// The root directory. Always present in a valid plan.
    #[prost(message, optional, tag = "4")]
    pub rootfs: Option<RootfsPlan>,
    /// Mounts in the order of the configuration: the last one on a target wins.
    #[prost(message, repeated, tag = "5")]
    pub mounts: Vec<MountPlan>,
    /// Paths that read as empty.
    #[prost(string, repeated, tag = "6")]
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    #[prost(string, repeated, tag = "7")]
    pub readonly_paths: Vec<String>,
    /// Nodes in `/dev` besides the seven that every container has.
    #[prost(message, repeated, tag = "8")]
    pub devices: Vec<DeviceNode>,
    /// The PID namespace of the process.
    #[prost(enumeration = "PidNamespace", tag = "9")]
    pub pid_namespace: i32,
    /// A cgroup namespace of its own (v2).
    #[prost(bool, tag = "10")]
    pub new_cgroup_namespace: bool,
    /// The cgroups that the process joins, one per hierarchy.
    #[prost(message, repeated, tag = "11")]
    pub cgroups: Vec<CgroupMembership>,
    /// Clamped to the value of the shim if the kernel refuses a lower one. `None`: inherited.
    #[prost(sint32, optional, tag = "12")]
    pub oom_score_adj: Option<i32>,
    /// A directory of the run directory, mode 0700, on which the root is attached in the container's mount namespace. It must
    /// exist; it stays empty on the host.
    #[prost(string, tag = "13")]
    pub staging_dir: String,
    /// The ids of the pod's user namespace; empty: none. Must equal the maps of the namespace that is passed with the plan.
    #[prost(message, repeated, tag = "14")]
    pub uid_mappings: Vec<IdMapping>,
    /// As `uid_mappings`, for groups.
    #[prost(message, repeated, tag = "15")]
    pub gid_mappings: Vec<IdMapping>,
    /// The propagation of the container's root mount: `Unset` is `Private`.
    #[prost(enumeration = "Propagation", tag = "16")]
    pub rootfs_propagation: i32,
    /// `personality(2)`; `None`: inherited.
    #[prost(sint32, optional, tag = "17")]
    pub personality: Option<i32>,
    /// The launch fails without a network namespace of the pod; otherwise the process would be in the host's.
    #[prost(bool, tag = "18")]
    pub needs_network: bool,
    /// As `needs_network`, for IPC.
    #[prost(bool, tag = "19")]
    pub needs_ipc: bool,
    /// As `needs_network`, for UTS.
    #[prost(bool, tag = "20")]
    pub needs_uts: bool,
    /// Another OCI runtime makes the container; `None`: the launcher of the shim.
    #[prost(message, optional, tag = "21")]
    pub runtime: Option<ExternalRuntime>,
}

/// Another OCI runtime, such as runc, and where it finds the container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExternalRuntime {
    /// The program.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Where it keeps its state.
    #[prost(string, tag = "2")]
    pub root: String,
    /// The OCI specification; user, root and namespaces are set by the launcher.
    #[prost(string, tag = "3")]
    pub specification: String,
    /// The directory of the bundle, which the launcher makes.
    #[prost(string, tag = "4")]
    pub bundle: String,
}

/// How a process is started in a running container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecPlan {
    /// For messages.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The process. Always present in a valid plan.
    #[prost(message, optional, tag = "2")]
    pub process: Option<ProcessPlan>,
    /// The user of the container, from its record: nothing inside the container is read.
    #[prost(message, optional, tag = "3")]
    pub user: Option<ResolvedUser>,
    /// The cgroups of the container.
    #[prost(message, repeated, tag = "4")]
    pub cgroups: Vec<CgroupMembership>,
    /// As in [`LaunchPlan`].
    #[prost(sint32, optional, tag = "5")]
    pub oom_score_adj: Option<i32>,
    /// The ids of the pod's user namespace; empty: none.
    #[prost(message, repeated, tag = "6")]
    pub uid_mappings: Vec<IdMapping>,
    /// As `uid_mappings`, for groups.
    #[prost(message, repeated, tag = "7")]
    pub gid_mappings: Vec<IdMapping>,
    /// As in [`LaunchPlan`].
    #[prost(sint32, optional, tag = "8")]
    pub personality: Option<i32>,
    /// The runtime that has made the container; `None`: the launcher of the shim.
    #[prost(message, optional, tag = "9")]
    pub runtime: Option<ExternalRuntime>,
}

/// Which namespaces a pod gets, and their settings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetupPlan {
    /// A network namespace of its own; otherwise the host's.
    #[prost(bool, tag = "1")]
    pub new_network: bool,
    /// An IPC namespace of its own; otherwise the host's.
    #[prost(bool, tag = "2")]
    pub new_ipc: bool,
    /// A UTS namespace of its own; otherwise the host's.
    #[prost(bool, tag = "3")]
    pub new_uts: bool,
    /// Set in the new UTS namespace; empty: the host's name is kept.
    #[prost(string, tag = "4")]
    pub hostname: String,
    /// Sysctls of the new namespaces, e.g. `net.ipv4.ip_unprivileged_port_start`. One that belongs to no namespace of the pod is an
    /// error.
    #[prost(message, repeated, tag = "5")]
    pub sysctls: Vec<Sysctl>,
    /// The user namespace's ids; empty: no user namespace.
    #[prost(message, repeated, tag = "6")]
    pub uid_mappings: Vec<IdMapping>,
    /// As `uid_mappings`, for groups.
    #[prost(message, repeated, tag = "7")]
    pub gid_mappings: Vec<IdMapping>,
    /// A PID namespace that the containers share, with a process that is its pid 1.
    #[prost(bool, tag = "8")]
    pub pause: bool,
    /// The cgroups of the pause process.
    #[prost(message, repeated, tag = "9")]
    pub pause_cgroups: Vec<CgroupMembership>,
}

/// One kernel setting of a namespace.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Sysctl {
    /// With dots or slashes: `net.ipv4.ping_group_range`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Written as it is.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The PID namespace of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum PidNamespace {
    /// A new one: the process is its pid 1.
    Own = 0,
    /// The one passed with the plan: the pod's, or that of a target container.
    Joined = 1,
    /// The host's.
    Host = 2,
}
