//! `podwright logs` and `start`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::Api;

fn started() -> Api {
    let api = Api::start();
    let ended = |name: &str| {
        json!({"name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
               "state": {"terminated": {"exitCode": 0, "reason": "Completed", "containerID": "containerd://1"}}})
    };
    let two = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    api.publish("default", "two", &two, &json!({"phase": "Succeeded", "containerStatuses": [ended("a"), ended("b")]}));
    let one = json!([{"name": "c", "image": "i"}]);
    api.publish("default", "one", &one, &json!({"phase": "Succeeded", "containerStatuses": [ended("c")]}));
    api.write_log("default", "two", "a", 1, &["first", "second"]);
    api.write_log("default", "two", "b", 1, &["other"]);
    api.write_log("default", "one", "c", 1, &["only"]);
    api
}

#[test]
fn logs_of_a_pod_with_several_containers_are_those_of_the_first_with_a_note() {
    let api = started();
    let outcome = api.run("logs two");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "first\nsecond\n"), "{outcome:?}");
    assert_eq!(outcome.stderr, "Defaulted container \"a\" out of: a, b\n");
    let outcome = api.run("logs two -c b");
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "other\n", ""), "{outcome:?}");
    let outcome = api.run("logs -f two -c a");
    assert_eq!(
        (outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()),
        (0, "first\nsecond\n", ""),
        "{outcome:?}"
    );
    let outcome = api.run("logs -f two -c a --timestamps --tail 1");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "2024-01-01T00:00:02Z second\n"), "{outcome:?}");
}

#[test]
fn logs_of_several_containers_and_pods_have_prefixes() {
    let api = started();
    let all = "[two-node/a] first\n[two-node/a] second\n[two-node/b] other\n";
    let outcome = api.run("logs two --all-containers");
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, all, ""), "{outcome:?}");
    let outcome = api.run("logs -l app=two --all-containers");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, all), "{outcome:?}");
    let outcome = api.run("logs one two -c c");
    // The other pod has no such container: its log is missing, and that of the first is printed.
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, "[one-node/c] only\n"), "{outcome:?}");
    assert!(outcome.stderr.contains("container c is not valid for pod two-node"), "{outcome:?}");
    let outcome = api.run("logs -f one two");
    let mut lines: Vec<&str> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[one-node/c] only", "[two-node/a] first", "[two-node/a] second"], "{outcome:?}");
}

#[test]
fn a_followed_log_continues_after_a_restart_of_the_agent() {
    let mut api = Api::start();
    let one = json!([{"name": "c", "image": "i"}]);
    let status = |state: Value| {
        json!({"phase": "Running", "containerStatuses": [
            {"name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state}]})
    };
    api.publish("default", "long", &one, &status(json!({"running": {}})));
    api.write_log("default", "long", "c", 1, &["1", "2"]);
    let mut child = api.command("logs -f long").stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().and_then(Result::ok);
    assert_eq!((next().as_deref(), next().as_deref()), (Some("1"), Some("2")));
    api.restart();
    api.write_log("default", "long", "c", 3, &["3"]);
    assert_eq!(next().as_deref(), Some("3"), "no line is repeated");
    api.publish(
        "default",
        "long",
        &one,
        &status(json!({"terminated": {"exitCode": 0, "containerID": "containerd://1"}})),
    );
    assert_eq!(next(), None);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn explain_ends_with_the_last_lines_of_failed_containers() {
    let api = Api::start();
    let failed = json!({"name": "c", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 3, "containerID": "containerd://1"}}});
    let (one, status) =
        (json!([{"name": "c", "image": "i"}]), json!({"phase": "Running", "containerStatuses": [failed]}));
    api.publish("default", "bad", &one, &status);
    api.write_log("default", "bad", "c", 1, &["1", "2", "3", "4", "5", "no \u{1b}[31mconfig"]);
    let outcome = api.run("explain bad");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(
        outcome.stdout.ends_with("\nLast log lines of c\n  2\n  3\n  4\n  5\n  no \u{fffd}[31mconfig\n"),
        "{outcome:?}"
    );
}

#[test]
fn the_log_of_a_rejected_pod_says_why_there_is_none() {
    let api = Api::start();
    let one = json!([{"name": "c", "image": "i"}]);
    let held = json!({"phase": "Pending", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu",
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    api.publish("default", "held", &one, &held);
    let failed = json!({"phase": "Failed", "reason": "NodePorts", "message": "Pod was rejected: ports are taken"});
    api.publish("default", "failed", &one, &failed);
    for (line, expected) in [
        ("logs held", "the pod is rejected: OutOfcpu: Node didn't have enough resource: cpu; it starts automatically"),
        ("logs failed", "the pod is rejected: NodePorts: ports are taken"),
    ] {
        let outcome = api.run(line);
        assert!(outcome.code == 1 && outcome.stderr.contains(expected), "{line}: {outcome:?}");
        assert!(!outcome.stderr.contains("waiting to start"), "{line}: {outcome:?}");
    }
}

#[test]
fn a_stopped_pod_is_shown_as_stopped() {
    let api = Api::start();
    let one = json!([{"name": "c", "image": "i"}]);
    for (name, state) in [
        ("killed", json!({"terminated": {"exitCode": 137, "reason": "Error"}})),
        ("pulling", json!({"waiting": {"reason": "ErrImagePull"}})),
    ] {
        let status = json!({"phase": "Failed", "reason": "Stopped", "message": "stopped by a user",
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]});
        api.publish("default", name, &one, &status);
        let outcome = api.run(&format!("get pods {name}"));
        assert!(outcome.stdout.contains(" Stopped "), "{outcome:?}");
    }
}

#[test]
fn only_pods_that_have_terminated_are_started() {
    let api = started();
    api.publish_static("default", "running", &json!({"phase": "Running"}));
    let outcome = api.run("start one running");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.contains("pod/one-node start requested"), "{outcome:?}");
    assert!(outcome.stdout.contains("pod/running-node has not terminated"), "{outcome:?}");
    assert_eq!(api.requests(), ["restart default/one-node"]);
    for (line, code) in [("start configmap one", 2), ("start nothing one", 1), ("start", 2)] {
        assert_eq!((api.run(line).code, api.requests().len()), (code, 0), "{line}");
    }
    assert_eq!(api.run("start --all").code, 0);
    assert_eq!(api.requests(), ["restart default/one-node", "restart default/two-node"]);
}

#[test]
fn a_container_after_the_pod_is_answered_with_the_flag_for_it() {
    let api = started();
    let outcome = api.run("logs two b");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{outcome:?}");
    assert_eq!(outcome.stderr, "podwright: \"b\" is a container of pod \"two-node\": use -c b\n");
    let outcome = api.run("logs two nothing");
    assert!(outcome.code == 1 && outcome.stderr.contains("pods \"nothing\" not found"), "{outcome:?}");
}
