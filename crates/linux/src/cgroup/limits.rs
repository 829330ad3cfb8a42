//! Limits, and the files they are written to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{CgroupError, CgroupPath, CgroupTree, Version, gone, read};

/// An upper bound, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// As much as the parent allows.
    Max,
    /// At most this.
    At(u64),
}

/// CPU time per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU in each period.
    pub quota: Bound,
    /// The period.
    pub period: Duration,
}

/// What a group may use. What is `None` is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Its weight against its neighbours, in v1's unit: 1024 is one core's worth.
    pub cpu_shares: Option<u64>,
    /// Its share of the clock.
    pub cpu_quota: Option<CpuQuota>,
    /// Bytes of memory.
    pub memory: Option<Bound>,
    /// Processes and threads.
    pub pids: Option<Bound>,
    /// Bytes of huge pages, by the page's size as [`crate::hugepages::spelled`] writes it. Left out where the kernel does not
    /// control them, as the Go kubelet does: there is nothing to hold them with.
    pub huge_pages: BTreeMap<String, u64>,
}

/// The v2 weight (1..10000) for v1 shares (2..262144): the straight line the kubelet draws (`getCPUWeight`).
pub fn cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(SHARES_MIN, SHARES_MAX) - SHARES_MIN) * 9999 / (SHARES_MAX - SHARES_MIN)
}

pub(super) fn apply(tree: &CgroupTree, path: &CgroupPath, limits: &Limits) -> Result<(), CgroupError> {
    for hierarchy in tree.made() {
        let dir = path.under(&hierarchy.root);
        match hierarchy.version {
            Version::V2 => apply_v2(tree, &dir, limits)?,
            Version::V1 => {
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

fn apply_v2(tree: &CgroupTree, dir: &Path, limits: &Limits) -> Result<(), CgroupError> {
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
    if !limits.huge_pages.is_empty() && handed_down(dir, "hugetlb") {
        apply_huge_pages(tree, dir, limits, "max")?;
    }
    Ok(())
}

/// What may be used, and what may be promised: a promise that can't be kept would end in SIGBUS. Old kernels know no promises.
fn apply_huge_pages(tree: &CgroupTree, dir: &Path, limits: &Limits, file: &str) -> Result<(), CgroupError> {
    for (size, bytes) in &limits.huge_pages {
        tree.write(&dir.join(format!("hugetlb.{size}.{file}")), &bytes.to_string())?;
        let promised = dir.join(format!("hugetlb.{size}.rsvd.{file}"));
        if promised.exists() {
            tree.write(&promised, &bytes.to_string())?;
        }
    }
    Ok(())
}

/// The parent of a v2 group lets it control this.
fn handed_down(dir: &Path, controller: &str) -> bool {
    let handed = dir.parent().and_then(|parent| read(&parent.join("cgroup.subtree_control")).ok());
    handed.is_some_and(|list| lists(&list, controller))
}

fn apply_v1_cpu(tree: &CgroupTree, dir: &Path, limits: &Limits) -> Result<(), CgroupError> {
    if let Some(shares) = limits.cpu_shares {
        tree.write(&dir.join("cpu.shares"), &shares.clamp(SHARES_MIN, SHARES_MAX).to_string())?;
    }
    let Some(CpuQuota { quota, period }) = limits.cpu_quota else { return Ok(()) };
    let (quota, period) = (text(quota, "-1"), period.as_micros().to_string());
    let (quota_file, period_file) = (dir.join("cpu.cfs_quota_us"), dir.join("cpu.cfs_period_us"));
    // The kernel checks quota/period against the parent at each write, so for some changes the one has to go first and for
    // some the other.
    if tree.write(&period_file, &period).is_ok() {
        return tree.write(&quota_file, &quota);
    }
    tree.write(&quota_file, &quota)?;
    tree.write(&period_file, &period)
}

/// On v1 a limit without its hierarchy would be dropped in silence.
fn missing_v1(tree: &CgroupTree, path: &CgroupPath, limits: &Limits) -> Result<(), CgroupError> {
    if tree.version != Version::V1 {
        return Ok(());
    }
    let wanted = [
        ("cpu", limits.cpu_shares.is_some() || limits.cpu_quota.is_some()),
        ("memory", limits.memory.is_some()),
        ("pids", limits.pids.is_some()),
    ];
    for (controller, wanted) in wanted {
        if wanted && !tree.made().any(|h| h.controllers.contains(controller)) {
            return Err(CgroupError::MissingController {
                controller: controller.into(),
                path: path.under(Path::new("/")),
            });
        }
    }
    Ok(())
}

/// Hands the controllers of a v2 group on to its children. Containers need cpu, memory and pids; the rest is welcome.
pub(super) fn enable_controllers(tree: &CgroupTree, dir: &Path) -> Result<(), CgroupError> {
    let available = match read(&dir.join("cgroup.controllers")) {
        // Plain files: a child has what its parent handed on.
        Err(CgroupError::Read { source, .. }) if tree.plain && gone(&source) => {
            let handed = read(&dir.parent().unwrap_or(dir).join("cgroup.subtree_control"))?;
            handed.replace('+', "")
        }
        other => other?,
    };
    let enabled = match read(&dir.join("cgroup.subtree_control")) {
        Err(CgroupError::Read { source, .. }) if tree.plain && gone(&source) => String::new(),
        other => other?,
    };
    let mut handed_on = Vec::new();
    for (controller, needed) in V2_CONTROLLERS {
        if lists(&enabled, controller) {
            handed_on.push(format!("+{controller}"));
            continue;
        }
        if !lists(&available, controller) {
            if needed {
                return Err(CgroupError::MissingController { controller: controller.into(), path: dir.into() });
            }
            continue;
        }
        handed_on.push(format!("+{controller}"));
        // One at a time: a refusal (cpu while real-time threads run, say) must not take the others with it.
        let value = if tree.plain { handed_on.join(" ") } else { format!("+{controller}") };
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

/// A new v1 cpuset is empty and lets no process in: it gets its parent's processors and memory nodes.
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
/// What a runtime may want in the groups of its containers, and whether pods need it.
const V2_CONTROLLERS: [(&str, bool); 6] =
    [("cpu", true), ("memory", true), ("pids", true), ("cpuset", false), ("io", false), ("hugetlb", false)];
