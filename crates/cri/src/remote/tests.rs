//! The client against `serve`, over a real socket, with a small runtime that misbehaves on request.

mod fake;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;

use self::fake::FakeRuntime;
use super::*;
use crate::{
    ImageService, RuntimeService,
    serve::{BindError, CriSocket},
    v1,
};

/// Only reached by a call that hangs.
const LONG: Duration = Duration::from_secs(20);

/// A server with a tokio runtime of its own, so that it can be killed like a process, together with its running calls.
struct TestServer {
    dir: tempfile::TempDir,
    threads: Option<tokio::runtime::Runtime>,
}

impl TestServer {
    fn start(fake: Arc<FakeRuntime>) -> Self {
        let mut server = Self { dir: tempfile::tempdir().expect("a directory"), threads: None };
        server.restart(fake);
        server
    }

    fn restart(&mut self, fake: Arc<FakeRuntime>) {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let threads = threads.expect("a runtime");
        let _entered = threads.enter();
        let socket = self.bind();
        threads.spawn(socket.serve(fake.clone(), fake, std::future::pending()));
        drop(_entered);
        self.threads = Some(threads);
    }

    /// Retries: unlike a process, a killed tokio runtime may still be closing its socket.
    fn bind(&self) -> CriSocket {
        let started = Instant::now();
        loop {
            match CriSocket::bind(&self.socket()) {
                Err(BindError::InUse { .. }) if started.elapsed() < LONG => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                bound => return bound.expect("bound"),
            }
        }
    }

    fn kill(&mut self) {
        self.threads.take().expect("running").shutdown_background();
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("cri.sock")
    }

    fn client(&self) -> RemoteRuntime {
        RemoteRuntime::connect(&format!("unix://{}", self.socket().display())).expect("a good endpoint")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.threads.is_some() {
            self.kill();
        }
    }
}

#[tokio::test]
async fn calls_and_their_timeouts_reach_the_runtime() {
    let fake = Arc::new(FakeRuntime::default());
    let server = TestServer::start(fake.clone());
    let client = server.client();

    let config = v1::PodSandboxConfig { hostname: "web".into(), ..Default::default() };
    let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: "kata".into() };
    assert_eq!(client.run_pod_sandbox(request, LONG).await, Ok("web/kata".to_owned()));
    client.stop_container("c1", 7, Duration::from_secs(150)).await.expect("stopped");
    assert_eq!(fake.seen(), ["run web kata 20s", "stop c1 7 150s"]);

    let image = v1::ImageSpec { image: "busybox".into(), ..Default::default() };
    let status = client.image_status(image.clone(), false, LONG).await.expect("answered");
    assert_eq!(status.image.map(|i| i.id), Some("busybox".to_owned()));
    let pulled = client.pull_image(v1::PullImageRequest { image: Some(image), ..Default::default() }, LONG).await;
    assert_eq!(pulled, Ok("sha256:busybox".to_owned()));
}

