//! The agent and the runtime are killed and restarted: no pod is lost, no container restarted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, container_id, cri, one, sh, sleeper};

pub(crate) fn ids(node: &TestNode, names: &[String]) -> Result<BTreeMap<String, String>> {
    names
        .iter()
        .map(|name| {
            let pod = node.phase(name, "Running")?;
            let id = container(&pod, "c")["containerID"].as_str().context("no id")?.to_owned();
            ensure!(container(&pod, "c")["restartCount"] == 0, "{name} restarted");
            Ok((name.clone(), id))
        })
        .collect()
}

/// A small deterministic source of delays.
pub(crate) struct RandomDelays(pub(crate) u64);

impl RandomDelays {
    pub(crate) fn next(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % below)
    }
}

pub(crate) fn killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(flavor: Flavor, times: usize) {
    let mut node = TestNode::configured(flavor, json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "5s"}}));
    let witness = node.scratch.dir("witness").expect("made");
    let running: Vec<String> = (0..18).map(|i| format!("run{i}")).collect();
    for name in &running {
        node.put(name, &one(&sleeper("c")));
    }
    let completed: Vec<String> = (0..5).map(|i| format!("done{i}")).collect();
    for (i, name) in completed.iter().enumerate() {
        let mut spec = one(&sh("c", &format!("exit {i}")));
        spec["restartPolicy"] = json!("Never");
        node.put(name, &spec);
    }
    let crashing: Vec<String> = (0..5).map(|i| format!("crash{i}")).collect();
    for name in &crashing {
        node.put(name, &one(&sh("c", "sleep 1; exit 3")));
    }
    let before = wait_until(LIMIT, "the long-lived pods to run", || ids(&node, &running));
    let ended = |node: &TestNode| -> Result<()> {
        for (i, name) in completed.iter().enumerate() {
            let pod = node.phase(name, if i == 0 { "Succeeded" } else { "Failed" })?;
            let c = container(&pod, "c");
            ensure!(c["state"]["terminated"]["exitCode"] == i && c["restartCount"] == 0, "{name}: {c:#}");
        }
        Ok(())
    };
    wait_until(LIMIT, "the short-lived pods to end", || ended(&node));
    let mut moments = RandomDelays(42);
    let mut crashes = BTreeMap::new();
    for round in 0..times {
        // Some pods start and some terminate while the agent is killed.
        let (new, slow) = (format!("new{round}"), format!("slow{round}"));
        node.put(&new, &one(&sh("c", "trap 'sleep 0.7; exit 0' TERM; while :; do sleep 0.1; done")));
        let mut exits = one(&sh("c", &format!("sleep 1; echo ended >> /w/{slow}; exit 5")));
        exits["restartPolicy"] = json!("Never");
        mount_witness(&mut exits, &witness);
        node.put(&slow, &exits);
        std::thread::sleep(moments.next(700));
        if round > 0 {
            node.remove(&format!("new{}", round - 1));
            std::thread::sleep(moments.next(300));
        }
        node.kill_agent();
        std::thread::sleep(moments.next(500));
        node.agent.start_again().expect("started again");
        no_count_fell(&node, &crashing, &mut crashes);
    }
    for round in 0..times {
        let slow = format!("slow{round}");
        wait_until(LIMIT, &format!("{slow} to end with its code"), || {
            let pod = node.phase(&slow, "Failed")?;
            let c = container(&pod, "c");
            // The runtime stops a container at once when the agent dies during its start, and it is created again; the exit code is the container's.
            ensure!(c["state"]["terminated"]["exitCode"] == 5, "{c:#}");
            Ok(())
        });
        assert_eq!(lines(&witness, &slow), ["ended"], "{slow} runs to its end once");
    }
    assert_eq!(ids(&node, &running).expect("they run"), before, "a running container was touched");
    wait_until(LIMIT, "completed pods to be as they were", || ended(&node));
    no_count_fell(&node, &crashing, &mut crashes);
    for name in &crashing {
        let before = crashes.get(name).copied().unwrap_or_default();
        wait_until(LIMIT, &format!("{name} to crash on after {before} times"), || {
            let pod = node.phase(name, "Running")?;
            let c = container(&pod, "c");
            ensure!(
                c["lastState"]["terminated"]["exitCode"] == 3 && c["restartCount"].as_u64() > Some(before),
                "{c:#}"
            );
            Ok(())
        });
    }
    // containerd loses track of a sandbox or task whose caller died at the wrong moment: no CRI call shows or removes it. It
    // finds them again after a restart, and the agent then removes them.
    if let Ok(containerd) = node.runtime.containerd() {
        containerd.restart().expect("containerd restarts");
    }
    for round in 0..times.saturating_sub(1) {
        wait_until(LIMIT, "deleted pods to be gone", || {
            ensure!(node.pod(&format!("new{round}")).is_err(), "new{round} is still there");
            Ok(())
        });
    }
    node.remove_all();
    node.wait_nothing_left_but(lost_shim);
}

