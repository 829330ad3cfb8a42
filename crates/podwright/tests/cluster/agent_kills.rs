//! The agent is killed many times without effect in the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_testbed::ControlPlane;
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::pod_watch::{PodWatch, flips};
use crate::suite::{condition, container, one, sh, sleeper};

/// A small deterministic source of delays.
pub(crate) struct RandomDelays(pub(crate) u64);

impl RandomDelays {
    pub(crate) fn next(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % below)
    }
}

/// Kills the agent `times` times with 30 pods: a third ready, a third not ready, a third jobs that complete meanwhile.
pub(crate) fn readiness_and_containers_survive_agent_kills(times: u32) {
    let mut node = ClusterNode::start(ControlPlane::shared(), "killed");
    let probe = |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1});
    for i in 0..10 {
        let (mut ready, mut not) = (one(&sleeper("c")), one(&sleeper("c")));
        ready["containers"][0]["readinessProbe"] = probe("true");
        not["containers"][0]["readinessProbe"] = probe("false");
        node.put(&format!("ready{i}"), &ready);
        node.put(&format!("not{i}"), &not);
        let mut job = one(&sh("c", &format!("sleep {}; exit {}", i * times / 10, i % 2 * 4)));
        job["restartPolicy"] = json!("Never");
        node.put(&format!("job{i}"), &job);
    }
    let mut before = BTreeMap::<String, Value>::new();
    for i in 0..10 {
        for (name, pod) in [
            (format!("ready{i}"), node.wait_ready(&format!("ready{i}"))),
            (format!("not{i}"), node.wait_phase(&format!("not{i}"), "Running")),
        ] {
            before.insert(name, identity(&pod));
        }
    }
    let watched = PodWatch::begin(&node);
    let mut moments = RandomDelays(5);
    for _ in 0..times {
        std::thread::sleep(moments.next(1500));
        node.agent.kill9().expect("killed");
        std::thread::sleep(moments.next(500));
        node.agent.start_again().expect("started again");
    }
    for i in 0..10 {
        let (name, code) = (format!("job{i}"), i % 2 * 4);
        let pod = node.wait_phase(&name, if code == 0 { "Succeeded" } else { "Failed" });
        assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], code, "{:#}", pod["status"]);
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
    }
    // A late change would show within some probe periods.
    std::thread::sleep(Duration::from_secs(3));
    let events = watched.end(&node);
    assert!(events.iter().any(|event| event["type"] == "MODIFIED"), "nothing was seen");
    let flips = flips(&events);
    assert!(flips.is_empty(), "{flips:#?}");
    for (name, before) in &before {
        let pod = node.phase(name, "Running").expect("it runs");
        assert_eq!(identity(&pod), *before, "{name}");
    }
    node.delete_all();
}

/// What must not change: the container, its restart count, readiness and its transition time.
fn identity(pod: &Value) -> Value {
    let (c, ready) = (container(pod, "c"), condition(pod, "Ready"));
    json!([c["containerID"], c["restartCount"], ready["status"], ready["lastTransitionTime"]])
}
