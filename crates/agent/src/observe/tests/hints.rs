//! Hints: from the event stream, and from real processes.

use futures::stream;
use podwright_cri::EventStream;
use std::process::{Child, Command};

use super::*;

fn event(id: &str, uid: Option<&'static str>) -> Result<v1::ContainerEventResponse, CriError> {
    let status = uid.map(|uid| v1::PodSandboxStatus { labels: owner(uid, None), ..Default::default() });
    let kind = v1::ContainerEventType::ContainerStoppedEvent.into();
    Ok(v1::ContainerEventResponse {
        container_id: id.into(),
        container_event_type: kind,
        pod_sandbox_status: status,
        ..Default::default()
    })
}

fn text(event: &Event) -> String {
    match event {
        Event::Hint { uid } => format!("hint {uid}"),
        Event::EventStream { up } => format!("stream {up}"),
        other => format!("{other:?}"),
    }
}

fn follow(bench: &Bench) -> tokio_util::task::AbortOnDropHandle<()> {
    let observer = Arc::clone(&bench.observer);
    let task = tokio::spawn(async move { observer.follow_events(CancellationToken::new()).await });
    tokio_util::task::AbortOnDropHandle::new(task)
}

#[tokio::test(start_paused = true)]
async fn events_become_hints_and_a_lost_stream_is_reconnected() {
    let mut bench = bench();
    bench.has_container(container("c-known", "u-2", "web", "s-1", 1), |_| {});
    bench.observer.list().await.unwrap();
    let lost = Err(CriError::new(Code::Unavailable, "GetContainerEvents", "gone"));
    // Events of this agent's own calls are ignored.
    let started = event("c-1", Some("u-0")).map(|mut e| {
        e.container_event_type = v1::ContainerEventType::ContainerStartedEvent.into();
        e
    });
    let first = vec![started, event("c-1", Some("u-1")), event("c-known", None), event("c-unknown", None), lost];
    let refused: Vec<Result<_, _>> = vec![Err(CriError::not_sent("GetContainerEvents", "connection refused"))];
    let last = stream::iter(vec![event("c-1", Some("u-3"))]).chain(stream::pending());
    let streams: [EventStream; 3] = [Box::pin(stream::iter(first)), Box::pin(stream::iter(refused)), Box::pin(last)];
    bench.fake.streams.lock().unwrap().extend(streams);
    let _task = follow(&bench);
    let mut got = Vec::new();
    for _ in 0..6 {
        got.push(text(&bench.hints.recv().await.unwrap()));
    }
    assert_eq!(got, ["stream true", "hint u-1", "hint u-2", "stream false", "stream true", "hint u-3"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_events_counts_as_up() {
    let mut bench = bench();
    bench.fake.streams.lock().unwrap().push_back(Box::pin(stream::pending()));
    let _task = follow(&bench);
    assert_eq!(text(&bench.hints.recv().await.unwrap()), "stream true");
    assert!(!bench.observer.watch_exits.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_retried_every_minute() {
    let mut bench = bench();
    let _task = follow(&bench);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bench.observer.watch_exits.load(Ordering::Relaxed));
    // After an upgrade the runtime has the stream.
    bench.fake.streams.lock().unwrap().push_back(Box::pin(stream::pending()));
    let began = tokio::time::Instant::now();
    assert_eq!(text(&bench.hints.recv().await.unwrap()), "stream true");
    assert!(began.elapsed() > Duration::from_secs(50) && began.elapsed() < Duration::from_secs(70));
}

/// A process that is killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn process() -> Process {
    Process(Command::new("sleep").arg("600").spawn().unwrap())
}

/// A text that is in the cgroup path of every process of this test, as a container id is in the path of its cgroup.
fn id_of_our_cgroup() -> String {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    cgroups.lines().next().unwrap().to_owned()
}

fn set_running(bench: &Bench, id: &str, pid: u32) {
    bench.fake.containers.lock().unwrap().clear();
    bench.has_container(container(id, "u-1", "web", "s-1", 1), |_| {});
    let info = [("info".to_owned(), format!(r#"{{"pid": {pid}, "sandboxID": "s-1"}}"#))].into();
    bench.fake.statuses.lock().unwrap().get_mut(id).unwrap().info = info;
}

#[tokio::test]
async fn the_exit_of_a_watched_process_is_a_hint() {
    let mut bench = bench();
    bench.observer.watch_exits.store(true, Ordering::Relaxed);
    let mut process = process();
    let id = id_of_our_cgroup();
    set_running(&bench, &id, process.0.id());
    let uid = PodUid::from("u-1");
    assert!(bench.observer.observe(&uid).await.unwrap().1, "all running containers are watched");
    // The pid of a watched container is not requested again.
    bench.fake.statuses.lock().unwrap().get_mut(&id).unwrap().info.clear();
    assert!(bench.observer.observe(&uid).await.unwrap().1);
    assert!(bench.hints.try_recv().is_err());
    process.0.kill().unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(10), bench.hints.recv()).await.unwrap().unwrap();
    assert_eq!(text(&hint), "hint u-1");
    process.0.wait().unwrap();
    // The watch of a container observed as exited ends.
    bench.fake.containers.lock().unwrap()[0].state = 2;
    bench.fake.statuses.lock().unwrap().get_mut(&id).unwrap().status.as_mut().unwrap().state = 2;
    assert!(bench.observer.observe(&uid).await.unwrap().1, "nothing runs");
    assert!(!bench.observer.exits.contains(&id));
}

#[tokio::test]
async fn a_process_outside_of_the_containers_cgroup_is_not_watched() {
    let bench = bench();
    bench.observer.watch_exits.store(true, Ordering::Relaxed);
    let process = process();
    set_running(&bench, "another-container", process.0.id());
    assert!(!bench.observer.observe(&"u-1".into()).await.unwrap().1);
    set_running(&bench, "another-container", 0);
    assert!(!bench.observer.observe(&"u-1".into()).await.unwrap().1, "no pid reported");
}

#[tokio::test]
async fn watches_end_with_their_pod_and_when_the_event_stream_is_up() {
    let bench = bench();
    bench.observer.watch_exits.store(true, Ordering::Relaxed);
    let process = process();
    let id = id_of_our_cgroup();
    set_running(&bench, &id, process.0.id());
    bench.observer.observe(&"u-1".into()).await.unwrap();
    assert!(bench.observer.exits.contains(&id));
    bench.observer.list().await.unwrap();
    assert!(bench.observer.exits.contains(&id));
    bench.fake.containers.lock().unwrap().clear();
    bench.observer.list().await.unwrap();
    assert!(!bench.observer.exits.contains(&id), "the runtime no longer has the pod");
    set_running(&bench, &id, process.0.id());
    bench.observer.observe(&"u-1".into()).await.unwrap();
    bench.observer.exits.clear();
    assert!(!bench.observer.exits.contains(&id));
}
