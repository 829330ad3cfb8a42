//! What the commands say if the agent ends, or does not finish what was requested.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Api, UNDELETABLE};

fn get_pods(run_dir: &std::path::Path) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
    let output =
        command.args(["get", "pods", "-o", "json"]).env("PODWRIGHT_RUN_DIR", run_dir).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_agent_that_ends_during_a_request_is_not_a_missing_permission() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("api.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let agent = std::thread::spawn(move || {
        let mut connection = listener.accept().expect("a connection").0;
        let _ = connection.read(&mut [0; 64]);
        std::fs::remove_file(socket).expect("removed");
    });
    let (code, _, message) = get_pods(dir.path());
    agent.join().expect("it ended");
    assert!(code == Some(1) && message.contains("is `podwright run` running"), "{message}");
    assert!(!message.contains("permission"), "{message}");
}

#[test]
fn a_read_is_sent_again_to_an_agent_that_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = UnixListener::bind(dir.path().join("api.sock")).expect("bound");
    let agent = std::thread::spawn(move || {
        drop(listener.accept().expect("a connection"));
        let mut connection = listener.accept().expect("another connection").0;
        let _ = connection.read(&mut [0; 1024]);
        let body = r#"{"kind": "PodList", "items": []}"#;
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        connection.write_all(response.as_bytes()).expect("written");
    });
    let (code, output, message) = get_pods(dir.path());
    agent.join().expect("it ended");
    assert!(code == Some(0) && output.contains("PodList"), "{output}{message}");
}

#[test]
fn commands_that_wait_report_the_reason_on_timeout() {
    let api = Api::start();
    api.publish_static("default", "hangs", &json!({"phase": "Running"}));
    api.apply("default", UNDELETABLE);
    let delete = format!("delete {UNDELETABLE} --timeout 1s");
    for line in ["stop hangs --timeout 1s", "wait hangs --for=delete --timeout 1s", &delete] {
        let outcome = api.run(line);
        assert_eq!(outcome.code, 1, "{line}: {outcome:?}");
        assert!(outcome.stderr.contains("timed out waiting for"), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains("does not terminate: the test wants it so"), "{line}: {outcome:?}");
        assert!(!outcome.stdout.contains("deleted"), "{line}: {outcome:?}");
    }
    let outcome = api.run("stop hangs --timeout 7s");
    let announced = "waiting for the termination of pods/hangs-node: Pod default/hangs-node does not terminate";
    assert!(outcome.code == 1 && outcome.stderr.contains(announced), "{outcome:?}");
}

#[test]
fn restarts_of_many_pods_whose_new_instances_do_not_appear_have_one_limit() {
    let api = Api::start();
    for name in ["a", "b", "c", "d"] {
        api.publish_static("default", name, &json!({"phase": "Failed", "reason": "Stopped"}));
    }
    for (line, verb) in [("restart --all", "restart"), ("start --all", "start")] {
        let begin = Instant::now();
        let outcome = api.run(line);
        // Ten seconds, and not ten for each.
        assert!(begin.elapsed() < Duration::from_secs(20), "{line}: {:?}", begin.elapsed());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{line}: {outcome:?}");
        assert_eq!(api.requests(), ["a", "b", "c", "d"].map(|name| format!("restart default/{name}-node")), "{line}");
        for name in ["a", "b", "c", "d"] {
            let text = format!("pod/{name}-node {verb} requested\n");
            assert!(outcome.stdout.contains(&text), "{line}: {outcome:?}");
        }
    }
}

#[test]
fn start_says_that_a_pod_that_is_not_admitted_starts_by_itself() {
    let api = Api::start();
    api.publish_static("default", "greedy", &json!({"phase": "Pending", "reason": "OutOfcpu"}));
    api.publish_static("default", "web", &json!({"phase": "Running"}));
    let outcome = api.run("start greedy web");
    assert_eq!((outcome.code, api.requests()), (0, vec![]), "{outcome:?}");
    let expected = "pod/greedy-node waits (OutOfcpu), and starts by itself: see podwright explain\n\
                    pod/web-node has not terminated, nothing to start\n";
    assert_eq!(outcome.stdout, expected);
}
