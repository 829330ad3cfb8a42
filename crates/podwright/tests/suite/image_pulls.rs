//! Images from real registries: open, closed, wrong, and one that never answers.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, Flavor, PASSWORD, Registry, Scratch, USER, image, wait_until};
use serde_json::{Value, json};

use super::blocking_proxy::Door;
use super::{Bed, LIMIT, container, cri, one, sleeper};

fn pod(image: &str, policy: &str) -> Value {
    let mut c = sleeper("c");
    (c["image"], c["imagePullPolicy"]) = (json!(image), json!(policy));
    one(&c)
}

fn waits(bed: &Bed, name: &str, reason: &str) -> Result<String> {
    let pod = bed.phase(name, "Pending")?;
    let waiting = &container(&pod, "c")["state"]["waiting"];
    ensure!(waiting["reason"] == reason, "{name}: {:#}", container(&pod, "c"));
    Ok(waiting["message"].as_str().unwrap_or_default().to_owned())
}

/// How often the runtime was asked to pull this.
fn pulls(bed: &Bed, image: &str) -> usize {
    let start = format!("msg=\"PullImage \\\"{image}\\\"\"");
    bed.containerd.log().lines().filter(|l| l.contains(&start)).count()
}

/// Events of a pod in the agent's log, by reason.
fn events(bed: &Bed, name: &str, reason: &str) -> Vec<String> {
    let (pod, reason) = (format!("pod=default/{name}-node"), format!("reason=\"{reason}\""));
    let log = bed.agent.log();
    log.lines().filter(|l| l.contains(&pod) && l.contains(&reason)).map(str::to_owned).collect()
}

pub(crate) fn images_come_from_registries_and_failures_are_told(flavor: Flavor) {
    let bed = with_home(flavor);
    let (open, closed) =
        (Registry::start(&bed.scratch).expect("starts"), Registry::start_private(&bed.scratch).expect("starts"));
    open.push(image::BUSYBOX, "team/app:1").expect("pushed");
    open.push(image::BUSYBOX, "team/shared:1").expect("pushed");
    closed.push(image::BUSYBOX, "team/app:1").expect("pushed");
    bed.containerd.use_registry("open.test", &open).expect("written");
    for host in ["closed.test", "wrong.test", "users.test"] {
        bed.containerd.use_registry(host, &closed).expect("written");
    }
    let credentials = bed.scratch.root_dir().expect("there").join("config.json");
    let auths = |of_wrong: &str| {
        let auth = |password: &str| json!({"username": USER, "password": password});
        let auths = json!({"closed.test": auth(PASSWORD), "https://wrong.test/v2/": auth(of_wrong)});
        fs::write(&credentials, json!({"auths": auths}).to_string()).expect("written");
    };
    auths("a-wrong-password");
    // A login that only the user's own file has.
    let auth = json!({"users.test": {"username": USER, "password": PASSWORD}});
    fs::write(bed.scratch.path().join("home/.docker/config.json"), json!({"auths": auth}).to_string())
        .expect("written");
    bed.put("wrong", &pod("wrong.test/team/app:1", "IfNotPresent"));
    wait_until(LIMIT, "the failed pull to be told", || {
        let message = waits(&bed, "wrong", "ErrImagePull")?;
        ensure!(message.contains("wrong.test/team/app:1"), "{message}");
        Ok(())
    });
    bed.put("absent", &pod("open.test/team/none:1", "IfNotPresent"));
    bed.put("first", &pod("open.test/team/app:1", "IfNotPresent"));
    bed.put("closed", &pod("closed.test/team/app:1", "IfNotPresent"));
    bed.put("users", &pod("users.test/team/app:1", "IfNotPresent"));
    bed.put("nonsense", &pod("Not A Name", "IfNotPresent"));

    bed.wait_phase("first", "Running");
    bed.wait_phase("closed", "Running");
    bed.wait_phase("users", "Running");
    assert_eq!(events(&bed, "first", "Pulling").len(), 1);
    assert!(events(&bed, "first", "Pulled")[0].contains("Successfully pulled image"));
    let before = pulls(&bed, "open.test/team/app:1");
    bed.put("present", &pod("open.test/team/app:1", "IfNotPresent"));
    bed.put("never", &pod("open.test/team/app:1", "Never"));
    bed.put("always", &pod("open.test/team/app:1", "Always"));
    for name in ["present", "never", "always"] {
        bed.wait_phase(name, "Running");
    }
    assert_eq!(pulls(&bed, "open.test/team/app:1"), before + 1, "only Always asks the registry");
    assert!(events(&bed, "present", "Pulled")[0].contains("already present on machine"));
    assert!(events(&bed, "never", "Pulling").is_empty());

    wait_until(LIMIT, "the nonsense to be refused", || {
        let message = waits(&bed, "nonsense", "InvalidImageName")?;
        ensure!(message.contains("Not A Name"), "{message}");
        Ok(())
    });
    wait_until(LIMIT, "the absent image to be told", || {
        let message = waits(&bed, "absent", "ImagePullBackOff")?;
        ensure!(message.contains("Back-off pulling image") && message.contains("not found"), "{message}");
        Ok(())
    });
    wait_until(LIMIT, "the wrong password to be told", || {
        let message = waits(&bed, "wrong", "ImagePullBackOff")?;
        ensure!(message.contains("401") || message.contains("authorization failed"), "{message}");
        Ok(())
    });
    for name in ["wrong", "absent"] {
        let failed = events(&bed, name, "Failed");
        assert!(failed.iter().any(|l| l.contains("Failed to pull image")), "{failed:?}");
        assert!(!events(&bed, name, "BackOff").is_empty(), "{name}");
    }
    // The right one is found at the next try.
    auths(PASSWORD);
    bed.wait_phase("wrong", "Running");
    let log = bed.agent.log();
    assert!(!log.contains(PASSWORD) && !log.contains("a-wrong-password"), "a secret is in the log");

    many_pods_share_one_pull(&bed, &open);
    bed.remove_all();
    bed.wait_nothing_left();
}

