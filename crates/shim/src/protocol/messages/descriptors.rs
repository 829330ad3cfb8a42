//! How descriptors and processes are named in requests and answers.

/// A process during one boot.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProcessIdentity {
    /// On the host.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    /// In clock ticks since boot.
    #[prost(uint64, tag = "2")]
    pub start_time: u64,
    /// The inode of its pidfd: unique per boot on pidfs (6.9), the same for all processes before.
    #[prost(uint64, tag = "3")]
    pub inode: u64,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DescriptorKind {
    /// Network namespace.
    Net = 0,
    /// IPC namespace.
    Ipc = 1,
    /// UTS namespace.
    Uts = 2,
    /// User namespace.
    User = 3,
    /// PID namespace.
    Pid = 4,
    /// Process of a container, exec or pause.
    Pidfd = 5,
    /// The master of a pty.
    Pty = 6,
    /// The agent's end of standard input.
    Stdin = 7,
    /// The agent's end of standard output.
    Stdout = 8,
    /// The agent's end of standard error.
    Stderr = 9,
}
