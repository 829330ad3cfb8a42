//! Twelve ways a pod gets stuck: each time `explain` names the cause and what to do next.

use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{HungMount, image, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, LocalNode, sh};

/// A pod that can't run, and the texts that `explain` must contain: the cause, and the next step.
struct Stuck {
    name: &'static str,
    spec: Value,
    cause: &'static [&'static str],
    step: &'static str,
}

fn containers(container: &Value) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

fn changed(field: &str, value: Value) -> Value {
    let mut container = sh("c", "sleep 3600");
    container[field] = value;
    containers(&container)
}

fn ways(hung: &HungMount) -> Vec<Stuck> {
    let init = json!({"initContainers": [sh("setup", "echo no database; exit 3")], "containers": [sh("c", "true")]});
    let mut hanging = changed("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    hanging["volumes"] = json!([{"name": "v", "hostPath": {"path": hung.point().join("x"), "type": "Directory"}}]);
    let mut class = containers(&sh("c", "true"));
    class["runtimeClassName"] = json!("no-such-class");
    vec![
        Stuck {
            name: "missing-image",
            spec: containers(&json!({"name": "c", "image": "127.0.0.1:1/no/such:1"})),
            cause: &["127.0.0.1:1/no/such:1", "c: "],
            step: "This node cannot reach the registry",
        },
        Stuck {
            name: "bad-command",
            spec: changed("command", json!(["/no/such/command"])),
            cause: &["/no/such/command"],
            step: "check that its command exists in the image",
        },
        Stuck {
            name: "failing-init",
            spec: init,
            cause: &[
                "cannot initialize: init container setup exited with 3",
                "setup: CrashLoopBackOff",
                "exited with code 3",
            ],
            step: "Check the log of the init container",
        },
        Stuck {
            name: "failing-readiness",
            spec: changed("readinessProbe", json!({"tcpSocket": {"port": 1}, "periodSeconds": 1})),
            cause: &["NotReady", "Connection refused"],
            step: "Nothing listens where the probe connects",
        },
        Stuck { name: "hung-mount", spec: hanging, cause: &["volume v"], step: "its file system may hang" },
        Stuck {
            name: "no-resources",
            spec: changed("resources", json!({"requests": {"memory": "900Ti"}})),
            cause: &["OutOfmemory"],
            step: "Lower the request",
        },
        Stuck {
            name: "port-taken",
            spec: changed("ports", json!([{"containerPort": 80, "hostPort": 38080}])),
            cause: &["NodePorts"],
            step: "Another pod uses the same hostPort",
        },
        Stuck { name: "runtime-class", spec: class, cause: &["no-such-class"], step: "runtimeClassName" },
        Stuck {
            name: "crash-loop",
            spec: containers(&sh("c", "echo no config > /dev/termination-log; exit 7")),
            cause: &["keeps crashing: c exited with 7", "c: CrashLoopBackOff", "exited with code 7"],
            step: "Check its log",
        },
    ]
}

#[test]
fn explain_names_the_cause_and_the_next_step_of_stuck_pods() {
    let mut node = LocalNode::start();
    let hung = HungMount::new(&node.scratch.path().join("hung")).expect("mounted");
    node.put("port-owner", &changed("ports", json!([{"containerPort": 80, "hostPort": 38080}])));
    node.wait_status("port-owner", "Running");
    let mut hook = sh("c", "sleep 3600");
    hook["lifecycle"] = json!({"preStop": {"exec": {"command": ["sleep", "3600"]}}});
    node.put("hung-hook", &json!({"terminationGracePeriodSeconds": 60, "containers": [hook]}));
    node.wait_status("hung-hook", "Running");

    let ways = ways(&hung);
    for Stuck { name, spec, .. } in &ways {
        node.put(name, spec);
    }
    // A static pod that refers to API objects is rejected: its file is named.
    let missing = json!({"containers": [{"name": "c", "image": image::BUSYBOX,
        "envFrom": [{"configMapRef": {"name": "settings"}}]}]});
    node.put("needs-config", &missing);
    node.scratch.remove_manifest("hung-hook.json").expect("removed");
    wait_explained(
        &node,
        "hung-hook",
        &["PreStopHook", "until "],
        "the preStop hook may run until the grace period ends",
    );
    for Stuck { name, cause, step, .. } in &ways {
        wait_explained(&node, name, cause, step);
    }
    let broken = wait_until(LIMIT, "the manifest to be named", || {
        let output = node.masked_output("get pods");
        ensure!(output.contains("needs-config.json"), "{output}");
        Ok(output)
    });
    assert!(broken.contains("settings") || broken.contains("configMapRef"), "{broken}");

    // The engine ends with the agent.
    if let Ok(containerd) = node.runtime.containerd() {
        containerd.stop().expect("stopped");
        wait_explained(&node, "failing-readiness", &["NoRuntime"], "Check that the container runtime is running");
        node.runtime.start_again().expect("started again");
    }
    drop(hung);
}

fn wait_explained(node: &LocalNode, name: &str, cause: &[&str], step: &str) {
    wait_until(Duration::from_secs(60), &format!("the explanation of {name}"), || {
        let output = node.masked_output(&format!("explain {name}"));
        for words in cause.iter().chain([&step]) {
            ensure!(output.contains(words), "no {words:?} in {output}");
        }
        Ok(())
    });
}
