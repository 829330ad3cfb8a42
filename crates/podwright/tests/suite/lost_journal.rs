//! The journal is lost: desired pods are found in the runtime and keep running, others are terminated as their labels specify.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, one, sh, sleeper};

pub(crate) fn after_loss_of_the_journal_desired_pods_keep_running(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let witness = node.scratch.dir("witness").expect("made");
    node.put("stays", &one(&sleeper("c")));
    node.put("begun", &begun(&witness));
    let mut done = one(&sh("c", "exit 3"));
    done["restartPolicy"] = json!("Never");
    node.put("done", &done);
    for name in ["leaves", "edited"] {
        node.put(name, &slow_to_stop(&witness, name));
    }
    for name in ["stays", "begun", "leaves", "edited"] {
        node.wait_phase(name, "Running");
    }
    node.wait_phase("done", "Failed");
    let before = ["stays", "begun", "done"].map(|name| instance(&node, name).expect("there"));
    let edited = uid(&node, "edited").expect("known");

    node.agent.kill9().expect("killed");
    fs::remove_file(node.scratch.root_dir().expect("there").join("journal")).expect("there was one");
    node.remove("leaves");
    let mut next = one(&sh("c", "echo next >> /w/edited; trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    mount_witness(&mut next, &witness);
    node.put("edited", &next);
    node.agent.start_again().expect("started");

    wait_until(LIMIT, "the edited pod to run again", || {
        node.phase("edited", "Running")?;
        ensure!(uid(&node, "edited")? != edited, "still the old instance");
        ensure!(lines(&witness, "edited").last().is_some_and(|l| l == "next"), "{:?}", lines(&witness, "edited"));
        Ok(())
    });
    // The old instance had to stop first. Its spec is lost, but its hook and grace period are in the labels of its containers.
    assert_eq!(lines(&witness, "edited"), ["hook", "ended", "next"]);
    wait_until(LIMIT, "the removed pod to be gone", || {
        ensure!(node.pod("leaves").is_err(), "still there");
        Ok(())
    });
    assert_eq!(
        lines(&witness, "leaves"),
        ["hook"],
        "an undesired pod: its hook runs, and its grace period is one second"
    );
    node.wait_phase("stays", "Running");
    node.wait_phase("begun", "Running");
    node.wait_phase("done", "Failed");
    assert_eq!(["stays", "begun", "done"].map(|name| instance(&node, name).expect("there")), before);
    assert_eq!(
        (lines(&witness, "inits"), lines(&witness, "hooks")),
        (vec!["init".into()], vec!["hook".into()]),
        "init container or hook ran again"
    );
    node.remove_all();
    node.wait_nothing_left();
}

fn begun(witness: &Path) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["initContainers"] = json!([sh("i", "echo init >> /w/inits")]);
    spec["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["sh", "-c", "echo hook >> /w/hooks"]}}});
    mount_witness(&mut spec, witness);
    spec["initContainers"][0]["volumeMounts"] = spec["containers"][0]["volumeMounts"].clone();
    spec
}

/// Exits three seconds after TERM, within its grace period.
fn slow_to_stop(witness: &Path, name: &str) -> Value {
    let script = format!("trap 'sleep 3; echo ended >> /w/{name}; exit 0' TERM; while :; do sleep 0.1; done");
    let mut c = sh("c", &script);
    let hook = json!(["sh", "-c", format!("echo hook >> /w/{name}")]);
    c["lifecycle"] = json!({"preStop": {"exec": {"command": hook}}});
    let mut spec = one(&c);
    spec["terminationGracePeriodSeconds"] = json!(20);
    mount_witness(&mut spec, witness);
    spec
}

fn mount_witness(spec: &mut Value, witness: &Path) {
    spec["containers"][0]["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": witness}}]);
}

fn lines(witness: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(witness.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn uid(node: &TestNode, name: &str) -> Result<Value> {
    Ok(node.pod(name)?["metadata"]["uid"].clone())
}

/// What must not change: the container, its restart count, and its exit code.
fn instance(node: &TestNode, name: &str) -> Result<[Value; 3]> {
    let pod = node.pod(name)?;
    let c = container(&pod, "c");
    let id = c["containerID"].as_str().with_context(|| format!("{name} has no container: {c:#}"))?;
    Ok([json!(id), c["restartCount"].clone(), c["state"]["terminated"]["exitCode"].clone()])
}
