//! The observer with a fake runtime and with real processes.

use podwright_core::model::{ContainerId, RunState};
use podwright_cri::labels;
use podwright_cri::{Code, CriError};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::perform::fakes::{FakeRuntime, Step};
use crate::translate::{CgroupDriver, NodeSettings, RuntimeFeatures};

mod hints;

struct Bench {
    fake: Arc<FakeRuntime>,
    observer: Arc<Observer>,
    features: SharedFeatures,
    hints: mpsc::Receiver<Event>,
}

fn bench() -> Bench {
    bench_in(std::path::Path::new("/nowhere"))
}

/// The files of pods are under `root`.
fn bench_in(root: &std::path::Path) -> Bench {
    let paths = HostPaths { root_dir: root.to_owned(), ..NodeSettings::default().paths };
    let fake = Arc::new(FakeRuntime::default());
    let features = SharedFeatures::default();
    let runtime = Arc::clone(&fake) as Arc<dyn RuntimeService>;
    let (sender, hints) = mpsc::channel(256);
    let observer = Observer::new(runtime, features.clone(), Pool::default(), paths, Duration::from_secs(20), sender);
    Bench { fake, observer: Arc::new(observer), features, hints }
}

fn owner(uid: &'static str, container: Option<&'static str>) -> BTreeMap<String, String> {
    Owner { name: "shop", namespace: "default", uid, container }.to_labels()
}

fn sandbox(id: &str, uid: &'static str, attempt: u32, ready: bool) -> v1::PodSandbox {
    v1::PodSandbox {
        id: id.into(),
        metadata: Some(v1::PodSandboxMetadata { attempt, ..Default::default() }),
        state: i32::from(!ready),
        created_at: 1_000_000_000,
        labels: owner(uid, None),
        annotations: [(CONFIG_SOURCE.to_owned(), "file".to_owned())].into(),
        ..Default::default()
    }
}

fn container(id: &str, uid: &'static str, name: &'static str, sandbox: &str, state: i32) -> v1::Container {
    v1::Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        labels: owner(uid, Some(name)),
        state,
        ..Default::default()
    }
}

impl Bench {
    fn has_sandbox(&self, sandbox: v1::PodSandbox, ip: &str) {
        let network =
            v1::PodSandboxNetworkStatus { ip: ip.into(), additional_ips: vec![v1::PodIp { ip: "fd00::1".into() }] };
        let status = v1::PodSandboxStatus {
            id: sandbox.id.clone(),
            state: sandbox.state,
            network: Some(network),
            ..Default::default()
        };
        self.fake.sandbox_statuses.lock().unwrap().insert(sandbox.id.clone(), status);
        self.fake.sandboxes.lock().unwrap().push(sandbox);
    }

    fn has_container(&self, container: v1::Container, change: impl FnOnce(&mut v1::ContainerStatus)) {
        let mut status = v1::ContainerStatus {
            id: container.id.clone(),
            state: container.state,
            labels: container.labels.clone(),
            ..Default::default()
        };
        change(&mut status);
        let answer = v1::ContainerStatusResponse { status: Some(status), ..Default::default() };
        self.fake.statuses.lock().unwrap().insert(container.id.clone(), answer);
        self.fake.containers.lock().unwrap().push(container);
    }

    async fn seen(&self, uid: &str) -> PodSeen {
        self.observer.observe(&uid.into()).await.unwrap().0
    }
}

