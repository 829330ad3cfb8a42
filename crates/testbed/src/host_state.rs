//! The state of an instance on the host, and its removal: processes, mounts, cgroups, links, NAT rules.
//!
//! Everything is found by the instance's names (its directory, its cgroup root, its network), never by the name of a program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::cache::Cache;
use crate::command::run;

/// Mount points below `dir`, deepest and latest first.
pub(crate) fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mount_points(&table).filter(|at| at.starts_with(dir) && at != dir).collect::<Vec<_>>().into_iter().rev().collect()
}

/// Unmounts all of them, detached: a hung or busy one must not block the rest.
pub(crate) fn unmount_below(dir: &Path) {
    for at in mounts_below(dir) {
        if let Err(error) = unmount(&at, UnmountFlags::DETACH) {
            eprintln!("testbed: unmount {}: {error}", at.display());
        }
    }
}

/// The mounted cgroup hierarchies: every v1 controller, and v2.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| mount_points(line).next()).collect()
}

/// Creates the cgroup in every hierarchy, usable as a parent.
pub(crate) fn make_cgroup(name: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let dir = hierarchy.join(name);
        fs::create_dir_all(&dir)?;
        // A v1 cpuset without cpus and memory nodes accepts no process.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(hierarchy.join(file)) {
                fs::write(dir.join(file), value)?;
            }
        }
        if let Ok(controllers) = fs::read_to_string(dir.join("cgroup.controllers")) {
            for controller in controllers.split_whitespace() {
                // Some can't be delegated here; tests that need them fail with a clear message.
                let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
    Ok(())
}

/// The cgroups below `name` in one hierarchy, deepest first, without `name` itself.
pub(crate) fn cgroups_below_in(hierarchy: &Path, name: &str) -> Vec<PathBuf> {
    directories_below(&hierarchy.join(name))
}

/// Removes the cgroup and all below it; their processes must have exited.
pub(crate) fn remove_cgroup(name: &str) {
    for hierarchy in hierarchies() {
        let top = hierarchy.join(name);
        if !top.exists() {
            continue;
        }
        for dir in directories_below(&top).into_iter().chain([top]) {
            // A cgroup stays busy for a moment after its last process has exited.
            let removed = (0..100).any(|_| match fs::remove_dir(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    sleep(Duration::from_millis(20));
                    false
                }
                _ => true,
            });
            if !removed {
                eprintln!("testbed: {} stays busy", dir.display());
            }
        }
    }
}

/// Kills the processes in the instance's cgroups, its shims (their arguments contain its socket), and all descendants.
pub(crate) fn kill_containers(cgroup: &str, dir: &Path) {
    for _ in 0..50 {
        let pids = container_processes(cgroup, dir);
        if pids.is_empty() {
            return;
        }
        pids.into_iter().for_each(kill9);
        sleep(Duration::from_millis(20));
    }
    eprintln!("testbed: processes of {cgroup} still run after SIGKILL: {:?}", container_processes(cgroup, dir));
}

/// The running processes of the instance's containers and their shims.
pub(crate) fn container_processes(cgroup: &str, dir: &Path) -> Vec<u32> {
    let mut found: BTreeSet<u32> = BTreeSet::new();
    for group in hierarchies().iter().map(|hierarchy| hierarchy.join(cgroup)) {
        for dir in directories_below(&group).into_iter().chain([group]) {
            let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
    }
    let parents: BTreeMap<u32, u32> = pids().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    found.extend(parents.keys().filter(|pid| is_shim_of(**pid, dir)));
    loop {
        let before = found.len();
        let children: Vec<u32> =
            parents.iter().filter(|(_, parent)| found.contains(parent)).map(|(child, _)| *child).collect();
        found.extend(children);
        if found.len() == before {
            break;
        }
    }
    found.into_iter().filter(|pid| *pid > 1 && *pid != std::process::id() && alive(*pid)).collect()
}

/// The running processes of one cgroup, without those below it.
pub(crate) fn processes_of(cgroup: &str) -> Vec<u32> {
    let procs = hierarchies().into_iter().map(|hierarchy| hierarchy.join(cgroup).join("cgroup.procs"));
    let pids: BTreeSet<u32> = procs
        .flat_map(|file| fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| line.parse().ok())
        .collect();
    pids.into_iter().filter(|pid| alive(*pid)).collect()
}

/// The shim of one pod, and not the zygote it was forked from: shims are named after their pod.
pub(crate) fn is_pod_shim(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("shim:"))
}

/// The running shims of a containerd below this directory.
pub(crate) fn shims_of(dir: &Path) -> Vec<u32> {
    pids().into_iter().filter(|pid| is_shim_of(*pid, dir)).collect()
}

/// Those of them without a child process: they serve no container.
pub(crate) fn idle_shims_of(dir: &Path) -> Vec<u32> {
    let parents: BTreeSet<u32> = pids().into_iter().filter_map(parent).collect();
    shims_of(dir).into_iter().filter(|pid| !parents.contains(pid)).collect()
}

/// SIGKILL by pid; an exited process is no error.
pub(crate) fn kill9(pid: u32) {
    let _ = send_signal(pid, Signal::KILL);
}

