//! Resource limits, and the files they are written to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{CgroupError, CgroupPath, CgroupTree, CgroupVersion, gone, read};

/// A limit value, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No limit except that of the parent.
    Max,
    /// At most this.
    At(u64),
}

/// CPU time per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU in each period.
    pub quota: Bound,
    /// At least 1 ms, at most 1 s in the kernel.
    pub period: Duration,
}

/// The limits of a cgroup. `None` leaves a limit unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupResources {
    /// CPU weight relative to siblings, in the unit of v1: 1024 per core.
    pub cpu_shares: Option<u64>,
    /// CPU time per period.
    pub cpu_quota: Option<CpuQuota>,
    /// Bytes of memory.
    pub memory: Option<Bound>,
    /// Number of processes and threads.
    pub pids: Option<Bound>,
    /// Bytes of huge pages by page size, in the form of [`crate::hugepages::size_name`]. Ignored if the hugetlb controller is not
    /// available, as in the Go kubelet.
    pub huge_pages: BTreeMap<String, u64>,
}

/// The v2 weight (1..10000) for v1 shares (2..262144): linear, as in the kubelet (`getCPUWeight`).
pub fn cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(SHARES_MIN, SHARES_MAX) - SHARES_MIN) * 9999 / (SHARES_MAX - SHARES_MIN)
}

pub(super) fn apply(tree: &CgroupTree, path: &CgroupPath, limits: &CgroupResources) -> Result<(), CgroupError> {
    for hierarchy in tree.managed() {
        let dir = path.under(&hierarchy.root);
        match hierarchy.version {
            CgroupVersion::V2 => apply_v2(tree, &dir, limits)?,
            CgroupVersion::V1 => {
                let has = |controller: &str| hierarchy.controllers.contains(controller);
                if has("cpu") {
                    apply_v1_cpu(tree, &dir, limits)?;
                }
                if let (true, Some(memory)) = (has("memory"), limits.memory) {
                    tree.write(&dir.join("memory.limit_in_bytes"), &text(memory, "-1"))?;
                }
                if let (true, Some(pids)) = (has("pids"), limits.pids) {
                    tree.write(&dir.join("pids.max"), &text(pids, "max"))?;
                }
                if has("hugetlb") {
                    apply_huge_pages(tree, &dir, limits, "limit_in_bytes")?;
                }
            }
        }
    }
    missing_v1(tree, path, limits)
}

fn apply_v2(tree: &CgroupTree, dir: &Path, limits: &CgroupResources) -> Result<(), CgroupError> {
    if let Some(shares) = limits.cpu_shares {
        tree.write(&dir.join("cpu.weight"), &cpu_weight(shares).to_string())?;
    }
    if let Some(CpuQuota { quota, period }) = limits.cpu_quota {
        tree.write(&dir.join("cpu.max"), &format!("{} {}", text(quota, "max"), period.as_micros()))?;
    }
    if let Some(memory) = limits.memory {
        tree.write(&dir.join("memory.max"), &text(memory, "max"))?;
    }
    if let Some(pids) = limits.pids {
        tree.write(&dir.join("pids.max"), &text(pids, "max"))?;
    }
    if !limits.huge_pages.is_empty() && is_enabled(dir, "hugetlb") {
        apply_huge_pages(tree, dir, limits, "max")?;
    }
    Ok(())
}

/// Limits usage and reservations: a reservation beyond the usage limit would end in SIGBUS. Old kernels don't limit reservations.
fn apply_huge_pages(tree: &CgroupTree, dir: &Path, limits: &CgroupResources, file: &str) -> Result<(), CgroupError> {
    for (size, bytes) in &limits.huge_pages {
        tree.write(&dir.join(format!("hugetlb.{size}.{file}")), &bytes.to_string())?;
        let reservations = dir.join(format!("hugetlb.{size}.rsvd.{file}"));
        if reservations.exists() {
            tree.write(&reservations, &bytes.to_string())?;
        }
    }
    Ok(())
}

/// Whether the parent of a v2 cgroup enables this controller for it.
fn is_enabled(dir: &Path, controller: &str) -> bool {
    let enabled = dir.parent().and_then(|parent| read(&parent.join("cgroup.subtree_control")).ok());
    enabled.is_some_and(|list| lists(&list, controller))
}

