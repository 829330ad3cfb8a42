//! What the engine needs of its process and of the kernel, and what containers would inherit from the process.

use podwright_linux::caps;
use podwright_linux::cgroup::{CgroupPath, CgroupTree, CgroupVersion};
use podwright_linux::features::{self, KernelFeatures};

use super::EngineError;

/// Probes the kernel. Warns about what containers inherit and cannot get rid of.
pub(super) fn check() -> Result<KernelFeatures, EngineError> {
    let (effective, _, _) = caps::current().map_err(|e| EngineError::Host("the capabilities of this process", e))?;
    let missing = missing_capabilities(effective);
    // First: a kernel answers a process without them as if it lacked features.
    if !missing.is_empty() {
        return Err(EngineError::Privileges(missing));
    }
    let features = features::probe().map_err(|e| EngineError::Host("the features of the kernel", e))?;
    if !features.missing.is_empty() {
        return Err(EngineError::Kernel(features.missing));
    }
    if features.root_is_initramfs {
        return Err(EngineError::Initramfs);
    }
    let status = std::fs::read_to_string(STATUS).map_err(|e| EngineError::Host(STATUS, e))?;
    for (setting, effect) in restrictions(&status) {
        tracing::warn!(
            setting,
            reason = effect,
            "containers inherit a restriction of the agent; start it without this setting"
        );
    }
    Ok(features)
}

/// What containers in cgroups of v2 need besides; v1 has a slower way to kill a group. The cgroup is one that was made here.
pub(super) fn check_cgroup(tree: &CgroupTree, path: &CgroupPath) -> Result<(), EngineError> {
    let dir = tree.directory_of("", path).filter(|_| tree.version() == CgroupVersion::V2);
    let Some(dir) = dir else { return Ok(()) };
    let missing = features::missing_in_cgroup(&dir).map_err(|e| EngineError::Host("the features of cgroups", e))?;
    if missing.is_empty() { Ok(()) } else { Err(EngineError::Kernel(missing)) }
}

fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |name: &str| caps::number(name).is_some_and(|number| effective >> number & 1 == 1);
    NEEDED.into_iter().filter(|name| !has(name)).collect()
}

/// What every container inherits, by the setting of a systemd unit that causes it, with its effect.
fn restrictions(status: &str) -> Vec<(&'static str, &'static str)> {
    let set = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        value.is_some_and(|value| value != "0")
    };
    let mut found = vec![];
    if set("NoNewPrivs:") {
        found.push(("NoNewPrivileges", "set-user-ID programs in containers get no privileges"));
    }
    if set("Seccomp:") {
        found.push(("SystemCallFilter", "a filter of system calls of the agent applies to all containers"));
    }
    found
}

const STATUS: &str = "/proc/thread-self/status";
/// Those without which no container starts. Others are missing in containers only: each gets what the agent has of them.
const NEEDED: [&str; 10] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_ADMIN",
    "CAP_SYS_ADMIN",
    "CAP_MKNOD",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing_capabilities(u64::MAX), Vec::<&str>::new());
        assert_eq!(missing_capabilities(!(1 << 21) & !(1 << 12)), ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]);
        assert_eq!(missing_capabilities(0).len(), NEEDED.len());
    }

    #[test]
    fn settings_of_a_unit_that_reach_containers_are_recognised() {
        let names = |status: &str| restrictions(status).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"), Vec::<&str>::new());
        assert_eq!(
            names("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t9\n"),
            ["NoNewPrivileges", "SystemCallFilter"]
        );
    }
}
