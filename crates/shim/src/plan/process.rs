//! The process of a plan: what is executed, as whom, with which rights and limits.

/// A process in a container, init or exec.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessPlan {
    /// Program and arguments. Without a slash the program is searched in the `PATH` of `env`.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`. The launcher adds `HOME` if it is missing.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub env: Vec<Vec<u8>>,
    /// The working directory inside the container; empty: `/`.
    #[prost(string, tag = "3")]
    pub cwd: String,
    /// `None`: no capabilities at all.
    #[prost(message, optional, tag = "4")]
    pub capabilities: Option<Capabilities>,
    /// Limits that are set; all others are those of the shim.
    #[prost(message, repeated, tag = "5")]
    pub rlimits: Vec<ResourceLimit>,
    /// `PR_SET_NO_NEW_PRIVS`.
    #[prost(bool, tag = "6")]
    pub no_new_privileges: bool,
    /// `struct sock_filter[]` as the kernel reads it; empty: no filter.
    #[prost(bytes = "vec", tag = "7")]
    pub seccomp: Vec<u8>,
    /// Flags of `seccomp(2)`, as `SECCOMP_FILTER_FLAG_LOG`.
    #[prost(uint32, tag = "8")]
    pub seccomp_flags: u32,
    /// Standard streams are the slave of a pty, which becomes the controlling terminal.
    #[prost(bool, tag = "9")]
    pub terminal: bool,
    /// The AppArmor profile; empty: unchanged.
    #[prost(string, tag = "10")]
    pub apparmor_profile: String,
    /// The SELinux label of the process; empty: unchanged.
    #[prost(string, tag = "11")]
    pub selinux_label: String,
    /// Size of the pty; 0: unchanged.
    #[prost(uint32, tag = "12")]
    pub terminal_rows: u32,
    /// Size of the pty; 0: unchanged.
    #[prost(uint32, tag = "13")]
    pub terminal_columns: u32,
    /// `None`: 0o022.
    #[prost(uint32, optional, tag = "14")]
    pub umask: Option<u32>,
}

/// The sets of a process as bit masks: bit n is capability number n. Each is intersected with the shim's bounding set.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Capabilities {
    /// What the process and its descendants can ever have.
    #[prost(uint64, tag = "1")]
    pub bounding: u64,
    /// What is in effect.
    #[prost(uint64, tag = "2")]
    pub effective: u64,
    /// What the process may put into effect.
    #[prost(uint64, tag = "3")]
    pub permitted: u64,
    /// What files may add through their inheritable set.
    #[prost(uint64, tag = "4")]
    pub inheritable: u64,
    /// What survives the execution of a plain file without being root.
    #[prost(uint64, tag = "5")]
    pub ambient: u64,
}

/// One resource limit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ResourceLimit {
    /// The kernel's number, `RLIMIT_*`.
    #[prost(uint32, tag = "1")]
    pub resource: u32,
    /// `u64::MAX`: unlimited.
    #[prost(uint64, tag = "2")]
    pub soft: u64,
    /// `u64::MAX`: unlimited.
    #[prost(uint64, tag = "3")]
    pub hard: u64,
}

/// A user that the launcher resolves in `/etc/passwd` and `/etc/group` of the container's root.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UserPlan {
    /// `user[:group]`, each a name or a number, as in an image's configuration; empty: root.
    #[prost(string, tag = "1")]
    pub user: String,
    /// Groups of the pod: always in effect.
    #[prost(uint32, repeated, tag = "2")]
    pub supplemental_groups: Vec<u32>,
    /// Whether groups of `/etc/group` are added.
    #[prost(enumeration = "GroupsPolicy", tag = "3")]
    pub groups_policy: i32,
}

/// A user in numbers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResolvedUser {
    /// Inside the container.
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// Inside the container.
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    /// Supplementary groups.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// For `HOME`; empty: `/`.
    #[prost(string, tag = "4")]
    pub home: String,
}

/// `SupplementalGroupsPolicy` of CRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum GroupsPolicy {
    /// Groups of the plan and those in which `/etc/group` lists the user.
    Merge = 0,
    /// Groups of the plan only.
    Strict = 1,
}
