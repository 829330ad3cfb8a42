//! The local API over a real socket.

mod images;
mod limits;
mod reads;
mod streams;
mod writes;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::Timestamp;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_agent::feed::PodFeed;
use podwright_agent::host::HostPaths;
use podwright_agent::local::Store;
use podwright_agent::stats::{CpuAndMemory, PodResourceUsage, ResourceUsage, SampleError};
use podwright_core::model::{Event, FullName, KubeEvent, Now, Pod, Source, SourceChange, Transition};
use podwright_cri::{BoxFuture, CriError, v1};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};

use super::*;
use crate::streaming_proxy::StreamingRuntime;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_socket_is_private_and_removed_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("deep/run");
    let socket = LocalSocket::open(&run).unwrap();
    assert_eq!((mode(&run), mode(socket.path())), (0o700, 0o600));
    let path = socket.path().to_owned();
    drop(socket);
    assert!(!path.exists() && run.exists());
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
    let _again = LocalSocket::open(&run).unwrap();
    assert_eq!(mode(&run), 0o755, "the mode of an existing directory is kept");
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET_NAME);
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists(), "std does not remove the file");
    let socket = LocalSocket::open(dir.path()).unwrap();
    assert!(matches!(LocalSocket::open(dir.path()), Err(SocketError::InUse { .. })));
    drop(socket);
    let foreign = StdListener::bind(&path).unwrap();
    assert!(
        matches!(LocalSocket::open(dir.path()), Err(SocketError::InUse { .. })),
        "another process accepts connections"
    );
    drop(foreign);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(LocalSocket::open(dir.path()), Err(SocketError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

/// An agent with fixed responses, which records the events it is sent.
struct FakeAgent {
    broken: Vec<(String, String)>,
    hang: bool,
    sent: mpsc::UnboundedSender<Event>,
    kube_events: broadcast::Sender<CorrelatedEvent>,
}

/// An event with this count.
fn correlated(namespace: &str, reason: &'static str, count: u64) -> CorrelatedEvent {
    let at = |micros: u64| Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH + Duration::from_micros(micros) };
    let event = KubeEvent {
        annotations: vec![],
        uid: Some("u".into()),
        pod: FullName { namespace: namespace.into(), name: "web".into() },
        container: None,
        warning: false,
        reason,
        message: "m".into(),
    };
    CorrelatedEvent { event, field_path: None, first: at(reason.len() as u64), last: at(100 + count), count }
}

impl AgentApi for FakeAgent {
    fn broken_manifests(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            Some(self.broken.clone())
        })
    }

    fn runtime_up(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(async { Some(true) })
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>> {
        let at = Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
        let explanation = Explanation {
            full_name: FullName { namespace: "default".into(), name: "web".into() },
            uid: "u".into(),
            state: None,
            pod: None,
            origin: None,
            history: vec![Transition { at, what: "phase Pending → Running".into(), cause: "observed".into() }],
            forgotten: 0,
            waits: vec![],
            runtime_up: true,
            runtime_pending: false,
        };
        Box::pin(async move { Some(if pod == "default/web" { vec![explanation] } else { vec![] }) })
    }

    fn events(&self) -> Vec<CorrelatedEvent> {
        vec![correlated("default", "Pulled", 1), correlated("other", "Pulled", 1)]
    }

    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.kube_events.subscribe()
    }

    fn send(&self, event: Event) -> BoxFuture<'_, ()> {
        let _ = self.sent.send(event);
        Box::pin(async {})
    }
}

/// A runtime that returns streaming URLs with this prefix.
struct FixedUrl(String);

impl StreamingRuntime for FixedUrl {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        assert_eq!((request.container_id.as_str(), request.tty), ("abc", false));
        let url = format!("{}/exec/{}", self.0, request.cmd.join("+"));
        Box::pin(async move { Ok(url) })
    }

    fn attach(&self, _: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        let url = format!("{}/attach/t", self.0);
        Box::pin(async move { Ok(url) })
    }
}

struct FixedUsage;

