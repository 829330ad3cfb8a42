//! Tests of the STATUS column.

use serde_json::{Value, json};

use super::super::Paint;
use super::*;

fn pod(spec: &Value, status: &Value) -> Pod {
    let metadata = json!({"name": "web", "namespace": "default", "creationTimestamp": "2024-01-01T00:00:00Z"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn one(status: &Value) -> Summary {
    summary(&pod(&json!({"containers": [{"name": "c"}]}), status))
}

fn waiting_for(reason: &str) -> Value {
    json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason}}})
}

fn terminated_with(code: i32, reason: &str) -> Value {
    json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
           "state": {"terminated": {"exitCode": code, "reason": reason}}})
}

fn running(name: &str, ready: bool) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": ready, "started": true, "restartCount": 0, "state": {"running": {}}})
}

#[test]
fn one_container() {
    let all = |status: &Value| json!({"phase": "Running", "containerStatuses": [status]});
    for (status, expected, ready) in [
        (json!({"phase": "Pending"}), "Pending", 0),
        (all(&running("c", true)), "Running", 1),
        (all(&running("c", false)), "Running", 0),
        (all(&waiting_for("ContainerCreating")), "ContainerCreating", 0),
        (all(&waiting_for("CrashLoopBackOff")), "CrashLoopBackOff", 0),
        (all(&terminated_with(0, "Completed")), "Completed", 0),
        (all(&terminated_with(3, "Error")), "Error", 0),
        (all(&terminated_with(137, "OOMKilled")), "OOMKilled", 0),
        (all(&terminated_with(3, "")), "ExitCode:3", 0),
        (json!({"phase": "Failed", "reason": "Evicted"}), "Evicted", 0),
        (
            json!({"phase": "Pending", "reason": "OutOfcpu", "containerStatuses": [waiting_for("ContainerCreating")]}),
            "OutOfcpu",
            0,
        ),
    ] {
        let got = one(&status);
        assert_eq!((got.status.as_str(), got.ready), (expected, (ready, 1)), "{status:#}");
    }
}

#[test]
fn a_terminated_and_a_running_container() {
    let mut other = running("b", true);
    other["name"] = json!("b");
    let spec = json!({"containers": [{"name": "b"}, {"name": "c"}]});
    let status = |ready: &str| {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
               "containerStatuses": [other, terminated_with(0, "Completed")]})
    };
    assert_eq!(summary(&pod(&spec, &status("True"))).status, "Running");
    assert_eq!(summary(&pod(&spec, &status("False"))).status, "NotReady");
}

