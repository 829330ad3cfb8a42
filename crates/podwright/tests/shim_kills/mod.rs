//! The agent and the shims of its engine are killed at random while pods come and go.

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use crate::suite::restarts::{RandomDelays, ids, lines, mount_witness};
use crate::suite::{LIMIT, TestNode, container, one, sh, sleeper};

/// What is killed in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Killed {
    Agent,
    Shims,
    Both,
}

pub(crate) fn killing_agent_and_shims_at_random_restarts_no_container(times: usize) {
    let mut node = TestNode::start(Flavor::Engine);
    let witness = node.scratch.dir("witness").expect("made");
    let running: Vec<String> = (0..8).map(|i| format!("run{i}")).collect();
    running.iter().for_each(|name| node.put(name, &one(&sleeper("c"))));
    let before = wait_until(LIMIT, "the long-lived pods to run", || ids(&node, &running));
    let mut moments = RandomDelays(7);
    let mut rounds = vec![];
    for round in 0..times {
        let killed = [Killed::Agent, Killed::Shims, Killed::Both][round % 3];
        rounds.push(killed);
        node.put(&format!("new{round}"), &one(&sh("c", "trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.1; done")));
        let mut ends = one(&sh("c", &format!("sleep 1; echo ended >> /w/ends{round}; exit 5")));
        ends["restartPolicy"] = json!("Never");
        mount_witness(&mut ends, &witness);
        node.put(&format!("ends{round}"), &ends);
        std::thread::sleep(moments.next(700));
        if round > 0 {
            node.remove(&format!("new{}", round - 1));
            std::thread::sleep(moments.next(300));
        }
        if killed != Killed::Shims {
            node.kill_agent();
        }
        if killed != Killed::Agent {
            node.runtime.kill9().expect("the shims are killed");
        }
        std::thread::sleep(moments.next(500));
        if killed != Killed::Shims {
            node.agent.start_again().expect("started again");
        }
        // No later kill concerns it: an orphan of pid 1 is reaped, and its status known, after some seconds only.
        if let Some(earlier) = round.checked_sub(1) {
            wait_until(LIMIT, "an earlier pod to end", || node.phase(&format!("ends{earlier}"), "Failed"));
        }
    }
    let mut unknown = 0;
    for (round, killed) in rounds.iter().enumerate() {
        let name = format!("ends{round}");
        let pod = wait_until(LIMIT, &format!("{name} to end"), || node.phase(&name, "Failed"));
        let state = &container(&pod, "c")["state"]["terminated"];
        let (code, reason) = (&state["exitCode"], state["reason"].as_str().unwrap_or_default());
        let next = rounds.get(round + 1).copied();
        let in_its_time = |kinds: &[Killed]| kinds.contains(killed) || next.is_some_and(|next| kinds.contains(&next));
        let ended = lines(&witness, &name);
        if code == 5 {
            assert_eq!(ended, ["ended"], "{name} runs to its end once");
        } else if code == 128 && reason == "StartError" {
            // The shim was killed while it launched the container.
            assert!(in_its_time(&[Killed::Shims, Killed::Both]), "{name}, {killed:?}, then {next:?}: {state:#}");
            assert!(ended.is_empty(), "{name} ran although its start failed");
        } else {
            // Whoever of the two lives sees the exit.
            assert!(in_its_time(&[Killed::Both]), "{name}, {killed:?}, then {next:?}: {state:#}");
            assert!(code == 255 && reason == "Unknown", "{name}: {:#}", pod["status"]);
            assert!(ended.len() <= 1, "{name} ran twice");
            unknown += 1;
        }
    }
    println!("{unknown} of {times} exits were not seen");
    assert_eq!(ids(&node, &running).expect("they run"), before, "a running container was touched");
    for round in 0..times.saturating_sub(1) {
        wait_until(LIMIT, "deleted pods to be gone", || {
            ensure!(node.pod(&format!("new{round}")).is_err(), "new{round} is still there");
            Ok(())
        });
    }
    node.remove_all();
    node.wait_nothing_left();
}
