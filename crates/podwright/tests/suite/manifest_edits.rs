//! A manifest that changes again and again: never two of its pods at once, the last content runs.

use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{Bed, LIMIT, one, sleeper};

/// Each instance takes a lock in a shared directory for as long as it lives, and complains if it is taken.
fn guarded(bed: &Bed, version: usize) -> serde_json::Value {
    let guard = bed.scratch.path().join("guard").display().to_string();
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

fn edit(bed: &Bed, times: usize, uid: Option<&str>) {
    for version in 1..=times {
        let mut metadata = json!({"name": "edited"});
        if let Some(uid) = uid {
            metadata["uid"] = json!(uid);
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": guarded(bed, version)});
        bed.scratch.put_manifest("edited.json", &pod).expect("written");
        // Some edits find the last one running, most find it on its way.
        std::thread::sleep(Duration::from_millis(if version % 20 == 0 { 1500 } else { 20 }));
    }
    let guard = bed.scratch.path().join("guard");
    wait_until(LIMIT, "the last content to run", || {
        let version = std::fs::read_to_string(guard.join("version")).context("no version yet")?;
        ensure!(version.trim() == times.to_string(), "version {version}");
        let pods = bed.agent.pods()?;
        let pods = pods["items"].as_array().context("a list")?;
        ensure!(pods.len() == 1 && pods[0]["status"]["phase"] == "Running", "{} pods", pods.len());
        Ok(())
    });
    assert!(!guard.join("two-at-once").exists(), "two instances ran at once");
}

pub(crate) fn edited_200_times_the_last_content_runs_and_never_two_at_once(flavor: Flavor) {
    let bed = Bed::start(flavor);
    edit(&bed, 200, None);
    bed.remove("edited");
    bed.wait_nothing_left();
}

pub(crate) fn edited_20_times_with_a_fixed_uid_the_last_content_runs(flavor: Flavor) {
    let bed = Bed::start(flavor);
    edit(&bed, 20, Some("11111111-2222-3333-4444-555555555555"));
    bed.remove("edited");
    bed.wait_nothing_left();
}

pub(crate) fn a_new_image_under_a_fixed_uid_restarts_the_container_only(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let pod = |image: &str| {
        let mut spec = one(&sleeper("c"));
        spec["containers"][0]["image"] = json!(image);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "same", "uid": "aaaa-1"}, "spec": spec})
    };
    bed.scratch.put_manifest("same.json", &pod(podwright_testbed::image::BUSYBOX)).expect("written");
    let before = bed.wait_phase("same", "Running");
    bed.scratch.put_manifest("same.json", &pod(podwright_testbed::image::USER_1000)).expect("written");
    wait_until(LIMIT, "the container to be replaced", || {
        let pod = bed.phase("same", "Running")?;
        ensure!(super::container(&pod, "c")["restartCount"] == 1, "{:#}", pod["status"]);
        ensure!(pod["status"]["podIP"] == before["status"]["podIP"], "another sandbox");
        Ok(())
    });
    bed.remove("same");
    bed.wait_nothing_left();
}
