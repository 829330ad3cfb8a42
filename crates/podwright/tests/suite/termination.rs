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
    let hook = "echo hook >> /w/log";
    bed.put("order", &pod(&bed, "order", 10, vec![sidecar("s1"), sidecar("s2")], witness("app", true, Some(hook))));
    bed.put("ignores", &pod(&bed, "ignores", 2, vec![], witness("app", false, None)));
    bed.put("hangs", &pod(&bed, "hangs", 3, vec![], witness("app", false, Some("echo hook >> /w/log; sleep 1000"))));
    bed.put("fails", &pod(&bed, "fails", 10, vec![], witness("app", true, Some("echo hook >> /w/log; exit 1"))));
    bed.put(
        "restarted",
        &pod(&bed, "restarted", 8, vec![], witness("app", false, Some("echo hook >> /w/log; sleep 2"))),
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
    // The runtime's own teardown is not ours to bound: a generous bound shows that no grace period began anew.
    for (name, grace) in [("order", 10), ("fails", 10), ("ignores", 2), ("hangs", 3), ("restarted", 8)] {
        let bound = Duration::from_secs(grace + 2 + 10);
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            ensure!(bed.pod(name).is_err(), "{:#}", bed.pod(name)?["status"]);
            Ok(())
        });
        let took = started.elapsed();
        println!("{name}: gone {took:?} after its removal, grace {grace} s");
        if name == "ignores" || name == "hangs" {
            assert!(took < bound + Duration::from_secs(10), "{name} took {took:?}");
        }
    }
    assert_eq!(log(&bed, "order"), ["hook", "term-app", "term-s2", "term-s1"]);
    assert_eq!(log(&bed, "fails"), ["hook", "term-app"]);
    assert_eq!(log(&bed, "restarted"), ["hook", "term-app"], "each once, though two agents ended it");
    assert_eq!(log(&bed, "ignores"), ["term-app"], "one signal, whatever becomes of it");
    assert_eq!(log(&bed, "hangs"), ["hook", "term-app"]);
    bed.wait_nothing_left();
}
