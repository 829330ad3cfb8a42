//! A shutdown of the host that logind delays: pods end by priority, and run again when it was cancelled and after the boot.

#[allow(dead_code, reason = "the tests of the agent use more of it")]
#[path = "../../../agent/src/shutdown/tests/fake_logind.rs"]
pub(crate) mod fake_logind;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, one, sh, sleeper};
use fake_logind::FakeLogind;

/// Writes a line when it is stopped and, half a second later, when it ends.
fn witness(dir: &Path, name: &str, code: u8) -> Value {
    let script = format!(
        "trap 'echo {name} stops >> /w/order; sleep 0.5; echo {name} ends >> /w/order; exit {code}' TERM; \
         while :; do sleep 0.1; done"
    );
    let mut c = sh("c", &script);
    c["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    let mut spec = one(&c);
    spec["terminationGracePeriodSeconds"] = json!(60);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": dir}}]);
    spec
}

fn order(dir: &Path) -> Vec<String> {
    fs::read_to_string(dir.join("order")).unwrap_or_default().lines().map(str::to_owned).collect()
}

pub(crate) fn wait_locks(logind: &FakeLogind, wanted: usize) {
    wait_until(LIMIT, &format!("logind to have {wanted} locks"), || {
        ensure!(logind.locks() == wanted, "{}", logind.locks());
        Ok(())
    });
}

fn wait_running(node: &TestNode, restarts: i64) {
    for name in ["low", "top"] {
        wait_until(LIMIT, &format!("{name} to run"), || {
            let pod = node.phase(name, "Running")?;
            let c = container(&pod, "c");
            ensure!(c["state"]["running"].is_object() && c["restartCount"] == restarts, "{:#}", pod["status"]);
            Ok(())
        });
    }
}

fn saved(node: &TestNode) -> Result<Value> {
    let path = node.scratch.path().join("root/graceful_node_shutdown_state");
    Ok(serde_json::from_slice(&fs::read(&path).with_context(|| path.display().to_string())?)?)
}

pub(crate) fn pods_end_by_priority_before_the_host_shuts_down(flavor: Flavor) {
    let scratch = Scratch::new().expect("a scratch");
    let Some(logind) = FakeLogind::start(&scratch.dir("logind").expect("made"), Duration::from_secs(60)) else {
        return;
    };
    let dir = scratch.dir("witness").expect("made");
    let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
    let periods = json!({"shutdownGracePeriod": "40s", "shutdownGracePeriodCriticalPods": "20s"});
    let agent = Agent::new(&scratch).runtime(&runtime).config(periods);
    let agent = agent.env("DBUS_SYSTEM_BUS_ADDRESS", &logind.address());
    let mut node = TestNode { agent: agent.start().expect("it starts"), scratch, runtime };
    let mut top = witness(&dir, "top", 4);
    top["priorityClassName"] = json!("system-node-critical");
    node.put("top", &top);
    node.put("low", &witness(&dir, "low", 3));
    wait_running(&node, 0);
    wait_locks(&logind, 1);

    logind.prepare(true);
    wait_locks(&logind, 0);
    assert_eq!(order(&dir), ["low stops", "low ends", "top stops", "top ends"]);
    for (name, code) in [("low", 3), ("top", 4)] {
        let pod = node.phase(name, "Failed").expect("it has ended before the lock was released");
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!((&pod["status"]["reason"], &pod["status"]["message"]), (&json!("Terminated"), &json!(message)));
        assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], code, "{:#}", pod["status"]);
    }
    let times = saved(&node).expect("saved");
    assert!(times["startTime"].as_str() < times["endTime"].as_str(), "{times}");
    node.put("late", &one(&sleeper("c")));
    wait_until(LIMIT, "a new pod to be refused", || {
        let pod = node.phase("late", "Pending")?;
        ensure!(pod["status"]["reason"] == "NodeShutdown", "{:#}", pod["status"]);
        Ok(())
    });

    logind.prepare(false);
    wait_locks(&logind, 1);
    node.wait_phase("late", "Running");
    wait_running(&node, 1);

    logind.prepare(true);
    wait_locks(&logind, 0);
    node.agent.kill9().expect("killed");
    node.runtime.power_cut().expect("cut");
    node.runtime.start_again().expect("started again");
    logind.set_preparing(false);
    node.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    node.agent.start_again().expect("started again");
    wait_running(&node, 2);
    wait_locks(&logind, 1);
    node.remove_all();
    node.wait_nothing_left();
}
