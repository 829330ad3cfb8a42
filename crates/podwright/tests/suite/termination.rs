//! Ends in time and in order. The whole matrix runs in virtual time in `sim`; this is a sample on the real runtime.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{Bed, LIMIT, sh};

/// A container that writes down when it is told to end, and ends then, or not.
fn witness(name: &str, obeys: bool, pre_stop: Option<&str>) -> Value {
    let end = if obeys { "exit 0" } else { ":" };
    let mut c = sh(name, &format!("trap 'echo term-{name} >> /w/log; {end}' TERM; while :; do sleep 0.05; done"));
    c["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    if let Some(script) = pre_stop {
        c["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", script]}}});
    }
    c
}

fn pod(bed: &Bed, name: &str, grace: u64, sidecars: Vec<Value>, app: Value) -> Value {
    let path = bed.scratch.path().join("witness").join(name).display().to_string();
    json!({"hostNetwork": true, "terminationGracePeriodSeconds": grace, "initContainers": sidecars, "containers": [app],
        "volumes": [{"name": "w", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]})
}

fn sidecar(name: &str) -> Value {
    let mut c = witness(name, true, None);
    c["restartPolicy"] = json!("Always");
    c
}

fn log(bed: &Bed, name: &str) -> Vec<String> {
    let path = bed.scratch.path().join("witness").join(name).join("log");
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

pub(crate) fn hooks_signals_and_sidecars_keep_their_order_and_their_time(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let (hook, hangs) = ("echo hook >> /w/log", "echo hook >> /w/log; sleep 1000");
    bed.put("order", &pod(&bed, "order", 10, vec![sidecar("s1"), sidecar("s2")], witness("app", true, Some(hook))));
    bed.put("ignores", &pod(&bed, "ignores", 2, vec![], witness("app", false, None)));
    bed.put("hangs", &pod(&bed, "hangs", 3, vec![], witness("app", false, Some(hangs))));
    bed.put("fails", &pod(&bed, "fails", 10, vec![], witness("app", true, Some("echo hook >> /w/log; exit 1"))));
    bed.put(
        "restarted",
        &pod(&bed, "restarted", GRACE, vec![], witness("app", false, Some("echo hook >> /w/log; sleep 2"))),
    );
    for name in ["order", "ignores", "hangs", "fails", "restarted"] {
        bed.wait_phase(name, "Running");
    }
    let started = Instant::now();
    for name in ["order", "ignores", "hangs", "fails", "restarted"] {
        bed.remove(name);
    }
    wait_until(LIMIT, "the hook to run", || {
        ensure!(!log(&bed, "restarted").is_empty(), "not yet");
        Ok(())
    });
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started again");
    for name in ["order", "fails", "ignores", "hangs"] {
        println!("{name}: gone {:?} after its removal", wait_gone(&bed, name, started));
    }
    // Shortly before the deadline another agent comes: were the grace period to begin anew, it would last for almost two.
    std::thread::sleep(Duration::from_secs(GRACE - 3).saturating_sub(started.elapsed()));
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started again");
    took_one_grace("restarted", wait_gone(&bed, "restarted", started));
    assert_eq!(log(&bed, "order"), ["hook", "term-app", "term-s2", "term-s1"]);
    assert_eq!(log(&bed, "fails"), ["hook", "term-app"]);
    assert_eq!(log(&bed, "restarted"), ["hook", "term-app"], "each once, though two agents ended it");
    assert_eq!(log(&bed, "ignores"), ["term-app"], "one signal, whatever becomes of it");
    assert_eq!(log(&bed, "hangs"), ["hook", "term-app"]);
    bed.wait_nothing_left();
}

/// A hook that hangs and a container that ignores its signal share one grace period.
pub(crate) fn a_hook_and_a_signal_that_nobody_obeys_take_one_grace_together(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let app = witness("app", false, Some("echo hook >> /w/log; sleep 1000"));
    bed.put("hangs", &pod(&bed, "hangs", GRACE, vec![sidecar("s1")], app));
    bed.wait_phase("hangs", "Running");
    let started = Instant::now();
    bed.remove("hangs");
    took_one_grace("hangs", wait_gone(&bed, "hangs", started));
    // Beyond the deadline nobody waits for a turn.
    let mut log = log(&bed, "hangs");
    log[1..].sort();
    assert_eq!(log, ["hook", "term-app", "term-s1"]);
    bed.wait_nothing_left();
}

/// How long after `since` a pod is gone.
fn wait_gone(bed: &Bed, name: &str, since: Instant) -> Duration {
    wait_until(LIMIT, &format!("{name} to be gone"), || {
        ensure!(bed.pod(name).is_err(), "{:#}", bed.pod(name)?["status"]);
        Ok(())
    });
    since.elapsed()
}

/// Not less than was promised, and far from two. The runtime's own teardown is not ours to bound: the rest is for it.
fn took_one_grace(name: &str, took: Duration) {
    println!("{name}: gone {took:?} after its removal, grace {GRACE} s");
    assert!((GRACE - 1..2 * GRACE - 5).contains(&took.as_secs()), "{name} took {took:?}");
}

/// In seconds, and long enough that two of them are told from one on a busy machine.
const GRACE: u64 = 30;
