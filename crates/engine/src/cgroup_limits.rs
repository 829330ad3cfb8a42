//! Limits of containers: from the CRI to the files of their cgroups. Zero means "not set" there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_cri::v1;
use podwright_linux::cgroup::{Bound, CgroupError, CgroupPath, CgroupResources, CgroupTree, CgroupVersion, CpuQuota};

/// A limit that could not be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("write {value:?} to {}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    #[error("{name:?} is not a cgroup file")]
    Unified { name: String },
}

/// Makes the cgroup of a container with its limits, before anything runs in it.
pub(crate) fn create(
    tree: &CgroupTree,
    path: &CgroupPath,
    asked: &v1::LinuxContainerResources,
) -> Result<(), LimitError> {
    tree.create(path, &CgroupResources::default())?;
    apply(tree, path, asked)
}

/// Changes the limits of an existing cgroup. Those that are not given stay; if one can not be set, all are as before.
pub(crate) fn update(
    tree: &CgroupTree,
    path: &CgroupPath,
    asked: &v1::LinuxContainerResources,
) -> Result<(), LimitError> {
    let before = saved(tree, path, asked);
    let applied = apply(tree, path, asked);
    if applied.is_err() {
        restore(&before);
    }
    applied
}

fn apply(tree: &CgroupTree, path: &CgroupPath, asked: &v1::LinuxContainerResources) -> Result<(), LimitError> {
    cpuset(tree, path, asked)?;
    let swap = swap_file(tree, path, asked);
    // The kernel demands memory ≤ memory and swap at each write: the growing one goes first.
    let grows = swap.as_ref().is_some_and(|(file, value)| reads_below(file, value));
    if let Some((file, value)) = swap.as_ref().filter(|_| grows) {
        write(file, value)?;
    }
    tree.apply(path, &resources(asked))?;
    if let Some((file, value)) = swap.as_ref().filter(|_| !grows) {
        write(file, value)?;
    }
    unified(tree, path, asked)
}

/// The file that counts OOM kills of a container; empty: there is none.
pub(crate) fn oom_file(tree: &CgroupTree, path: &CgroupPath) -> String {
    let file = match tree.version() {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events.local",
    };
    let file = tree.directory_of("memory", path).map(|dir| dir.join(file)).filter(|file| file.exists());
    file.map(|file| file.to_string_lossy().into_owned()).unwrap_or_default()
}

fn resources(asked: &v1::LinuxContainerResources) -> CgroupResources {
    let given = |value: i64| u64::try_from(value).ok().filter(|value| *value != 0);
    let bound = |value: i64| match value {
        0 => None,
        value => Some(u64::try_from(value).map_or(Bound::Max, Bound::At)),
    };
    let period = given(asked.cpu_period).map_or(PERIOD, Duration::from_micros);
    let pages = asked.hugepage_limits.iter().map(|limit| (limit.page_size.clone(), limit.limit));
    CgroupResources {
        cpu_shares: given(asked.cpu_shares),
        cpu_quota: bound(asked.cpu_quota).map(|quota| CpuQuota { quota, period }),
        memory: bound(asked.memory_limit_in_bytes),
        pids: None,
        huge_pages: pages.collect(),
    }
}

fn cpuset(tree: &CgroupTree, path: &CgroupPath, asked: &v1::LinuxContainerResources) -> Result<(), LimitError> {
    let Some(dir) = tree.directory_of("cpuset", path) else { return Ok(()) };
    for (file, value) in [("cpuset.cpus", &asked.cpuset_cpus), ("cpuset.mems", &asked.cpuset_mems)] {
        if !value.is_empty() {
            write(&dir.join(file), value)?;
        }
    }
    Ok(())
}

