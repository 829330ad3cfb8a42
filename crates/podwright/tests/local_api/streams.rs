//! Logs, exec, watch, restart and stop of running pods.

use std::io::{BufRead, BufReader, Read};

use super::*;

#[test]
fn logs_are_followed_across_rotations_until_the_container_ends() {
    let node = LocalNode::configured(json!({"containerLogMaxSize": "4Ki", "containerLogMonitorInterval": "3s"}));
    let mut spec =
        sh("for n in $(seq 1 400); do echo line $n of what this container has to say; sleep 0.02; done; echo end >&2");
    spec["restartPolicy"] = json!("Never");
    node.create("talker", &spec);
    node.wait_phase("talker", "Running");
    let (code, all) =
        client::text(&node.socket(), "GET", &format!("{PODS}/talker/log?follow=true"), "").expect("answered");
    let expected: String = (1..=400).map(|n| format!("line {n} of what this container has to say\n")).collect();
    assert!(code == 200 && all == expected + "end\n", "{} lines:\n{all}", all.lines().count());
    node.wait_phase("talker", "Succeeded");
    let uid = node.pod("talker").expect("there")["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let logs = node.scratch.path();
    let rotated = walk(&logs).into_iter().filter(|path| path.contains(&uid) && path.contains("0.log.")).count();
    assert!(rotated > 0, "it was never rotated");
    node.delete("talker");
    node.wait_nothing_left();
}

fn walk(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path().display().to_string());
    }
    found
}

#[test]
fn watch_exec_restart_and_stop_work() {
    let node = LocalNode::start();
    let watch = client::open(&node.socket(), "GET /api/v1/pods?watch=true HTTP/1.0\r\n\r\n").expect("open");
    let mut events = BufReader::new(watch).lines().map_while(Result::ok).skip_while(|line| !line.starts_with('{'));
    node.create("web", &sh("trap 'exit 0' TERM; echo hello; while :; do sleep 0.1; done"));
    let running = node.wait_phase("web", "Running");
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("Running") {
        let event: Value = serde_json::from_str(&events.next().expect("more")).expect("JSON");
        assert_eq!(event["type"], if seen.is_empty() { "ADDED" } else { "MODIFIED" });
        seen.push(event["object"]["status"]["phase"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(
        client::text(&node.socket(), "GET", &format!("{PODS}/web/log"), "").expect("answered"),
        (200, "hello\n".into())
    );

    // The upgrade is proxied to the runtime's streaming server; the stream itself is not tested here.
    let exec = format!(
        "POST {PODS}/web/exec?command=true&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    let mut stream = client::open(&node.socket(), &exec).expect("open");
    let mut head = [0; 256];
    let size = stream.read(&mut head).expect("an answer");
    let head = String::from_utf8_lossy(&head[..size]).to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("v4.channel.k8s.io"), "{head}");
    drop(stream);

    let (code, output) =
        node.request("POST", &format!("{PODS}/web/restart?container=c"), &Value::Null).expect("answered");
    assert_eq!((code, &output["status"]), (200, &json!("Success")));
    wait_until(LIMIT, "the restart", || {
        let pod = node.pod("web")?;
        ensure!(container(&pod)["restartCount"] == 1 && container(&pod)["state"]["running"].is_object(), "{pod:#}");
        Ok(())
    });
    let again = node.pod("web").expect("there");
    assert_eq!(again["status"]["podIP"], running["status"]["podIP"], "the sandbox is the same");
    let path = format!("{PODS}/web/log?previous=true");
    assert_eq!(client::text(&node.socket(), "GET", &path, "").expect("answered"), (200, "hello\n".into()));

    let (code, output) = node.request("POST", "/podwright/v1/stop?all=true", &Value::Null).expect("answered");
    assert_eq!((code, &output["pods"]), (200, &json!(["default/web"])));
    wait_until(LIMIT, "the end", || {
        let pod = node.pod("web")?;
        ensure!(["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default()), "{pod:#}");
        Ok(())
    });
    node.delete("web");
    node.wait_nothing_left();
    let last =
        events.map(|line| serde_json::from_str::<Value>(&line).expect("JSON")).find(|event| event["type"] == "DELETED");
    assert_eq!(last.expect("a DELETED event")["object"]["metadata"]["name"], "web");
}
