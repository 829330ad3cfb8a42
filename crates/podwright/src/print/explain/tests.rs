//! The output of `podwright explain`.

use std::time::Duration;

use podwright_core::model::{FullName, KubeEvent, Now};
use serde_json::{Value, json};

use super::*;

mod quarantine;

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
        runtime_pending: false,
    }
}

fn event(reason: &'static str, message: &str, seconds: u64, count: u64) -> CorrelatedEvent {
    let full_name = FullName { namespace: "default".into(), name: "web-node".into() };
    let container = Some("c".into());
    let event = KubeEvent {
        annotations: vec![],
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
    render(std::slice::from_ref(explanation), events, Path::new("/logs"), at(20).wall, &|_| None)
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

/// The first line without the name of the pod, and the second, which begins the advice.
fn first_lines(pod: &Explanation, events: &[CorrelatedEvent]) -> (String, String) {
    let text = text(pod, events);
    let mut lines = text.lines().map(str::to_owned);
    let first = lines.next().unwrap();
    (first.strip_prefix("Pod default/web-node ").unwrap().to_owned(), lines.next().unwrap())
}

#[test]
fn a_crash_loop_is_named_at_every_moment_of_it() {
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error",
        "startedAt": "2024-01-01T00:00:05Z", "finishedAt": "2024-01-01T00:00:09Z"}});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (state, restarts, expected) in [
        (json!({"running": {"startedAt": "2024-01-01T00:00:18Z"}}), 4, "4 times, started again 2s ago"),
        (json!({"waiting": {"reason": "CrashLoopBackOff"}}), 3, "4 times, next start in 9s"),
        (last.clone(), 1, "twice, next start in 9s"),
    ] {
        let container = container(&state, true, restarts, &last);
        let mut pod = explanation(
            Some(State::Syncing),
            &json!({"phase": "Running", "conditions": ready, "containerStatuses": [container]}),
        );
        pod.waits = vec![Wait {
            container: Some("c".into()),
            reason: "CrashLoopBackOff".into(),
            message: "back-off".into(),
            since: None,
            until: Some(at(29).wall),
        }];
        let (first, second) = first_lines(&pod, &[]);
        assert_eq!(first, format!("keeps crashing: c exited with 3, {expected}"));
        assert!(second.contains("The container keeps exiting. Check its log"), "{second}");
    }
}

#[test]
fn a_restart_by_a_user_is_no_crash() {
    let last = json!({"terminated": {"exitCode": 143, "reason": "Error",
        "startedAt": "2024-01-01T00:00:05Z", "finishedAt": "2024-01-01T00:00:09Z"}});
    let running = container(&json!({"running": {"startedAt": "2024-01-01T00:00:10Z"}}), true, 1, &last);
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [running]});
    let mut pod = explanation(Some(State::Syncing), &status);
    pod.history.push(line(8, "restart of container c requested", "by a user"));
    assert!(text(&pod, &[]).starts_with("Pod default/web-node is running and ready\n"));
    // One that has run for ten minutes is no loop either.
    pod.history.pop();
    let later = render(std::slice::from_ref(&pod), &[], Path::new("/logs"), at(700).wall, &|_| None);
    assert!(later.starts_with("Pod default/web-node is running and ready\n"), "{later}");
}

#[test]
fn kills_by_probes_and_hooks_are_no_crashes() {
    let last = json!({"terminated": {"exitCode": 137, "reason": "Error",
        "startedAt": "2024-01-01T00:00:05Z", "finishedAt": "2024-01-01T00:00:09Z"}});
    let running = container(&json!({"running": {"startedAt": "2024-01-01T00:00:18Z"}}), true, 2, &last);
    let pod = explanation(Some(State::Syncing), &json!({"phase": "Running", "containerStatuses": [running]}));
    let unhealthy = |probe: &str| {
        event(
            "Unhealthy",
            &format!("{probe} probe failed: dial tcp 10.0.0.1:80: Connection refused (os error 111)"),
            7,
            3,
        )
    };
    let killing = |probe: &str| event("Killing", &format!("Container c failed {probe} probe, will be restarted"), 8, 2);
    for (events, cause, advice) in [
        (
            vec![unhealthy("Liveness"), killing("liveness")],
            "c is killed by its liveness probe (Liveness probe failed: dial tcp 10.0.0.1:80: Connection refused)",
            "Nothing listens where the probe connects",
        ),
        (
            vec![unhealthy("Startup"), killing("startup")],
            "c is killed by its startup probe (Startup probe failed: dial tcp 10.0.0.1:80: Connection refused)",
            "Nothing listens where the probe connects",
        ),
        (
            vec![event("FailedPostStartHook", "PostStartHook failed", 6, 1)],
            "c is killed because its postStart hook fails: PostStartHook failed",
            "The postStart hook failed",
        ),
    ] {
        let (first, second) = first_lines(&pod, &events);
        assert_eq!(first, format!("keeps restarting: {cause}, twice, started again 2s ago"));
        assert!(second.contains(advice), "{second}");
    }
}

