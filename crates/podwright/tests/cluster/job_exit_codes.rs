//! Exit codes of jobs that are deleted while the agent is killed.

use std::collections::BTreeMap;
use std::fs;

use anyhow::ensure;
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::agent_kills::RandomDelays;
use crate::cluster_node::ClusterNode;
use crate::pod_watch::{PodWatch, last_states};
use crate::suite::{LIMIT, container, one, sh};

/// Runs this many jobs; kills the agent at every fifth.
pub(crate) fn jobs_report_their_exit_codes_despite_deletes_and_agent_kills(jobs: usize) {
    let mut node = ClusterNode::start(ControlPlane::shared(), "ends");
    let mut moments = RandomDelays(7);
    let book = node.scratch.dir("book").expect("a directory");
    let watched = PodWatch::begin(&node);
    for i in 0..jobs {
        let seconds = (i % 5) as f64 / 4.0;
        // The job records its exit code before it exits.
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
    let ends = last_states(&events);
    assert_eq!(ends.len(), jobs);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (name, pod) in ends {
        let job = name.trim_start_matches("job").parse().expect("a number");
        let written = fs::read_to_string(book.join(name)).unwrap_or_default();
        let written: Vec<&str> = written.lines().collect();
        assert!(is_right(pod, &written), "{name} wrote {written:?}: {:#}", pod["status"]);
        let code = &container(pod, "c")["state"]["terminated"]["exitCode"];
        // The last jobs are deleted together, in any state.
        assert!(code.is_i64() || !must_run(job) || job + 5 >= jobs, "{name} ran: {:#}", pod["status"]);
        *counts.entry(format!("{} {code}", pod["status"]["phase"])).or_default() += 1;
    }
    println!("{counts:?}");
    let back = phase_regressions(&events);
    assert!(back.is_empty(), "{back:#?}");
    if let Ok(containerd) = node.runtime.containerd() {
        containerd.restart().expect("it finds what its dead callers left");
    }
}

/// The exit code of the job if it is not interrupted.
fn own_code(job: usize) -> i64 {
    if job.is_multiple_of(3) { 3 } else { 0 }
}

/// Every other job is deleted as soon as it has started, the rest at any time.
fn must_run(job: usize) -> bool {
    job.is_multiple_of(2)
}

fn wait_started(node: &ClusterNode<'_>, name: &str) {
    wait_until(LIMIT, &format!("{name} to begin"), || {
        let pod = node.get("pods", name)?;
        let state = &container(&pod, "c")["state"];
        ensure!(state["running"].is_object() || state["terminated"].is_object(), "{:#}", pod["status"]);
        Ok(())
    });
}

/// The reported exit code is the recorded one. Only a job without a record was killed or never ran. A container whose start the
/// agent's death interrupted is stopped by the runtime at once and started again. The runtime reports no exit code of its own for it,
/// although it may have run, even to its end if that is short: the runs before such a start leave records, too.
fn is_right(pod: &Value, written: &[&str]) -> bool {
    let state = &container(pod, "c")["state"];
    if state["terminated"]["reason"] == "ContainerStatusUnknown" {
        // An invented exit code.
        return false;
    }
    let runs: Vec<&[&str]> = written.split(|line| *line == "start").skip(1).collect();
    let ends: Vec<i64> =
        runs.last().into_iter().flat_map(|run| run.iter()).filter_map(|line| line.parse().ok()).collect();
    // A job that gets SIGTERM between its record and its exit has one more record.
    let (own, once) = (ends.last().copied(), ends.len() < 2 || (ends.len() == 2 && ends[1] == 9));
    let once = once && runs.len() <= 1 + interrupted_starts(pod);
    let has_begun = !runs.is_empty();
    let code = state["terminated"]["exitCode"].as_i64();
    match (pod["status"]["phase"].as_str(), code) {
        _ if !once => false,
        (Some("Succeeded"), Some(0)) => own == Some(0) && has_begun,
        // The agent died during the start, the runtime gave up, and the pod was deleted before the next start.
        (Some("Failed"), Some(128)) => state["terminated"]["reason"] == "StartError",
        (Some("Failed"), Some(137)) => own.is_none(),
        (Some("Failed"), Some(_)) => own == code && has_begun,
        (Some("Failed"), None) => own.is_none() && state["running"].is_null(),
        _ => false,
    }
}

/// The starts of the container that the death of the agent interrupted, and that the runtime ended without an exit code of its own.
fn interrupted_starts(pod: &Value) -> usize {
    let status = container(pod, "c");
    let last = &status["lastState"]["terminated"];
    let was_interrupted = last["reason"] == "StartError" && last["exitCode"] == 128 && last["startedAt"].is_null();
    if was_interrupted { usize::try_from(status["restartCount"].as_u64().unwrap_or(1)).unwrap_or(1) } else { 0 }
}

/// Every pod whose phase went backwards between two events.
fn phase_regressions(events: &[Value]) -> Vec<String> {
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
