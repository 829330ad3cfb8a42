//! The file system of a plan: root, mounts, devices, cgroups.

/// The root directory of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RootfsPlan {
    /// An existing directory (or mount) on the host; empty: an overlay of `layers`.
    #[prost(string, tag = "1")]
    pub directory: String,
    /// Layers, upper and work of an overlay.
    #[prost(message, optional, tag = "2")]
    pub layers: Option<OverlayLayers>,
    /// The root is read-only.
    #[prost(bool, tag = "3")]
    pub readonly: bool,
}

/// The directories of an overlay.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OverlayLayers {
    /// Layers, the topmost first, as overlayfs wants them.
    #[prost(string, repeated, tag = "1")]
    pub lower: Vec<String>,
    /// Written to; empty: a read-only overlay.
    #[prost(string, tag = "2")]
    pub upper: String,
    /// On the file system of `upper`.
    #[prost(string, tag = "3")]
    pub work: String,
    /// Use `mount(2)` even if the kernel takes layers one by one (6.7). It is used without this where the kernel does not.
    #[prost(bool, tag = "4")]
    pub by_mount_call: bool,
}

/// One mount of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MountPlan {
    /// What is mounted.
    #[prost(enumeration = "MountKind", tag = "1")]
    pub kind: i32,
    /// Inside the container. Missing parts are made.
    #[prost(string, tag = "2")]
    pub target: String,
    /// `Bind`: file or directory on the host, opened once. Symbolic links in it are followed.
    #[prost(string, tag = "3")]
    pub source: String,
    /// `Bind`: a missing source is made as a directory.
    #[prost(bool, tag = "4")]
    pub make_source: bool,
    /// `Bind`: mounts below the source come with it.
    #[prost(bool, tag = "5")]
    pub recursive: bool,
    /// `MOUNT_ATTR_*` that are set: read-only, nosuid, nodev, noexec, atime.
    #[prost(uint64, tag = "6")]
    pub attributes: u64,
    /// As `attributes`, but for every mount below too (recursive read-only).
    #[prost(uint64, tag = "7")]
    pub recursive_attributes: u64,
    /// `Unset`: private, as in runc.
    #[prost(enumeration = "Propagation", tag = "8")]
    pub propagation: i32,
    /// Options of the file system, `key=value` or `key`: `size=65536k`, `mode=1777`. Not for `Bind`.
    #[prost(string, repeated, tag = "9")]
    pub options: Vec<String>,
    /// `Bind`: ids on disk are those inside the pod's user namespace.
    #[prost(bool, tag = "10")]
    pub idmapped: bool,
    /// `Image`: the layers of an image volume, mounted read-only.
    #[prost(message, optional, tag = "11")]
    pub layers: Option<OverlayLayers>,
    /// `Image`: the part of the image that is mounted; empty: all of it.
    #[prost(string, tag = "12")]
    pub sub_path: String,
}

/// The kinds of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum MountKind {
    /// A file or directory of the host.
    Bind = 0,
    /// A new tmpfs.
    Tmpfs = 1,
    /// The processes of the PID namespace.
    Proc = 2,
    /// The sysfs of the network namespace.
    Sysfs = 3,
    /// The cgroups of the container: v2 a cgroup2, v1 a tmpfs with a directory per hierarchy.
    Cgroup = 4,
    /// The message queues of the IPC namespace.
    Mqueue = 5,
    /// Terminals of the container (`newinstance`).
    Devpts = 6,
    /// A tmpfs with device nodes.
    Dev = 7,
    /// Layers of an image.
    Image = 8,
}

/// How later mounts and unmounts spread between container and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Propagation {
    /// As `Private`.
    Unset = 0,
    /// Not at all.
    Private = 1,
    /// From the host to the container.
    Slave = 2,
    /// Both ways.
    Shared = 3,
}

/// A device node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceNode {
    /// Inside the container, below `/dev`.
    #[prost(string, tag = "1")]
    pub path: String,
    /// On the host: what is bound in a user namespace, where `mknod` is not allowed. Its numbers are verified.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// A block device; otherwise a character device.
    #[prost(bool, tag = "3")]
    pub block: bool,
    /// Major number.
    #[prost(uint32, tag = "4")]
    pub major: u32,
    /// Minor number.
    #[prost(uint32, tag = "5")]
    pub minor: u32,
    /// Permission bits.
    #[prost(uint32, tag = "6")]
    pub mode: u32,
    /// Owner inside the container.
    #[prost(uint32, tag = "7")]
    pub uid: u32,
    /// Group inside the container.
    #[prost(uint32, tag = "8")]
    pub gid: u32,
}

/// One cgroup that a process joins.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CgroupMembership {
    /// The name below `/sys/fs/cgroup`, as `cpu,cpuacct`; empty: the v2 tree.
    #[prost(string, tag = "1")]
    pub hierarchy: String,
    /// The directory of the cgroup on the host.
    #[prost(string, tag = "2")]
    pub directory: String,
}

/// A range of ids of a user namespace.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IdMapping {
    /// The first id inside.
    #[prost(uint32, tag = "1")]
    pub container: u32,
    /// The first id on the host.
    #[prost(uint32, tag = "2")]
    pub host: u32,
    /// How many.
    #[prost(uint32, tag = "3")]
    pub size: u32,
}
