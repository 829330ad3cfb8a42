//! Many pods at once come up, and go without a trace.

use podwright_testbed::Flavor;
use serde_json::json;

use super::{Bed, condition, container, one, sh, sleeper};

pub(crate) fn a_manifest_becomes_a_running_pod_and_goes_without_a_trace(flavor: Flavor) {
    let bed = Bed::start(flavor);
    bed.put("web", &one(&sleeper("c")));
    let pod = bed.wait_phase("web", "Running");
    assert_eq!(condition(&pod, "Ready")["status"], "True", "{:#}", pod["status"]);
    assert_eq!(container(&pod, "c")["restartCount"], 0);
    bed.remove("web");
    bed.wait_nothing_left();
}

pub(crate) fn sixty_manifests_at_once_all_run_and_all_go(flavor: Flavor) {
    let bed = Bed::start(flavor);
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
        bed.put(name, &spec);
    }
    for name in &names {
        bed.wait_phase(name, "Running");
    }
    for name in &names {
        bed.remove(name);
    }
    bed.wait_nothing_left();
}
