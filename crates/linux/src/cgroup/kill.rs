//! Kills all processes of a cgroup, also those that are forked meanwhile.
//!
//! v2 has a file for that. On v1 the processes are frozen first, so that a fork bomb stands still while its processes are signalled.
//! SIGKILL takes effect when they are thawed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{CgroupError, CgroupPath, CgroupTree, CgroupVersion, PAUSE_MAX, PAUSE_MIN, PIDS_SHOWN_MAX, descend, read};
use crate::pidfd::PidFd;

pub(super) fn kill_all(tree: &CgroupTree, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    if path.is_root() {
        return Err(CgroupError::BadName("/".into()));
    }
    let deadline = Instant::now() + limit;
    let mut pause = PAUSE_MIN;
    loop {
        let pids = tree.procs(path)?;
        if pids.is_empty() {
            return Ok(());
        }
        if !kill_group(tree, path) {
            // This process must not freeze itself.
            if !pids.contains(&std::process::id()) {
                freeze(tree, path, deadline.min(Instant::now() + FREEZE_LIMIT));
            }
            let frozen = tree.procs(path);
            frozen.as_ref().unwrap_or(&pids).iter().for_each(|&pid| kill_one(pid, path));
            thaw(tree, path);
        }
        if Instant::now() >= deadline {
            let pids = pids.into_iter().take(PIDS_SHOWN_MAX).collect();
            return Err(CgroupError::Busy { path: path.under(&PathBuf::from("/")), pids });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// v2, kernel 5.14 and later: the kernel kills all of them at once, new forks included.
fn kill_group(tree: &CgroupTree, path: &CgroupPath) -> bool {
    tree.version == CgroupVersion::V2
        && tree.hierarchies.iter().all(|h| {
            let file = path.under(&h.root).join("cgroup.kill");
            file.exists() && tree.write(&file, "1").is_ok()
        })
}

/// v1: freezes the cgroup and its descendants, and waits until all have stopped or the time is over.
fn freeze(tree: &CgroupTree, path: &CgroupPath, until: Instant) {
    for hierarchy in tree.hierarchies.iter().filter(|h| h.controllers.contains("freezer")) {
        let file = path.under(&hierarchy.root).join("freezer.state");
        // Without the file there is nothing to freeze. FREEZING until the last one has stopped.
        if !file.exists() || tree.write(&file, "FROZEN").is_err() {
            continue;
        }
        while read(&file).is_ok_and(|state| state.trim() == "FREEZING") && Instant::now() < until {
            std::thread::sleep(PAUSE_MIN);
        }
    }
}

/// SIGKILL has no effect on a process that is frozen by v1.
pub(super) fn thaw(tree: &CgroupTree, path: &CgroupPath) {
    for hierarchy in tree.hierarchies.iter().filter(|h| h.controllers.contains("freezer")) {
        for dir in descend(&path.under(&hierarchy.root)).unwrap_or_default() {
            // A cgroup that was removed meanwhile needs no thawing.
            let file = dir.join("freezer.state");
            if file.exists() {
                let _ = tree.write(&file, "THAWED");
            }
        }
    }
}

/// The pid may have been reused since it was read: open a pidfd, check the cgroup again, and only then kill.
fn kill_one(pid: u32, path: &CgroupPath) {
    let Ok(held) = PidFd::open(pid) else { return };
    if pid == std::process::id() || pid == 1 {
        return;
    }
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let inside = groups.lines().filter_map(|l| l.splitn(3, ':').nth(2)).any(|group| is_within(group, path));
    if inside {
        // Fails if it has exited since, which is fine.
        let _ = held.signal(Signal::KILL);
    }
}

/// The kernel shows a longer path than ours if our tree's root is not the kernel's.
fn is_within(group: &str, path: &CgroupPath) -> bool {
    let path = path.to_string();
    group.match_indices(&path).any(|(at, found)| {
        let rest = &group[at + found.len()..];
        rest.is_empty() || rest.starts_with('/')
    })
}

/// For the freezing of one round. Those that have not stopped by then are signalled all the same.
const FREEZE_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_compares_whole_names() {
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        for inside in ["/kubepods/pod1", "/kubepods/pod1/x", "/outer/kubepods/pod1/x"] {
            assert!(is_within(inside, &path), "{inside}");
        }
        for outside in ["/kubepods/pod12", "/kubepods", "/xkubepods/pod2", "/"] {
            assert!(!is_within(outside, &path), "{outside}");
        }
    }

    #[test]
    fn the_root_is_never_killed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = CgroupTree::plain_v2(dir.path(), &["cpu"]).unwrap();
        let result = kill_all(&tree, &CgroupPath::root(), Duration::ZERO);
        assert!(matches!(result, Err(CgroupError::BadName(_))));
    }
}
