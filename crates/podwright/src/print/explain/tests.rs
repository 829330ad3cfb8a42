//! The output of `podwright explain`.

use std::time::Duration;

use podwright_core::model::{FullName, KubeEvent, Now};
use serde_json::{Value, json};

use super::*;

fn at(seconds: u64) -> Now {
    let start: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
    Now { boot: Duration::from_secs(seconds), wall: start + Duration::from_secs(seconds) }
}

fn line(seconds: u64, what: &str, cause: &str) -> Transition {
    Transition { at: at(seconds), what: what.into(), cause: cause.into() }
}

fn explanation(state: Option<State>, status: &Value) -> Explanation {
    let spec = json!({"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 80}}}]});
    let pod = json!({"metadata": {"name": "web-node", "namespace": "default"}, "spec": spec, "status": status});
    Explanation {
        full_name: FullName { namespace: "default".into(), name: "web-node".into() },
        uid: "u-1".into(),
        state,
        pod: state.map(|_| serde_json::from_value(pod).unwrap()),
        origin: state.map(|_| "/etc/manifests/web.yaml".into()),
        history: vec![
            line(0, "admitted", "the node has capacity"),
            line(1, "container c started", "first start"),
            line(9, "container c exited with code 3", "Error"),
        ],
        forgotten: 0,
        waits: vec![],
        runtime_up: true,
    }
}

fn event(reason: &'static str, message: &str, seconds: u64, count: u64) -> CorrelatedEvent {
    let full_name = FullName { namespace: "default".into(), name: "web-node".into() };
    let container = Some("c".into());
    let event = KubeEvent {
        uid: Some("u-1".into()),
        pod: full_name,
        container,
        warning: true,
        reason,
        message: message.into(),
    };
    CorrelatedEvent { event, field_path: None, first: at(0), last: at(seconds), count }
}

fn container(state: &Value, ready: bool, restarts: u32, last: &Value) -> Value {
    json!({"name": "c", "image": "", "imageID": "", "ready": ready, "started": true, "restartCount": restarts, "state": state, "lastState": last})
}

fn text(explanation: &Explanation, events: &[CorrelatedEvent]) -> String {
    render(std::slice::from_ref(explanation), events, Path::new("/logs"), at(20).wall)
}

#[test]
fn a_crash_looping_container() {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no \u{1b}[31mconfig"}});
    let mut pod = explanation(
        Some(State::Syncing),
        &json!({"phase": "Running", "containerStatuses": [container(&waiting, false, 1, &last)]}),
    );
    pod.waits = vec![Wait {
        container: Some("c".into()),
        reason: "CrashLoopBackOff".into(),
        message: "back-off 20s restarting failed container=c".into(),
        since: None,
        until: Some(at(29).wall),
    }];
    insta::assert_snapshot!("crash_loop", text(&pod, &[event("Pulled", "Successfully pulled image", 0, 1)]));
}

#[test]
fn a_failing_readiness_probe() {
    let running = json!({"running": {}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&running, false, 0, &json!({}))],
        "conditions": [{"type": "Ready", "status": "False"}]});
    let pod = explanation(Some(State::Syncing), &status);
    insta::assert_snapshot!(
        "probe_fails",
        text(&pod, &[event("Unhealthy", "Readiness probe failed: connection refused", 15, 7)])
    );
}

#[test]
fn a_ready_pod_waits_for_nothing() {
    let running = json!({"running": {}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&running, true, 0, &json!({}))],
        "conditions": [{"type": "Ready", "status": "True"}]});
    let text = text(&explanation(Some(State::Syncing), &status), &[]);
    assert!(text.starts_with("Pod default/web-node is running and ready\n"), "{text}");
    assert!(text.contains("What it waits for\n  nothing\n") && !text.contains("What you can do"), "{text}");
}

#[test]
fn older_pods_of_a_name_are_counted_and_a_missing_runtime_is_a_wait() {
    let mut pods: Vec<Explanation> = (0..5).map(|_| explanation(None, &Value::Null)).collect();
    let mut last = explanation(Some(State::Waiting), &json!({"phase": "Pending"}));
    last.runtime_up = false;
    last.waits = vec![Wait {
        container: None,
        reason: "WaitingForPredecessor".into(),
        message: "waiting for the previous pod to terminate".into(),
        since: Some(at(18).wall),
        until: None,
    }];
    pods.push(last);
    let text = render(&pods, &[], Path::new("/logs"), at(20).wall);
    assert!(text.starts_with("3 earlier pods of this name are not shown\n"), "{text}");
    assert_eq!(text.matches("was removed 11s ago").count(), 2, "{text}");
    insta::assert_snapshot!("waits", text[text.rfind("Pod ").unwrap()..]);
}

#[test]
fn long_ids_are_shortened_and_other_text_is_not() {
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(
        shorten_ids(&format!("sandbox created: {id}, attempt 0 {id}")),
        "sandbox created: 0123456789abc, attempt 0 0123456789abc"
    );
    assert_eq!(shorten_ids("exit → é 12"), "exit → é 12");
}

#[test]
fn equal_neighbours_are_merged() {
    let lines = ["a", "b", "b", "b", "a"].into_iter().zip(0..);
    let lines = lines.map(|(line, n)| (at(n).wall, line.to_owned())).collect();
    let merged: Vec<String> =
        merge_repeats(lines).into_iter().map(|(at, line)| format!("{} {line}", at.as_second() % 60)).collect();
    assert_eq!(merged, ["0 a", "3 b (3 times)", "4 a"]);
}
