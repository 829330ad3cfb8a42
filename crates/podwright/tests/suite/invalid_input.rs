//! Bad input is named, and touches nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, wait_until};
use serde_json::{Value, json};

use super::corrupting_proxy::{Manner, Meddler};
use super::{Bed, LIMIT, container, one, sleeper};

#[path = "../local_api/client.rs"]
mod client;

pub(crate) fn broken_manifests_are_named_and_touch_nothing_else(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let dir = bed.scratch.manifests().expect("there");
    bed.put("good", &one(&sleeper("c")));
    let good = bed.wait_phase("good", "Running");
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
    bed.put("negative", &negative);
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
            let log = bed.agent.log();
            let named: Vec<&str> = log.lines().filter(|line| line.contains(file)).collect();
            ensure!(named.iter().any(|line| line.contains(why)), "the log says no {why:?}: {named:?}");
            Ok(())
        });
    }
    // Whoever asks is told the same.
    let socket = bed.scratch.run_dir().expect("there").join("api.sock");
    let (code, told) = client::ask(&socket, "GET", "/podwright/v1/manifests", &Value::Null).expect("answered");
    assert_eq!(code, 200, "{told:#}");
    for (file, why) in broken {
        let about = told["broken"].as_array().expect("a list").iter().map(Value::to_string);
        let about: Vec<String> = about.filter(|one| one.contains(file)).collect();
        assert!(about.iter().any(|one| one.contains(why)), "no {why:?} of {file}: {told:#}");
    }
    // A good file that breaks keeps its pod as it is, over a restart of the agent too.
    fs::write(dir.join("good.json"), "{\"apiVersion\": ").expect("written");
    std::thread::sleep(std::time::Duration::from_millis(700));
    let after = bed.phase("good", "Running").expect("it runs on");
    assert_eq!(after["metadata"]["uid"], good["metadata"]["uid"]);
    let mut bed = bed;
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started");
    let after = bed.wait_phase("good", "Running");
    let id = |pod: &Value| container(pod, "c")["containerID"].clone();
    assert_eq!(id(&after), id(&good), "the container was touched");
    for entry in fs::read_dir(&dir).expect("there").flatten() {
        let _ = fs::remove_file(entry.path());
    }
    bed.wait_nothing_left();
}

/// Nobody can do anything with a runtime that talks nonsense but wait: what runs goes on, and all is well when it is itself again.
pub(crate) fn a_runtime_that_answers_garbage_is_survived(flavor: Flavor) {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
    let meddler = Meddler::new(scratch.path().join("meddler.sock"), containerd.socket());
    let agent = Agent::new(&scratch).endpoint(&meddler.endpoint()).start().expect("the agent starts");
    let mut bed = Bed { scratch, containerd, agent };
    bed.put("before", &one(&sleeper("c")));
    let before = bed.wait_phase("before", "Running");
    for (round, manner) in [Manner::Babbling, Manner::Slurring].into_iter().enumerate() {
        let lines = bed.agent.log().lines().count();
        meddler.turn(manner);
        bed.put(&format!("meanwhile{round}"), &one(&sleeper("c")));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(bed.agent.get("/healthz").expect("it answers").status, 200);
        let said = bed.agent.log().lines().count() - lines;
        assert!(said < 500, "{said} lines of log in 3 s");
        meddler.turn(Manner::Honest);
        bed.wait_phase(&format!("meanwhile{round}"), "Running");
    }
    // A new agent finds nothing but nonsense: it waits, or says why it can't.
    bed.agent.kill9().expect("killed");
    meddler.turn(Manner::Babbling);
    bed.agent.launch_again().expect("launched");
    std::thread::sleep(Duration::from_secs(2));
    meddler.turn(Manner::Honest);
    if bed.agent.exited().expect("asked").is_some() {
        bed.agent.launch_again().expect("launched");
    }
    let after = bed.wait_phase("before", "Running");
    let id = |pod: &Value| container(pod, "c")["containerID"].clone();
    assert_eq!(id(&after), id(&before), "a container was touched");
    bed.remove_all();
    bed.wait_nothing_left();
}

/// Slices are not made yet: pods would lie in no cgroup of theirs. So it is refused before anything is done.
pub(crate) fn a_cgroup_driver_that_is_not_there_is_refused(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    bed.agent.sigterm().expect("it ends");
    let file = bed.scratch.path().join("podwright.yaml");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    config["cgroupDriver"] = json!("systemd");
    fs::write(&file, config.to_string()).expect("written");
    bed.agent.launch_again().expect("launched");
    let status = wait_until(LIMIT, "the agent to give up", || {
        bed.agent.exited().expect("asked").ok_or_else(|| anyhow::anyhow!("it runs"))
    });
    assert!(!status.success());
    let log = bed.agent.log();
    let last = log.lines().last().unwrap_or_default();
    for word in ["cgroupDriver", "systemd", "cgroupfs", "SystemdCgroup"] {
        assert!(last.contains(word), "no {word:?} in {last:?}");
    }
}
