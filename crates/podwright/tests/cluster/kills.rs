//! The agent dies again and again, and nobody in the cluster notices.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::joined::Joined;
use crate::suite::{LIMIT, condition, container, one, sh, sleeper};

/// A small deterministic source of moments.
pub(crate) struct Moments(pub(crate) u64);

impl Moments {
    pub(crate) fn next(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % below)
    }
}

#[test]
fn killed_10_times_under_30_pods_no_ready_flips_and_nothing_restarts() {
    let mut node = Joined::start(ControlPlane::shared(), "killed");
    let probe = |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1});
    for i in 0..10 {
        let (mut ready, mut not) = (one(&sleeper("c")), one(&sleeper("c")));
        ready["containers"][0]["readinessProbe"] = probe("true");
        not["containers"][0]["readinessProbe"] = probe("false");
        node.put(&format!("ready{i}"), &ready);
        node.put(&format!("not{i}"), &not);
        let mut job = one(&sh("c", &format!("sleep {}; exit {}", i, i % 2 * 4)));
        job["restartPolicy"] = json!("Never");
        node.put(&format!("job{i}"), &job);
    }
    for i in 0..10 {
        node.wait_ready(&format!("ready{i}"));
        node.wait_phase(&format!("not{i}"), "Running");
    }
    let before = node.plane.api().get(&node.path("pods")).expect("a list");
    let path = format!(
        "{}?resourceVersion={}",
        node.path("pods"),
        before["metadata"]["resourceVersion"].as_str().expect("a version")
    );
    let watch = node.plane.api().watch(&path, LIMIT).expect("a watch");
    let flips = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| flips(watch));
        let mut moments = Moments(5);
        for _ in 0..10 {
            std::thread::sleep(moments.next(1500));
            node.agent.kill9().expect("killed");
            std::thread::sleep(moments.next(500));
            node.agent.start_again().expect("started again");
        }
        std::thread::sleep(Duration::from_secs(3));
        // The sign for the watcher to end.
        node.patch("pods", "ready0", &json!({"metadata": {"labels": {"end": "yes"}}}));
        watcher.join().expect("no panic")
    });
    assert!(flips.is_empty(), "{flips:#?}");
    for i in 0..10 {
        for name in [format!("ready{i}"), format!("not{i}")] {
            let pod = node.phase(&name, "Running").expect("it runs");
            let old =
                before["items"].as_array().expect("a list").iter().find(|pod| pod["metadata"]["name"] == name.as_str());
            let (now, old) = (container(&pod, "c"), container(old.expect("there"), "c"));
            assert_eq!((&now["containerID"], &now["restartCount"]), (&old["containerID"], &json!(0)), "{name}");
        }
        let (name, code) = (format!("job{i}"), i % 2 * 4);
        let pod = node.wait_phase(&name, if code == 0 { "Succeeded" } else { "Failed" });
        assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], code, "{:#}", pod["status"]);
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
    }
    node.plane.kubectl(&["-n", node.name, "delete", "pods", "--all", "--wait=false"]).expect("deleted");
    wait_until(LIMIT, "all to be gone", || {
        let left = node.list("pods")?;
        ensure!(left.is_empty(), "{} are left: {:#}", left.len(), left[0]);
        Ok(())
    });
}

/// Every Ready condition of a pod that is not what its name says, until the sign.
fn flips(watch: podwright_testbed::Watch) -> Vec<String> {
    let (mut found, mut seen) = (vec![], BTreeMap::<String, Value>::new());
    for event in watch {
        let pod = &event["object"];
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if pod["metadata"]["labels"]["end"] == "yes" {
            break;
        }
        let ready = condition(pod, "Ready")["status"].clone();
        let right = if name.starts_with("ready") { "True" } else { "False" };
        if !name.starts_with("job") && ready != right {
            found.push(format!("{name}: Ready {ready}, before {:?}", seen.get(&name)));
        }
        seen.insert(name, ready);
    }
    found
}
