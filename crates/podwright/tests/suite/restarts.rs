//! The agent, the runtime and the machine die under the pods: nothing is lost, nothing is touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
    let mut bed = Bed::configured(flavor, json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "5s"}}));
    let witness = bed.scratch.dir("witness").expect("made");
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
    let mut crashes = BTreeMap::new();
    for round in 0..times {
        // Some pods start and some end while the agent dies.
        let (new, slow) = (format!("new{round}"), format!("slow{round}"));
        bed.put(&new, &one(&sh("c", "trap 'sleep 0.7; exit 0' TERM; while :; do sleep 0.1; done")));
        let mut exits = one(&sh("c", &format!("sleep 1; echo ended >> /w/{slow}; exit 5")));
        exits["restartPolicy"] = json!("Never");
        shown(&mut exits, &witness);
        bed.put(&slow, &exits);
        std::thread::sleep(moments.next(700));
        if round > 0 {
            bed.remove(&format!("new{}", round - 1));
            std::thread::sleep(moments.next(300));
        }
        bed.agent.kill9().expect("killed");
        std::thread::sleep(moments.next(500));
        bed.agent.start_again().expect("started again");
        no_count_fell(&bed, &crashing, &mut crashes);
    }
    for round in 0..times {
        let slow = format!("slow{round}");
        wait_until(LIMIT, &format!("{slow} to end with its code"), || {
            let pod = bed.phase(&slow, "Failed")?;
            let c = container(&pod, "c");
            // The runtime ends at once what it starts for an agent that dies, and it is made anew; the code is the container's own.
            ensure!(c["state"]["terminated"]["exitCode"] == 5, "{c:#}");
            Ok(())
        });
        assert_eq!(lines(&witness, &slow), ["ended"], "{slow} runs to its end once");
    }
    assert_eq!(ids(&bed, &running).expect("they run"), before, "a running container was touched");
    wait_until(LIMIT, "completed pods to be as they were", || ended(&bed));
    no_count_fell(&bed, &crashing, &mut crashes);
    for name in &crashing {
        let before = crashes.get(name).copied().unwrap_or_default();
        wait_until(LIMIT, &format!("{name} to crash on after {before} times"), || {
            let pod = bed.phase(name, "Running")?;
            let c = container(&pod, "c");
            ensure!(
                c["lastState"]["terminated"]["exitCode"] == 3 && c["restartCount"].as_u64() > Some(before),
                "{c:#}"
            );
            Ok(())
        });
    }
    // containerd loses sight of a sandbox or task whose caller died at the wrong moment: no call of the CRI shows or removes it. It
    // finds them, and the agent then removes them, when it starts anew.
    bed.containerd.restart().expect("containerd restarts");
    for round in 0..times.saturating_sub(1) {
        wait_until(LIMIT, "deleted pods to be gone", || {
            ensure!(bed.pod(&format!("new{round}")).is_err(), "new{round} is still there");
            Ok(())
        });
    }
    bed.remove_all();
    bed.wait_nothing_left_but(lost_shim);
}

/// How often the pods have been restarted: never less than before, whoever is asked. One that is not yet known says nothing.
fn no_count_fell(bed: &Bed, names: &[String], before: &mut BTreeMap<String, u64>) {
    for name in names {
        let Ok(pod) = bed.pod(name) else { continue };
        let Some(now) = container(&pod, "c")["restartCount"].as_u64() else { continue };
        let before = before.entry(name.clone()).or_default();
        assert!(now >= *before, "{name} was restarted {before} times, and now {now} times");
        *before = now;
    }
}

/// The directory of witnesses, for the first container.
fn shown(spec: &mut Value, witness: &Path) {
    spec["containers"][0]["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": witness}}]);
}

