//! The rules of stopping.

use std::time::{Duration, Instant};

use podwright_cri::{RuntimeService, v1};
use podwright_linux::cgroup::{CgroupPath, CgroupTree, CgroupVersion};
use podwright_testbed::image;

use crate::bed::{Bed, LIMIT};

const COUNTS_TERMS: &str = "trap 'echo term' TERM; echo ready; while true; do sleep 0.05; done";

pub(crate) async fn a_stop_waits_for_the_exit_and_the_signal_is_sent_once(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let script = "trap 'echo term; sleep 1; exit 3' TERM; echo ready; while true; do sleep 0.05; done";
    let id = bed.start(&sandbox, "main", script).await;
    bed.wait_for_log(&id, "ready").await;
    let begun = Instant::now();
    let (first, second) =
        tokio::join!(bed.engine().stop_container(&id, 30, LIMIT), bed.engine().stop_container(&id, 40, LIMIT));
    first.unwrap();
    second.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "answered before the exit");
    assert!(begun.elapsed() < Duration::from_secs(25), "not killed");
    let status = bed.status(&id).await;
    assert_eq!((status.state(), status.exit_code), (v1::ContainerState::ContainerExited, 3));
    assert_eq!(bed.logged(&id).await, ["ready", "term"]);
}

pub(crate) async fn a_stop_without_grace_kills(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", COUNTS_TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 137);
    assert_eq!(bed.logged(&id).await, ["ready"], "no stop signal");
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
}

pub(crate) async fn a_shorter_second_stop_shortens_the_first(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", COUNTS_TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let begun = Instant::now();
    let long = bed.engine().stop_container(&id, 50, LIMIT);
    let short = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        bed.engine().stop_container(&id, 1, LIMIT).await
    };
    let (long, short) = tokio::join!(long, short);
    long.unwrap();
    short.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(bed.status(&id).await.exit_code, 137);
    assert_eq!(bed.logged(&id).await, ["ready", "term"], "the stop signal was sent once");
}

pub(crate) async fn a_caller_that_leaves_does_not_kill(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", COUNTS_TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let left = tokio::time::timeout(Duration::from_millis(300), bed.engine().stop_container(&id, 1, LIMIT)).await;
    assert!(left.is_err(), "the caller has left");
    bed.wait_for_log(&id, "term").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerRunning);
}

pub(crate) async fn the_stop_signal_of_the_image_is_sent(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let script = "trap 'echo usr1; exit 0' USR1; echo ready; while true; do sleep 0.05; done";
    let mut config = bed.container_config("main", script);
    config.image.as_mut().unwrap().image = image::STOPSIGNAL.into();
    let id = bed.start_config(&sandbox, config).await;
    bed.wait_for_log(&id, "ready").await;
    assert_eq!(bed.status(&id).await.stop_signal(), v1::Signal::Sigusr1);
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.logged(&id).await, ["ready", "usr1"]);
}

pub(crate) async fn a_sandbox_stops_and_removes_its_containers(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let runs = bed.start(&sandbox, "runs", COUNTS_TERMS).await;
    let created = bed.create(&sandbox, bed.container_config("created", "true")).await.unwrap();
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    assert_eq!(bed.status(&runs).await.exit_code, 137);
    let refused = bed.engine().start_container(&created, LIMIT).await.unwrap_err();
    assert!(refused.message.contains("is not ready"), "{refused}");
    assert!(bed.create(&sandbox, bed.container_config("late", "true")).await.is_err());
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    bed.engine().remove_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    assert!(bed.engine().list_containers(None, LIMIT).await.unwrap().is_empty());
    assert!(bed.engine().list_pod_sandbox(None, LIMIT).await.unwrap().is_empty());
}

pub(crate) async fn a_stop_ends_although_the_shim_hangs(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let shim = crate::recovery::shim_of(&bed, &id).await;
    rustix::process::kill_process(shim, rustix::process::Signal::STOP).unwrap();
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 137);
}

/// The cgroup of a pod.
fn pod_cgroup(bed: &Bed, pod: &str) -> CgroupPath {
    CgroupPath::parse(&bed.cgroup_parent).unwrap().join(pod).unwrap()
}

/// A pod of one PID namespace, so that its containers do not end with their init.
async fn shared_pod(bed: &Bed, name: &str) -> String {
    let mut config = bed.sandbox_config(name, true);
    let context = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()).unwrap();
    context.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    bed.run_sandbox(config).await
}

fn in_shared_pod(mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    let context = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()).unwrap();
    context.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    config
}

pub(crate) async fn a_frozen_pod_is_stopped(bed: Bed) {
    let sandbox = shared_pod(&bed, "web").await;
    let id = bed.start_config(&sandbox, in_shared_pod(bed.container_config("main", COUNTS_TERMS))).await;
    bed.wait_for_log(&id, "ready").await;
    let (tree, pod) = (CgroupTree::detect().unwrap(), pod_cgroup(&bed, "web"));
    let groups = tree.children(&pod).unwrap();
    assert_eq!(groups.len(), 2, "the container and the pause process: {groups:?}");
    for group in groups {
        let dir = tree.directory_of("freezer", &pod.join(&group).unwrap()).unwrap();
        let (file, value) = match tree.version() {
            CgroupVersion::V1 => ("freezer.state", "FROZEN"),
            CgroupVersion::V2 => ("cgroup.freeze", "1"),
        };
        std::fs::write(dir.join(file), value).unwrap();
    }
    let begun = Instant::now();
    bed.engine().stop_container(&id, 1, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 137);
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

pub(crate) async fn a_fork_bomb_is_stopped(bed: Bed) {
    let sandbox = shared_pod(&bed, "web").await;
    // One that can not fork ends, and another one takes its place.
    let script = "echo ready; until [ -e /go ]; do sleep 0.05; done; b() { while :; do b & done; }; b";
    let id = bed.start_config(&sandbox, in_shared_pod(bed.container_config("main", script))).await;
    bed.wait_for_log(&id, "ready").await;
    let (tree, pod) = (CgroupTree::detect().unwrap(), pod_cgroup(&bed, "web"));
    let pids = tree.directory_of("pids", &pod).unwrap();
    std::fs::write(pids.join("pids.max"), "60").unwrap();
    bed.exec(&id, "touch /go").await;
    let current = || std::fs::read_to_string(pids.join("pids.current")).unwrap().trim().parse::<u32>().unwrap();
    let until = Instant::now() + LIMIT;
    while current() < 50 {
        assert!(Instant::now() < until, "{} processes", current());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
    let container = pod.join(&id).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while tree.exists_in_one(&container) {
        assert!(Instant::now() < until, "{:?}", tree.procs(&container));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
}
