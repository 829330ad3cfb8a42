//! The agent, the runtime and the machine die under the pods: nothing is lost, nothing is touched.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{Bed, LIMIT, container, one, sh, sleeper};

fn ids(bed: &Bed, names: &[String]) -> Result<BTreeMap<String, String>> {
    names
        .iter()
        .map(|name| {
            let pod = bed.phase(name, "Running")?;
            let id = container(&pod, "c")["containerID"].as_str().context("no id")?.to_owned();
            ensure!(container(&pod, "c")["restartCount"] == 0, "{name} restarted");
            Ok((name.clone(), id))
        })
        .collect()
}

/// A small deterministic source of moments.
struct Moments(u64);

impl Moments {
    fn next(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % below)
    }
}

pub(crate) fn kill_9_at_random_moments_loses_nothing_and_restarts_nothing(flavor: Flavor, times: usize) {
    let mut bed = Bed::start(flavor);
    let running: Vec<String> = (0..18).map(|i| format!("run{i}")).collect();
    for name in &running {
        bed.put(name, &one(&sleeper("c")));
    }
    let completed: Vec<String> = (0..5).map(|i| format!("done{i}")).collect();
    for (i, name) in completed.iter().enumerate() {
        let mut spec = one(&sh("c", &format!("exit {i}")));
        spec["restartPolicy"] = json!("Never");
        bed.put(name, &spec);
    }
    let crashing: Vec<String> = (0..5).map(|i| format!("crash{i}")).collect();
    for name in &crashing {
        bed.put(name, &one(&sh("c", "sleep 1; exit 3")));
    }
    let before = wait_until(LIMIT, "the long-lived pods to run", || ids(&bed, &running));
    let ended = |bed: &Bed| -> Result<()> {
        for (i, name) in completed.iter().enumerate() {
            let pod = bed.phase(name, if i == 0 { "Succeeded" } else { "Failed" })?;
            let c = container(&pod, "c");
            ensure!(c["state"]["terminated"]["exitCode"] == i && c["restartCount"] == 0, "{name}: {c:#}");
        }
        Ok(())
    };
    wait_until(LIMIT, "the short-lived pods to end", || ended(&bed));
    let mut moments = Moments(42);
    for round in 0..times {
        // Some pods start and some end while the agent dies.
        let (new, slow) = (format!("new{round}"), format!("slow{round}"));
        bed.put(&new, &one(&sh("c", "trap 'sleep 0.7; exit 0' TERM; while :; do sleep 0.1; done")));
        let mut exits = one(&sh("c", "sleep 1; exit 5"));
        exits["restartPolicy"] = json!("Never");
        bed.put(&slow, &exits);
        std::thread::sleep(moments.next(700));
        if round > 0 {
            bed.remove(&format!("new{}", round - 1));
            std::thread::sleep(moments.next(300));
        }
        bed.agent.kill9().expect("killed");
        std::thread::sleep(moments.next(500));
        bed.agent.start_again().expect("started again");
    }
    for round in 0..times {
        let slow = format!("slow{round}");
        wait_until(LIMIT, &format!("{slow} to end with its code"), || {
            let pod = bed.phase(&slow, "Failed")?;
            let c = container(&pod, "c");
            // A start that the agent's death cut off never ran, and is made anew; the code is the container's own.
            ensure!(c["state"]["terminated"]["exitCode"] == 5, "{c:#}");
            Ok(())
        });
    }
    assert_eq!(ids(&bed, &running).expect("they run"), before, "a running container was touched");
    wait_until(LIMIT, "completed pods to be as they were", || ended(&bed));
    for name in &crashing {
        wait_until(LIMIT, &format!("{name} to show how it ended"), || {
            let pod = bed.phase(name, "Running")?;
            let c = container(&pod, "c");
            ensure!(c["lastState"]["terminated"]["exitCode"] == 3 && c["restartCount"].as_i64() >= Some(1), "{c:#}");
            Ok(())
        });
    }
    // containerd 2.x loses sight of a sandbox or task whose caller died at the wrong moment: no call of the CRI shows or removes
    // it. It finds them, and the agent then removes them, when it starts anew.
    bed.containerd.restart().expect("containerd restarts");
    for round in 0..times.saturating_sub(1) {
        wait_until(LIMIT, "deleted pods to be gone", || {
            ensure!(bed.pod(&format!("new{round}")).is_err(), "new{round} is still there");
            Ok(())
        });
    }
    let manifests = std::fs::read_dir(bed.scratch.manifests().expect("there")).expect("there");
    for entry in manifests.flatten() {
        std::fs::remove_file(entry.path()).expect("removed");
    }
    bed.wait_nothing_left_but(lost_shim);
}

/// containerd 2.x sometimes loses the shim of a RunPodSandbox whose caller died, or of a sandbox whose processes someone else
/// killed: RemovePodSandbox says that it is done, and nobody can see the shim through the CRI any more.
pub(crate) fn lost_shim(left: &str) -> bool {
    left.starts_with("process ") && left.contains("containerd-shim-runc-v2 -namespace")
}

