//! Misbehaving clients: many watches, slow readers, huge bodies, broken upgrades.

use std::io::{Read, Write};
use std::thread;

use super::*;

fn rss(node: &LocalNode) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", node.agent.pid())).expect("the agent runs");
    let line = text.lines().find(|line| line.starts_with("VmRSS")).expect("there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn overload_is_bounded_and_reported() {
    let node = LocalNode::start();
    node.create("web", &sleeper());
    node.wait_phase("web", "Running");
    let before = rss(&node);
    let watch = "GET /api/v1/pods?watch=true HTTP/1.0\r\n\r\n";

    // A thousand watches, each closed after its first event.
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let socket = node.socket();
            thread::spawn(move || {
                for _ in 0..100 {
                    let mut stream = client::open(&socket, watch).expect("open");
                    let mut head = [0; 64];
                    assert!(stream.read(&mut head).expect("an answer") > 0);
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("well"));

    // Fifty clients that never read, while two update one pod as fast as they can.
    let deaf: Vec<_> = (0..50).map(|_| client::open(&node.socket(), watch).expect("open")).collect();
    let writers: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|who| {
            let socket = node.socket();
            thread::spawn(move || {
                let (mut written, mut conflicts) = (0, 0);
                for n in 0..150 {
                    let (_, mut pod) =
                        client::request(&socket, "GET", &format!("{PODS}/web"), &Value::Null).expect("answered");
                    pod["metadata"]["annotations"][format!("example.org/{who}")] =
                        json!(format!("{n}-{}", "x".repeat(2000)));
                    match client::request(&socket, "PUT", &format!("{PODS}/web"), &pod).expect("answered") {
                        (200, _) => written += 1,
                        (409, status) if status["reason"] == "Conflict" => conflicts += 1,
                        (code, status) => panic!("{code} {status:#}"),
                    }
                }
                (written, conflicts)
            })
        })
        .collect();
    let counts: Vec<(u32, u32)> = writers.into_iter().map(|writer| writer.join().expect("well")).collect();
    assert!(counts.iter().all(|(written, conflicts)| written + conflicts == 150 && *written > 0), "{counts:?}");
    let pod = node.pod("web").expect("there");
    assert!(
        pod["metadata"]["annotations"]["example.org/one"].is_string()
            && pod["metadata"]["annotations"]["example.org/two"].is_string()
    );
    assert_eq!(container(&pod)["restartCount"], 0, "a changed annotation restarted the container");

    // Endless bodies; some clients read the response, some disconnect.
    let huge = " ".repeat(1 << 20);
    for patient in [true, false, true] {
        let head = format!("POST {PODS} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", 100 << 20);
        let mut stream = client::open(&node.socket(), &head).expect("open");
        for _ in 0..100 {
            if stream.write_all(huge.as_bytes()).is_err() {
                break;
            }
        }
        if patient {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.starts_with("HTTP/1.0 413") && answer.contains("limit is 2097152"), "{answer}");
        }
    }

    // Upgraded connections that break.
    for n in 0..30 {
        let upgrade = if n % 2 == 0 { "SPDY/3.1" } else { "websocket" };
        let head = format!(
            "POST {PODS}/web/exec?command=cat&stdin=1&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        );
        let mut stream = client::open(&node.socket(), &head).expect("open");
        let mut answer = [0; 1024];
        if n % 3 > 0 {
            let size = stream.read(&mut answer).expect("an answer");
            let output = String::from_utf8_lossy(&answer[..size]).into_owned();
            assert!(output.starts_with("HTTP/1.1 101") || output.starts_with("HTTP/1.1 500"), "{output}");
            let _ = stream.write_all(&[0xff; 100_000]);
        }
    }
    drop(deaf);

    let (code, list) = node.request("GET", "/api/v1/pods", &Value::Null).expect("still there");
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(1)));
    let after = rss(&node);
    assert!(after < before + 40 * 1024, "memory grew from {before} to {after} KiB");
    node.delete("web");
    node.wait_nothing_left();
}
