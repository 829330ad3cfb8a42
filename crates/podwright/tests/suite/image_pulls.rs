//! Image pulls from real registries: public, private, failing, and hanging.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Flavor, PASSWORD, Registry, Scratch, TestRuntime, USER, image, wait_until};
use serde_json::{Value, json};

use super::blocking_proxy::BlockingProxy;
use super::{LIMIT, TestNode, container, cri, one, sleeper};

fn pod(image: &str, policy: &str) -> Value {
    let mut c = sleeper("c");
    (c["image"], c["imagePullPolicy"]) = (json!(image), json!(policy));
    one(&c)
}

fn waits(node: &TestNode, name: &str, reason: &str) -> Result<String> {
    let pod = node.phase(name, "Pending")?;
    let waiting = &container(&pod, "c")["state"]["waiting"];
    ensure!(waiting["reason"] == reason, "{name}: {:#}", container(&pod, "c"));
    Ok(waiting["message"].as_str().unwrap_or_default().to_owned())
}

/// How often the registry was asked for tag `1` of a repository; each pull asks once.
fn pulls(registry: &Registry, repository: &str) -> usize {
    let requests = ["HEAD", "GET"].map(|method| format!("\"{method} /v2/{repository}/manifests/1"));
    let log = registry.log();
    log.lines().filter(|line| requests.iter().any(|request| line.contains(request))).count()
}

/// Events of a pod with this reason in the agent's log.
fn events(node: &TestNode, name: &str, reason: &str) -> Vec<String> {
    let (pod, reason) = (format!("pod=default/{name}-node"), format!("reason=\"{reason}\""));
    let log = node.agent.log();
    log.lines().filter(|l| l.contains(&pod) && l.contains(&reason)).map(str::to_owned).collect()
}

pub(crate) fn images_are_pulled_and_failures_are_reported(flavor: Flavor) {
    let node = with_home(flavor);
    let (open, closed) =
        (Registry::start(&node.scratch).expect("starts"), Registry::start_private(&node.scratch).expect("starts"));
    open.push(image::BUSYBOX, "team/app:1").expect("pushed");
    open.push(image::BUSYBOX, "team/shared:1").expect("pushed");
    closed.push(image::BUSYBOX, "team/app:1").expect("pushed");
    node.runtime.use_registry("open.test", &open).expect("written");
    for host in ["closed.test", "wrong.test", "users.test"] {
        node.runtime.use_registry(host, &closed).expect("written");
    }
    let credentials = node.scratch.root_dir().expect("there").join("config.json");
    let auths = |of_wrong: &str| {
        let auth = |password: &str| json!({"username": USER, "password": password});
        let auths = json!({"closed.test": auth(PASSWORD), "https://wrong.test/v2/": auth(of_wrong)});
        fs::write(&credentials, json!({"auths": auths}).to_string()).expect("written");
    };
    auths("a-wrong-password");
    // Credentials that only the user's docker config has.
    let auth = json!({"users.test": {"username": USER, "password": PASSWORD}});
    fs::write(node.scratch.path().join("home/.docker/config.json"), json!({"auths": auth}).to_string())
        .expect("written");
    node.put("wrong", &pod("wrong.test/team/app:1", "IfNotPresent"));
    wait_until(LIMIT, "the failed pull to be reported", || {
        let message = waits(&node, "wrong", "ErrImagePull")?;
        ensure!(message.contains("wrong.test/team/app:1"), "{message}");
        Ok(())
    });
    node.put("absent", &pod("open.test/team/none:1", "IfNotPresent"));
    node.put("first", &pod("open.test/team/app:1", "IfNotPresent"));
    node.put("closed", &pod("closed.test/team/app:1", "IfNotPresent"));
    node.put("users", &pod("users.test/team/app:1", "IfNotPresent"));
    node.put("nonsense", &pod("Not A Name", "IfNotPresent"));

    node.wait_phase("first", "Running");
    node.wait_phase("closed", "Running");
    node.wait_phase("users", "Running");
    assert_eq!(events(&node, "first", "Pulling").len(), 1);
    assert!(events(&node, "first", "Pulled")[0].contains("Successfully pulled image"));
    let before = pulls(&open, "team/app");
    node.put("present", &pod("open.test/team/app:1", "IfNotPresent"));
    node.put("never", &pod("open.test/team/app:1", "Never"));
    node.put("always", &pod("open.test/team/app:1", "Always"));
    for name in ["present", "never", "always"] {
        node.wait_phase(name, "Running");
    }
    assert_eq!(pulls(&open, "team/app"), before + 1, "only Always asks the registry");
    assert!(events(&node, "present", "Pulled")[0].contains("already present on machine"));
    assert!(events(&node, "never", "Pulling").is_empty());

    wait_until(LIMIT, "the nonsense to be refused", || {
        let message = waits(&node, "nonsense", "InvalidImageName")?;
        ensure!(message.contains("Not A Name"), "{message}");
        Ok(())
    });
    wait_until(LIMIT, "the absent image to be reported", || {
        let message = waits(&node, "absent", "ImagePullBackOff")?;
        let is_named = message.to_lowercase().contains("not found");
        ensure!(message.contains("Back-off pulling image") && is_named, "{message}");
        Ok(())
    });
    wait_until(LIMIT, "the wrong password to be reported", || {
        let message = waits(&node, "wrong", "ImagePullBackOff")?;
        ensure!(message.contains("401") || message.contains("authorization failed"), "{message}");
        Ok(())
    });
    for name in ["wrong", "absent"] {
        let failed = events(&node, name, "Failed");
        assert!(failed.iter().any(|l| l.contains("Failed to pull image")), "{failed:?}");
        assert!(!events(&node, name, "BackOff").is_empty(), "{name}");
    }
    // The next attempt uses the right credentials.
    auths(PASSWORD);
    node.wait_phase("wrong", "Running");
    let log = node.agent.log();
    assert!(!log.contains(PASSWORD) && !log.contains("a-wrong-password"), "a secret is in the log");

    many_pods_share_one_pull(&node, &open);
    node.remove_all();
    node.wait_nothing_left();
}

