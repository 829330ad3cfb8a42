//! Kernel interfaces: cgroups, mounts, confined opens (`openat2`), pidfds, clocks, and what a launcher of containers needs: clones,
//! namespaces, capabilities, seccomp programs, terminals.
//!
//! Everything here is synchronous and may block in the kernel: callers run it on threads where a hung file system blocks only
//! themselves. Unsafe code is allowed per module, where `rustix` has no safe wrapper.

pub mod beneath;
pub mod caps;
pub mod cgroup;
pub mod clock;
pub mod exit_info;
pub mod features;
pub mod fsctx;
pub mod hugepages;
pub mod keyring;
pub mod lock_file;
pub mod memory;
pub mod memory_events;
pub mod mount;
pub mod mountinfo;
pub mod namespace;
pub mod pidfd;
pub mod pty;
pub mod rlimit;
pub mod scm;
pub mod seccomp_bpf;