#[tokio::test]
async fn nothing_is_observed_while_the_observer_is_held() {
    let bench = bench();
    bench.has_sandbox(sandbox("sb", "u", 0, true), "10.0.0.1");
    bench.observer.hold();
    let is_unavailable = |error: CallError| matches!(error, CallError::Unavailable { .. });
    assert!(bench.observer.list().await.is_err_and(is_unavailable));
    assert!(bench.observer.observe(&"u".into()).await.is_err_and(is_unavailable));
    assert!(bench.observer.check_runtime().await.is_err_and(is_unavailable));
    bench.observer.release();
    assert!(bench.observer.list().await.unwrap().pods.contains_key("u"));
    assert_eq!(bench.observer.observe(&"u".into()).await.unwrap().0.sandboxes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_groups_by_pod_and_leaves_out_objects_without_labels() {
    let bench = bench();
    bench.has_sandbox(sandbox("s-1", "u-1", 0, true), "10.0.0.1");
    bench.has_sandbox(sandbox("s-0", "u-1", 0, false), "10.0.0.1");
    let mut unlabelled = sandbox("s-x", "u-x", 0, true);
    unlabelled.labels.remove(labels::POD_UID);
    bench.has_sandbox(unlabelled, "10.0.0.2");
    bench.has_container(container("c-1", "u-1", "web", "s-1", 1), |_| {});
    bench.has_container(container("c-2", "u-2", "db", "s-gone", 2), |_| {});
    bench.has_container(container("c-3", "u-1", "odd", "s-1", 77), |_| {});
    let mut unlabelled = container("c-x", "u-1", "x", "s-1", 1);
    unlabelled.labels.remove(labels::CONTAINER_NAME);
    bench.has_container(unlabelled, |_| {});

    let listing = bench.observer.list().await.unwrap();
    assert_eq!(listing.pods.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["u-1", "u-2"]);
    let first = &listing.pods["u-1"];
    assert_eq!((first.full_name.to_string().as_str(), first.source), ("default/shop", Some(Source::File)));
    assert_eq!(first.sandboxes.values().copied().collect::<Vec<_>>(), [false, true]);
    let states: Vec<_> = first.containers.values().map(|(name, state)| (name.as_str(), *state)).collect();
    assert_eq!(states, [("web", RunState::Running), ("odd", RunState::Unknown)]);
    assert_eq!(listing.pods["u-2"].source, None);
    assert!(!listing.pods["u-2"].is_active());
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_says_whether_the_runtime_is_unavailable() {
    let bench = bench();
    bench.fake.next("ListContainers", Step::Hang);
    let error = bench.observer.list().await.unwrap_err();
    assert!(!error.is_unavailable() && !error.in_doubt());
    bench.fake.next("ListPodSandbox", Step::Fail(CriError::new(Code::Unavailable, "ListPodSandbox", "gone")));
    assert!(bench.observer.list().await.unwrap_err().is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn an_observed_pod_is_complete_and_ordered_newest_first() {
    let bench = bench();
    bench.has_sandbox(sandbox("s-0", "u-1", 0, false), "10.0.0.1");
    bench.has_sandbox(sandbox("s-1", "u-1", 1, true), "10.0.0.2");
    bench.has_sandbox(sandbox("s-9", "u-9", 9, true), "10.0.0.9");
    // The clock went backwards between the two attempts.
    for (id, sandbox, attempt, created) in [("c-0", "s-0", 5, 900), ("c-1", "s-1", 0, 300), ("c-2", "s-1", 1, 100)] {
        bench.has_container(container(id, "u-1", "web", sandbox, 2), |status| {
            status.created_at = created;
            status.metadata = Some(v1::ContainerMetadata { name: "web".into(), attempt });
        });
    }
    bench.has_container(container("c-r", "u-1", "run", "s-1", 1), |status| {
        status.created_at = 7;
        status.started_at = 8_000_000_000;
        status.finished_at = 9;
        status.exit_code = 9;
        status.image = Some(v1::ImageSpec { image: "docker.io/library/x:1".into(), ..Default::default() });
        status.image_ref = "x@sha256:1".into();
        status.annotations = [
            (labels::CONTAINER_HASH, "abc"),
            (labels::RESTART_COUNT, "4"),
            (labels::POD_TERMINATION_GRACE_PERIOD, "12"),
            (labels::PRE_STOP_HANDLER, "{}"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let linux = v1::LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: vec![3] };
        status.user = Some(v1::ContainerUser { linux: Some(linux) });
    });
    let seen = bench.seen("u-1").await;
    let sandboxes: Vec<_> = seen.sandboxes.iter().map(|s| (s.id.as_str(), s.ready, s.ips.join(","))).collect();
    assert_eq!(sandboxes, [("s-1", true, "10.0.0.2,fd00::1".into()), ("s-0", false, String::new())]);
    let order: Vec<_> = seen.containers.iter().filter(|c| c.name.as_str() == "web").map(|c| c.id.as_str()).collect();
    assert_eq!(order, ["c-2", "c-1", "c-0"]);
    assert_eq!(seen.newest("web").unwrap().attempt, 1);
    let run = seen.container(&ContainerId::from("c-r")).unwrap();
    assert_eq!((run.attempt, run.hash.as_deref(), run.grace), (4, Some("abc"), Some(Duration::from_secs(12))));
    assert_eq!((run.pre_stop.as_deref(), run.user.clone()), (Some("{}"), Some((1, 2, vec![3]))));
    assert_eq!((run.image.as_str(), run.image_id.as_str()), ("docker.io/library/x:1", "x@sha256:1"));
    assert_eq!((run.started_at.unwrap().as_second(), run.finished_at, run.exit_code), (8, None, 0));
    assert!(bench.seen("u-unknown").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn objects_removed_between_list_and_status_are_left_out() {
    let bench = bench();
    bench.has_sandbox(sandbox("s-1", "u-1", 0, true), "10.0.0.1");
    bench.has_container(container("c-1", "u-1", "web", "s-1", 1), |_| {});
    bench.fake.statuses.lock().unwrap().clear();
    bench.fake.sandbox_statuses.lock().unwrap().clear();
    assert!(bench.seen("u-1").await.is_empty());
    bench.fake.next("ContainerStatus", Step::Fail(CriError::new(Code::Other, "ContainerStatus", "broken")));
    let error = bench.observer.observe(&"u-1".into()).await.unwrap_err();
    assert!(error.message().contains("broken") && !error.is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn an_invalid_response_fails_the_observation_and_names_the_cause() {
    let observe = async |change: &dyn Fn(&mut v1::PodSandbox), state: i32, attempt: &str| {
        let bench = bench();
        let mut odd = sandbox("s-1", "u-1", 0, true);
        odd.created_at = i64::MIN;
        change(&mut odd);
        bench.has_sandbox(odd, "not an address");
        bench.has_container(container("c-1", "u-1", "web", "s-1", state), |status| {
            status.created_at = i64::MAX;
            status.annotations = [(labels::RESTART_COUNT.to_owned(), attempt.to_owned())].into();
        });
        let listed = bench.observer.list().await.expect("an invalid entry of one pod does not fail the list");
        assert!(listed.pods.contains_key("u-1"), "the pod stays in the list");
        bench.observer.observe(&"u-1".into()).await.map(|(seen, _)| seen)
    };
    let seen = observe(&|_| {}, 1, "many").await.unwrap();
    assert!(seen.sandboxes[0].ips.is_empty());
    assert_eq!((seen.containers[0].state, seen.containers[0].attempt), (RunState::Running, 0));
    let error = observe(&|odd| odd.metadata = None, 1, "0").await.unwrap_err();
    assert_eq!(error.message(), "ListPodSandbox: sandbox s-1: no metadata");
    assert!(!error.in_doubt() && !error.is_unavailable());
    let error = observe(&|_| {}, 42, "0").await.unwrap_err();
    assert_eq!(error.message(), "ListContainers: container c-1: unknown state");
    let error = observe(&|_| {}, 1, "4294967295").await.unwrap_err();
    assert_eq!(error.message(), "ContainerStatus: container c-1: attempt out of range");
}

#[tokio::test(start_paused = true)]
async fn an_observation_that_hangs_fails_early_and_gets_more_time_with_each_attempt() {
    let bench = bench();
    bench.has_sandbox(sandbox("s-1", "u-1", 0, true), "10.0.0.1");
    for expected in [7, 14, 20, 20] {
        bench.fake.next("PodSandboxStatus", Step::Hang);
        let began = tokio::time::Instant::now();
        bench.observer.observe(&"u-1".into()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), expected);
    }
    bench.seen("u-1").await;
    bench.fake.next("PodSandboxStatus", Step::Hang);
    let began = tokio::time::Instant::now();
    bench.observer.observe(&"u-1".into()).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 7, "the limit is reset by a success");
}

#[tokio::test]
async fn termination_messages_come_from_the_file_or_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let own_dir = dir.path().join("pods/u-1/containers/web");
    std::fs::create_dir_all(&own_dir).unwrap();
    let (file, log) = (own_dir.join("0badcafe"), dir.path().join("0.log"));
    std::fs::write(&log, "t stdout F from the log\n").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let message = async |content: &str, policy: &str, exit_code: i32, own: &str| {
        std::fs::write(&file, content).unwrap();
        let bench = bench_in(dir.path());
        bench.has_container(container("c-1", "u-1", "web", "s-1", 2), |status| {
            status.exit_code = exit_code;
            status.message = own.into();
            status.log_path = text(&log);
            let mount = |path: &str, host: String| v1::Mount {
                container_path: path.into(),
                host_path: host,
                ..Default::default()
            };
            status.mounts = vec![mount("/data", "/nowhere".into()), mount("/dev/last", text(&file))];
            status.annotations =
                [(labels::TERMINATION_MESSAGE_PATH, "/dev/last"), (labels::TERMINATION_MESSAGE_POLICY, policy)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into();
        });
        bench.seen("u-1").await.containers[0].message.clone()
    };
    assert_eq!(message("bye", "File", 1, "").await, "bye");
    assert_eq!(message("bye", "File", 1, "OOM").await, "OOM: bye");
    assert_eq!(message("", "File", 1, "OOM").await, "OOM");
    assert_eq!(message("bye", "FallbackToLogsOnError", 1, "").await, "bye");
    assert_eq!(message("", "FallbackToLogsOnError", 1, "").await, "from the log\n");
    assert_eq!(message("", "FallbackToLogsOnError", 0, "").await, "");
}

#[tokio::test]
async fn a_termination_message_is_read_only_from_the_file_that_was_created_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("shadow");
    std::fs::write(&secret, "root's").unwrap();
    let own_dir = dir.path().join("pods/u-1/containers/web");
    std::fs::create_dir_all(&own_dir).unwrap();
    std::fs::write(own_dir.join("0badcafe"), "own").unwrap();
    let other = dir.path().join("pods/u-1/containers/other");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("0badcafe"), "other's").unwrap();
    let message = async |hosts: &[std::path::PathBuf]| {
        let bench = bench_in(dir.path());
        bench.has_container(container("c-1", "u-1", "web", "s-1", 2), |status| {
            status.exit_code = 1;
            let mount = |host: &std::path::PathBuf| v1::Mount {
                container_path: "/dev/last".into(),
                host_path: host.to_str().unwrap().into(),
                ..Default::default()
            };
            status.mounts = hosts.iter().map(mount).collect();
            status.annotations = [(labels::TERMINATION_MESSAGE_PATH.to_owned(), "/dev/last".to_owned())].into();
        });
        bench.seen("u-1").await.containers[0].message.clone()
    };
    assert_eq!(message(std::slice::from_ref(&secret)).await, "");
    assert_eq!(message(&[other.join("0badcafe")]).await, "");
    assert_eq!(message(&[own_dir.join("../../../../shadow")]).await, "");
    assert_eq!(message(&[secret, own_dir.join("0badcafe")]).await, "own");
}

#[tokio::test(start_paused = true)]
async fn the_runtime_status_is_reported_with_the_messages_of_the_kubelet() {
    let bench = bench();
    let condition = |kind: &str, status: bool| v1::RuntimeCondition {
        r#type: kind.into(),
        status,
        reason: "Why".into(),
        message: "because".into(),
    };
    let set_status = |conditions: Vec<v1::RuntimeCondition>| {
        bench.fake.status.lock().unwrap().status = Some(v1::RuntimeStatus { conditions });
    };
    let unset = bench.observer.check_runtime().await.unwrap();
    assert!(unset.not_ready.unwrap().contains("does not report"));
    set_status(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
    let ready = bench.observer.check_runtime().await.unwrap();
    assert!(!ready.network);
    let why = "container runtime network not ready: NetworkReady=false reason:Why message:because";
    assert_eq!((ready.message.as_str(), ready.not_ready), (why, None));
    set_status(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
    let ready = bench.observer.check_runtime().await.unwrap();
    assert_eq!((ready.name.as_str(), ready.network, ready.message.as_str()), ("fake", true, ""));
    assert_eq!(ready.problems, Vec::<String>::new());
    let unwritten =
        [condition("RuntimeReady", true), condition("NetworkReady", true), condition("RecordsWritten", false)];
    set_status(unwritten.to_vec());
    let ready = bench.observer.check_runtime().await.unwrap();
    assert_eq!((ready.not_ready, ready.network), (None, true), "it is shown and affects no pod");
    assert_eq!(ready.problems, ["RecordsWritten: because"]);
    set_status(vec![condition("RuntimeReady", false)]);
    let ready = bench.observer.check_runtime().await.unwrap();
    let why = "container runtime not ready: RuntimeReady=false reason:Why message:because";
    assert_eq!(ready.not_ready.as_deref(), Some(why));
    // The version is requested once, and again after the runtime was unavailable.
    bench.fake.next("Version", Step::Hang);
    assert_eq!(bench.observer.check_runtime().await.unwrap().name, "fake");
    bench.fake.next("Status", Step::Hang);
    assert!(bench.observer.check_runtime().await.unwrap_err().is_unavailable());
    assert!(bench.observer.check_runtime().await.unwrap_err().is_unavailable(), "the version is requested again");

    assert_eq!(bench.features.get(), RuntimeFeatures::default());
    let features = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
    set_status(vec![condition("RuntimeReady", true)]);
    bench.fake.status.lock().unwrap().runtime_handlers =
        vec![v1::RuntimeHandler { name: String::new(), features: Some(features) }];
    bench.observer.check_runtime().await.unwrap();
    assert!(bench.features.get().user_namespaces && bench.features.get().recursive_read_only);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_answer_leaves_its_cgroup_driver_unknown() {
    let bench = bench();
    let steps = (0..10).map(|_| Step::Fail(CriError::new(Code::Unavailable, "RuntimeConfig", "connection refused")));
    bench.fake.steps.lock().unwrap().insert("RuntimeConfig", steps.collect());
    let answer = runtime_cgroup_driver(&*bench.fake, Duration::from_secs(1)).await;
    assert!(matches!(&answer, Err(CgroupDriverError::Call(error)) if error.code == Code::Unavailable), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn the_cgroup_driver_is_the_one_that_the_runtime_reports() {
    let bench = bench();
    let limit = Duration::from_secs(1);
    assert_eq!(runtime_cgroup_driver(&*bench.fake, limit).await, Ok(None), "an old runtime does not report it");
    let set_driver = |driver: v1::CgroupDriver| {
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        *bench.fake.config.lock().unwrap() = Some(v1::RuntimeConfigResponse { linux: Some(linux) });
    };
    set_driver(v1::CgroupDriver::Cgroupfs);
    assert_eq!(runtime_cgroup_driver(&*bench.fake, limit).await, Ok(Some(CgroupDriver::Cgroupfs)));
    set_driver(v1::CgroupDriver::Systemd);
    assert_eq!(runtime_cgroup_driver(&*bench.fake, limit).await, Ok(Some(CgroupDriver::Systemd)));
    *bench.fake.config.lock().unwrap() = Some(v1::RuntimeConfigResponse { linux: None });
    assert_eq!(runtime_cgroup_driver(&*bench.fake, limit).await, Ok(None), "a runtime without a Linux part");
    let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: 7 };
    *bench.fake.config.lock().unwrap() = Some(v1::RuntimeConfigResponse { linux: Some(linux) });
    assert_eq!(runtime_cgroup_driver(&*bench.fake, limit).await, Err(CgroupDriverError::Unknown(7)));
}
