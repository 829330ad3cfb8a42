//! Where the kernel is spoken to: cgroups, mounts, opens that cannot escape, pidfds, clocks.
//!
//! Everything here is synchronous and may block in the kernel: callers run it where a hung file system costs only
//! themselves. Unsafe code is allowed in this crate alone, module by module: so far in [`memory`]; for all else the safe
//! wrappers of `rustix` were enough.

pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod hugepages;
pub mod memory;
pub mod mount;
pub mod mountinfo;
pub mod pidfd;
