//! A deletion interrupts a pod in any state, and none of its containers starts afterwards.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use podwright_testbed::{Flavor, HungMount, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, cri, one, sh, sleeper};

/// Extra time for the host in addition to the pod's grace period.
const SLACK: Duration = Duration::from_secs(10);

/// A container that records its start.
fn witness(node: &TestNode, name: &str) -> Value {
    let dir = node.scratch.dir("began").expect("made");
    let mut spec = one(&sh("c", &format!("echo x >> /began/{name}; trap 'exit 0' TERM; while :; do sleep 0.1; done")));
    spec["volumes"] = json!([{"name": "began", "hostPath": {"path": dir}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "began", "mountPath": "/began"}]);
    spec
}

fn began(node: &TestNode, name: &str) -> usize {
    let file = node.scratch.path().join("began").join(name);
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

fn state<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &container(pod, name)["state"]
}

/// A step, how to detect that the pod is in it, and how often its container may have started.
struct Step {
    name: &'static str,
    spec: Value,
    reached: fn(&TestNode, &Value) -> Result<()>,
    may_begin: bool,
}

fn steps(node: &TestNode, hung: &HungMount) -> Vec<Step> {
    let mut init = witness(node, "init");
    init["initContainers"] = json!([sh("i", "trap : TERM; while :; do sleep 0.1; done")]);
    let mut sidecar = witness(node, "sidecar");
    let mut waits = sleeper("s");
    waits["restartPolicy"] = json!("Always");
    waits["startupProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1000});
    sidecar["initContainers"] = json!([waits]);
    let mut hook = witness(node, "hook");
    hook["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["sh", "-c", "touch /began/hooked; sleep 1000"]}}});
    let mut prepare = witness(node, "prepare");
    // Nothing is checked at setup; the subPath is resolved when the container is prepared.
    prepare["volumes"].as_array_mut().expect("a list").push(json!({"name": "h", "hostPath": {"path": hung.point()}}));
    let mounts = prepare["containers"][0]["volumeMounts"].as_array_mut().expect("a list");
    mounts.push(json!({"name": "h", "mountPath": "/h", "subPath": "part"}));
    let mut crash = witness(node, "crash");
    crash["containers"][0]["command"] = json!(["sh", "-c", "echo x >> /began/crash; exit 1"]);
    vec![
        Step {
            name: "init",
            spec: init,
            reached: |_, p| {
                ensure!(state(p, "i")["running"].is_object(), "{:#}", p["status"]);
                Ok(())
            },
            may_begin: false,
        },
        Step {
            name: "sidecar",
            spec: sidecar,
            reached: |_, p| {
                ensure!(state(p, "s")["running"].is_object(), "{:#}", p["status"]);
                Ok(())
            },
            may_begin: false,
        },
        Step {
            name: "hook",
            spec: hook,
            reached: |node, _| {
                ensure!(node.scratch.path().join("began/hooked").exists(), "no hook yet");
                Ok(())
            },
            may_begin: true,
        },
        Step {
            name: "prepare",
            spec: prepare,
            reached: |node, p| {
                let (sandboxes, _) = cri::of_pod(node, p["metadata"]["uid"].as_str().unwrap_or_default());
                ensure!(!sandboxes.is_empty(), "no sandbox yet");
                Ok(())
            },
            may_begin: false,
        },
        Step {
            name: "crash",
            spec: crash,
            reached: |_, p| {
                ensure!(state(p, "c")["waiting"]["reason"] == "CrashLoopBackOff", "{:#}", p["status"]);
                Ok(())
            },
            may_begin: true,
        },
    ]
}

pub(crate) fn a_pod_can_be_deleted_at_every_step(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let hung = HungMount::new(&node.scratch.path().join("hung")).expect("mounted");
    let steps = steps(&node, &hung);
    for step in &steps {
        node.put(step.name, &step.spec);
    }
    let mut begun = vec![];
    for step in &steps {
        wait_until(LIMIT, &format!("{} to be at its step", step.name), || (step.reached)(&node, &node.pod(step.name)?));
        begun.push(began(&node, step.name));
        assert!(step.may_begin || begun.last() == Some(&0), "{} began too early", step.name);
    }
    let asked = Instant::now();
    for step in &steps {
        node.remove(step.name);
    }
    for step in &steps {
        wait_until(LIMIT, &format!("{} to be gone", step.name), || {
            ensure!(node.pod(step.name).is_err(), "{:#}", node.pod(step.name)?["status"]);
            Ok(())
        });
    }
    let (took, grace) = (asked.elapsed(), Duration::from_secs(2));
    println!("all gone after {took:?}, grace {grace:?}");
    assert!(took < grace + SLACK, "{took:?}");
    // The hung mount resumes; nothing may be started for the deleted pods.
    drop(hung);
    std::thread::sleep(Duration::from_secs(1));
    for (step, before) in steps.iter().zip(begun) {
        assert_eq!(began(&node, step.name), before, "{} began after its deletion", step.name);
    }
    node.wait_nothing_left();
}

/// The runtime is frozen: calls in flight neither finish nor fail.
pub(crate) fn pods_deleted_while_the_runtime_is_frozen_are_removed_after_it_resumes(flavor: Flavor) {
    let node = TestNode::start(flavor);
    for (round, after) in [0, 150, 350, 600].into_iter().enumerate() {
        let names: Vec<String> = (0..4).map(|i| format!("r{round}p{i}")).collect();
        if after == 0 {
            node.runtime.freeze().expect("stopped");
        }
        for name in &names {
            node.put(name, &witness(&node, name));
        }
        std::thread::sleep(Duration::from_millis(after));
        node.runtime.freeze().expect("stopped");
        // Long enough for every pod to wait for the runtime, in whatever step it was.
        std::thread::sleep(Duration::from_millis(300));
        names.iter().for_each(|name| node.remove(name));
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(node.agent.get("/healthz").expect("it answers").status, 200);
        node.runtime.thaw().expect("goes on");
        let thawed = Instant::now();
        for name in &names {
            wait_until(LIMIT, &format!("{name} to be gone"), || {
                ensure!(node.pod(name).is_err(), "{:#}", node.pod(name)?["status"]);
                Ok(())
            });
        }
        println!("stopped after {after} ms: all gone {:?} after it went on", thawed.elapsed());
        assert!(thawed.elapsed() < Duration::from_secs(2) + SLACK * 2, "{:?}", thawed.elapsed());
        // The engine has no shim to freeze before the first pod.
        if after == 0 && flavor != Flavor::Engine {
            let began: usize = names.iter().map(|name| began(&node, name)).sum();
            assert_eq!(began, 0, "no container was asked for before the deletion, and none may begin after it");
        }
    }
    node.wait_nothing_left();
}