#[test]
fn a_failing_init_container_is_named() {
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error", "startedAt": "2024-01-01T00:00:05Z"}});
    let waiting = container(&json!({"waiting": {"reason": "CrashLoopBackOff"}}), false, 1, &last);
    let pod = explanation(Some(State::Syncing), &json!({"phase": "Pending", "initContainerStatuses": [waiting]}));
    let (first, second) = first_lines(&pod, &[]);
    assert_eq!(first, "cannot initialize: init container c exited with 3, twice, next start now");
    assert!(second.contains("Check the log of the init container"), "{second}");
}

#[test]
fn a_failing_sidecar_is_a_container_of_its_own() {
    let last =
        |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "startedAt": "2024-01-01T00:00:05Z"}});
    let sidecar = |state: &Value, code: i32| {
        let side = container(state, false, 3, &last(code));
        let app = json!({"name": "app", "image": "", "imageID": "", "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2024-01-01T00:00:01Z"}}});
        let status = json!({"phase": "Running", "initContainerStatuses": [side], "containerStatuses": [app]});
        let mut pod = explanation(Some(State::Syncing), &status);
        let spec =
            json!({"initContainers": [{"name": "c", "restartPolicy": "Always"}], "containers": [{"name": "app"}]});
        pod.pod.as_mut().unwrap().spec = serde_json::from_value(spec).unwrap();
        let (reason, message) = ("CrashLoopBackOff".into(), "back-off".into());
        pod.waits = vec![Wait { container: Some("c".into()), reason, message, since: None, until: Some(at(25).wall) }];
        pod
    };
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let (first, second) = first_lines(&sidecar(&waiting, 3), &[]);
    assert_eq!(first, "keeps crashing: sidecar c exited with 3, 4 times, next start in 5s");
    assert!(second.contains("The container keeps exiting. Check its log"), "{second}");
    let (first, second) = first_lines(&sidecar(&waiting, 0), &[]);
    assert_eq!(first, "keeps exiting: sidecar c exited with 0, 4 times, next start in 5s");
    assert!(second.contains("The sidecar ends without an error"), "{second}");
    let killed = [
        event("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500", 7, 3),
        event("Killing", "Container c failed liveness probe, will be restarted", 8, 2),
    ];
    let running = json!({"running": {"startedAt": "2024-01-01T00:00:18Z"}});
    let (first, _) = first_lines(&sidecar(&running, 137), &killed);
    let cause =
        "sidecar c is killed by its liveness probe (Liveness probe failed: HTTP probe failed with statuscode: 500)";
    assert_eq!(first, format!("keeps restarting: {cause}, 3 times, started again 2s ago"));
}

