//! Secrets do not leak.

use std::time::Duration;

use podwright_testbed::{ControlPlane, wait_until};
use serde_json::json;

use crate::cluster_node::ClusterNode;
use crate::suite::{container, one, sh};

/// The value that may exist in the container only.
const VALUE: &str = "hunter2-is-the-word";

#[test]
fn a_node_reads_only_the_secrets_of_its_pods_and_leaks_none() {
    let plane = ControlPlane::shared();
    let record = std::env::temp_dir().join(format!("podwright-record-{}", std::process::id()));
    let recorded = record.clone();
    let node = ClusterNode::configured(plane, "secretive", |agent| agent.arg("--record").arg(recorded));
    for name in ["used", "unused"] {
        node.create("secrets", &json!({"metadata": {"name": name}, "stringData": {"k": VALUE}}));
    }
    let asks = plane.node_api(node.name).expect("a client");
    let status =
        |name: &str| asks.request("GET", &format!("{}/{name}", node.path("secrets")), None).expect("an answer").status;
    // A pod of another node gives no access.
    let mut other = one(&sh("c", "true"));
    other["nodeName"] = json!("elsewhere");
    other["volumes"] = json!([{"name": "s", "secret": {"secretName": "unused"}}]);
    node.create("pods", &json!({"metadata": {"name": "other"}, "spec": other}));
    assert_eq!((status("used"), status("unused")), (403, 403));

    // The container reports by its exit code, not by its output, whether it has the secret.
    let script = format!("[ \"$E\" = {VALUE} ] && [ \"$(cat /s/k)\" = {VALUE} ] && [ \"$k\" = {VALUE} ]");
    let hidden = script.replace(VALUE, "$(printf 'hunter2-is-%s' the-word)");
    let mut c = sh("c", &hidden);
    c["env"] = json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "used", "key": "k"}}}]);
    c["envFrom"] = json!([{"secretRef": {"name": "used"}}]);
    c["volumeMounts"] = json!([{"name": "s", "mountPath": "/s"}]);
    let mut spec = one(&c);
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!([{"name": "s", "secret": {"secretName": "used"}}]);
    node.put("reader", &spec);
    // A pod that can't start, because errors are the most likely leak.
    let mut broken = spec.clone();
    broken["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["key"] = json!("missing");
    node.put("broken", &broken);
    // A pod whose hook prints the secret and fails: the event reports the failure without the output.
    let mut loud = spec.clone();
    loud["containers"][0]["command"] = json!(["sleep", "1000"]);
    loud["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", "echo $E; exit 1"]}}});
    node.put("loud", &loud);
    let pod = node.wait_phase("reader", "Succeeded");
    assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], 0);
    assert_eq!((status("used"), status("unused")), (200, 403));
    wait_until(Duration::from_secs(20), "the broken one to say why", || {
        let pod = node.get("pods", "broken")?;
        let waiting = container(&pod, "c")["state"]["waiting"].clone();
        anyhow::ensure!(waiting["reason"] == "CreateContainerConfigError", "{:#}", pod["status"]);
        Ok(())
    });
    wait_until(Duration::from_secs(60), "the hook to fail", || {
        let events = node.list("events")?;
        let failed = |event: &&serde_json::Value| event["reason"] == "FailedPostStartHook";
        let event = events.iter().find(failed).ok_or_else(|| anyhow::anyhow!("{events:?}"))?;
        anyhow::ensure!(event["message"].as_str().is_some_and(|m| m.ends_with("exited with 1")), "{event:#}");
        Ok(())
    });
    let events = node.list("events").expect("events");
    assert!(!events.is_empty());
    let output = [
        ("the log", node.agent.log()),
        ("an event", serde_json::to_string(&events).expect("JSON")),
        ("the pods", node.agent.pods().expect("pods").to_string()),
        ("the recording", String::from_utf8_lossy(&std::fs::read(&record).unwrap_or_default()).into_owned()),
    ];
    assert!(output[3].1.len() > 100, "nothing was recorded");
    for (place, text) in output {
        assert!(!text.contains(VALUE), "{place} tells the secret");
        // As encoded in JSON and base64.
        assert!(!text.contains("aHVudGVyMi1pcy10aGUtd29yZA"), "{place} tells the secret in base64");
        // The prefix of service account tokens.
        assert!(!text.contains("eyJhbGciOi"), "{place} tells a token");
    }
    for name in ["reader", "broken", "loud", "other"] {
        let now = json!({"gracePeriodSeconds": 0});
        let options = Some(&now).filter(|_| name == "other");
        node.plane.api().delete(&format!("{}/{name}", node.path("pods")), options).expect("deleted");
    }
    node.wait_nothing_left();
    let _ = std::fs::remove_file(record);
}