fn apply_v1_cpu(tree: &CgroupTree, dir: &Path, limits: &CgroupResources) -> Result<(), CgroupError> {
    if let Some(shares) = limits.cpu_shares {
        tree.write(&dir.join("cpu.shares"), &shares.clamp(SHARES_MIN, SHARES_MAX).to_string())?;
    }
    let Some(CpuQuota { quota, period }) = limits.cpu_quota else { return Ok(()) };
    let (quota, period) = (text(quota, "-1"), period.as_micros().to_string());
    let (quota_file, period_file) = (dir.join("cpu.cfs_quota_us"), dir.join("cpu.cfs_period_us"));
    // The kernel checks quota/period against the parent at each write, so some changes need the period first and others the quota.
    if tree.write(&period_file, &period).is_ok() {
        return tree.write(&quota_file, &quota);
    }
    tree.write(&quota_file, &quota)?;
    tree.write(&period_file, &period)
}

/// On v1 a limit whose hierarchy is missing would be ignored silently: an error instead.
fn missing_v1(tree: &CgroupTree, path: &CgroupPath, limits: &CgroupResources) -> Result<(), CgroupError> {
    if tree.version != CgroupVersion::V1 {
        return Ok(());
    }
    let wanted = [
        ("cpu", limits.cpu_shares.is_some() || limits.cpu_quota.is_some()),
        ("memory", limits.memory.is_some()),
        ("pids", limits.pids.is_some()),
    ];
    for (controller, wanted) in wanted {
        if wanted && !tree.managed().any(|h| h.controllers.contains(controller)) {
            return Err(CgroupError::MissingController {
                controller: controller.into(),
                path: path.under(Path::new("/")),
            });
        }
    }
    Ok(())
}

/// Enables the controllers of a v2 cgroup for its children. Containers need cpu, memory and pids; the others are optional.
pub(super) fn enable_controllers(tree: &CgroupTree, dir: &Path) -> Result<(), CgroupError> {
    let available = match read(&dir.join("cgroup.controllers")) {
        // Plain files: a child has the controllers that its parent enabled.
        Err(CgroupError::Read { source, .. }) if tree.plain && gone(&source) => {
            let inherited = read(&dir.parent().unwrap_or(dir).join("cgroup.subtree_control"))?;
            inherited.replace('+', "")
        }
        other => other?,
    };
    let enabled = match read(&dir.join("cgroup.subtree_control")) {
        Err(CgroupError::Read { source, .. }) if tree.plain && gone(&source) => String::new(),
        other => other?,
    };
    let mut now_enabled = Vec::new();
    for (controller, needed) in V2_CONTROLLERS {
        if lists(&enabled, controller) {
            now_enabled.push(format!("+{controller}"));
            continue;
        }
        if !lists(&available, controller) {
            if needed {
                return Err(CgroupError::MissingController { controller: controller.into(), path: dir.into() });
            }
            continue;
        }
        now_enabled.push(format!("+{controller}"));
        // One at a time: the failure of one (cpu while real-time threads run, for example) must not affect the others.
        let value = if tree.plain { now_enabled.join(" ") } else { format!("+{controller}") };
        match tree.write(&dir.join("cgroup.subtree_control"), &value) {
            Err(e) if needed => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn lists(controllers: &str, controller: &str) -> bool {
    controllers.split_ascii_whitespace().any(|c| c.trim_start_matches('+') == controller)
}

/// A new v1 cpuset is empty and accepts no process: copy the cpus and memory nodes of its parent.
pub(super) fn inherit_cpuset(tree: &CgroupTree, parent: &Path, dir: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = match read(&dir.join(file)) {
            Err(CgroupError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        if own.trim().is_empty() {
            tree.write(&dir.join(file), read(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

fn text(bound: Bound, max: &str) -> String {
    match bound {
        Bound::Max => max.into(),
        Bound::At(n) => n.to_string(),
    }
}

/// The kernel's own limits (kernel/sched: MIN_SHARES, MAX_SHARES).
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
/// The controllers that a runtime may need in the cgroups of containers, and whether pods require them.
const V2_CONTROLLERS: [(&str, bool); 6] =
    [("cpu", true), ("memory", true), ("pids", true), ("cpuset", false), ("io", false), ("hugetlb", false)];