#[test]
fn a_rejected_pod_names_what_is_missing() {
    let full = "Node didn't have enough resource: cpu, requested: 2000, used: 100, capacity: 2000";
    let too_large = "Node didn't have enough resource: cpu, requested: 1000000, used: 100, capacity: 2000";
    let ports = "Node didn't have free ports for the requested pod ports";
    for (reason, message, expected, advice) in [
        (
            "OutOfcpu",
            full,
            "OutOfcpu: it requests 2 CPUs, 1.9 of 2 are free",
            "delete another pod, or lower the requests",
        ),
        (
            "OutOfcpu",
            too_large,
            "OutOfcpu: it requests 1000 CPUs, and this node has only 2 for pods",
            "Lower the request: the pod would not fit if it were the only one",
        ),
        ("NodePorts", ports, "NodePorts: host port 80/TCP is used by pod default/other", "Another pod uses"),
        (
            "NodeAffinity",
            "Predicate NodeAffinity failed",
            "NodeAffinity: this node does not match the node selector disk=ssd",
            "--node-labels",
        ),
    ] {
        let mut held =
            explanation(Some(State::Waiting), &json!({"phase": "Pending", "reason": reason, "message": message}));
        let wait = |message: &str| Wait {
            container: None,
            reason: reason.into(),
            message: message.into(),
            since: None,
            until: None,
        };
        let selector = [("disk".to_owned(), "ssd".to_owned())].into();
        held.pod.as_mut().unwrap().spec.as_mut().unwrap().node_selector = Some(selector);
        held.waits = vec![wait(message)];
        held.history.push(line(3, "rejected", "port 80/TCP is used by pod default/other"));
        let mut failed = explanation(
            Some(State::Finished),
            &json!({"phase": "Failed", "reason": reason,
            "message": format!("Pod was rejected: {message}")}),
        );
        failed.pod.as_mut().unwrap().spec.clone_from(&held.pod.as_ref().unwrap().spec);
        failed.history.clone_from(&held.history);
        for (pod, verb) in [(&held, "is"), (&failed, "was")] {
            let text = text(pod, &[]);
            assert!(text.starts_with(&format!("Pod default/web-node {verb} rejected: {expected}\n  → ")), "{text}");
            let folded = text.replace("\n    ", " ");
            assert!(folded.contains(advice), "{text}");
            assert_eq!(folded.contains("delete another pod"), advice.contains("delete another pod"), "{text}");
        }
    }
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
    assert!(text.contains("What it waits for\n  nothing\n") && !text.contains("\n  → "), "{text}");
}

#[test]
fn a_container_that_was_just_started_is_about_to_be_observed() {
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let status = json!({"phase": "Pending", "containerStatuses": [container(&waiting, false, 0, &json!({}))]});
    let mut pod = explanation(Some(State::Syncing), &status);
    for (history, headline, wait) in [
        (vec![], "is starting: the sandbox is being created", "  ContainerCreating: the sandbox is being created\n"),
        (
            vec![line(0, "sandbox created", "abc, attempt 0")],
            "is starting: c: the container is being created",
            "  c: ContainerCreating: the container is being created\n",
        ),
        (
            vec![line(0, "sandbox created", "abc, attempt 0"), line(1, "container c started (first start)", "")],
            "is starting: c: was just started, its state is being read",
            "  c: Started: was just started, its state is being read\n",
        ),
    ] {
        pod.history = history;
        let text = text(&pod, &[]);
        assert!(text.starts_with(&format!("Pod default/web-node {headline}\n")), "{text}");
        assert!(text.contains(&format!("What it waits for\n{wait}")), "{text}");
    }
}

#[test]
fn a_step_that_failed_is_named_while_it_is_repeated() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "pull image a: status 404 Not Found"}});
    let status = json!({"phase": "Pending", "containerStatuses": [container(&waiting, false, 0, &json!({}))]});
    let mut pod = explanation(Some(State::Syncing), &status);
    pod.pod.as_mut().unwrap().spec.as_mut().unwrap().containers[0].image = Some("a:1".into());
    let (first, _) = first_lines(&pod, &[]);
    assert_eq!(first, "cannot start c: the image a:1 cannot be pulled: status 404 Not Found");
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let status = json!({"phase": "Pending", "containerStatuses": [container(&waiting, false, 0, &json!({}))]});
    let mut pod = explanation(Some(State::Syncing), &status);
    pod.history = vec![line(1, "mount of volume v failed", "/x is not a directory")];
    let (first, second) = first_lines(&pod, &[]);
    assert_eq!(first, "cannot start: volume \"v\": /x is not a directory");
    assert!(second.contains("A volume cannot be set up"), "{second}");
}

#[test]
fn a_runtime_that_was_not_asked_yet_is_no_silent_one() {
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let mut pod = explanation(Some(State::Syncing), &status);
    (pod.runtime_up, pod.runtime_pending) = (false, true);
    let (first, _) = first_lines(&pod, &[]);
    assert_eq!(first, "cannot be observed: the agent was just started, and has not queried the container runtime yet");
    pod.runtime_pending = false;
    let (first, second) = first_lines(&pod, &[]);
    assert_eq!(first, "cannot be observed: the container runtime does not respond");
    assert!(second.contains("Check that the container runtime is running"), "{second}");
}

