//! Pods whose cgroup was removed from outside: they restart in a new cgroup, with their limits.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, TestRuntime, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::resources::memory;
use super::restarts::lost_shim;
use super::{LIMIT, TestNode, container, container_id, one, sleeper};

const LIMIT_MI: u64 = 64;

pub(crate) fn a_pod_whose_cgroup_was_removed_restarts_in_a_new_cgroup(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    for (name, policy) in [("killed", "Always"), ("moved", "Always"), ("once", "Never")] {
        let mut spec = one(&sleeper("c"));
        spec["restartPolicy"] = json!(policy);
        spec["containers"][0]["resources"] = json!({"limits": {"cpu": "100m", "memory": format!("{LIMIT_MI}Mi")}});
        node.put(name, &spec);
    }
    let [killed, moved, once] =
        ["killed", "moved", "once"].map(|name| Cgroup::of(&node, &node.wait_phase(name, "Running")));

    // All processes are killed, and the cgroup is removed before the agent observes it.
    node.agent.signal(Signal::STOP).expect("stopped");
    killed.processes().into_iter().for_each(kill);
    killed.remove();
    node.agent.signal(Signal::CONT).expect("goes on");
    wait_until(LIMIT, "the killed pod to be back inside", || is_back_inside(&node, "killed", &killed));

    // The container keeps running, but outside of every limit, when a new agent starts.
    node.agent.kill9().expect("killed");
    for cgroup in [&moved, &once] {
        cgroup.move_out();
        cgroup.remove();
    }
    node.agent.start_again().expect("started again");
    wait_until(LIMIT, "the moved pod to be back inside", || is_back_inside(&node, "moved", &moved));
    let pod = node.wait_phase("once", "Succeeded");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "it never restarts");
    node.remove_all();
    node.wait_nothing_left_but(lost_shim);
}

fn is_back_inside(node: &TestNode, name: &str, cgroup: &Cgroup) -> Result<()> {
    let pod = node.phase(name, "Running")?;
    let c = container(&pod, "c");
    // More than once if the runtime reports the container's exit before its sandbox's: the next container is created in a dead sandbox.
    ensure!(c["state"]["running"].is_object() && c["restartCount"].as_i64() >= Some(1), "{c:#}");
    for group in [cgroup.0.clone(), cgroup.0.join(container_id(c))] {
        let group = group.to_str().context("a path")?;
        ensure!(memory(group) == Some(LIMIT_MI << 20), "{group}: {:?}", memory(group));
    }
    // containerd has a process for the sandbox.
    let expected = if matches!(node.runtime, TestRuntime::Engine(_)) { 1 } else { 2 };
    ensure!(cgroup.processes().len() >= expected, "sandbox and container are not inside: {:?}", cgroup.processes());
    Ok(())
}

/// The cgroup of a pod with the class Guaranteed, relative to each hierarchy.
struct Cgroup(PathBuf);

impl Cgroup {
    fn of(node: &TestNode, pod: &Value) -> Self {
        let uid = pod["metadata"]["uid"].as_str().expect("a uid");
        Self(Path::new(&node.scratch.name()).join("kubepods").join(format!("pod{uid}")))
    }

    /// The directories of the cgroup and all below it, the deepest first, in every hierarchy.
    fn dirs(&self) -> Vec<(PathBuf, PathBuf)> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("there");
        let hierarchies = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|l| l.split(' ').nth(4));
        let of = |top: &str| {
            let dirs = below(&Path::new(top).join(&self.0));
            dirs.into_iter().map(|dir| (PathBuf::from(top), dir)).collect::<Vec<_>>()
        };
        hierarchies.flat_map(of).collect()
    }

    fn processes(&self) -> Vec<i32> {
        let procs = |dir: &Path| fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let all = self.dirs().into_iter().map(|(_, dir)| procs(&dir)).collect::<String>();
        let mut pids: Vec<i32> = all.lines().filter_map(|line| line.parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Moves its processes to the root of each hierarchy.
    fn move_out(&self) {
        for (top, dir) in self.dirs() {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                // The process may have exited meanwhile.
                let _ = fs::write(top.join("cgroup.procs"), pid);
            }
        }
    }

    fn remove(&self) {
        wait_until(Duration::from_secs(20), "the cgroup to be gone", || {
            for (_, dir) in self.dirs() {
                match fs::remove_dir(&dir) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    if !dir.is_dir() {
        return vec![];
    }
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = entries.filter(|path| path.is_dir()).flat_map(|path| below(&path)).collect();
    all.push(dir.to_owned());
    all
}

fn kill(pid: i32) {
    // The process may have exited already.
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
}
