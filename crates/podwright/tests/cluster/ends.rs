//! Jobs that end while they are deleted and the agent dies.

use std::collections::BTreeMap;

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
    let watched = Watched::begin(&node);
    for i in 0..jobs {
        let seconds = (i % 5) as f64 / 4.0;
        let script = format!("trap 'exit 9' TERM; sleep {seconds} & wait; exit {}", own_code(i));
        let mut spec = one(&sh("c", &script));
        spec["restartPolicy"] = json!("Never");
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
        assert!(is_right(pod, own_code(job)), "{name} (own code {}): {:#}", own_code(job), pod["status"]);
        let code = &container(pod, "c")["state"]["terminated"]["exitCode"];
        // The last ones are deleted all at once, whatever they do.
        assert!(code.is_i64() || !must_run(job) || job + 5 >= jobs, "{name} ran: {:#}", pod["status"]);
        *counts.entry(format!("{} {code}", pod["status"]["phase"])).or_default() += 1;
    }
    println!("{counts:?}");
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

/// Its own end, our TERM, or our KILL; none at all if it never ran.
fn is_right(pod: &Value, own: i64) -> bool {
    let state = &container(pod, "c")["state"];
    if state["terminated"]["reason"] == "ContainerStatusUnknown" {
        // An exit code that was made up.
        return false;
    }
    match (pod["status"]["phase"].as_str(), state["terminated"]["exitCode"].as_i64()) {
        (Some("Succeeded"), code) => code == Some(0) && own == 0,
        // The agent died while the runtime started it, which gives up then.
        (Some("Failed"), Some(128)) => state["terminated"]["reason"] == "StartError",
        (Some("Failed"), Some(code)) => code == 9 || code == 137 || (own == 3 && code == 3),
        (Some("Failed"), None) => state["running"].is_null(),
        _ => false,
    }
}