fn lines(witness: &Path, name: &str) -> Vec<String> {
    std::fs::read_to_string(witness.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// containerd, 1.6 and 2.x, sometimes loses the shim of a RunPodSandbox whose caller died, or of a sandbox whose processes someone else
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
    let others = Others::begin(&bed);
    let before = wait_until(LIMIT, "all to run", || ids(&bed, &names));
    for round in 0..2 {
        others.remove(&bed, round);
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
    others.are_well(&bed);
    assert_eq!(ids(&bed, &names).expect("they run"), before);
    let log = bed.agent.log();
    assert!(log.lines().count() < 5000, "the agent spins: {} lines of log", log.lines().count());
    if flavor == Flavor::V2 {
        an_end_is_told_and_not_only_listed(&bed, &names);
    }
    bed.remove_all();
    bed.wait_nothing_left();
}

/// Pods that do something else than run while their runtime dies.
struct Others {
    witness: PathBuf,
    /// The container of the one that has ended.
    done: Value,
    crashes: BTreeMap<String, u64>,
}

impl Others {
    /// One has ended, one crashes on and on, one waits for an image that is nowhere, one is half-way up, and two run that take
    /// their time to end. None is in a call of the runtime, which would forget what it has made so far.
    fn begin(bed: &Bed) -> Self {
        let witness = bed.scratch.dir("witness").expect("made");
        let mut done = one(&sh("c", "exit 4"));
        done["restartPolicy"] = json!("Never");
        bed.put("done", &done);
        bed.put("crashes", &one(&sh("c", "exit 3")));
        bed.put("pulls", &one(&json!({"name": "c", "image": "localhost:1/none:1"})));
        let mut starts = one(&sleeper("c"));
        let init = sh("i", "echo begun >> /w/starts; until [ -e /w/go ]; do sleep 0.1; done");
        shown(&mut starts, &witness);
        starts["initContainers"] = json!([init]);
        starts["initContainers"][0]["volumeMounts"] = starts["containers"][0]["volumeMounts"].clone();
        bed.put("starts", &starts);
        for round in 0..2 {
            let end = format!("sleep 3; echo ended >> /w/ends{round}; exit 0");
            let script = format!("trap '{end}' TERM; echo begun >> /w/ends{round}; while :; do sleep 0.1; done");
            let mut spec = one(&sh("c", &script));
            spec["terminationGracePeriodSeconds"] = json!(60);
            shown(&mut spec, &witness);
            bed.put(&format!("ends{round}"), &spec);
        }
        for name in ["starts", "ends0", "ends1"] {
            wait_until(LIMIT, &format!("{name} to begin"), || {
                ensure!(lines(&witness, name) == ["begun"], "not yet");
                Ok(())
            });
        }
        let done = container(&bed.wait_phase("done", "Failed"), "c")["containerID"].clone();
        wait_until(LIMIT, "the crash and the pull to be in their back-offs", || {
            for (name, reason) in [("crashes", "CrashLoopBackOff"), ("pulls", "ImagePullBackOff")] {
                let pod = bed.pod(name)?;
                ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == reason, "{:#}", pod["status"]);
            }
            Ok(())
        });
        let mut crashes = BTreeMap::new();
        no_count_fell(bed, &["crashes".to_owned()], &mut crashes);
        Self { witness, done, crashes }
    }

    /// One of those that take their time is on its way out.
    fn remove(&self, bed: &Bed, round: usize) {
        bed.remove(&format!("ends{round}"));
        std::thread::sleep(Duration::from_millis(500));
    }

    /// Nobody was restarted who would not have been anyway, and what was on its way out had its time.
    fn are_well(mut self, bed: &Bed) {
        for name in ["ends0", "ends1"] {
            wait_until(LIMIT, &format!("{name} to be gone"), || {
                ensure!(bed.pod(name).is_err(), "{:#}", bed.pod(name)?["status"]);
                Ok(())
            });
            assert_eq!(lines(&self.witness, name), ["begun", "ended"], "{name}");
        }
        std::fs::write(self.witness.join("go"), "").expect("written");
        bed.wait_phase("starts", "Running");
        assert_eq!(lines(&self.witness, "starts"), ["begun"], "its init container began again");
        let pod = bed.phase("done", "Failed").expect("it has ended");
        let c = container(&pod, "c");
        assert_eq!((&c["containerID"], &c["restartCount"]), (&self.done, &json!(0)), "{c:#}");
        assert_eq!(c["state"]["terminated"]["exitCode"], 4, "{c:#}");
        no_count_fell(bed, &["crashes".to_owned()], &mut self.crashes);
        wait_until(LIMIT, "the crash to be its own", || {
            let pod = bed.phase("crashes", "Running")?;
            ensure!(container(&pod, "c")["lastState"]["terminated"]["exitCode"] == 3, "{:#}", pod["status"]);
            Ok(())
        });
        let pod = bed.phase("pulls", "Pending").expect("it waits");
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
