//! A manifest that is edited many times: its pods never overlap, and the last version runs.

use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{LIMIT, TestNode, one, sleeper};

/// Each instance holds a lock in a shared directory, and records a failure if the lock is held already.
fn guarded(node: &TestNode, version: usize) -> serde_json::Value {
    let guard = node.scratch.path().join("guard").display().to_string();
    let script = format!(
        "mkdir /guard/lock || touch /guard/two-at-once; echo {version} > /guard/version; \
         trap 'rmdir /guard/lock; exit 0' TERM; while :; do sleep 0.05; done"
    );
    let mut spec = one(&super::sh("c", &script));
    spec["hostNetwork"] = json!(true);
    spec["volumes"] = json!([{"name": "guard", "hostPath": {"path": guard, "type": "DirectoryOrCreate"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "guard", "mountPath": "/guard"}]);
    spec
}

fn edit(node: &TestNode, times: usize, uid: Option<&str>) {
    for version in 1..=times {
        let mut metadata = json!({"name": "edited"});
        if let Some(uid) = uid {
            metadata["uid"] = json!(uid);
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": guarded(node, version)});
        node.scratch.put_manifest("edited.json", &pod).expect("written");
        // Some edits happen while the last version runs, most while it starts.
        std::thread::sleep(Duration::from_millis(if version % 20 == 0 { 1500 } else { 20 }));
    }
    let guard = node.scratch.path().join("guard");
    wait_until(LIMIT, "the last content to run", || {
        let version = std::fs::read_to_string(guard.join("version")).context("no version yet")?;
        ensure!(version.trim() == times.to_string(), "version {version}");
        let pods = node.agent.pods()?;
        let pods = pods["items"].as_array().context("a list")?;
        ensure!(pods.len() == 1 && pods[0]["status"]["phase"] == "Running", "{} pods", pods.len());
        Ok(())
    });
    assert!(!guard.join("two-at-once").exists(), "two instances ran at once");
}

pub(crate) fn after_200_edits_the_last_version_runs_and_two_never_overlap(flavor: Flavor) {
    let node = TestNode::start(flavor);
    edit(&node, 200, None);
    node.remove("edited");
    node.wait_nothing_left();
}

pub(crate) fn after_20_edits_with_a_fixed_uid_the_last_version_runs(flavor: Flavor) {
    let node = TestNode::start(flavor);
    edit(&node, 20, Some("11111111-2222-3333-4444-555555555555"));
    node.remove("edited");
    node.wait_nothing_left();
}

pub(crate) fn a_new_image_with_a_fixed_uid_restarts_only_the_container(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let pod = |image: &str| {
        let mut spec = one(&sleeper("c"));
        spec["containers"][0]["image"] = json!(image);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "same", "uid": "aaaa-1"}, "spec": spec})
    };
    node.scratch.put_manifest("same.json", &pod(podwright_testbed::image::BUSYBOX)).expect("written");
    let before = node.wait_phase("same", "Running");
    node.scratch.put_manifest("same.json", &pod(podwright_testbed::image::USER_1000)).expect("written");
    wait_until(LIMIT, "the container to be replaced", || {
        let pod = node.phase("same", "Running")?;
        ensure!(super::container(&pod, "c")["restartCount"] == 1, "{:#}", pod["status"]);
        ensure!(pod["status"]["podIP"] == before["status"]["podIP"], "another sandbox");
        Ok(())
    });
    node.remove("same");
    node.wait_nothing_left();
}