#[tokio::test]
async fn a_call_that_times_out_is_in_doubt() {
    let server = TestServer::start(Arc::default());
    let client = server.client();
    client.version(LONG).await.expect("there");

    let limit = Duration::from_millis(150);
    let started = Instant::now();
    let error = client.start_container("hangs", limit).await.expect_err("it hangs");
    assert_eq!((error.code, error.call), (Code::DeadlineExceeded, "StartContainer"));
    assert!(error.in_doubt());
    assert!(started.elapsed() >= limit && started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    client.version(LONG).await.expect("the connection still works");
}

#[tokio::test]
async fn a_call_to_a_runtime_that_accepts_and_never_responds_times_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mute.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let client = RemoteRuntime::connect(path.to_str().expect("plain")).expect("a good endpoint");
    let error = client.version(Duration::from_millis(100)).await.expect_err("mute");
    assert_eq!(error.code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn an_infinite_timeout_is_accepted() {
    let server = TestServer::start(Arc::default());
    server.client().version(Duration::MAX).await.expect("answered");
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_in_the_runtime() {
    let fake = Arc::new(FakeRuntime::default());
    let server = TestServer::start(fake.clone());
    let client = server.client();
    let waited = tokio::time::timeout(Duration::from_millis(200), client.start_container("hangs", LONG)).await;
    assert!(waited.is_err(), "it hangs");
    tokio::time::timeout(LONG, fake.abandoned.notified()).await.expect("cancelled in the runtime");
}

#[tokio::test]
async fn failures_keep_their_code() {
    let server = TestServer::start(Arc::default());
    let client = server.client();

    let error = client.container_status("gone", false, LONG).await.expect_err("gone");
    assert!(error.is_not_found() && !error.in_doubt(), "{error:?}");
    assert_eq!(error.to_string(), "ContainerStatus: no container gone");

    let error = client.runtime_config(LONG).await.expect_err("too old");
    assert_eq!(error.code, Code::Unimplemented);
    assert!(!error.in_doubt());

    let error = client.create_container(v1::CreateContainerRequest::default(), LONG).await.expect_err("taken");
    assert_eq!(error.code, Code::AlreadyExists);
}

#[tokio::test]
async fn malformed_responses_are_errors_in_doubt() {
    let server = TestServer::start(Arc::default());
    let client = server.client();

    let error = client.run_pod_sandbox(v1::RunPodSandboxRequest::default(), LONG).await.expect_err("no id");
    assert!(error.in_doubt() && error.message.contains("without an id"), "{error:?}");
    let error = client.container_status("empty", false, LONG).await.expect_err("no status");
    assert!(error.message.contains("without a status"), "{error:?}");
    let error = client.container_status("nameless", false, LONG).await.expect_err("no metadata");
    assert!(error.message.contains("no metadata"), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_is_no_http2_server_is_an_error_and_not_a_hang() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("garbage.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("bound");
    let babble = tokio::spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut peer, &[0xff; 4096]).await;
        }
    });
    let client = RemoteRuntime::connect(path.to_str().expect("plain")).expect("a good endpoint");
    let error = client.version(LONG).await.expect_err("garbage");
    assert_eq!(error.code, Code::Unavailable, "{error:?}");
    babble.abort();
}

#[tokio::test]
async fn a_missing_socket_is_unavailable_and_not_in_doubt_and_named_in_the_error() {
    let client = RemoteRuntime::connect("unix:///nowhere/cri.sock").expect("a good endpoint");
    let error = client.version(LONG).await.expect_err("no socket");
    assert_eq!(error.code, Code::Unavailable);
    assert!(!error.in_doubt(), "{error:?}");
    assert!(error.message.contains("unix:///nowhere/cri.sock"), "{error}");
    assert!(error.message.contains("No such file"), "{error}");

    let first = client.container_events().next().await.expect("an item").expect_err("no socket");
    assert_eq!((first.code, first.call), (Code::Unavailable, "GetContainerEvents"));
}

#[tokio::test]
async fn a_call_is_in_doubt_when_the_server_is_killed_and_the_restarted_server_is_found() {
    let fake = Arc::new(FakeRuntime::default());
    let mut server = TestServer::start(fake.clone());
    let client = server.client();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.start_container("hangs", LONG).await }
    });
    tokio::time::timeout(LONG, fake.hanging.notified()).await.expect("the call arrived");
    server.kill();
    let error = tokio::time::timeout(LONG, call).await.expect("no hang").expect("no panic").expect_err("died");
    assert_eq!(error.code, Code::Unavailable, "{error:?}");
    assert!(error.in_doubt());

    server.restart(fake);
    // The first call may still use the broken connection; it fails, and the next one opens a new connection.
    let mut attempts = 0;
    while let Err(error) = client.version(LONG).await {
        attempts += 1;
        assert!(error.code == Code::Unavailable && attempts < 10, "{error:?}");
    }
}

