//! Secrets stay secret.

use std::time::Duration;

use podwright_testbed::{ControlPlane, wait_until};
use serde_json::json;

use crate::joined::Joined;
use crate::suite::{container, one, sh};

/// What must be found in the container and nowhere else.
const VALUE: &str = "hunter2-is-the-word";

#[test]
fn a_node_reads_only_what_its_pods_need_and_tells_nobody() {
    let plane = ControlPlane::shared();
    let record = std::env::temp_dir().join(format!("podwright-record-{}", std::process::id()));
    let recorded = record.clone();
    let node = Joined::configured(plane, "secretive", |agent| agent.arg("--record").arg(recorded));
    for name in ["used", "unused"] {
        node.create("secrets", &json!({"metadata": {"name": name}, "stringData": {"k": VALUE}}));
    }
    let asks = plane.node_api(node.name).expect("a client");
    let status =
        |name: &str| asks.request("GET", &format!("{}/{name}", node.path("secrets")), None).expect("an answer").status;
    // A pod of another node is no reason.
    let mut other = one(&sh("c", "true"));
    other["nodeName"] = json!("elsewhere");
    other["volumes"] = json!([{"name": "s", "secret": {"secretName": "unused"}}]);
    node.create("pods", &json!({"metadata": {"name": "other"}, "spec": other}));
    assert_eq!((status("used"), status("unused")), (403, 403));

    // It tells whether it has got it, by an exit code and not by its words.
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
    // One that can't start, since failures talk most.
    let mut broken = spec.clone();
    broken["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["key"] = json!("missing");
    node.put("broken", &broken);
    // One whose hook says it aloud and fails: events tell of the failure, not of the words.
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
    let said = [
        ("the log", node.agent.log()),
        ("an event", serde_json::to_string(&events).expect("JSON")),
        ("the pods", node.agent.pods().expect("pods").to_string()),
        ("the recording", String::from_utf8_lossy(&std::fs::read(&record).unwrap_or_default()).into_owned()),
    ];
    assert!(said[3].1.len() > 100, "nothing was recorded");
    for (place, text) in said {
        assert!(!text.contains(VALUE), "{place} tells the secret");
        // As JSON and base64 carry it.
        assert!(!text.contains("aHVudGVyMi1pcy10aGUtd29yZA"), "{place} tells the secret in base64");
        // As tokens of service accounts begin.
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