#[test]
fn a_pod_that_has_ended_says_how() {
    let ended = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    let status =
        |state: &Value| json!({"phase": "Failed", "containerStatuses": [container(state, false, 0, &json!({}))]});
    for (code, reason, expected) in [
        (3, "Error", "has failed: c exited with 3, and restartPolicy does not allow a restart"),
        (137, "OOMKilled", "has failed: c was killed because it used more memory than its limit (OOMKilled)"),
    ] {
        let (first, _) = first_lines(&explanation(Some(State::Finished), &status(&ended(code, reason))), &[]);
        assert_eq!(first, expected);
    }
    // A sidecar that was stopped at the end of the pod is no cause.
    let mut side = container(&ended(143, "Error"), false, 0, &json!({}));
    side["name"] = json!("side");
    let mut stopped = status(&ended(3, "Error"));
    stopped["initContainerStatuses"] = json!([side]);
    let mut pod = explanation(Some(State::Finished), &stopped);
    let sidecars = json!([{"name": "side", "restartPolicy": "Always"}]);
    pod.pod.as_mut().unwrap().spec.as_mut().unwrap().init_containers = serde_json::from_value(sidecars).unwrap();
    let (first, _) = first_lines(&pod, &[]);
    assert_eq!(first, "has failed: c exited with 3, and restartPolicy does not allow a restart");

    let status = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active"});
    let (first, second) = first_lines(&explanation(Some(State::Finished), &status), &[]);
    assert_eq!(first, "has failed: DeadlineExceeded: Pod was active");
    assert!(second.contains("activeDeadlineSeconds"), "{second}");
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
    let text = render(&pods, &[], Path::new("/logs"), at(20).wall, &|_| None);
    assert!(text.ends_with("\n3 earlier pods of this name are not shown\n"), "{text}");
    assert_eq!(text.matches("was removed 11s ago").count(), 2, "{text}");
    insta::assert_snapshot!("waits", text[..text.find("\nPod ").unwrap()]);
}

#[test]
fn events_of_another_instance_of_the_same_manifest_are_not_shown() {
    let old = explanation(None, &Value::Null);
    let mut new = explanation(Some(State::Waiting), &json!({"phase": "Pending"}));
    new.history = vec![line(15, "pod phase is Pending", "")];
    let mut later = event("Pulled", "pulled for the new one", 16, 1);
    later.first = at(16);
    let events = [event("Pulled", "pulled for the old one", 5, 1), later];
    let text = render(&[old, new], &events, Path::new("/logs"), at(20).wall, &|_| None);
    let (new, old) = text.split_once("\nPod ").unwrap();
    assert!(new.contains("the new one") && !new.contains("the old one"), "{text}");
    assert!(old.contains("the old one") && !old.contains("the new one"), "{text}");
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

#[test]
fn a_pull_shows_how_far_it_is() {
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let status = json!({"phase": "Pending", "containerStatuses": [container(&waiting, false, 0, &json!({}))]});
    let mut pod = explanation(Some(State::Syncing), &status);
    pod.pod.as_mut().unwrap().spec.as_mut().unwrap().containers[0].image = Some("web:1".into());
    let message = "image \"web:1\" is being pulled".to_owned();
    pod.waits = vec![Wait { container: Some("c".into()), reason: "Pulling".into(), message, since: None, until: None }];
    let amount = podwright_server::local::PullAmount { received: 34_000_000, size: 120_000_000 };
    let pulls = |image: &str| (image == "web:1").then_some(amount);
    let shown = render(std::slice::from_ref(&pod), &[], Path::new("/logs"), at(20).wall, &pulls);
    assert!(shown.contains("  c: Pulling 34 of 120 MB: image \"web:1\" is being pulled\n"), "{shown}");
    assert!(shown.contains("Wait for the image pull to complete."), "{shown}");
    assert!(text(&pod, &[]).contains("  c: Pulling: image \"web:1\" is being pulled\n"), "of another runtime");
}
