//! A reboot of the host: pods restart according to their policy, terminated pods stay terminated, and old deadlines have passed.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, sh, sleeper};

/// Far longer than the test.
const GRACE: i64 = 300;

fn with(policy: &str, init: Value, c: Value) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "initContainers": init, "containers": [c]})
}

/// A container that mounts the directory for records; its pod needs the volume too.
fn seen(name: &str, script: &str) -> Value {
    let mut c = sh(name, script);
    c["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    c
}

/// Records SIGTERM and keeps running.
fn deaf(dir: &Path, name: &str) -> Value {
    let script =
        format!("trap 'echo terminated >> /w/{name}' TERM; echo begun >> /w/{name}; while :; do sleep 0.1; done");
    let mut spec = with("Always", json!([]), seen("c", &script));
    spec["terminationGracePeriodSeconds"] = json!(GRACE);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": dir}}]);
    spec
}

fn lines(dir: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(dir.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Removes the pod and waits for SIGTERM; minutes of its grace period are left.
fn remove_and_wait_for_sigterm(node: &TestNode, dir: &Path, name: &str) {
    node.remove(name);
    wait_until(LIMIT, &format!("{name} to get SIGTERM"), || {
        ensure!(lines(dir, name) == ["begun", "terminated"], "{:?}", lines(dir, name));
        Ok(())
    });
}

/// Waits until the pod is gone, long before its grace period ends, and without another instance.
fn wait_gone(node: &TestNode, dir: &Path, name: &str) {
    wait_until(LIMIT, &format!("{name} to be gone"), || {
        ensure!(node.pod(name).is_err(), "{:#}", node.pod(name)?["status"]);
        Ok(())
    });
    assert_eq!(lines(dir, name).iter().filter(|line| *line == "begun").count(), 1, "{name} began again");
}

pub(crate) fn after_a_reboot_pods_follow_their_restart_policy(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let dir = node.scratch.dir("witness").expect("made");
    node.put("always", &with("Always", json!([sh("i", "true")]), sleeper("c")));
    node.put("onfailure", &with("OnFailure", json!([]), sleeper("c")));
    node.put("never", &with("Never", json!([]), sleeper("c")));
    node.put("completed", &with("Never", json!([]), sh("c", "exit 0")));
    node.put("succeeded", &with("OnFailure", json!([]), sh("c", "exit 0")));
    let mut side = sleeper("s");
    side["restartPolicy"] = json!("Always");
    node.put("sidecar", &with("Always", json!([side]), sleeper("c")));
    let inits = [seen("i", "echo i >> /w/midway"), {
        seen("j", "echo j >> /w/midway; until [ -e /w/go ]; do sleep 0.1; done")
    }];
    let mut midway = with("Always", json!(inits), sleeper("c"));
    midway["volumes"] = json!([{"name": "w", "hostPath": {"path": dir}}]);
    node.put("midway", &midway);
    for name in ["outlives", "leaves"] {
        node.put(name, &deaf(&dir, name));
    }
    for name in ["always", "onfailure", "never", "sidecar", "outlives", "leaves"] {
        node.wait_phase(name, "Running");
    }
    node.wait_phase("completed", "Succeeded");
    node.wait_phase("succeeded", "Succeeded");
    wait_until(LIMIT, "one to be half-way through its init containers", || {
        ensure!(lines(&dir, "midway") == ["i", "j"], "{:?}", lines(&dir, "midway"));
        Ok(())
    });

    // A real reboot leaves no container running. Here one does: only its deadline can end it in time.
    remove_and_wait_for_sigterm(&node, &dir, "outlives");
    node.agent.kill9().expect("killed");
    node.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    node.agent.start_again().expect("started again");
    wait_gone(&node, &dir, "outlives");

    remove_and_wait_for_sigterm(&node, &dir, "leaves");
    node.agent.kill9().expect("killed");
    node.runtime.power_cut().expect("cut");
    node.runtime.start_again().expect("started again");
    node.agent.set_env("PODWRIGHT_BOOT_ID", "a-third-boot");
    node.agent.start_again().expect("started again");
    wait_gone(&node, &dir, "leaves");
    for (name, init) in [("always", Some("i")), ("onfailure", None), ("sidecar", Some("s"))] {
        wait_until(LIMIT, &format!("{name} to come back"), || {
            let pod = node.phase(name, "Running")?;
            for c in init.into_iter().chain(["c"]) {
                ensure!(container(&pod, c)["restartCount"] == 1, "{c}: {:#}", pod["status"]);
                ensure!(c == "i" || container(&pod, c)["state"]["running"].is_object(), "{c}: {:#}", pod["status"]);
            }
            Ok(())
        });
    }
    let always = node.pod("always").expect("known");
    assert_eq!(container(&always, "i")["state"]["terminated"]["exitCode"], 0, "init ran again");
    wait_until(LIMIT, "the one half-way to begin again", || {
        ensure!(lines(&dir, "midway") == ["i", "j", "i", "j"], "{:?}", lines(&dir, "midway"));
        node.phase("midway", "Pending")
    });
    fs::write(dir.join("go"), "").expect("written");
    let midway = node.wait_phase("midway", "Running");
    assert_eq!(container(&midway, "c")["restartCount"], 0, "{:#}", midway["status"]);
    let never = node.wait_phase("never", "Failed");
    let ended = &container(&never, "c")["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(255), &json!("Unknown")), "{:#}", never["status"]);
    assert_eq!(container(&never, "c")["restartCount"], 0, "{:#}", never["status"]);
    for name in ["completed", "succeeded"] {
        let pod = node.wait_phase(name, "Succeeded");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{name} ran again");
    }
    node.remove_all();
    node.wait_nothing_left();
}