/// An agent with its own HOME, which logs what the calls do.
fn with_home(flavor: Flavor) -> TestNode {
    let scratch = Scratch::new().expect("a scratch");
    let home = scratch.dir("home").expect("made");
    fs::create_dir(home.join(".docker")).expect("made");
    let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
    let agent = Agent::new(&scratch).runtime(&runtime).env("HOME", &home.display().to_string()).arg("-v=4");
    let agent = agent.start().expect("the agent starts");
    TestNode { scratch, runtime, agent }
}

fn many_pods_share_one_pull(node: &TestNode, open: &Registry) {
    let proxy = BlockingProxy::new(&open.address());
    let before = pulls(open, "team/shared");
    let image = format!("{}/team/shared:1", proxy.address());
    let names: Vec<String> = (0..4).map(|i| format!("shared{i}")).collect();
    for name in &names {
        node.put(name, &pod(&image, "IfNotPresent"));
    }
    // The event comes before the call: credentials are read and the pull is recorded in between.
    wait_until(LIMIT, "three pods to join the pull of the first", || {
        let joined = node.agent.log().lines().filter(|l| l.contains("joined a pull") && l.contains(&image)).count();
        ensure!(joined == names.len() - 1 && proxy.connections() > 0, "{joined} joined");
        Ok(())
    });
    for name in &names {
        assert_eq!(events(node, name, "Pulling").len(), 1, "{name}");
    }
    proxy.unblock();
    for name in &names {
        node.wait_phase(name, "Running");
    }
    assert_eq!(pulls(open, "team/shared"), before + 1);
}

pub(crate) fn a_hanging_registry_delays_only_its_own_pods(flavor: Flavor) {
    let node = TestNode::configured(flavor, json!({"serializeImagePulls": false, "maxParallelImagePulls": 3}));
    let registry = Registry::start(&node.scratch).expect("starts");
    registry.push(image::BUSYBOX, "app:1").expect("pushed");
    node.runtime.use_registry("open.test", &registry).expect("written");
    let proxies: Vec<BlockingProxy> = (0..2).map(|_| BlockingProxy::new(&registry.address())).collect();
    // Three images of one host: it gets two of the three pull slots, the third is free for others.
    for i in 0..3 {
        node.put(&format!("stuck{i}"), &pod(&format!("{}/app:{i}", proxies[0].address()), "IfNotPresent"));
    }
    wait_until(LIMIT, "two pulls to hang", || {
        ensure!(proxies[0].connections() >= 2, "{} connections", proxies[0].connections());
        Ok(())
    });
    node.put("here", &one(&sleeper("c")));
    // The other image has the same content: once it is pulled, the preloaded one needs verification.
    node.wait_phase("here", "Running");
    node.put("other", &pod("open.test/app:1", "Always"));
    node.wait_phase("other", "Running");
    for i in 0..3 {
        waits(&node, &format!("stuck{i}"), "ContainerCreating").expect("it waits");
    }
    // Another hanging pull takes the last slot: the next one has to wait.
    node.put("stuck3", &pod(&format!("{}/app:1", proxies[1].address()), "IfNotPresent"));
    wait_until(LIMIT, "a third pull to hang", || {
        ensure!(proxies[1].connections() > 0, "not yet");
        Ok(())
    });
    node.put("next", &pod("open.test/app:1", "Always"));
    wait_until(LIMIT, "next to want its image", || {
        ensure!(!events(&node, "next", "Pulling").is_empty(), "not yet");
        Ok(())
    });
    std::thread::sleep(Duration::from_millis(300));
    waits(&node, "next", "ContainerCreating").expect("it waits for a place");

    let stuck: Vec<Value> = (0..4).map(|i| node.pod(&format!("stuck{i}")).expect("known")).collect();
    let began = Instant::now();
    (0..4).for_each(|i| node.remove(&format!("stuck{i}")));
    node.wait_phase("next", "Running");
    println!("the place was free and used {:?} after the removal", began.elapsed());
    wait_until(LIMIT, "those who hang to be gone", || {
        ensure!((0..4).all(|i| node.pod(&format!("stuck{i}")).is_err()), "still there");
        Ok(())
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "gone after {took:?}");
    // The registry responds again: no pod is left to start.
    proxies.iter().for_each(BlockingProxy::unblock);
    std::thread::sleep(Duration::from_secs(1));
    for pod in &stuck {
        let (sandboxes, containers) =
            cri::of_pod(&node, pod["metadata"]["uid"].as_str().context("a uid").expect("one"));
        assert!(sandboxes.is_empty() && containers.is_empty(), "{sandboxes:?} {containers:?}");
    }
    node.remove_all();
    node.wait_nothing_left();
}
