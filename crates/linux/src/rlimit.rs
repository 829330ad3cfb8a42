//! Resource limits of this process.

// Limits are named by number here, also those that the library does not know.
#![allow(unsafe_code)]

use std::io;

/// A limit in the kernel's unit of that resource; `u64::MAX`: unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// What is enforced.
    pub soft: u64,
    /// How far an unprivileged process may raise the soft limit.
    pub hard: u64,
}

/// `RLIMIT_NOFILE`: open files.
pub const NOFILE: u32 = libc::RLIMIT_NOFILE;

/// Raises this process's own soft limit of open files to its hard limit, but not above a million. Returns the limit before: what
/// the process starts for others gets that one, because programs that use `select` or close every possible file expect a low one.
pub fn raise_open_files() -> io::Result<Rlimit> {
    let before = get(NOFILE)?;
    let soft = before.hard.min(OPEN_FILES_MAX).max(before.soft);
    set(NOFILE, Rlimit { soft, ..before })?;
    Ok(before)
}

/// The limit of a resource, `RLIMIT_*`.
pub fn get(resource: u32) -> io::Result<Rlimit> {
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    prlimit(resource, std::ptr::null(), &raw mut old)?;
    Ok(Rlimit { soft: old.rlim_cur, hard: old.rlim_max })
}

/// Sets a limit. Without `CAP_SYS_RESOURCE` a hard limit cannot be raised: it is then clamped to the present one, and the limit
/// that was set is returned.
pub fn set(resource: u32, limit: Rlimit) -> io::Result<Rlimit> {
    match set_exactly(resource, limit) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            let hard = limit.hard.min(get(resource)?.hard);
            let clamped = Rlimit { soft: limit.soft.min(hard), hard };
            set_exactly(resource, clamped).map(|()| clamped)
        }
        done => done.map(|()| limit),
    }
}

fn set_exactly(resource: u32, limit: Rlimit) -> io::Result<()> {
    let new = libc::rlimit64 { rlim_cur: limit.soft, rlim_max: limit.hard };
    prlimit(resource, &raw const new, std::ptr::null_mut())
}

fn prlimit(resource: u32, new: *const libc::rlimit64, old: *mut libc::rlimit64) -> io::Result<()> {
    // SAFETY: each pointer is null or refers to a structure of the caller that lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, new, old) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a resource by the name of the OCI specification, `RLIMIT_NOFILE`. `None`: unknown.
pub fn number(name: &str) -> Option<u32> {
    let short = name.strip_prefix("RLIMIT_")?;
    NAMES.iter().position(|known| *known == short).and_then(|at| u32::try_from(at).ok())
}

/// The highest limit that a kernel allows unless `fs.nr_open` was raised.
const OPEN_FILES_MAX: u64 = 1 << 20;
/// By number.
const NAMES: [&str; 16] = [
    "CPU",
    "FSIZE",
    "DATA",
    "STACK",
    "CORE",
    "RSS",
    "NPROC",
    "NOFILE",
    "MEMLOCK",
    "AS",
    "LOCKS",
    "SIGPENDING",
    "MSGQUEUE",
    "NICE",
    "RTPRIO",
    "RTTIME",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_and_read_back() {
        let sigpending = number("RLIMIT_SIGPENDING").unwrap();
        assert_eq!(sigpending, libc::RLIMIT_SIGPENDING);
        let before = get(sigpending).unwrap();
        let lower = Rlimit { soft: before.soft - 1, hard: before.hard };
        assert_eq!(set(sigpending, lower).unwrap(), lower);
        assert_eq!(get(sigpending).unwrap(), lower);
        set(sigpending, before).unwrap();
        assert_eq!(number("RLIMIT_LUCK"), None);
    }

    #[test]
    fn a_hard_limit_that_cannot_be_raised_is_clamped() {
        let stack = libc::RLIMIT_SIGPENDING;
        let before = get(stack).unwrap();
        let higher = Rlimit { soft: before.soft, hard: before.hard.saturating_add(1) };
        let now = set(stack, higher).unwrap();
        assert!(now == higher || now == before, "{now:?} {before:?}");
        set(stack, before).unwrap();
    }
}
