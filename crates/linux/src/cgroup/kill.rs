//! Killing all processes of a group, also those that fork while we look.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{CgroupError, CgroupPath, CgroupTree, PAUSE_MAX, PAUSE_MIN, PIDS_TOLD_MAX, Version, descend};
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
            thaw(tree, path);
            pids.iter().for_each(|&pid| kill_one(pid, path));
        }
        if Instant::now() >= deadline {
            let pids = pids.into_iter().take(PIDS_TOLD_MAX).collect();
            return Err(CgroupError::Busy { path: path.under(&PathBuf::from("/")), pids });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// v2, kernel 5.14 and later: the kernel kills all of them in one go, new forks included.
fn kill_group(tree: &CgroupTree, path: &CgroupPath) -> bool {
    tree.version == Version::V2
        && tree.hierarchies.iter().all(|h| {
            let file = path.under(&h.root).join("cgroup.kill");
            file.exists() && tree.write(&file, "1").is_ok()
        })
}

/// A process frozen by v1 doesn't even die.
fn thaw(tree: &CgroupTree, path: &CgroupPath) {
    for hierarchy in tree.hierarchies.iter().filter(|h| h.controllers.contains("freezer")) {
        for dir in descend(&path.under(&hierarchy.root)).unwrap_or_default() {
            // A group that goes away meanwhile needs no thawing.
            let _ = tree.write(&dir.join("freezer.state"), "THAWED");
        }
    }
}

/// The pid was read a moment ago and may be someone else's by now: hold it, look again where it is, and only then kill.
fn kill_one(pid: u32, path: &CgroupPath) {
    let Ok(held) = PidFd::open(pid) else { return };
    if pid == std::process::id() || pid == 1 {
        return;
    }
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let inside = groups.lines().filter_map(|l| l.splitn(3, ':').nth(2)).any(|group| is_within(group, path));
    if inside {
        // It may have exited since, which is what we want.
        let _ = held.signal(Signal::KILL);
    }
}

/// The kernel may show a longer path than ours, when our tree's root is not the kernel's.
fn is_within(group: &str, path: &CgroupPath) -> bool {
    let path = path.to_string();
    group.match_indices(&path).any(|(at, found)| {
        let rest = &group[at + found.len()..];
        rest.is_empty() || rest.starts_with('/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_is_by_whole_names() {
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
