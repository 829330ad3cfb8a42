//! The agent does not go on with half of its tasks: one that fails ends the process, and the containers keep running.

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{LIMIT, TestNode, container, one, sleeper};

/// Tasks that every agent with a manifest directory has. The test fails when one of them is renamed and not found.
const EXPECTED: [&str; 6] = ["event-loop", "runtime-events", "file-source", "log-rotation", "local-api", "notify"];

pub(crate) fn a_failed_task_ends_the_agent_with_an_error_that_names_it(flavor: Flavor) {
    let mut node = TestNode::configured(flavor, json!({"logging": {"verbosity": 4}}));
    node.put("web", &one(&sleeper("c")));
    node.wait_phase("web", "Running");
    let tasks = started_tasks(&node.agent.log());
    for expected in EXPECTED {
        assert!(tasks.iter().any(|name| name == expected), "{expected} is not among {tasks:?}");
    }
    node.agent.sigterm().expect("it stops");
    for task in &tasks {
        node.agent.set_env("PODWRIGHT_TEST_KILL_TASK", task);
        node.agent.launch_again().expect("it starts");
        wait_until(LIMIT, &format!("the agent to end without {task}"), || {
            let status = node.agent.exited()?;
            ensure!(status.is_some_and(|status| status.code() == Some(1)), "{status:?}");
            Ok(())
        });
        let log = node.agent.log();
        let last = log.lines().rev().find(|line| line.contains("killed by a test"));
        assert!(last.is_some_and(|line| line.contains(&format!("task {task} panicked"))), "{task}: {last:?}");
    }
    node.agent.set_env("PODWRIGHT_TEST_KILL_TASK", "");
    node.agent.start_again().expect("it starts");
    let pod = node.wait_phase("web", "Running");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "{pod:#}");
}

/// The names that the log has of tasks that run as long as the agent.
fn started_tasks(log: &str) -> Vec<String> {
    let started = log.lines().filter(|line| line.contains("task started") && !line.contains("local-source"));
    let name = |line: &str| {
        let (_, rest) = line.split_once("task=")?;
        Some(rest.split_whitespace().next()?.trim_matches('"').to_owned())
    };
    let mut names: Vec<String> = started.filter_map(name).collect();
    names.sort();
    names.dedup();
    names
}
