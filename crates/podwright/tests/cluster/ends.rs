//! Jobs that end while they are deleted and the agent dies.

use std::collections::BTreeMap;
use std::fs;

use anyhow::ensure;
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::joined::Joined;
use crate::kills::Moments;
use crate::suite::{LIMIT, container, one, sh};
use crate::watched::{Watched, last_words};

/// As many jobs; every fifth time the agent is killed.
pub(crate) fn jobs_end_rightly_while_they_are_deleted_and_the_agent_is_killed(jobs: usize) {
    let mut node = Joined::start(ControlPlane::shared(), "ends");
    let mut moments = Moments(7);
    let book = node.scratch.dir("book").expect("a directory");
    let watched = Watched::begin(&node);
    for i in 0..jobs {
        let seconds = (i % 5) as f64 / 4.0;
        // What it ends with is in the book before it ends.
        let (end, own) = (format!("echo 9 >> /book/job{i}; exit 9"), own_code(i));
        let script = format!(
            "trap '{end}' TERM; echo start >> /book/job{i}; sleep {seconds} & wait; echo {own} >> /book/job{i}; exit {own}"
        );
        let mut spec = one(&sh("c", &script));
        spec["restartPolicy"] = json!("Never");
        spec["containers"][0]["volumeMounts"] = json!([{"name": "book", "mountPath": "/book"}]);
        spec["volumes"] = json!([{"name": "book", "hostPath": {"path": book}}]);
        node.put(&format!("job{i}"), &spec);
        std::thread::sleep(moments.next(200));
        if i >= 5 {
            if must_run(i - 5) {
                wait_started(&node, &format!("job{}", i - 5));
            }
            node.delete("pods", &format!("job{}", i - 5));
        }
        if i % 5 == 4 {
            node.agent.kill9().expect("killed");
            std::thread::sleep(moments.next(300));
            node.agent.start_again().expect("started again");
        }
    }
    node.delete_all();
    let events = watched.end(&node);
    let ends = last_words(&events);
    assert_eq!(ends.len(), jobs);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (name, pod) in ends {
        let job = name.trim_start_matches("job").parse().expect("a number");
        let written = fs::read_to_string(book.join(name)).unwrap_or_default();
        let written: Vec<&str> = written.lines().collect();
        assert!(is_right(pod, &written), "{name} wrote {written:?}: {:#}", pod["status"]);
        let code = &container(pod, "c")["state"]["terminated"]["exitCode"];
        // The last ones are deleted all at once, whatever they do.
        assert!(code.is_i64() || !must_run(job) || job + 5 >= jobs, "{name} ran: {:#}", pod["status"]);
        *counts.entry(format!("{} {code}", pod["status"]["phase"])).or_default() += 1;
    }
    println!("{counts:?}");
    let back = went_back(&events);
    assert!(back.is_empty(), "{back:#?}");
    node.containerd.restart().expect("containerd finds what its dead callers left");
}

/// How the job ends if nobody is in its way.
fn own_code(job: usize) -> i64 {
    if job.is_multiple_of(3) { 3 } else { 0 }
}

/// Every other one is deleted as soon as it has begun, the rest at any moment.
fn must_run(job: usize) -> bool {
    job.is_multiple_of(2)
}

fn wait_started(node: &Joined<'_>, name: &str) {
    wait_until(LIMIT, &format!("{name} to begin"), || {
        let pod = node.get("pods", name)?;
        let state = &container(&pod, "c")["state"];
        ensure!(state["running"].is_object() || state["terminated"].is_object(), "{:#}", pod["status"]);
        Ok(())
    });
}

/// The end that it wrote down itself, once. Only one that wrote none was killed, or never ran. What the runtime starts for an agent
/// that dies it ends at once: that may have begun, and what comes after it begins again.
fn is_right(pod: &Value, written: &[&str]) -> bool {
    let state = &container(pod, "c")["state"];
    if state["terminated"]["reason"] == "ContainerStatusUnknown" {
        // An exit code that was made up.
        return false;
    }
    let ends: Vec<i64> = written.iter().filter_map(|line| line.parse().ok()).collect();
    // Whoever gets TERM between its last word and its end has a word more.
    let (own, once) = (ends.last().copied(), ends.len() < 2 || (ends.len() == 2 && ends[1] == 9));
    let has_begun = written.contains(&"start");
    let code = state["terminated"]["exitCode"].as_i64();
    match (pod["status"]["phase"].as_str(), code) {
        _ if !once => false,
        (Some("Succeeded"), Some(0)) => own == Some(0) && has_begun,
        // The agent died while the runtime started it, which gives up then.
        (Some("Failed"), Some(128)) => state["terminated"]["reason"] == "StartError" && own.is_none(),
        (Some("Failed"), Some(137)) => own.is_none(),
        (Some("Failed"), Some(_)) => own == code && has_begun,
        (Some("Failed"), None) => own.is_none() && state["running"].is_null(),
        _ => false,
    }
}

/// Every pod whose phase went back, from one event to the next.
fn went_back(events: &[Value]) -> Vec<String> {
    let rank = |phase: &str| ["Pending", "Running"].iter().position(|known| *known == phase).unwrap_or(2);
    let (mut found, mut phases) = (vec![], BTreeMap::<&str, &str>::new());
    for pod in events.iter().map(|event| &event["object"]) {
        let (name, phase) = (pod["metadata"]["name"].as_str(), pod["status"]["phase"].as_str());
        let (Some(name), Some(phase)) = (name, phase) else { continue };
        if let Some(before) = phases.insert(name, phase)
            && before != phase
            && rank(before) >= rank(phase)
        {
            found.push(format!("{name} went from {before} to {phase}"));
        }
    }
    found
}
