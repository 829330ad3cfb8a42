//! The agent does not go on with half of its tasks: one that fails ends the process, and the containers keep running.

use anyhow::ensure;
use podwright_testbed::{Agent, Flavor, wait_until};
use serde_json::json;

use super::{LIMIT, TestNode, container, one, sleeper};

/// Tasks that every agent with a manifest directory has. The test fails when one of them is renamed and not found.
const EXPECTED: [&str; 7] =
    ["event-loop", "journal", "runtime-events", "file-source", "log-rotation", "local-api", "notify"];

pub(crate) fn a_failed_task_ends_the_agent_with_an_error_that_names_it(flavor: Flavor) {
    let mut node = TestNode::configured(flavor, json!({"logging": {"verbosity": 4}}));
    node.put("web", &one(&sleeper("c")));
    node.wait_phase("web", "Running");
    kill_each_task(&mut node.agent, &EXPECTED);
    let pod = node.wait_phase("web", "Running");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "{pod:#}");
}

/// Starts the agent once for each task that its log names, and kills that task. Afterwards the agent runs again. The log must
/// have the expected tasks, at verbosity 4.
pub(crate) fn kill_each_task(agent: &mut Agent, expected: &[&str]) {
    let tasks = started_tasks(&agent.log());
    for expected in expected {
        assert!(tasks.iter().any(|name| name == expected), "{expected} is not among {tasks:?}");
    }
    agent.sigterm().expect("it stops");
    for task in &tasks {
        agent.set_env("PODWRIGHT_TEST_KILL_TASK", task);
        agent.launch_again().expect("it starts");
        wait_until(LIMIT, &format!("the agent to end without {task}"), || {
            let status = agent.exited()?;
            ensure!(status.is_some_and(|status| status.code() == Some(1)), "{status:?}");
            Ok(())
        });
        let log = agent.log();
        let last = log.lines().rev().find(|line| line.contains("killed by a test"));
        assert!(last.is_some_and(|line| line.contains(&format!("task {task} panicked"))), "{task}: {last:?}");
    }
    agent.set_env("PODWRIGHT_TEST_KILL_TASK", "");
    agent.start_again().expect("it starts");
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
