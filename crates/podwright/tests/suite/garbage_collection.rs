//! Garbage collection: dead containers with their logs, large logs, unused images.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, image, wait_until};
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
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
    let images = || containerd.ctr(&["images", "ls", "-q"]);
    let before = images().expect("listed");
    assert!(before.contains(image::USER_1000) && before.contains(image::PAUSE), "{before}");
    // Every disk is fuller than one percent.
    let config = json!({
        "imageGCHighThresholdPercent": 1, "imageGCLowThresholdPercent": 0,
        "imageMinimumGCAge": "1ns", "imageMaximumGCAge": "0s",
    });
    // One image is in use.
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "c", "image": image::USER_GUEST, "command": ["sleep", "1000"]},
    ]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec});
    scratch.put_manifest("user.json", &pod).expect("written");
    let mut agent = Agent::new(&scratch).runtime(&containerd).start().expect("the agent starts");
    wait_until(LIMIT, "the pod to run", || {
        let pod = agent.pod("user-node")?.unwrap_or_default();
        ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
        Ok(())
    });
    agent.sigterm().expect("it ends");
    let _agent = Agent::new(&scratch).runtime(&containerd).config(config).start().expect("the agent starts");
    wait_until(LIMIT, "unused images to go", || {
        let left = images()?;
        ensure!(!left.contains(image::USER_1000) && !left.contains(image::BUSYBOX), "{left}");
        Ok(())
    });
    let left = images().expect("listed");
    assert!(left.contains(image::PAUSE), "what sandboxes need stays: {left}");
    assert!(left.contains(image::USER_GUEST), "what a container uses stays: {left}");
}
