//! Finds what pods left behind.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::engine_bed::SHIM_CGROUP;
use crate::host_state;
use crate::node_runtime::NodeRuntime;
use crate::scratch::Scratch;

/// Cgroups of the agent itself: they belong to no pod.
const OWN_CGROUPS: [&str; 4] = ["kubepods", "kubepods/burstable", "kubepods/besteffort", SHIM_CGROUP];

/// Everything of pods that remains in this instance, one line each, sorted: mounts, cgroups, processes, network namespaces,
/// addresses, port maps, pod directories, logs and their links, containers and sandboxes.
pub fn leftovers(scratch: &Scratch, runtime: &impl NodeRuntime) -> Result<Vec<String>> {
    let (path, name) = (scratch.path(), scratch.name());
    let mut found: Vec<String> = Vec::new();
    let mut add = |kind: &str, what: &str| found.push(format!("{kind} {what}"));

    // An agent may bind-mount its root directory onto itself, to share mounts: that belongs to no pod.
    let root_dirs = [path.join("root"), path.join("kubelet")];
    let mounts = host_state::mounts_below(&path).into_iter().filter(|at| !root_dirs.contains(at));
    mounts.for_each(|at| add("mount", &at.display().to_string()));
    for hierarchy in host_state::hierarchies() {
        for dir in host_state::cgroups_below_in(&hierarchy, &name) {
            let relative = dir.strip_prefix(hierarchy.join(&name)).unwrap_or(&dir);
            if !OWN_CGROUPS.iter().any(|kept| relative == Path::new(kept)) {
                add("cgroup", &dir.display().to_string());
            }
        }
    }
    let shims = host_state::processes_of(&format!("{name}/{SHIM_CGROUP}"));
    // containerd 2.1 takes a shim that answers late for dead (`get state: context deadline exceeded`, `cleaning up dead shim`), stops and
    // removes its sandbox with success, and leaves its process. No call of the CRI ends that; a pod that is left has its processes, or
    // is among the runtime's objects.
    let lost = host_state::idle_shims_of(&path);
    host_state::container_processes(&name, &path)
        .iter()
        // The engine lists those that belong to a pod.
        .filter(|pid| !shims.contains(pid) && !lost.contains(pid))
        .for_each(|pid| add("process", &format!("{pid} {}", command(*pid))));
    host_state::nat_rules(&name)
        .iter()
        .for_each(|(chain, rule)| add("port map", &format!("{chain} {}", rule.join(" "))));
    host_state::cni_results(&name).iter().for_each(|file| add("cni result", &file.display().to_string()));
    host_state::log_links_into(&path).iter().for_each(|link| add("log link", &link.display().to_string()));
    for (kind, dir) in [
        ("netns", path.join("containerd/state/io.containerd.grpc.v1.cri/netns")),
        ("netns", path.join("containerd/state/netns")),
        ("address", path.join("containerd/ipam").join(&name)),
        ("pod directory", path.join("root/pods")),
        ("pod directory", path.join("kubelet/pods")),
        ("pod log", path.join("logs/pods")),
        ("log link", path.join("logs/containers")),
    ] {
        entries(&dir).iter().filter(|entry| !is_ipam_bookkeeping(entry)).for_each(|entry| add(kind, entry));
    }
    found.extend(runtime.objects()?);
    found.sort();
    Ok(found)
}

/// The command line of a process.
fn command(pid: impl std::fmt::Display) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
}

/// The cursor and the lock of host-local stay.
fn is_ipam_bookkeeping(entry: &str) -> bool {
    entry == "lock" || entry.starts_with("last_reserved_ip")
}

fn entries(dir: &Path) -> Vec<String> {
    let listed = fs::read_dir(dir).into_iter().flatten().flatten();
    listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
