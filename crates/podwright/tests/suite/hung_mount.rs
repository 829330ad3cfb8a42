//! A hanging file system affects only the pods that use it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, HungMount, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, container, one, sleeper};

/// The number of the agent's file IO threads that hang.
fn file_threads(node: &TestNode) -> Result<usize> {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.agent.pid()))?.flatten();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    Ok(tasks.filter(|task| name(task).trim() == "host-io").count())
}

fn on(path: &std::path::Path, kind: &str) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = json!([{"name": "dead", "hostPath": {"path": path, "type": kind}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "dead", "mountPath": "/v"}]);
    spec
}

fn is_healthy(node: &TestNode) {
    for path in ["/healthz", "/readyz"] {
        let answer = node.agent.get(path).expect("it answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

fn gone(node: &TestNode, name: &str) -> Result<()> {
    ensure!(node.pod(name).is_err(), "{:#}", node.pod(name)?["status"]);
    Ok(())
}

pub(crate) fn a_hanging_mount_delays_only_its_own_pods(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let hung = HungMount::new(&node.scratch.path().join("hung")).expect("mounted");
    for i in 0..3 {
        node.put(&format!("sick{i}"), &on(&hung.point().join("data"), "Directory"));
    }
    // Other pods start and terminate meanwhile, with volumes too.
    for i in 0..3 {
        let name = format!("well{i}");
        node.put(&name, &on(&node.scratch.path().join(&name), "DirectoryOrCreate"));
        node.wait_phase(&name, "Running");
        is_healthy(&node);
    }
    // Deleted while the mount hangs.
    node.put("hasty", &on(&hung.point().join("data"), "Directory"));
    wait_until(LIMIT, "hasty to be known", || node.phase("hasty", "Pending"));
    let begun = Instant::now();
    ["hasty", "well0"].iter().for_each(|name| node.remove(name));
    for name in ["hasty", "well0"] {
        wait_until(LIMIT, &format!("{name} to be gone"), || gone(&node, name));
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    for i in 0..3 {
        let name = format!("sick{i}");
        wait_until(LIMIT, &format!("{name} to say why"), || {
            let pod = node.phase(&name, "Pending")?;
            ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == "ContainerCreating", "{:#}", pod["status"]);
            let (log, pod) = (node.agent.log(), format!("pod=default/{name}-node"));
            let line = log.lines().find(|l| l.contains(&pod) && l.contains("FailedMount")).context("not yet")?;
            ensure!(line.contains(&hung.point().display().to_string()) && line.contains("\"dead\""), "{line}");
            Ok(())
        });
    }
    wait_until(LIMIT, "few threads to hang", || {
        let threads = file_threads(&node)?;
        ensure!((1..=2).contains(&threads), "{threads} threads");
        Ok(())
    });
    is_healthy(&node);
    let begun = Instant::now();
    node.remove("sick0");
    wait_until(LIMIT, "sick0 to be gone", || gone(&node, "sick0"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    // An agent that starts while the mount hangs works.
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    let begun = Instant::now();
    node.put("later", &one(&sleeper("c")));
    node.wait_phase("later", "Running");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    node.remove("sick1");
    wait_until(LIMIT, "sick1 to be gone", || gone(&node, "sick1"));
    is_healthy(&node);
    a_dead_mount_inside_of_a_pod_goes_with_it(&node);

    // The mount responds again: waiting pods continue.
    drop(hung);
    fs::create_dir_all(node.scratch.path().join("hung/data")).expect("made");
    node.wait_phase("sick2", "Running");
    wait_until(LIMIT, "the threads to come back", || {
        let threads = file_threads(&node)?;
        ensure!(threads == 0, "{threads} threads");
        Ok(())
    });
    node.remove_all();
    node.wait_nothing_left();
}

/// The manifest directory hangs: pods stay as they are, across a restart too, and the agent can be stopped.
pub(crate) fn a_hanging_manifest_directory_changes_no_pod(flavor: Flavor) {
    let mut node = TestNode::configured(flavor, json!({"fileCheckFrequency": "1s"}));
    node.put("well", &one(&sleeper("c")));
    let before = node.wait_phase("well", "Running");
    let hung = HungMount::new(&node.scratch.path().join("manifests")).expect("mounted");
    // Some relists.
    std::thread::sleep(Duration::from_secs(3));
    let stays = |node: &TestNode| {
        let pod = node.phase("well", "Running").expect("it runs");
        assert_eq!(container(&pod, "c")["containerID"], container(&before, "c")["containerID"]);
        assert_eq!(node.agent.get("/healthz").expect("it answers").status, 200);
    };
    stays(&node);
    let ended = node.agent.sigterm().expect("it ends although a thread of it hangs");
    assert!(ended.success(), "{ended}");
    node.agent.start_again().expect("started again");
    std::thread::sleep(Duration::from_secs(2));
    stays(&node);
    drop(hung);
    node.put("later", &one(&sleeper("c")));
    node.wait_phase("later", "Running");
    stays(&node);
    node.remove_all();
    node.wait_nothing_left();
}

fn a_dead_mount_inside_of_a_pod_goes_with_it(node: &TestNode) {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    node.put("holder", &spec);
    let pod = node.wait_phase("holder", "Running");
    let dir =
        node.scratch.root_dir().expect("there").join("pods").join(pod["metadata"]["uid"].as_str().expect("a uid"));
    let point = dir.join("volumes/kubernetes.io~empty-dir/v/dead");
    let hung = HungMount::new(&point).expect("mounted");
    let begun = Instant::now();
    node.remove("holder");
    wait_until(LIMIT, "holder to be gone", || gone(node, "holder"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(!dir.exists());
    drop(hung);
}
