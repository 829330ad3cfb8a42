//! Garbage collection: dead containers with their logs, large logs, unused images.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, image, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, cri, one, sh};

pub(crate) fn dead_containers_are_removed_with_their_logs_and_large_logs_are_rotated(flavor: Flavor) {
    let node = TestNode::configured(
        flavor,
        json!({
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "containerLogMaxSize": "4Ki", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "3s",
        }),
    );
    node.put("crashes", &one(&sh("c", "echo a life; sleep 0.2; exit 1")));
    let talk =
        "for n in $(seq 1 700); do echo line $n of what this container has to say; sleep 0.02; done; exec sleep 1000";
    node.put("talks", &one(&sh("c", talk)));
    wait_until(LIMIT, "all but the newest dead instance to be gone", || newest_only(&node));
    wait_until(LIMIT, "the log to be rotated without a loss", || rotated(&node));
    node.remove_all();
    node.wait_nothing_left();
}

/// After several restarts only the newest instance and the previous one exist, each with its log and symlink.
fn newest_only(node: &TestNode) -> Result<()> {
    let pod = node.pod("crashes")?;
    let restarts = container(&pod, "c")["restartCount"].as_u64().context("a count")?;
    ensure!(restarts >= 4, "{restarts} restarts");
    let (_, containers) = cri::of_pod(node, pod["metadata"]["uid"].as_str().context("a UID")?);
    let attempts: Vec<u32> = containers.iter().filter_map(|c| Some(c.metadata.as_ref()?.attempt)).collect();
    ensure!(!attempts.is_empty() && attempts.len() <= 2, "attempts {attempts:?}");
    ensure!(attempts.iter().all(|attempt| u64::from(*attempt) + 1 >= restarts), "attempts {attempts:?} of {restarts}");
    let logs = names(&log_dir(node, &pod)?)?;
    ensure!(logs.len() <= 2, "{logs:?}");
    let links = names(&node.scratch.log_links()?)?.into_iter().filter(|link| link.starts_with("crashes-node_")).count();
    ensure!(links <= 2, "{links} links");
    Ok(())
}

/// No more files than allowed, old ones compressed; together they have consecutive lines up to the last.
fn rotated(node: &TestNode) -> Result<()> {
    let dir = log_dir(node, &node.pod("talks")?)?;
    let mut files = names(&dir)?;
    files.sort();
    // `0.log` sorts first, and is the newest.
    ensure!(files.first().is_some_and(|name| name == "0.log") && files.len() == 3, "{files:?}");
    ensure!(files[1].ends_with(".gz") && !files[2].ends_with(".gz"), "{files:?}");
    let mut numbers = vec![];
    for name in files[1..].iter().chain(&files[..1]) {
        let program = if name.ends_with(".gz") { "zcat" } else { "cat" };
        let text = String::from_utf8(Command::new(program).arg(dir.join(name)).output()?.stdout)?;
        numbers.extend(
            text.lines().filter_map(|line| line.split(" line ").nth(1)?.split(' ').next()?.parse::<u32>().ok()),
        );
    }
    ensure!(numbers.last() == Some(&700), "it talks still: {:?}", numbers.last());
    ensure!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "a line is lost: {numbers:?}");
    ensure!(numbers[0] > 1, "nothing old has gone");
    Ok(())
}

fn log_dir(node: &TestNode, pod: &Value) -> Result<std::path::PathBuf> {
    let field = |name: &str| pod["metadata"][name].as_str().context("a pod has metadata");
    let name = format!("{}_{}_{}", field("namespace")?, field("name")?, field("uid")?);
    Ok(node.scratch.pod_logs()?.join(name).join("c"))
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// On a full disk; the sandbox image stays, even if the runtime does not pin it.
pub(crate) fn unused_images_are_removed_except_the_sandbox_image(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let before = cri::images(&node);
    let has = |images: &[String], name: &str| images.iter().any(|image| image == name);
    assert!(has(&before, image::USER_1000) && has(&before, image::PAUSE), "{before:?}");
    // One image is in use.
    node.put("user", &one(&json!({"name": "c", "image": image::USER_GUEST, "command": ["sleep", "1000"]})));
    node.wait_phase("user", "Running");
    node.agent.sigterm().expect("it ends");
    let file = node.scratch.path().join("podwright.yaml");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    // Every disk is fuller than one percent.
    for (field, value) in [
        ("imageGCHighThresholdPercent", json!(1)),
        ("imageGCLowThresholdPercent", json!(0)),
        ("imageMinimumGCAge", json!("1ns")),
        ("imageMaximumGCAge", json!("0s")),
    ] {
        config[field] = value;
    }
    fs::write(&file, config.to_string()).expect("written");
    node.agent.start_again().expect("the agent starts");
    wait_until(LIMIT, "unused images to go", || {
        let left = cri::images(&node);
        ensure!(!has(&left, image::USER_1000) && !has(&left, image::BUSYBOX), "{left:?}");
        Ok(())
    });
    let left = cri::images(&node);
    assert!(has(&left, image::PAUSE), "what sandboxes need stays, by its usual name too: {left:?}");
    assert!(has(&left, image::USER_GUEST), "what a container uses stays: {left:?}");
    node.remove_all();
    node.wait_nothing_left();
}
