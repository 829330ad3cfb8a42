//! A file system that never answers: it costs the pods that are on it, and nobody else.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, HungMount, wait_until};
use serde_json::{Value, json};

use super::{Bed, LIMIT, container, one, sleeper};

/// Threads of the agent that file work runs on: those that are still there hang.
fn file_threads(bed: &Bed) -> Result<usize> {
    let tasks = fs::read_dir(format!("/proc/{}/task", bed.agent.pid()))?.flatten();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    Ok(tasks.filter(|task| name(task).trim() == "host-io").count())
}

fn on(path: &std::path::Path, kind: &str) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = json!([{"name": "dead", "hostPath": {"path": path, "type": kind}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "dead", "mountPath": "/v"}]);
    spec
}

fn is_healthy(bed: &Bed) {
    for path in ["/healthz", "/readyz"] {
        let answer = bed.agent.get(path).expect("it answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

fn gone(bed: &Bed, name: &str) -> Result<()> {
    ensure!(bed.pod(name).is_err(), "{:#}", bed.pod(name)?["status"]);
    Ok(())
}

pub(crate) fn a_mount_that_hangs_hurts_only_who_needs_it(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let hung = HungMount::new(&bed.scratch.path().join("hung")).expect("mounted");
    for i in 0..3 {
        bed.put(&format!("sick{i}"), &on(&hung.point().join("data"), "Directory"));
    }
    // Others come and go meanwhile, also those with volumes of their own.
    for i in 0..3 {
        let name = format!("well{i}");
        bed.put(&name, &on(&bed.scratch.path().join(&name), "DirectoryOrCreate"));
        bed.wait_phase(&name, "Running");
        is_healthy(&bed);
    }
    // Deleted while the mount is being waited for.
    bed.put("hasty", &on(&hung.point().join("data"), "Directory"));
    wait_until(LIMIT, "hasty to be known", || bed.phase("hasty", "Pending"));
    let begun = Instant::now();
    ["hasty", "well0"].iter().for_each(|name| bed.remove(name));
    for name in ["hasty", "well0"] {
        wait_until(LIMIT, &format!("{name} to be gone"), || gone(&bed, name));
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    for i in 0..3 {
        let name = format!("sick{i}");
        wait_until(LIMIT, &format!("{name} to say why"), || {
            let pod = bed.phase(&name, "Pending")?;
            ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == "ContainerCreating", "{:#}", pod["status"]);
            let (log, pod) = (bed.agent.log(), format!("pod=default/{name}-node"));
            let told = log.lines().find(|l| l.contains(&pod) && l.contains("FailedMount")).context("not yet")?;
            ensure!(told.contains(&hung.point().display().to_string()) && told.contains("\"dead\""), "{told}");
            Ok(())
        });
    }
    wait_until(LIMIT, "few threads to hang", || {
        let threads = file_threads(&bed)?;
        ensure!((1..=2).contains(&threads), "{threads} threads");
        Ok(())
    });
    is_healthy(&bed);
    let begun = Instant::now();
    bed.remove("sick0");
    wait_until(LIMIT, "sick0 to be gone", || gone(&bed, "sick0"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    // An agent that starts on such a machine does its work.
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started again");
    let begun = Instant::now();
    bed.put("later", &one(&sleeper("c")));
    bed.wait_phase("later", "Running");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    bed.remove("sick1");
    wait_until(LIMIT, "sick1 to be gone", || gone(&bed, "sick1"));
    is_healthy(&bed);
    a_dead_mount_inside_of_a_pod_goes_with_it(&bed);

    // It comes to life: who waited goes on.
    drop(hung);
    fs::create_dir_all(bed.scratch.path().join("hung/data")).expect("made");
    bed.wait_phase("sick2", "Running");
    wait_until(LIMIT, "the threads to come back", || {
        let threads = file_threads(&bed)?;
        ensure!(threads == 0, "{threads} threads");
        Ok(())
    });
    bed.remove_all();
    bed.wait_nothing_left();
}

/// The manifests themselves can't be read any more: pods stay as they are, over a restart too, and the agent can be ended.
pub(crate) fn manifests_that_hang_change_nothing(flavor: Flavor) {
    let mut bed = Bed::configured(flavor, json!({"fileCheckFrequency": "1s"}));
    bed.put("well", &one(&sleeper("c")));
    let before = bed.wait_phase("well", "Running");
    let hung = HungMount::new(&bed.scratch.path().join("manifests")).expect("mounted");
    // Some relists.
    std::thread::sleep(Duration::from_secs(3));
    let stays = |bed: &Bed| {
        let pod = bed.phase("well", "Running").expect("it runs");
        assert_eq!(container(&pod, "c")["containerID"], container(&before, "c")["containerID"]);
        assert_eq!(bed.agent.get("/healthz").expect("it answers").status, 200);
    };
    stays(&bed);
    let ended = bed.agent.sigterm().expect("it ends although a thread of it hangs");
    assert!(ended.success(), "{ended}");
    bed.agent.start_again().expect("started again");
    std::thread::sleep(Duration::from_secs(2));
    stays(&bed);
    drop(hung);
    bed.put("later", &one(&sleeper("c")));
    bed.wait_phase("later", "Running");
    stays(&bed);
    bed.remove_all();
    bed.wait_nothing_left();
}

fn a_dead_mount_inside_of_a_pod_goes_with_it(bed: &Bed) {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    bed.put("holder", &spec);
    let pod = bed.wait_phase("holder", "Running");
    let dir = bed.scratch.root_dir().expect("there").join("pods").join(pod["metadata"]["uid"].as_str().expect("a uid"));
    let point = dir.join("volumes/kubernetes.io~empty-dir/v/dead");
    let hung = HungMount::new(&point).expect("mounted");
    let begun = Instant::now();
    bed.remove("holder");
    wait_until(LIMIT, "holder to be gone", || gone(bed, "holder"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(!dir.exists());
    drop(hung);
}
