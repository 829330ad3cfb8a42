//! Stories as people read them.

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

fn told(state: Option<State>, status: &Value) -> Explanation {
    let spec = json!({"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 80}}}]});
    let pod = json!({"metadata": {"name": "web-node", "namespace": "default"}, "spec": spec, "status": status});
    Explanation {
        full_name: FullName { namespace: "default".into(), name: "web-node".into() },
        uid: "u-1".into(),
        state,
        pod: state.map(|_| serde_json::from_value(pod).unwrap()),
        origin: state.map(|_| "/etc/manifests/web.yaml".into()),
        history: vec![
            line(0, "Waiting → Syncing", "nothing holds it back"),
            line(1, "c started", "it was its turn"),
            line(9, "c exited with 3", "Error"),
        ],
        forgotten: 0,
        waits: vec![],
        runtime_up: true,
    }
}

fn event(reason: &'static str, message: &str, seconds: u64, count: u64) -> CorrelatedEvent {
    let full_name = FullName { namespace: "default".into(), name: "web-node".into() };
    let container = Some("c".into());
    let event =
        KubeEvent { uid: "u-1".into(), pod: full_name, container, warning: true, reason, message: message.into() };
    CorrelatedEvent { event, field_path: None, first: at(0), last: at(seconds), count }
}

fn container(state: &Value, ready: bool, restarts: u32, last: &Value) -> Value {
    json!({"name": "c", "image": "", "imageID": "", "ready": ready, "started": true, "restartCount": restarts, "state": state, "lastState": last})
}

fn text(told: &Explanation, events: &[CorrelatedEvent]) -> String {
    tell(std::slice::from_ref(told), events, Path::new("/logs"), at(20).wall)
}

#[test]
fn a_crash_loop() {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no \u{1b}[31mconfig"}});
    let mut told = told(
        Some(State::Syncing),
        &json!({"phase": "Running", "containerStatuses": [container(&waiting, false, 1, &last)]}),
    );
    told.waits = vec![Wait {
        container: Some("c".into()),
        reason: "CrashLoopBackOff".into(),
        message: "back-off 20s restarting failed container=c".into(),
        since: None,
        until: Some(at(29).wall),
    }];
    insta::assert_snapshot!("crash_loop", text(&told, &[event("Pulled", "Successfully pulled image", 0, 1)]));
}

#[test]
fn a_probe_that_fails() {
    let running = json!({"running": {}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&running, false, 0, &json!({}))],
        "conditions": [{"type": "Ready", "status": "False"}]});
    let told = told(Some(State::Syncing), &status);
    insta::assert_snapshot!(
        "probe_fails",
        text(&told, &[event("Unhealthy", "Readiness probe failed: connection refused", 15, 7)])
    );
}

#[test]
fn all_is_well() {
    let running = json!({"running": {}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&running, true, 0, &json!({}))],
        "conditions": [{"type": "Ready", "status": "True"}]});
    let text = text(&told(Some(State::Syncing), &status), &[]);
    assert!(text.starts_with("Pod default/web-node is running and ready\n"), "{text}");
    assert!(text.contains("What it waits for\n  nothing\n") && !text.contains("What you can do"), "{text}");
}

#[test]
fn many_lives_of_a_name_and_a_runtime_that_is_away() {
    let mut lives: Vec<Explanation> = (0..5).map(|_| told(None, &Value::Null)).collect();
    let mut last = told(Some(State::Waiting), &json!({"phase": "Pending"}));
    last.runtime_up = false;
    last.waits = vec![Wait {
        container: None,
        reason: "WaitingForPredecessor".into(),
        message: "waiting for the end of another".into(),
        since: Some(at(18).wall),
        until: None,
    }];
    lives.push(last);
    let text = tell(&lives, &[], Path::new("/logs"), at(20).wall);
    assert!(text.starts_with("3 earlier lives of this name are not shown\n"), "{text}");
    assert_eq!(text.matches("is gone, for 11s").count(), 2, "{text}");
    insta::assert_snapshot!("waits", text[text.rfind("Pod ").unwrap()..]);
}

#[test]
fn long_ids_are_shortened_and_words_are_not() {
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(
        shorter_ids(&format!("sandbox made: {id}, attempt 0 {id}")),
        "sandbox made: 0123456789abc, attempt 0 0123456789abc"
    );
    assert_eq!(shorter_ids("exit → é 12"), "exit → é 12");
}

#[test]
fn what_repeats_is_told_once() {
    let lines = ["a", "b", "b", "b", "a"].into_iter().zip(0..);
    let lines = lines.map(|(line, n)| (at(n).wall, line.to_owned())).collect();
    let told: Vec<String> =
        once(lines).into_iter().map(|(at, line)| format!("{} {line}", at.as_second() % 60)).collect();
    assert_eq!(told, ["0 a", "3 b (3 times)", "4 a"]);
}

#[test]
fn calls_that_failed_are_called_what_people_call_them() {
    for (told, words) in [
        ("failed: Container(c)", "c failed"),
        ("failed: Volume(v)", "volume v failed"),
        ("failed: RunSandbox", "sandbox failed"),
        ("failed: Hook(ab12, PreStop)", "hook of container ab12 failed"),
        ("failed: SomethingNew(x)", "failed: SomethingNew(x)"),
        ("c started", "c started"),
    ] {
        assert_eq!(in_words(told), words);
    }
}