#[tokio::test]
async fn events_are_delivered_and_the_stream_ends_when_the_server_is_killed() {
    let fake = Arc::new(FakeRuntime::default());
    let mut server = TestServer::start(fake.clone());
    let mut events = server.client().container_events();
    let first = async {
        tokio::join!(events.next(), async {
            while fake.subscribers() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            fake.emit("c1");
        })
        .0
    };
    let event = tokio::time::timeout(LONG, first).await.expect("no hang").expect("an event").expect("a good one");
    assert_eq!(event.container_id, "c1");

    server.kill();
    let rest: Vec<_> = tokio::time::timeout(LONG, events.collect::<Vec<_>>()).await.expect("it ends");
    assert!(rest.len() <= 1 && rest.iter().all(Result::is_err), "{rest:?}");
}

#[tokio::test]
async fn a_list_of_a_full_node_with_long_annotations_is_received() {
    let server = TestServer::start(Arc::default());
    // 20 000 containers with 1 KiB each: five times tonic's default limit, and more than that of the Go client.
    let filter = v1::ContainerFilter { id: "20000".into(), ..Default::default() };
    let containers = server.client().list_containers(Some(filter), LONG).await.expect("listed");
    assert_eq!(containers.len(), 20_000);
    assert_eq!(containers[19_999].id, "c19999");
}

/// Error messages are sent in headers, which have a separate limit; `serve` stays far below it, others do not.
#[tokio::test]
async fn a_failure_with_a_long_message_keeps_its_code() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("long.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("bound");
    let refuse = tower::service_fn(|_| async {
        let status = Status::invalid_argument("a \u{fffd} message ".repeat(10_000));
        Ok::<_, std::convert::Infallible>(status.into_http::<tonic::body::Body>())
    });
    let connections = futures::stream::once(async move { listener.accept().await.map(|(connection, _)| connection) });
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(refuse, connections));

    let client = RemoteRuntime::connect(path.to_str().expect("plain")).expect("a good endpoint");
    let error = client.remove_container("c1", LONG).await.expect_err("refused");
    assert_eq!(error.code, Code::InvalidArgument, "{error:?}");
    assert!(error.message.starts_with("a \u{fffd} message ") && error.message.len() <= crate::error::MESSAGE_BYTES_MAX);
    server.abort();
}

#[tokio::test]
async fn shutdown_ends_the_streams_and_removes_the_socket() {
    let fake = Arc::new(FakeRuntime::default());
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cri.sock");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let socket = CriSocket::bind(&path).expect("bound");
    let server = tokio::spawn(socket.serve(fake.clone(), fake.clone(), async { drop(stopped.await) }));
    let client = RemoteRuntime::connect(path.to_str().expect("plain")).expect("a good endpoint");
    let events = tokio::spawn(client.container_events().collect::<Vec<_>>());
    while fake.subscribers() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send(()).expect("the server is running");
    let ended = tokio::time::timeout(LONG, server).await.expect("no hang").expect("no panic");
    ended.expect("a clean end");
    assert!(events.await.expect("no panic").iter().all(Result::is_err), "no event was sent");
    assert!(!path.exists());
}

#[tokio::test]
async fn shutdown_waits_neither_for_a_hanging_call_nor_for_a_silent_peer() {
    let fake = Arc::new(FakeRuntime::default());
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cri.sock");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let socket = CriSocket::bind(&path).expect("bound");
    let server = tokio::spawn(socket.serve(fake.clone(), fake.clone(), async { drop(stopped.await) }));
    let _silent = UnixStream::connect(&path).await.expect("taken");
    let client = RemoteRuntime::connect(path.to_str().expect("plain")).expect("a good endpoint");
    let call = tokio::spawn(async move { client.start_container("hangs", LONG).await });
    tokio::time::timeout(LONG, fake.hanging.notified()).await.expect("the call arrived");

    stop.send(()).expect("the server is running");
    let ended = tokio::time::timeout(LONG, server).await.expect("no hang").expect("no panic");
    ended.expect("a clean end");
    let error = call.await.expect("no panic").expect_err("abandoned");
    assert_eq!(error.code, Code::Unavailable, "{error:?}");
    assert!(error.in_doubt());
}
