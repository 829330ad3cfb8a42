//! Kernel interfaces: cgroups, mounts, confined opens (`openat2`), pidfds, clocks.
//!
//! Everything here is synchronous and may block in the kernel: callers run it on threads where a hung file system blocks only
//! themselves. Unsafe code is allowed in this crate alone, per module: so far in [`memory`]; elsewhere the safe wrappers of
//! `rustix` suffice.

pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod hugepages;
pub mod memory;
pub mod mount;
pub mod mountinfo;
pub mod pidfd;
