//! The end of a pod, as everybody sees it on a watch.

use std::time::Duration;

use podwright_testbed::ControlPlane;
use serde_json::{Value, json};

use crate::joined::Joined;
use crate::suite::{container, one, sh};

#[test]
fn the_object_goes_only_after_the_exit_code_was_told() {
    let node = Joined::start(ControlPlane::shared(), "told");
    let mut spec = one(&sh("c", "trap 'sleep 1; exit 7' TERM; touch /tmp/up; while :; do sleep 0.1; done"));
    spec["terminationGracePeriodSeconds"] = json!(20);
    spec["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1});
    node.put("p", &spec);
    let pod = node.wait_ready("p");
    let version = pod["metadata"]["resourceVersion"].as_str().expect("a version");
    let path = format!("{}?resourceVersion={version}", node.path("pods"));
    let watch = node.plane.api().watch(&path, Duration::from_secs(30)).expect("a watch");
    node.delete("pods", "p");
    let mut last = Value::Null;
    for event in watch {
        if event["type"] == "DELETED" {
            break;
        }
        last = event["object"].clone();
    }
    assert_eq!(last["status"]["phase"], "Failed", "{:#}", last["status"]);
    assert_eq!(container(&last, "c")["state"]["terminated"]["exitCode"], 7, "{:#}", last["status"]);
    node.wait_nothing_left();
}