/// As containerd: a memory limit without a swap limit also forbids swap. `None` where swap can not be limited.
fn swap_file(tree: &CgroupTree, path: &CgroupPath, asked: &v1::LinuxContainerResources) -> Option<(PathBuf, String)> {
    let (memory, swap) = (asked.memory_limit_in_bytes, asked.memory_swap_limit_in_bytes);
    let total = if swap == 0 { memory } else { swap };
    if total == 0 {
        return None;
    }
    let dir = tree.directory_of("memory", path)?;
    let (file, value) = match tree.version() {
        CgroupVersion::V1 => ("memory.memsw.limit_in_bytes", if total < 0 { -1 } else { total }.to_string()),
        CgroupVersion::V2 if total < 0 => ("memory.swap.max", "max".to_owned()),
        CgroupVersion::V2 => ("memory.swap.max", total.saturating_sub(memory).max(0).to_string()),
    };
    let file = dir.join(file);
    file.exists().then_some((file, value))
}

/// The present value is lower than this one.
fn reads_below(file: &Path, value: &str) -> bool {
    let number = |text: &str| match text.trim() {
        "max" | "-1" => u64::MAX,
        text => text.parse().unwrap_or(u64::MAX),
    };
    fs::read_to_string(file).is_ok_and(|present| number(&present) < number(value))
}

/// Files of v2 by their names, written last.
fn unified(tree: &CgroupTree, path: &CgroupPath, asked: &v1::LinuxContainerResources) -> Result<(), LimitError> {
    if tree.version() == CgroupVersion::V1 {
        return Ok(());
    }
    let Some(dir) = tree.directory_of("", path) else { return Ok(()) };
    for (name, value) in &asked.unified {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(LimitError::Unified { name: name.clone() });
        }
        write(&dir.join(name), value)?;
    }
    Ok(())
}

/// What the files hold that [`apply`] may write.
fn saved(tree: &CgroupTree, path: &CgroupPath, asked: &v1::LinuxContainerResources) -> Vec<(PathBuf, String)> {
    let fixed = FILES.iter().map(|(controller, file)| (*controller, (*file).to_owned()));
    let pages = asked.hugepage_limits.iter().flat_map(|limit| {
        let size = &limit.page_size;
        let names = ["limit_in_bytes", "rsvd.limit_in_bytes", "max", "rsvd.max"];
        names.map(|name| ("hugetlb", format!("hugetlb.{size}.{name}")))
    });
    let is_v2 = tree.version() == CgroupVersion::V2;
    let unified = asked.unified.keys().filter(|name| is_v2 && !name.contains('/')).map(|name| ("", name.clone()));
    let files = fixed.chain(pages).chain(unified).filter_map(|(controller, name)| {
        let file = tree.directory_of(controller, path)?.join(name);
        let value = fs::read_to_string(&file).ok()?;
        Some((file, value))
    });
    files.collect()
}

/// Writes back what has changed. The kernel compares some limits with each other at each write (memory with memory and swap, quota with
/// period), so that one may be accepted only after another. A file of several lines, as `io.max`, gets those back that it had.
fn restore(before: &[(PathBuf, String)]) {
    let differs = |(file, value): &&(PathBuf, String)| fs::read_to_string(file).is_ok_and(|now| now != *value);
    for _ in 0..RESTORE_ROUNDS {
        for (file, value) in before.iter().rev().filter(differs) {
            value.lines().for_each(|line| _ = write(file, &format!("{line}\n")));
        }
    }
    for (file, value) in before.iter().filter(differs) {
        tracing::warn!(path = %file.display(), note = value.trim(), "limit of a container not restored");
    }
}

fn write(path: &Path, value: &str) -> Result<(), LimitError> {
    let file = fs::OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|source| LimitError::Write { path: path.to_owned(), value: value.to_owned(), source })
}

/// By controller: the files of both versions of cgroups. Those that do not exist are not saved.
const FILES: [(&str, &str); 11] = [
    ("cpuset", "cpuset.cpus"),
    ("cpuset", "cpuset.mems"),
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.weight"),
    ("cpu", "cpu.max"),
    ("memory", "memory.limit_in_bytes"),
    ("memory", "memory.memsw.limit_in_bytes"),
    ("memory", "memory.max"),
    ("memory", "memory.swap.max"),
];
/// Two limits that depend on each other need two.
const RESTORE_ROUNDS: u32 = 2;
/// The kernel's default.
const PERIOD: Duration = Duration::from_millis(100);
