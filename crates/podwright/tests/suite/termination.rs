//! Termination in time and in order. The whole matrix runs in virtual time in `sim`; this is a sample on a real runtime.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, sh};

/// A container that records the time of its SIGTERM, and exits then or not.
fn witness(name: &str, obeys: bool, pre_stop: Option<&str>) -> Value {
    let end = if obeys { "exit 0" } else { ":" };
    let mut c = sh(name, &format!("trap 'echo term-{name} >> /w/log; {end}' TERM; while :; do sleep 0.05; done"));
    c["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    if let Some(script) = pre_stop {
        c["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", script]}}});
    }
    c
}

fn pod(node: &TestNode, name: &str, grace: u64, sidecars: Vec<Value>, app: Value) -> Value {
    let path = node.scratch.path().join("witness").join(name).display().to_string();
    json!({"hostNetwork": true, "terminationGracePeriodSeconds": grace, "initContainers": sidecars, "containers": [app],
        "volumes": [{"name": "w", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]})
}

fn sidecar(name: &str) -> Value {
    let mut c = witness(name, true, None);
    c["restartPolicy"] = json!("Always");
    c
}

fn log(node: &TestNode, name: &str) -> Vec<String> {
    let path = node.scratch.path().join("witness").join(name).join("log");
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

pub(crate) fn hooks_signals_and_sidecars_follow_order_and_grace_period(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    // Nothing takes longer for it than the pod whose whole grace period is waited for; a busy runtime needs seconds for a hook.
    let (hook, hangs) = ("echo hook >> /w/log", "echo hook >> /w/log; sleep 1000");
    node.put(
        "order",
        &pod(&node, "order", GRACE, vec![sidecar("s1"), sidecar("s2")], witness("app", true, Some(hook))),
    );
    node.put("ignores", &pod(&node, "ignores", GRACE / 2, vec![], witness("app", false, None)));
    node.put("hangs", &pod(&node, "hangs", GRACE / 2, vec![], witness("app", false, Some(hangs))));
    node.put("fails", &pod(&node, "fails", GRACE, vec![], witness("app", true, Some("echo hook >> /w/log; exit 1"))));
    node.put(
        "restarted",
        &pod(&node, "restarted", GRACE, vec![], witness("app", false, Some("echo hook >> /w/log; sleep 2"))),
    );
    for name in ["order", "ignores", "hangs", "fails", "restarted"] {
        node.wait_phase(name, "Running");
    }
    let started = Instant::now();
    for name in ["order", "ignores", "hangs", "fails", "restarted"] {
        node.remove(name);
    }
    // A hook whose agent dies before it runs is not run again.
    wait_until(LIMIT, "the hooks to run", || {
        for name in ["restarted", "order", "fails", "hangs"] {
            ensure!(!log(&node, name).is_empty(), "not that of {name}");
        }
        Ok(())
    });
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    for name in ["order", "fails", "ignores", "hangs"] {
        println!("{name}: gone {:?} after its removal", wait_gone(&node, name, started));
    }
    // The agent restarts shortly before the deadline: if the grace period started again, it would last for almost two.
    std::thread::sleep(Duration::from_secs(GRACE - 3).saturating_sub(started.elapsed()));
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    took_one_grace("restarted", wait_gone(&node, "restarted", started));
    assert_eq!(log(&node, "order"), ["hook", "term-app", "term-s2", "term-s1"]);
    assert_eq!(log(&node, "fails"), ["hook", "term-app"]);
    assert_eq!(log(&node, "restarted"), ["hook", "term-app"], "each once, though two agents ended it");
    assert_eq!(log(&node, "ignores"), ["term-app"], "one signal, whatever becomes of it");
    assert_eq!(log(&node, "hangs"), ["hook", "term-app"]);
    node.wait_nothing_left();
}

/// A hook that hangs and a container that ignores its signal share one grace period.
pub(crate) fn a_hanging_hook_and_an_ignored_signal_share_one_grace_period(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let app = witness("app", false, Some("echo hook >> /w/log; sleep 1000"));
    node.put("hangs", &pod(&node, "hangs", GRACE, vec![sidecar("s1")], app));
    node.wait_phase("hangs", "Running");
    let started = Instant::now();
    node.remove("hangs");
    took_one_grace("hangs", wait_gone(&node, "hangs", started));
    // After the deadline, containers are not stopped one after the other any more.
    let mut log = log(&node, "hangs");
    log[1..].sort();
    assert_eq!(log, ["hook", "term-app", "term-s1"]);
    node.wait_nothing_left();
}

/// The time from `since` until a pod is gone.
fn wait_gone(node: &TestNode, name: &str, since: Instant) -> Duration {
    wait_until(LIMIT, &format!("{name} to be gone"), || {
        ensure!(node.pod(name).is_err(), "{:#}", node.pod(name)?["status"]);
        Ok(())
    });
    since.elapsed()
}

/// Not less than one grace period, and far from two. The margin is for the runtime's teardown.
fn took_one_grace(name: &str, took: Duration) {
    println!("{name}: gone {took:?} after its removal, grace {GRACE} s");
    assert!((GRACE - 1..2 * GRACE - 5).contains(&took.as_secs()), "{name} took {took:?}");
}

/// Seconds; long enough to distinguish two grace periods from one on a busy host.
const GRACE: u64 = 30;
