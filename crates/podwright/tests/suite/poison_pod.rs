//! A pod that kills the agent, such as by using up its memory, does not keep the other pods from running.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Agent, Flavor, wait_until};
use serde_json::Value;

use super::{LIMIT, TestNode, container, one, sleeper};

fn is_quarantined(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "podwright.dev/Quarantined" && c["status"] == "True")
}

/// The container of the pod runs, and the pod is not held: a pod that the agent happened to work on when it died for the first time is held for some seconds.
fn wait_served(node: &TestNode, name: &str) -> Value {
    wait_until(LIMIT, &format!("{name} to run and not to be held"), || {
        let pod = node.phase(name, "Running")?;
        ensure!(!is_quarantined(&pod) && container(&pod, "c")["state"]["running"].is_object(), "{pod:#}");
        Ok(pod)
    })
}

fn wait_quarantined(node: &TestNode, name: &str) {
    wait_until(LIMIT, &format!("{name} to be quarantined"), || {
        let pod = node.pod(name)?;
        ensure!(is_quarantined(&pod), "{pod:#}");
        Ok(())
    });
}

/// The agent has worked on no pod for a while: a healthy agent still observes its pods after a start.
fn wait_idle(node: &TestNode) {
    let marks = node.scratch.run_dir().expect("there").join("work");
    wait_until(LIMIT, "the agent to be idle", || {
        for _ in 0..20 {
            let busy = fs::read(&marks)?.chunks(SLOT_BYTES).any(|slot| slot.first() != Some(&0));
            ensure!(!busy, "it works on a pod");
            sleep(Duration::from_millis(20));
        }
        Ok(())
    });
}

/// Cause and remedy are in what a user reads first.
fn commands_name_the_quarantine(node: &TestNode) {
    let run = |line: &str| {
        let mut command = Command::new(Agent::program().expect("built"));
        command.args(line.split_whitespace()).env("PODWRIGHT_RUN_DIR", node.scratch.run_dir().expect("there"));
        String::from_utf8(command.output().expect("it runs").stdout).expect("text")
    };
    let why = "the agent died 2 times during CreateContainer of this pod";
    for (line, parts) in [
        (
            "explain poison",
            [&format!("Pod default/poison-node is in quarantine: {why}, next try in "), "→ Its containers"],
        ),
        ("get pods poison", ["poison-node", "Quarantined"]),
        ("describe pod poison", [&format!("podwright.dev/Quarantined     True  (AgentDied: {why}"), "Warning"]),
        ("events --for pod/poison", ["Quarantined", why]),
    ] {
        let shown = run(line);
        for part in parts {
            assert!(shown.contains(part), "no {part:?} in the output of {line}:\n{shown}");
        }
    }
    let first = run("explain poison").lines().next().unwrap_or_default().to_owned();
    assert!(first.contains("is in quarantine"), "{first}");
}

/// Of a mark in the log of the work on pods.
const SLOT_BYTES: usize = 512;

pub(crate) fn a_pod_in_which_the_agent_dies_twice_is_quarantined_and_the_others_start(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    node.agent.sigterm().expect("it stops");
    node.put("poison", &one(&sleeper("c")));
    node.put("web", &one(&sleeper("c")));
    node.agent.set_env("PODWRIGHT_TEST_ABORT_WORK", "CreateContainer default/poison");
    for _ in 0..2 {
        node.agent.launch_again().expect("it starts");
        wait_until(LIMIT, "the agent to abort", || {
            let status = node.agent.exited()?;
            ensure!(status.is_some_and(|status| status.signal() == Some(6)), "{status:?}");
            Ok(())
        });
    }
    node.agent.start_again().expect("it starts");
    let web = wait_served(&node, "web");
    let started = container(&web, "c")["containerID"].clone();
    // containerd fails a start whose caller dies, and it is repeated; on the engine it is the same start.
    let restarts = &container(&web, "c")["restartCount"];
    assert!(flavor != Flavor::Engine || *restarts == 0, "{web:#}");
    // The status of the journal is shown until the restarted agent has looked at the pod.
    wait_quarantined(&node, "poison");
    let ready = wait_until(LIMIT, "the agent not to be ready", || {
        let ready = node.agent.get("/readyz")?;
        ensure!(ready.status == 503, "{}", ready.body);
        Ok(ready)
    });
    assert!(ready.body.contains("pod default/poison") && !ready.body.contains("web"), "{}", ready.body);
    let log = node.agent.log();
    assert!(log.lines().any(|line| line.contains("Quarantined") && line.contains("default/poison")), "{log}");

    commands_name_the_quarantine(&node);

    // An idle agent works on no pod: that it is killed is the fault of none.
    for _ in 0..3 {
        wait_idle(&node);
        node.agent.kill9().expect("it is killed");
        node.agent.start_again().expect("it starts");
    }
    let web = wait_served(&node, "web");
    assert_eq!(container(&web, "c")["containerID"], started, "{web:#}");
    wait_quarantined(&node, "poison");
    assert_eq!(node.pod("poison").expect("it is shown")["status"]["phase"], "Pending", "its time has not passed");

    node.agent.sigterm().expect("it stops");
    node.agent.set_env("PODWRIGHT_TEST_ABORT_WORK", "");
    node.agent.start_again().expect("it starts");
    let mut changed = one(&sleeper("c"));
    changed["terminationGracePeriodSeconds"] = 1.into();
    node.put("poison", &changed);
    let poison = node.wait_phase("poison", "Running");
    assert!(!is_quarantined(&poison), "{poison:#}");
    wait_until(LIMIT, "the agent to be ready", || {
        let ready = node.agent.get("/readyz")?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    });
}