impl UsageSource for FixedUsage {
    fn usage(&self) -> BoxFuture<'_, Result<ResourceUsage, SampleError>> {
        let used = |cpu_nano_cores, memory| CpuAndMemory { cpu_nano_cores, memory };
        let pod = |namespace: &str, name: &str| PodResourceUsage {
            namespace: namespace.into(),
            name: name.into(),
            containers: vec![("c".into(), used(1_500_000, 4 << 20))],
        };
        let usage = ResourceUsage {
            at: Timestamp::UNIX_EPOCH + Duration::from_millis(1500),
            window: Duration::from_millis(1050),
            node: Some(used(500_000_000, 1 << 30)),
            pods: vec![pod("default", "web"), pod("other", "db")],
        };
        Box::pin(async { Ok(usage) })
    }
}

struct TestServer {
    _dir: tempfile::TempDir,
    path: PathBuf,
    feed: Arc<PodFeed>,
    sent: mpsc::UnboundedReceiver<Event>,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    kube_events: broadcast::Sender<CorrelatedEvent>,
    _stop: tokio_util::sync::DropGuard,
}

fn start() -> TestServer {
    start_with("http://127.0.0.1:1", vec![], false)
}

fn start_with(streams: &str, broken: Vec<(String, String)>, hang: bool) -> TestServer {
    let elsewhere = ImageRequestError::new(ImageErrorKind::Elsewhere, "use crictl");
    start_with_images(streams, broken, hang, Err(elsewhere))
}

fn start_with_images(
    streams: &str,
    broken: Vec<(String, String)>,
    hang: bool,
    images: Result<Arc<dyn NodeImages>, ImageRequestError>,
) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let socket = LocalSocket::open(dir.path()).unwrap();
    let (path, stop, feed) = (socket.path().to_owned(), CancellationToken::new(), Arc::new(PodFeed::default()));
    let (sender, changes) = mpsc::channel(1000);
    let (sender_of_events, sent) = mpsc::unbounded_channel();
    let kube_events = broadcast::Sender::new(4);
    let paths = HostPaths {
        root_dir: dir.path().into(),
        pod_logs_dir: dir.path().into(),
        container_logs_dir: dir.path().into(),
        cgroup_root: "/".into(),
    };
    let api = LocalApi {
        node: "node".into(),
        paths,
        pool: podwright_tasks::Pool::default(),
        feed: Arc::clone(&feed),
        store: Store::open(dir.path(), "node", &[], Arc::clone(&feed), sender, podwright_tasks::Pool::default())
            .unwrap(),
        runtime: Arc::new(FixedUrl(streams.into())),
        images,
        usage: Arc::new(FixedUsage),
        capacity: NodeCapacity { cpu_millis: 4000, memory: 8 << 30 },
        allocatable: NodeCapacity { cpu_millis: 3500, memory: 7 << 30 },
        agent: Arc::new(FakeAgent { broken, hang, sent: sender_of_events, kube_events: kube_events.clone() }),
        cells: TableCells {
            pod: |pod, _| {
                ["1/1", pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or(""), "0", "5s", "ip", "n"]
                    .map(str::to_owned)
            },
            age: |_, _| "5s".into(),
        },
        format_explanation: |pods, _, _, _, _| format!("Pod {} has {} instances", pods[0].full_name, pods.len()),
    };
    tokio::spawn(socket.serve(api, stop.clone()));
    TestServer { _dir: dir, path, feed, sent, changes, kube_events, _stop: stop.drop_guard() }
}

impl TestServer {
    /// Sends a request with a body; returns status code and body of the response.
    async fn send(&self, line: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        let head = format!("{line} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), body.to_owned())
    }

    async fn json(&self, line: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (code, text) = self.send(line, &body).await;
        (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line}: {e}: {text}")))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.json(&format!("GET {path}"), &Value::Null).await
    }

    /// Publishes a static pod with this status, as the event loop does.
    fn publish(&self, namespace: &str, name: &str, uid: &str, status: Value) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": {"app": name}},
            "spec": {"nodeName": "node", "containers": [{"name": "c"}]}, "status": status,
        }))
        .unwrap();
        self.feed.put_object(Arc::new(pod), Source::File, Some("/m/x.yaml".into()));
    }
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name},
           "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
}
