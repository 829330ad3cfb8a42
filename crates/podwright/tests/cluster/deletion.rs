//! The end of a pod, as everybody sees it on a watch.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::joined::Joined;
use crate::kills::Moments;
use crate::suite::{LIMIT, container, one, sh};

/// Pods that end while they are deleted and the agent dies.
const JOBS: usize = 50;

#[test]
fn the_object_goes_only_after_the_exit_code_was_told() {
    let node = Joined::start(ControlPlane::shared(), "told");
    let mut spec = one(&sh("c", "trap 'sleep 1; exit 7' TERM; touch /tmp/up; while :; do sleep 0.1; done"));
    spec["terminationGracePeriodSeconds"] = json!(20);
    spec["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1});
    node.put("p", &spec);
    let pod = node.wait_ready("p");
    let version = pod["metadata"]["resourceVersion"].as_str().expect("a version");
    let path = format!("{}?resourceVersion={version}", node.path("pods"));
    let watch = node.plane.api().watch(&path, Duration::from_secs(30)).expect("a watch");
    node.delete("pods", "p");
    let mut last = Value::Null;
    for event in watch {
        if event["type"] == "DELETED" {
            break;
        }
        last = event["object"].clone();
    }
    assert_eq!(last["status"]["phase"], "Failed", "{:#}", last["status"]);
    assert_eq!(container(&last, "c")["state"]["terminated"]["exitCode"], 7, "{:#}", last["status"]);
    node.wait_nothing_left();
}

#[test]
fn jobs_end_rightly_while_they_are_deleted_and_the_agent_is_killed() {
    let mut node = Joined::start(ControlPlane::shared(), "ends");
    let mut moments = Moments(7);
    let version = node.plane.api().get(&node.path("pods")).expect("a list")["metadata"]["resourceVersion"].clone();
    let path = format!("{}?resourceVersion={}", node.path("pods"), version.as_str().expect("a version"));
    let watch = node.plane.api().watch(&path, LIMIT).expect("a watch");
    let ends = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| last_words(watch));
        for i in 0..JOBS {
            let code = if i % 3 == 0 { 3 } else { 0 };
            let seconds = (i % 5) as f64 / 4.0;
            let script = format!("trap 'exit 9' TERM; sleep {seconds} & wait; exit {code}");
            let mut spec = one(&sh("c", &script));
            spec["restartPolicy"] = json!("Never");
            node.put(&format!("job{i}"), &spec);
            std::thread::sleep(moments.next(200));
            if i >= 5 {
                node.delete("pods", &format!("job{}", i - 5));
            }
            if i % 5 == 4 {
                node.agent.kill9().expect("killed");
                std::thread::sleep(moments.next(300));
                node.agent.start_again().expect("started again");
            }
        }
        (JOBS - 5..JOBS).for_each(|i| node.delete("pods", &format!("job{i}")));
        wait_until(LIMIT, "all to be gone", || {
            let left = node.list("pods")?;
            anyhow::ensure!(left.is_empty(), "{} are left: {:#}", left.len(), left[0]);
            Ok(())
        });
        watcher.join().expect("no panic")
    });
    assert_eq!(ends.len(), JOBS);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (name, pod) in &ends {
        let (status, i) = (&pod["status"], name.trim_start_matches("job").parse::<usize>().expect("a number"));
        let ended = &container(pod, "c")["state"]["terminated"];
        let (code, own) = (ended["exitCode"].as_i64(), if i % 3 == 0 { 3 } else { 0 });
        let right = match (status["phase"].as_str(), code) {
            (Some("Succeeded"), code) => code == Some(0) && own == 0,
            // Its own end, our TERM, or our KILL; none at all if it never ran.
            (Some("Failed"), Some(code)) => code == 9 || code == 137 || (own == 3 && code == 3),
            (Some("Failed"), None) => container(pod, "c")["state"]["running"].is_null(),
            _ => false,
        };
        assert!(right, "{name} (own code {own}): {status:#}");
        *counts.entry(format!("{} {code:?}", status["phase"])).or_default() += 1;
    }
    println!("{counts:?}");
    node.containerd.restart().expect("containerd finds what its dead callers left");
}

/// The last status of every pod before it went, until all of them have gone.
fn last_words(watch: podwright_testbed::Watch) -> BTreeMap<String, Value> {
    let (mut last, mut gone) = (BTreeMap::new(), 0);
    for event in watch {
        let name = event["object"]["metadata"]["name"].as_str().expect("a name").to_owned();
        if event["type"] == "DELETED" {
            gone += 1;
        } else {
            last.insert(name, event["object"].clone());
        }
        if gone == JOBS {
            break;
        }
    }
    last
}
