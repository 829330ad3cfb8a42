//! The API server goes away and comes back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Component, ControlPlane, Scratch, wait_until};
use serde_json::{Value, json};

use crate::joined::Joined;
use crate::suite::{LIMIT, condition, container, one, sh, sleeper};

/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(30);

fn put_static(node: &Joined<'_>, name: &str, text: &str) {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["env"] = json!([{"name": "TEXT", "value": text}]);
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": node.name}, "spec": spec});
    node.scratch.put_manifest(&format!("{name}.json"), &pod).expect("written");
}

/// What the agent itself says of a static pod that runs.
fn runs_static(node: &Joined<'_>, name: &str, text: &str) -> Result<Value> {
    let pod = node.agent.pod(&format!("{name}-{}", node.name))?.context("not known")?;
    ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
    ensure!(pod["spec"]["containers"][0]["env"][0]["value"] == text, "{:#}", pod["spec"]);
    Ok(pod)
}

#[test]
fn an_api_server_that_is_away_for_30_s_and_forgot_the_past_costs_nothing() {
    let cluster = Scratch::new().expect("a scratch");
    let plane = ControlPlane::start(&cluster).expect("a control plane");
    let node = Joined::start(&plane, "outage");
    for i in 0..5 {
        node.put(&format!("run{i}"), &one(&sleeper("c")));
    }
    for name in ["edited", "removed"] {
        put_static(&node, name, "old");
    }
    let ids: Vec<Value> =
        (0..5).map(|i| container(&node.wait_ready(&format!("run{i}")), "c")["containerID"].clone()).collect();
    for name in ["edited-outage", "removed-outage"] {
        node.wait_ready(name);
    }
    let mut ends = one(&sh("c", "sleep 8; exit 4"));
    ends["restartPolicy"] = json!("Never");
    node.put("ends", &ends);
    node.wait_phase("ends", "Running");

    plane.stop(Component::ApiServer).expect("stopped");
    let began = Instant::now();
    put_static(&node, "added", "new");
    put_static(&node, "edited", "new");
    node.scratch.remove_manifest("removed.json").expect("removed");
    for name in ["added", "edited"] {
        wait_until(Duration::from_secs(20), &format!("{name} to run meanwhile"), || runs_static(&node, name, "new"));
    }
    wait_until(Duration::from_secs(20), "the removed one to go meanwhile", || {
        ensure!(node.agent.pod("removed-outage")?.is_none(), "it is known");
        Ok(())
    });
    assert!(began.elapsed() < AWAY, "static pods waited for the API server");
    std::thread::sleep(AWAY.saturating_sub(began.elapsed()));
    plane.compact().expect("compacted");
    plane.start_again(Component::ApiServer).expect("started");

    let began = Instant::now();
    let pod = node.wait_phase("ends", "Failed");
    assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], 4);
    for name in ["added-outage", "edited-outage"] {
        wait_until(LIMIT, &format!("{name} to be told of anew"), || {
            let mirror = node.get("pods", name)?;
            ensure!(mirror["spec"]["containers"][0]["env"][0]["value"] == "new", "still the old one");
            ensure!(condition(&mirror, "Ready")["status"] == "True", "{:#}", mirror["status"]);
            Ok(())
        });
    }
    node.wait_gone("removed-outage");
    println!("all told {:?} after the API server was back", began.elapsed());
    for (i, id) in ids.iter().enumerate() {
        let pod = node.phase(&format!("run{i}"), "Running").expect("it runs");
        assert_eq!((&container(&pod, "c")["containerID"], &container(&pod, "c")["restartCount"]), (id, &json!(0)));
        assert_eq!(condition(&pod, "Ready")["status"], "True");
    }
    // New pods come and old ones go as before.
    node.put("late", &one(&sleeper("c")));
    node.wait_ready("late");
    for name in ["added.json", "edited.json"] {
        node.scratch.remove_manifest(name).expect("removed");
    }
    for name in ["late", "ends", "run0", "run1", "run2", "run3", "run4"] {
        node.delete("pods", name);
    }
    wait_until(LIMIT, "all to be gone", || {
        let left = node.list("pods")?;
        ensure!(left.is_empty(), "{} are left: {:#}", left.len(), left[0]);
        Ok(())
    });
    node.wait_nothing_left();
}
