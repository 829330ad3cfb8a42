//! Everything a caller may do wrong, at once and again.

use std::io::{Read, Write};
use std::thread;

use super::*;

fn rss(bed: &Bed) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", bed.agent.pid())).expect("it lives");
    let line = text.lines().find(|line| line.starts_with("VmRSS")).expect("there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn abuse_is_bounded_and_told() {
    let bed = Bed::start();
    bed.create("web", &sleeper());
    bed.wait_phase("web", "Running");
    let before = rss(&bed);
    let watch = "GET /api/v1/pods?watch=true HTTP/1.0\r\n\r\n";

    // A thousand watches, opened and dropped, each after its first event.
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let socket = bed.socket();
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

    // Some who never read, while two write one pod as fast as they can.
    let deaf: Vec<_> = (0..50).map(|_| client::open(&bed.socket(), watch).expect("open")).collect();
    let writers: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|who| {
            let socket = bed.socket();
            thread::spawn(move || {
                let (mut written, mut conflicts) = (0, 0);
                for n in 0..150 {
                    let (_, mut pod) =
                        client::ask(&socket, "GET", &format!("{PODS}/web"), &Value::Null).expect("answered");
                    pod["metadata"]["annotations"][format!("example.org/{who}")] =
                        json!(format!("{n}-{}", "x".repeat(2000)));
                    match client::ask(&socket, "PUT", &format!("{PODS}/web"), &pod).expect("answered") {
                        (200, _) => written += 1,
                        (409, status) if status["reason"] == "Conflict" => conflicts += 1,
                        (code, status) => panic!("{code} {status:#}"),
                    }
                }
                (written, conflicts)
            })
        })
        .collect();
    let told: Vec<(u32, u32)> = writers.into_iter().map(|writer| writer.join().expect("well")).collect();
    assert!(told.iter().all(|(written, conflicts)| written + conflicts == 150 && *written > 0), "{told:?}");
    let pod = bed.pod("web").expect("there");
    assert!(
        pod["metadata"]["annotations"]["example.org/one"].is_string()
            && pod["metadata"]["annotations"]["example.org/two"].is_string()
    );
    assert_eq!(container(&pod)["restartCount"], 0, "annotations restart nothing");

    // Bodies without end, some read why, some go away.
    let huge = " ".repeat(1 << 20);
    for patient in [true, false, true] {
        let head = format!("POST {PODS} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", 100 << 20);
        let mut stream = client::open(&bed.socket(), &head).expect("open");
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

    // Upgrades that break off.
    for n in 0..30 {
        let upgrade = if n % 2 == 0 { "SPDY/3.1" } else { "websocket" };
        let head = format!(
            "POST {PODS}/web/exec?command=cat&stdin=1&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        );
        let mut stream = client::open(&bed.socket(), &head).expect("open");
        let mut answer = [0; 1024];
        if n % 3 > 0 {
            let size = stream.read(&mut answer).expect("an answer");
            let said = String::from_utf8_lossy(&answer[..size]).into_owned();
            assert!(said.starts_with("HTTP/1.1 101") || said.starts_with("HTTP/1.1 500"), "{said}");
            let _ = stream.write_all(&[0xff; 100_000]);
        }
    }
    drop(deaf);

    let (code, list) = bed.ask("GET", "/api/v1/pods", &Value::Null).expect("still there");
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(1)));
    let after = rss(&bed);
    assert!(after < before + 40 * 1024, "it grew from {before} to {after} KiB");
    bed.delete("web");
    bed.wait_nothing_left();
}
