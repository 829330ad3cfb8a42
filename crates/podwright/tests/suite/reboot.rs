//! The machine is started anew under the pods: what is to run runs again, what has ended has ended, and old deadlines have passed.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{Bed, LIMIT, container, sh, sleeper};

/// Far more than anybody waits here.
const GRACE: i64 = 300;

fn with(policy: &str, init: Value, c: Value) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "initContainers": init, "containers": [c]})
}

/// A container that may write to the directory of witnesses; its pod needs the volume too.
fn seen(name: &str, script: &str) -> Value {
    let mut c = sh(name, script);
    c["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    c
}

/// It hears that it is to end, and goes on.
fn deaf(dir: &Path, name: &str) -> Value {
    let script = format!("trap 'echo told >> /w/{name}' TERM; echo begun >> /w/{name}; while :; do sleep 0.1; done");
    let mut spec = with("Always", json!([]), seen("c", &script));
    spec["terminationGracePeriodSeconds"] = json!(GRACE);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": dir}}]);
    spec
}

fn lines(dir: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(dir.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Removed, and told so; it has minutes left.
fn remove_and_wait_told(bed: &Bed, dir: &Path, name: &str) {
    bed.remove(name);
    wait_until(LIMIT, &format!("{name} to be told to end"), || {
        ensure!(lines(dir, name) == ["begun", "told"], "{:?}", lines(dir, name));
        Ok(())
    });
}

/// Long before its grace is over, and without another life.
fn wait_gone(bed: &Bed, dir: &Path, name: &str) {
    wait_until(LIMIT, &format!("{name} to be gone"), || {
        ensure!(bed.pod(name).is_err(), "{:#}", bed.pod(name)?["status"]);
        Ok(())
    });
    assert_eq!(lines(dir, name).iter().filter(|line| *line == "begun").count(), 1, "{name} began again");
}

pub(crate) fn after_a_reboot_pods_come_back_as_their_policy_says(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let dir = bed.scratch.dir("witness").expect("made");
    bed.put("always", &with("Always", json!([sh("i", "true")]), sleeper("c")));
    bed.put("onfailure", &with("OnFailure", json!([]), sleeper("c")));
    bed.put("never", &with("Never", json!([]), sleeper("c")));
    bed.put("completed", &with("Never", json!([]), sh("c", "exit 0")));
    bed.put("succeeded", &with("OnFailure", json!([]), sh("c", "exit 0")));
    let mut side = sleeper("s");
    side["restartPolicy"] = json!("Always");
    bed.put("sidecar", &with("Always", json!([side]), sleeper("c")));
    let inits = [seen("i", "echo i >> /w/midway"), {
        seen("j", "echo j >> /w/midway; until [ -e /w/go ]; do sleep 0.1; done")
    }];
    let mut midway = with("Always", json!(inits), sleeper("c"));
    midway["volumes"] = json!([{"name": "w", "hostPath": {"path": dir}}]);
    bed.put("midway", &midway);
    for name in ["outlives", "leaves"] {
        bed.put(name, &deaf(&dir, name));
    }
    for name in ["always", "onfailure", "never", "sidecar", "outlives", "leaves"] {
        bed.wait_phase(name, "Running");
    }
    bed.wait_phase("completed", "Succeeded");
    bed.wait_phase("succeeded", "Succeeded");
    wait_until(LIMIT, "one to be half-way through its init containers", || {
        ensure!(lines(&dir, "midway") == ["i", "j"], "{:?}", lines(&dir, "midway"));
        Ok(())
    });

    // No real boot leaves a container running. Here one does: only its deadline can end it in time.
    remove_and_wait_told(&bed, &dir, "outlives");
    bed.agent.kill9().expect("killed");
    bed.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    bed.agent.start_again().expect("started again");
    wait_gone(&bed, &dir, "outlives");

    remove_and_wait_told(&bed, &dir, "leaves");
    bed.agent.kill9().expect("killed");
    bed.containerd.power_cut().expect("cut");
    bed.containerd.start_again().expect("started again");
    bed.agent.set_env("PODWRIGHT_BOOT_ID", "a-third-boot");
    bed.agent.start_again().expect("started again");
    wait_gone(&bed, &dir, "leaves");
    for (name, init) in [("always", Some("i")), ("onfailure", None), ("sidecar", Some("s"))] {
        wait_until(LIMIT, &format!("{name} to come back"), || {
            let pod = bed.phase(name, "Running")?;
            for c in init.into_iter().chain(["c"]) {
                ensure!(container(&pod, c)["restartCount"] == 1, "{c}: {:#}", pod["status"]);
                ensure!(c == "i" || container(&pod, c)["state"]["running"].is_object(), "{c}: {:#}", pod["status"]);
            }
            Ok(())
        });
    }
    let always = bed.pod("always").expect("known");
    assert_eq!(container(&always, "i")["state"]["terminated"]["exitCode"], 0, "init ran again");
    wait_until(LIMIT, "the one half-way to begin anew", || {
        ensure!(lines(&dir, "midway") == ["i", "j", "i", "j"], "{:?}", lines(&dir, "midway"));
        bed.phase("midway", "Pending")
    });
    fs::write(dir.join("go"), "").expect("written");
    let midway = bed.wait_phase("midway", "Running");
    assert_eq!(container(&midway, "c")["restartCount"], 0, "{:#}", midway["status"]);
    let never = bed.wait_phase("never", "Failed");
    let ended = &container(&never, "c")["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(255), &json!("Unknown")), "{:#}", never["status"]);
    assert_eq!(container(&never, "c")["restartCount"], 0, "{:#}", never["status"]);
    for name in ["completed", "succeeded"] {
        let pod = bed.wait_phase(name, "Succeeded");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{name} ran again");
    }
    bed.remove_all();
    bed.wait_nothing_left();
}