/// The restart counts of the pods never decrease. A pod that is not known yet has none.
fn no_count_fell(node: &TestNode, names: &[String], before: &mut BTreeMap<String, u64>) {
    for name in names {
        let Ok(pod) = node.pod(name) else { continue };
        let Some(now) = container(&pod, "c")["restartCount"].as_u64() else { continue };
        let before = before.entry(name.clone()).or_default();
        assert!(now >= *before, "{name} was restarted {before} times, and now {now} times");
        *before = now;
    }
}

/// Mounts the directory for records into the first container.
pub(crate) fn mount_witness(spec: &mut Value, witness: &Path) {
    spec["containers"][0]["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": witness}}]);
}

pub(crate) fn lines(witness: &Path, name: &str) -> Vec<String> {
    std::fs::read_to_string(witness.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// containerd 1.6 and 2.x sometimes lose the shim of a RunPodSandbox whose caller died, or of a sandbox whose processes were killed from
/// outside: RemovePodSandbox succeeds, and the shim is not visible through the CRI any more.
pub(crate) fn lost_shim(left: &str) -> bool {
    left.starts_with("process ") && left.contains("containerd-shim-runc-v2 -namespace")
}

/// containerd is restarted; the shims of the engine are killed and replaced.
pub(crate) fn restarting_the_runtime_restarts_no_container(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let names: Vec<String> = (0..6).map(|i| format!("p{i}")).collect();
    for name in &names {
        node.put(name, &one(&sleeper("c")));
    }
    let others = Others::begin(&node);
    let before = wait_until(LIMIT, "all to run", || ids(&node, &names));
    for round in 0..2 {
        others.remove(&node, round);
        node.runtime.kill9().expect("killed");
        let used = cpu_ticks(node.agent.pid());
        std::thread::sleep(Duration::from_secs(2));
        let used = cpu_ticks(node.agent.pid()) - used;
        assert!(used < 50, "the agent spins: {used} of 200 ticks while the runtime is away");
        assert_eq!(node.agent.get("/healthz").expect("it answers").status, 200);
        node.runtime.start_again().expect("started again");
    }
    // Later changes are noticed: through the new event stream, or through the list.
    node.put("later", &one(&sleeper("c")));
    node.wait_phase("later", "Running");
    others.verify(&node);
    assert_eq!(ids(&node, &names).expect("they run"), before);
    let log = node.agent.log();
    assert!(log.lines().count() < 5000, "the agent spins: {} lines of log", log.lines().count());
    if flavor != Flavor::Debian16 {
        an_exit_is_noticed_through_the_event_stream(&node, &names);
    }
    node.remove_all();
    node.wait_nothing_left();
}

/// Pods in other states than running while the runtime is killed.
struct Others {
    witness: PathBuf,
    /// The container of the terminated pod.
    done: Value,
    crashes: BTreeMap<String, u64>,
}

impl Others {
    /// One has terminated, one is in a crash loop, one waits for a missing image, one is starting, and two run that
    /// stop slowly. None is in a runtime call, whose partial result the runtime would lose.
    fn begin(node: &TestNode) -> Self {
        let witness = node.scratch.dir("witness").expect("made");
        let mut done = one(&sh("c", "exit 4"));
        done["restartPolicy"] = json!("Never");
        node.put("done", &done);
        node.put("crashes", &one(&sh("c", "exit 3")));
        node.put("pulls", &one(&json!({"name": "c", "image": "localhost:1/none:1"})));
        let mut starts = one(&sleeper("c"));
        let init = sh("i", "echo begun >> /w/starts; until [ -e /w/go ]; do sleep 0.1; done");
        mount_witness(&mut starts, &witness);
        starts["initContainers"] = json!([init]);
        starts["initContainers"][0]["volumeMounts"] = starts["containers"][0]["volumeMounts"].clone();
        node.put("starts", &starts);
        for round in 0..2 {
            let end = format!("sleep 3; echo ended >> /w/ends{round}; exit 0");
            let script = format!("trap '{end}' TERM; echo begun >> /w/ends{round}; while :; do sleep 0.1; done");
            let mut spec = one(&sh("c", &script));
            spec["terminationGracePeriodSeconds"] = json!(60);
            mount_witness(&mut spec, &witness);
            node.put(&format!("ends{round}"), &spec);
        }
        for name in ["starts", "ends0", "ends1"] {
            wait_until(LIMIT, &format!("{name} to begin"), || {
                ensure!(lines(&witness, name) == ["begun"], "not yet");
                Ok(())
            });
        }
        let done = container(&node.wait_phase("done", "Failed"), "c")["containerID"].clone();
        wait_until(LIMIT, "the crash and the pull to be in their back-offs", || {
            for (name, reason) in [("crashes", "CrashLoopBackOff"), ("pulls", "ImagePullBackOff")] {
                let pod = node.pod(name)?;
                ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == reason, "{:#}", pod["status"]);
            }
            Ok(())
        });
        let mut crashes = BTreeMap::new();
        no_count_fell(node, &["crashes".to_owned()], &mut crashes);
        Self { witness, done, crashes }
    }

    /// Removes one of the pods that stop slowly.
    fn remove(&self, node: &TestNode, round: usize) {
        node.remove(&format!("ends{round}"));
        std::thread::sleep(Duration::from_millis(500));
    }

    /// No container was restarted because of the kill, and the removed pod had its grace period.
    fn verify(mut self, node: &TestNode) {
        for name in ["ends0", "ends1"] {
            wait_until(LIMIT, &format!("{name} to be gone"), || {
                ensure!(node.pod(name).is_err(), "{:#}", node.pod(name)?["status"]);
                Ok(())
            });
            assert_eq!(lines(&self.witness, name), ["begun", "ended"], "{name}");
        }
        std::fs::write(self.witness.join("go"), "").expect("written");
        node.wait_phase("starts", "Running");
        assert_eq!(lines(&self.witness, "starts"), ["begun"], "its init container began again");
        let pod = node.phase("done", "Failed").expect("it has ended");
        let c = container(&pod, "c");
        assert_eq!((&c["containerID"], &c["restartCount"]), (&self.done, &json!(0)), "{c:#}");
        assert_eq!(c["state"]["terminated"]["exitCode"], 4, "{c:#}");
        no_count_fell(node, &["crashes".to_owned()], &mut self.crashes);
        wait_until(LIMIT, "the crash to be its own", || {
            let pod = node.phase("crashes", "Running")?;
            ensure!(container(&pod, "c")["lastState"]["terminated"]["exitCode"] == 3, "{:#}", pod["status"]);
            Ok(())
        });
        let pod = node.phase("pulls", "Pending").expect("it waits");
        let c = container(&pod, "c");
        assert_eq!(c["restartCount"], 0, "{c:#}");
        let reason = c["state"]["waiting"]["reason"].as_str().unwrap_or_default();
        assert!(["ErrImagePull", "ImagePullBackOff", "ContainerCreating"].contains(&reason), "{c:#}");
    }
}

/// Processor time in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..=12].iter().map(|n| n.parse::<u64>().expect("a number")).sum()
}

/// The event stream was opened again: the agent notices an exit between two lists.
fn an_exit_is_noticed_through_the_event_stream(node: &TestNode, names: &[String]) {
    let lists = || -> Result<String> {
        let numbers = node.agent.get("/metrics")?.body;
        let line = numbers.lines().find(|l| l.starts_with("kubelet_pleg_relist_duration_seconds_count"));
        Ok(line.context("lists are counted")?.to_owned())
    };
    let found_by_event = names.iter().any(|name| {
        let pod = node.pod(name).expect("known");
        let before = lists().expect("answered");
        cri::kill(node, &container_id(container(&pod, "c")));
        wait_until(LIMIT, &format!("{name} to be restarted"), || {
            let pod = node.phase(name, "Running")?;
            ensure!(container(&pod, "c")["restartCount"] == 1, "{:#}", container(&pod, "c"));
            Ok(())
        });
        // If a list happened to run in between, the check proves nothing: try the next container.
        lists().expect("answered") == before
    });
    assert!(found_by_event, "every end was found by a list");
}