/// An agent whose user has a home of their own.
fn with_home(flavor: Flavor) -> Bed {
    let scratch = Scratch::new().expect("a scratch");
    let home = scratch.dir("home").expect("made");
    fs::create_dir(home.join(".docker")).expect("made");
    let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
    let agent = Agent::new(&scratch).runtime(&containerd).env("HOME", &home.display().to_string());
    let agent = agent.start().expect("the agent starts");
    Bed { scratch, containerd, agent }
}

fn many_pods_share_one_pull(bed: &Bed, open: &Registry) {
    let door = Door::closed(&open.address());
    let image = format!("{}/team/shared:1", door.address());
    let names: Vec<String> = (0..4).map(|i| format!("shared{i}")).collect();
    for name in &names {
        bed.put(name, &pod(&image, "IfNotPresent"));
    }
    for name in &names {
        wait_until(LIMIT, &format!("{name} to pull"), || {
            ensure!(!events(bed, name, "Pulling").is_empty() && door.guests() > 0, "not yet");
            Ok(())
        });
    }
    door.open();
    for name in &names {
        bed.wait_phase(name, "Running");
    }
    assert_eq!(pulls(bed, &image), 1);
}

pub(crate) fn a_registry_that_hangs_hurts_only_who_needs_it(flavor: Flavor) {
    let bed = Bed::configured(flavor, json!({"serializeImagePulls": false, "maxParallelImagePulls": 3}));
    let registry = Registry::start(&bed.scratch).expect("starts");
    registry.push(image::BUSYBOX, "app:1").expect("pushed");
    bed.containerd.use_registry("open.test", &registry).expect("written");
    let doors: Vec<Door> = (0..2).map(|_| Door::closed(&registry.address())).collect();
    // Three of one host: it gets two of the three places, and the third is free for others.
    for i in 0..3 {
        bed.put(&format!("stuck{i}"), &pod(&format!("{}/app:{i}", doors[0].address()), "IfNotPresent"));
    }
    wait_until(LIMIT, "two pulls to hang", || {
        ensure!(doors[0].guests() >= 2, "{} have come", doors[0].guests());
        Ok(())
    });
    bed.put("here", &one(&sleeper("c")));
    bed.put("other", &pod("open.test/app:1", "Always"));
    bed.wait_phase("here", "Running");
    bed.wait_phase("other", "Running");
    for i in 0..3 {
        waits(&bed, &format!("stuck{i}"), "ContainerCreating").expect("it waits");
    }
    // The last place is taken by another that hangs: now the next has to wait.
    bed.put("stuck3", &pod(&format!("{}/app:1", doors[1].address()), "IfNotPresent"));
    wait_until(LIMIT, "a third pull to hang", || {
        ensure!(doors[1].guests() > 0, "not yet");
        Ok(())
    });
    bed.put("next", &pod("open.test/app:1", "Always"));
    wait_until(LIMIT, "next to want its image", || {
        ensure!(!events(&bed, "next", "Pulling").is_empty(), "not yet");
        Ok(())
    });
    std::thread::sleep(Duration::from_millis(300));
    waits(&bed, "next", "ContainerCreating").expect("it waits for a place");

    let stuck: Vec<Value> = (0..4).map(|i| bed.pod(&format!("stuck{i}")).expect("known")).collect();
    let began = Instant::now();
    (0..4).for_each(|i| bed.remove(&format!("stuck{i}")));
    bed.wait_phase("next", "Running");
    println!("the place was free and used {:?} after the removal", began.elapsed());
    wait_until(LIMIT, "those who hang to be gone", || {
        ensure!((0..4).all(|i| bed.pod(&format!("stuck{i}")).is_err()), "still there");
        Ok(())
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "gone after {took:?}");
    // The registry wakes up: nobody is left to start anything.
    doors.iter().for_each(Door::open);
    std::thread::sleep(Duration::from_secs(1));
    for pod in &stuck {
        let (sandboxes, containers) = cri::of_pod(&bed, pod["metadata"]["uid"].as_str().context("a uid").expect("one"));
        assert!(sandboxes.is_empty() && containers.is_empty(), "{sandboxes:?} {containers:?}");
    }
    bed.remove_all();
    bed.wait_nothing_left();
}