pub(crate) fn containerd_killed_and_restarted_under_the_pods_restarts_none(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let names: Vec<String> = (0..6).map(|i| format!("p{i}")).collect();
    for name in &names {
        bed.put(name, &one(&sleeper("c")));
    }
    let before = wait_until(LIMIT, "all to run", || ids(&bed, &names));
    for _ in 0..2 {
        bed.containerd.kill9().expect("killed");
        let used = cpu_ticks(bed.agent.pid());
        std::thread::sleep(Duration::from_secs(2));
        let used = cpu_ticks(bed.agent.pid()) - used;
        assert!(used < 50, "the agent spins: {used} of 200 ticks while the runtime is away");
        assert_eq!(bed.agent.get("/healthz").expect("it answers").status, 200);
        bed.containerd.start_again().expect("started again");
    }
    // What comes after works: the stream was taken up again, or the list sees it.
    bed.put("later", &one(&sleeper("c")));
    bed.wait_phase("later", "Running");
    assert_eq!(ids(&bed, &names).expect("they run"), before);
    let log = bed.agent.log();
    assert!(log.lines().count() < 5000, "the agent spins: {} lines of log", log.lines().count());
    if flavor == Flavor::V2 {
        an_end_is_told_and_not_only_listed(&bed, &names);
    }
    for name in names.iter().map(String::as_str).chain(["later"]) {
        bed.remove(name);
    }
    bed.wait_nothing_left();
}

/// Processor time in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..=12].iter().map(|n| n.parse::<u64>().expect("a number")).sum()
}

/// The event stream was taken up again: the agent learns of an end between two lists.
fn an_end_is_told_and_not_only_listed(bed: &Bed, names: &[String]) {
    let lists = || -> Result<String> {
        let numbers = bed.agent.get("/metrics")?.body;
        let line = numbers.lines().find(|l| l.starts_with("kubelet_pleg_relist_duration_seconds_count"));
        Ok(line.context("lists are counted")?.to_owned())
    };
    let told = names.iter().any(|name| {
        let pod = bed.pod(name).expect("known");
        let id = container(&pod, "c")["containerID"].as_str().expect("an id").replace("containerd://", "");
        let before = lists().expect("answered");
        bed.containerd.ctr(&["tasks", "kill", "-s", "KILL", &id]).expect("killed");
        wait_until(LIMIT, &format!("{name} to be restarted"), || {
            let pod = bed.phase(name, "Running")?;
            ensure!(container(&pod, "c")["restartCount"] == 1, "{:#}", container(&pod, "c"));
            Ok(())
        });
        // A list that happened to come in between says nothing: the next one is tried.
        lists().expect("answered") == before
    });
    assert!(told, "every end was found by a list");
}

pub(crate) fn after_a_reboot_pods_come_back_as_their_policy_says(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let with = |policy: &str, init: Value, c: Value| json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "initContainers": init, "containers": [c]});
    bed.put("always", &with("Always", json!([sh("i", "true")]), sleeper("c")));
    bed.put("onfailure", &with("OnFailure", json!([]), sleeper("c")));
    bed.put("never", &with("Never", json!([]), sleeper("c")));
    bed.put("completed", &with("Never", json!([]), sh("c", "exit 0")));
    bed.put("succeeded", &with("OnFailure", json!([]), sh("c", "exit 0")));
    for name in ["always", "onfailure", "never"] {
        bed.wait_phase(name, "Running");
    }
    bed.wait_phase("completed", "Succeeded");
    bed.wait_phase("succeeded", "Succeeded");
    bed.agent.kill9().expect("killed");
    bed.containerd.power_cut().expect("cut");
    bed.containerd.start_again().expect("started again");
    bed.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    bed.agent.start_again().expect("started again");
    for name in ["always", "onfailure"] {
        wait_until(LIMIT, &format!("{name} to come back"), || {
            let pod = bed.phase(name, "Running")?;
            ensure!(container(&pod, "c")["state"]["running"].is_object(), "{:#}", pod["status"]);
            ensure!(container(&pod, "c")["restartCount"] == 1, "{:#}", container(&pod, "c"));
            Ok(())
        });
    }
    let always = bed.pod("always").expect("known");
    assert_eq!(container(&always, "i")["state"]["terminated"]["exitCode"], 0, "init ran again");
    assert_eq!(container(&always, "i")["restartCount"], 1, "init ran again");
    bed.wait_phase("never", "Failed");
    for name in ["completed", "succeeded"] {
        let pod = bed.wait_phase(name, "Succeeded");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{name} ran again");
    }
    for name in ["always", "onfailure", "never", "completed", "succeeded"] {
        bed.remove(name);
    }
    bed.wait_nothing_left();
}
