//! Many pods start and terminate at once, and leave nothing behind.

use podwright_testbed::Flavor;
use serde_json::json;

use super::{TestNode, condition, container, one, sh, sleeper};

pub(crate) fn a_pod_runs_and_is_removed_with_its_manifest(flavor: Flavor) {
    let node = TestNode::start(flavor);
    node.put("web", &one(&sleeper("c")));
    let pod = node.wait_phase("web", "Running");
    assert_eq!(condition(&pod, "Ready")["status"], "True", "{:#}", pod["status"]);
    assert_eq!(container(&pod, "c")["restartCount"], 0);
    node.remove("web");
    node.wait_nothing_left();
}

pub(crate) fn sixty_pods_start_and_terminate_at_once(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let names: Vec<String> = (0..60).map(|i| format!("p{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let mut spec = one(&sleeper("c"));
        match i % 4 {
            1 => spec["initContainers"] = json!([sh("init", "true")]),
            2 => {
                spec["volumes"] =
                    json!([{"name": "v", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}])
            }
            3 => spec["hostNetwork"] = json!(true),
            _ => {}
        }
        if i % 4 == 2 {
            spec["containers"][0]["volumeMounts"] =
                json!([{"name": "v", "mountPath": "/v", "subPath": "sub"}, {"name": "m", "mountPath": "/m"}]);
        }
        node.put(name, &spec);
    }
    for name in &names {
        node.wait_phase(name, "Running");
    }
    for name in &names {
        node.remove(name);
    }
    node.wait_nothing_left();
}