/// A signal by pid; an exited process is no error.
pub(crate) fn send_signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid fits")?;
    match kill_process(pid, signal) {
        Err(Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

/// SIGKILL, then wait up to 2 s for the exit: its open files are only released then.
pub(crate) fn kill9_and_wait(pid: u32) {
    kill9(pid);
    for _ in 0..200 {
        if !alive(pid) {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    eprintln!("testbed: process {pid} still runs after SIGKILL");
}

/// The kernel's start time of a process: together with the pid it identifies a process uniquely.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// Deletes a network link if it exists.
pub(crate) fn delete_link(name: &str) {
    if Path::new("/sys/class/net").join(name).exists()
        && let Ok(busybox) = Cache::find().debian("busybox")
        && let Err(error) = run(Command::new(busybox).args(["ip", "link", "delete", name]))
    {
        eprintln!("testbed: delete link {name}: {error:#}");
    }
}

/// Port-map rules of the network, as `(chain, specification)`.
pub(crate) fn nat_rules(network: &str) -> Vec<(String, Vec<String>)> {
    let Some(saved) = iptables(&["-t", "nat", "-S"]) else { return Vec::new() };
    let mark = format!("\"{network}\\\"");
    saved.lines().filter(|line| line.starts_with("-A ") && line.contains(&mark)).filter_map(split_rule).collect()
}

/// Removes the network's port-map rules and the chains that only they used.
pub(crate) fn delete_nat_rules(network: &str) {
    for (chain, rule) in nat_rules(network) {
        let mut arguments = vec!["-t", "nat", "-D", chain.as_str()];
        arguments.extend(rule.iter().map(String::as_str));
        iptables(&arguments);
        if let Some(target) = rule.iter().position(|argument| argument == "-j").and_then(|at| rule.get(at + 1))
            && target.starts_with("CNI-DN-")
        {
            iptables(&["-t", "nat", "-F", target]);
            iptables(&["-t", "nat", "-X", target]);
        }
    }
}

/// Removes the chains of the portmap plugin if no map is left in them: it creates them again when it needs them.
pub(crate) fn delete_empty_nat_chains() {
    let Some(saved) = iptables(&["-t", "nat", "-S"]) else { return };
    if !saved.contains("-N CNI-HOSTPORT-DNAT") || saved.contains("-A CNI-HOSTPORT-DNAT") {
        return;
    }
    let jumps = |line: &&str| line.starts_with("-A ") && line.contains("-j CNI-HOSTPORT-");
    for (chain, rule) in saved.lines().filter(jumps).filter_map(split_rule) {
        let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
        iptables(&[&["-t", "nat", "-D", chain.as_str()], rule.as_slice()].concat());
    }
    for chain in ["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"] {
        iptables(&["-t", "nat", "-F", chain]);
        iptables(&["-t", "nat", "-X", chain]);
    }
}

/// The cached CNI results of the network's attachments, in the one directory that all networks of a host share.
pub(crate) fn cni_results(network: &str) -> Vec<PathBuf> {
    let prefix = format!("{network}-");
    entries("/var/lib/cni/results")
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect()
}

/// Links in the host's `/var/log/containers` that point into `dir`: the Go kubelet has no setting for another directory.
pub(crate) fn log_links_into(dir: &Path) -> Vec<PathBuf> {
    entries("/var/log/containers").filter(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(dir))).collect()
}

fn entries(dir: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn iptables(arguments: &[&str]) -> Option<String> {
    let program = Cache::find().debian("iptables").ok()?;
    run(Command::new(program).arg("-w").args(arguments)).ok()
}

/// `-A CHAIN a "b c"` → the chain and its arguments, quotes resolved.
fn split_rule(line: &str) -> Option<(String, Vec<String>)> {
    let mut arguments = vec![String::new()];
    let (mut quoted, mut letters) = (false, line.strip_prefix("-A ")?.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => arguments.last_mut()?.extend(letters.next()),
            '"' => quoted = !quoted,
            ' ' if !quoted => arguments.push(String::new()),
            _ => arguments.last_mut()?.push(letter),
        }
    }
    let chain = arguments.remove(0);
    Some((chain, arguments))
}

/// The fifth field of each line, with the kernel's octal escapes resolved.
fn mount_points(table: &str) -> impl Iterator<Item = PathBuf> {
    table.lines().filter_map(|line| {
        let field = line.split(' ').nth(4)?;
        Some(PathBuf::from(field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")))
    })
}

/// Every directory below `top`, deepest first, without `top`.
fn directories_below(top: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(top) else { return Vec::new() };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.flat_map(|entry| {
        let mut below = directories_below(&entry.path());
        below.push(entry.path());
        below
    })
    .collect()
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The fields of `/proc/PID/stat` after the name, which may itself hold spaces: state first.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

fn alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| !matches!(fields.first().map(String::as_str), Some("Z" | "X") | None))
}

fn is_shim_of(pid: u32, dir: &Path) -> bool {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    arguments.next().is_some_and(|program| program.contains("containerd-shim"))
        && arguments.any(|argument| Path::new(argument.as_ref()).starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        let table = "36 35 98:0 / /tmp/a\\040b rw - ext4 /dev/x rw\n37 36 0:2 / /sys rw - sysfs s rw\n";
        assert_eq!(mount_points(table).collect::<Vec<_>>(), ["/tmp/a b", "/sys"].map(PathBuf::from));
    }

    #[test]
    fn quoted_arguments_of_a_rule_are_kept() {
        let line = r#"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pw1\" id: \"x\"" -j CNI-DN-1"#;
        let (chain, arguments) = split_rule(line).expect("a rule");
        assert_eq!(chain, "CNI-HOSTPORT-DNAT");
        assert_eq!(arguments[5], r#"dnat name: "pw1" id: "x""#);
        assert_eq!(arguments.last().map(String::as_str), Some("CNI-DN-1"));
    }

    #[test]
    fn this_process_is_alive_and_has_a_start_time() {
        assert!(alive(std::process::id()));
        assert!(start_time(std::process::id()).is_some());
        assert!(start_time(u32::MAX).is_none());
    }
}
