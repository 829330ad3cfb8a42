//! Capabilities of this process, as masks: bit n is capability number n.

// prctl and capset have no safe wrappers for numbers that the library does not know.
#![allow(unsafe_code)]

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The number of a capability by its name, `CAP_NET_ADMIN` or `NET_ADMIN`, in any case. `None`: unknown.
pub fn number(name: &str) -> Option<u8> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == short).and_then(|at| u8::try_from(at).ok())
}

/// The bounding set.
pub fn bounding() -> io::Result<u64> {
    let mut set = 0;
    for number in 0..64 {
        match prctl(libc::PR_CAPBSET_READ, number, 0) {
            Ok(0) => {}
            Ok(_) => set |= 1 << number,
            // Past the last one that the kernel knows.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(set)
}

/// Removes everything else from the bounding set.
pub fn limit_bounding(keep: u64) -> io::Result<()> {
    let present = bounding()?;
    for number in (0..64).filter(|number| (present & !keep) >> number & 1 == 1) {
        prctl(libc::PR_CAPBSET_DROP, number, 0)?;
    }
    Ok(())
}

/// Sets the effective, permitted and inheritable sets.
pub fn set(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(effective),
        permitted: CapabilitySet::from_bits_retain(permitted),
        inheritable: CapabilitySet::from_bits_retain(inheritable),
    };
    Ok(set_capabilities(None, sets)?)
}

/// The effective, permitted and inheritable sets.
pub fn current() -> io::Result<(u64, u64, u64)> {
    let sets = capabilities(None)?;
    Ok((sets.effective.bits(), sets.permitted.bits(), sets.inheritable.bits()))
}

/// Replaces the ambient set. Each must be permitted and inheritable.
pub fn set_ambient(set: u64) -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0)?;
    for number in (0..64).filter(|number| set >> number & 1 == 1) {
        prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as u64, number)?;
    }
    Ok(())
}

fn prctl(option: i32, second: u64, third: u64) -> io::Result<i32> {
    // SAFETY: the options above read integers only.
    match unsafe { libc::prctl(option, second, third, 0_u64, 0_u64) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Every capability without `CAP_`, in the kernel's order: the place is the number.
pub const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_the_kernel() {
        assert_eq!(number("CAP_CHOWN"), Some(0));
        assert_eq!(number("net_admin"), Some(12));
        assert_eq!(number("CAP_CHECKPOINT_RESTORE"), Some(40));
        assert_eq!(number("CAP_EVERYTHING"), None);
    }

    #[test]
    fn sets_are_changed_for_the_calling_thread() {
        let status = |key: &str| {
            let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(key).map(str::trim).map(str::to_owned));
            u64::from_str_radix(&line.unwrap(), 16).unwrap()
        };
        std::thread::spawn(move || {
            let whole = bounding().unwrap();
            assert_eq!(status("CapBnd:"), whole);
            limit_bounding(0b1111 & whole).unwrap();
            assert_eq!(status("CapBnd:"), 0b1111 & whole);
            set(0b1, 0b11, 0b11).unwrap();
            set_ambient(0b10).unwrap();
            assert_eq!((status("CapEff:"), status("CapPrm:"), status("CapInh:"), status("CapAmb:")), (1, 3, 3, 2));
            assert_eq!(current().unwrap(), (1, 3, 3));
        })
        .join()
        .unwrap();
    }
}