#[test]
fn init_containers_and_sidecars() {
    let spec = json!({"containers": [{"name": "c"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let state = |name: &str, started: bool, ready: bool, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": ready, "started": started, "restartCount": 2, "state": state});
    let done = state("i", false, true, json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
    let status = |i: &Value, s: &Value, apps: Value| json!({"phase": "Pending", "initContainerStatuses": [i, s], "containerStatuses": apps});
    let not_yet = state("s", false, false, json!({"waiting": {"reason": "PodInitializing"}}));
    let apps = || json!([waiting_for("PodInitializing")]);
    for (i, s, expected) in [
        (state("i", false, false, json!({"running": {}})), not_yet.clone(), "Init:0/2"),
        (done.clone(), not_yet.clone(), "Init:1/2"),
        (
            state("i", false, false, json!({"waiting": {"reason": "CrashLoopBackOff"}})),
            not_yet.clone(),
            "Init:CrashLoopBackOff",
        ),
        (
            state("i", false, false, json!({"terminated": {"exitCode": 2, "reason": "Error"}})),
            not_yet.clone(),
            "Init:Error",
        ),
        (state("i", false, false, json!({"terminated": {"exitCode": 0, "signal": 9}})), not_yet.clone(), "Init:1/2"),
        (state("i", false, false, json!({"terminated": {"exitCode": 1, "signal": 9}})), not_yet, "Init:Signal:9"),
    ] {
        assert_eq!(summary(&pod(&spec, &status(&i, &s, apps()))).status, expected, "{i:#}");
    }
    let up = state("s", true, true, json!({"running": {}}));
    let got = summary(&pod(&spec, &status(&done, &up, json!([running("c", true)]))));
    assert_eq!((got.status.as_str(), got.ready), ("Pending", (2, 2)), "the phase is set by the agent");
    assert_eq!(got.restarts.0, 2, "restarts of sidecars count, those of init containers do not");
}

#[test]
fn a_deleted_pod_is_terminating_until_its_phase_is_terminal() {
    let mut deleted = pod(&json!({"containers": [{"name": "c"}]}), &json!({"phase": "Running"}));
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    assert_eq!(summary(&deleted).status, "Terminating");
    deleted.status.as_mut().unwrap().phase = Some("Succeeded".into());
    assert_eq!(summary(&deleted).status, "Succeeded");
}

#[test]
fn a_pod_in_quarantine_is_shown_as_quarantined() {
    let quarantined = |phase: &str, reason: &str| {
        json!({"phase": phase, "containerStatuses": [running("c", true)],
            "conditions": [{"type": "podwright.dev/Quarantined", "status": "True", "reason": reason}]})
    };
    for (phase, reason, expected) in [
        ("Pending", "AgentDied", "Quarantined"),
        ("Running", "AgentDied", "Quarantined"),
        ("Running", "InternalError", "Quarantined"),
        // For some seconds only.
        ("Running", "AgentDiedOnce", "Running"),
        ("Failed", "AgentDied", "Failed"),
    ] {
        assert_eq!(one(&quarantined(phase, reason)).status, expected, "{phase}, {reason}");
    }
    let mut deleted = pod(&json!({"containers": [{"name": "c"}]}), &quarantined("Running", "AgentDied"));
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    assert_eq!(summary(&deleted).status, "Terminating", "as kubectl shows it");
}

#[test]
fn the_table_has_the_format_of_kubectl() {
    let mut crashing = waiting_for("CrashLoopBackOff");
    crashing["restartCount"] = json!(4);
    crashing["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2024-01-01T00:04:30Z"}});
    let a = pod(
        &json!({"containers": [{"name": "c"}], "nodeName": "n1"}),
        &json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [running("c", true)]}),
    );
    let mut b =
        pod(&json!({"containers": [{"name": "c"}]}), &json!({"phase": "Running", "containerStatuses": [crashing]}));
    b.metadata.name = Some("a-longer-name".into());
    let now = "2024-01-01T00:05:00Z".parse().unwrap();
    let columns = Columns { namespace: true, wide: true, labels: false };
    insta::assert_snapshot!("table", table(&[a, b], columns, now).render(Paint::off()));
}

#[test]
fn a_static_pod_that_waits_for_admission_has_an_age() {
    let mut held = pod(&json!({"containers": [{"name": "c"}]}), &json!({"phase": "Pending", "reason": "OutOfcpu"}));
    held.metadata.creation_timestamp = None;
    assert_eq!(created_at(&held), None);
    let seen = "2024-01-01T00:04:00Z";
    held.metadata.annotations = Some([("kubernetes.io/config.seen".to_owned(), seen.to_owned())].into());
    assert_eq!(created_at(&held), Some(seen.parse().unwrap()));
}

#[test]
fn the_table_shows_how_far_a_pull_is() {
    let shown = |message: Value, init: bool, wide: bool| {
        let mut waiting = waiting_for(if init { "PodInitializing" } else { "ContainerCreating" });
        waiting["state"]["waiting"]["message"] = message;
        let list = if init { "initContainerStatuses" } else { "containerStatuses" };
        let inits = if init { json!([{"name": "c"}]) } else { json!([]) };
        let spec = json!({"initContainers": inits, "containers": [{"name": "c"}]});
        let pods = [pod(&spec, &json!({"phase": "Pending", list: [waiting]}))];
        let columns = Columns { wide, ..Columns::default() };
        table(&pods, columns, Timestamp::UNIX_EPOCH).render(Paint::off())
    };
    let pull = || json!("Pulling 34 of 120 MB");
    for wide in [false, true] {
        let table = shown(pull(), false, wide);
        assert!(table.contains(" Pulling 34 of 120 MB ") && !table.contains("ContainerCreating"), "{table}");
        let table = shown(pull(), true, wide);
        assert!(table.contains(" Init:0/1 (Pulling 34 of 120 MB) "), "{table}");
        // The manifest of the image is not known yet, or nothing is.
        for message in [json!("Pulling"), Value::Null] {
            let table = shown(message, false, wide);
            assert!(table.contains(" ContainerCreating ") && !table.contains("Pulling"), "{table}");
        }
    }
}
