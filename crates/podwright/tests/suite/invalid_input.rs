//! Invalid input is reported and affects nothing else.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::local_client as client;
use super::{LIMIT, TestNode, container, one, sleeper};

pub(crate) fn invalid_manifests_are_reported_and_do_not_affect_other_pods(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let dir = node.scratch.manifests().expect("there");
    node.put("good", &one(&sleeper("c")));
    let good = node.wait_phase("good", "Running");
    fs::write(dir.join("truncated.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: t").expect("written");
    fs::write(dir.join("binary.yaml"), [0u8, 159, 146, 150, 0, 1]).expect("written");
    fs::write(dir.join("kind.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n").expect("written");
    fs::write(
        dir.join("slash.yaml"),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: ../../etc}\nspec: {containers: []}\n",
    )
    .expect("written");
    let mut negative = one(&sleeper("c"));
    negative["terminationGracePeriodSeconds"] = json!(-5);
    node.put("negative", &negative);
    fs::File::create(dir.join("huge.yaml")).expect("made").set_len(100 << 20).expect("grown");
    symlink("loop-b.yaml", dir.join("loop-a.yaml")).expect("linked");
    symlink("loop-a.yaml", dir.join("loop-b.yaml")).expect("linked");
    fs::create_dir(dir.join("directory.yaml")).expect("made");
    let broken = [
        ("truncated.yaml", "line 3"),
        ("binary.yaml", "not UTF-8 text"),
        ("kind.yaml", "Service"),
        ("slash.yaml", "metadata.name"),
        ("negative.json", "terminationGracePeriodSeconds"),
        ("huge.yaml", "a manifest may have 10485760"),
        ("loop-a.yaml", "symbolic links"),
    ];
    for (file, why) in broken {
        wait_until(LIMIT, &format!("{file} to be named"), || {
            let log = node.agent.log();
            let named: Vec<&str> = log.lines().filter(|line| line.contains(file)).collect();
            ensure!(named.iter().any(|line| line.contains(why)), "the log has no {why:?}: {named:?}");
            Ok(())
        });
    }
    // The local API reports the same.
    let socket = node.scratch.run_dir().expect("there").join("api.sock");
    let (code, response) = client::request(&socket, "GET", "/podwright/v1/manifests", &Value::Null).expect("answered");
    assert_eq!(code, 200, "{response:#}");
    for (file, why) in broken {
        let about = response["broken"].as_array().expect("a list").iter().map(Value::to_string);
        let about: Vec<String> = about.filter(|one| one.contains(file)).collect();
        assert!(about.iter().any(|one| one.contains(why)), "no {why:?} of {file}: {response:#}");
    }
    // When a valid file becomes invalid its pod stays as it is, across a restart of the agent too.
    fs::write(dir.join("good.json"), "{\"apiVersion\": ").expect("written");
    std::thread::sleep(std::time::Duration::from_millis(700));
    let after = node.phase("good", "Running").expect("it runs on");
    assert_eq!(after["metadata"]["uid"], good["metadata"]["uid"]);
    let mut node = node;
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started");
    let after = node.wait_phase("good", "Running");
    let id = |pod: &Value| container(pod, "c")["containerID"].clone();
    assert_eq!(id(&after), id(&good), "the container was touched");
    for entry in fs::read_dir(&dir).expect("there").flatten() {
        let _ = fs::remove_file(entry.path());
    }
    node.wait_nothing_left();
}

/// Without systemd its driver has no slices: pods would have no cgroup. So the driver is rejected at startup. A runtime that
/// reports its own driver decides, so there the agent runs.
pub(crate) fn the_systemd_driver_without_systemd_is_rejected(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    node.agent.sigterm().expect("it ends");
    let file = node.scratch.path().join("podwright.yaml");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    config["cgroupDriver"] = json!("systemd");
    fs::write(&file, config.to_string()).expect("written");
    node.agent.launch_again().expect("launched");
    if flavor != Flavor::Debian16 {
        node.put("driver", &one(&sleeper("c")));
        node.wait_phase("driver", "Running");
        assert!(node.agent.log().contains("the cgroup driver of the runtime replaces the configured one"));
        node.remove_all();
        return node.wait_nothing_left();
    }
    let status = wait_until(LIMIT, "the agent to give up", || {
        node.agent.exited().expect("asked").ok_or_else(|| anyhow::anyhow!("it runs"))
    });
    assert!(!status.success());
    let log = node.agent.log();
    let last = log.lines().last().unwrap_or_default();
    for word in ["cgroupDriver", "systemd", "cgroupfs", "SystemdCgroup"] {
        assert!(last.contains(word), "no {word:?} in {last:?}");
    }
}
