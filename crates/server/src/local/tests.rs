//! The door and the answers, over a real socket.

mod abuse;
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
use podwright_core::model::{Event, FullName, KubeEvent, Now, Pod, Source, SourceChange, Transition};
use podwright_cri::{CriError, v1};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};

use super::*;
use crate::BoxFuture;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn only_the_owner_may_come_in_and_nothing_is_left_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("deep/run");
    let socket = Socket::open(&run).unwrap();
    assert_eq!((mode(&run), mode(socket.path())), (0o700, 0o600));
    let path = socket.path().to_owned();
    drop(socket);
    assert!(!path.exists() && run.exists());
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
    let _again = Socket::open(&run).unwrap();
    assert_eq!(mode(&run), 0o755, "a directory that was there stays as it is");
}

#[tokio::test]
async fn a_dead_agents_socket_is_replaced_and_a_living_ones_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves it behind");
    let socket = Socket::open(dir.path()).unwrap();
    assert!(matches!(Socket::open(dir.path()), Err(SocketError::Taken { .. })));
    drop(socket);
    let foreign = StdListener::bind(&path).unwrap();
    assert!(matches!(Socket::open(dir.path()), Err(SocketError::Taken { .. })), "it answers, whoever it is");
    drop(foreign);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::open(dir.path()), Err(SocketError::Strange { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

/// An agent that says what it was made to say.
struct Fixed {
    broken: Vec<(String, String)>,
    hang: bool,
    told: mpsc::UnboundedSender<Event>,
    happens: broadcast::Sender<CorrelatedEvent>,
}

/// An event that happened this often.
fn kept(namespace: &str, reason: &'static str, count: u64) -> CorrelatedEvent {
    let at = |micros: u64| Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH + Duration::from_micros(micros) };
    let event = KubeEvent {
        uid: "u".into(),
        pod: FullName { namespace: namespace.into(), name: "web".into() },
        container: None,
        warning: false,
        reason,
        message: "m".into(),
    };
    CorrelatedEvent { event, field_path: None, first: at(reason.len() as u64), last: at(100 + count), count }
}

impl Views for Fixed {
    fn broken(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            Some(self.broken.clone())
        })
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>> {
        let at = Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
        let told = Explanation {
            full_name: FullName { namespace: "default".into(), name: "web".into() },
            uid: "u".into(),
            state: None,
            pod: None,
            origin: None,
            history: vec![Transition { at, what: "phase Pending → Running".into(), cause: "as it is".into() }],
            forgotten: 0,
            waits: vec![],
            runtime_up: true,
        };
        Box::pin(async move { Some(if pod == "default/web" { vec![told] } else { vec![] }) })
    }

    fn events(&self) -> Vec<CorrelatedEvent> {
        vec![kept("default", "Pulled", 1), kept("other", "Pulled", 1)]
    }

    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.happens.subscribe()
    }

    fn tell(&self, event: Event) -> BoxFuture<'_, ()> {
        let _ = self.told.send(event);
        Box::pin(async {})
    }
}

/// A runtime that prepares every stream at the same place.
struct Place(String);

impl Streamer for Place {
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

struct Bed {
    _dir: tempfile::TempDir,
    path: PathBuf,
    feed: Arc<PodFeed>,
    told: mpsc::UnboundedReceiver<Event>,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    happens: broadcast::Sender<CorrelatedEvent>,
    _stop: tokio_util::sync::DropGuard,
}

fn start() -> Bed {
    start_with("http://127.0.0.1:1", vec![], false)
}

fn start_with(streams: &str, broken: Vec<(String, String)>, hang: bool) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let socket = Socket::open(dir.path()).unwrap();
    let (path, stop, feed) = (socket.path().to_owned(), CancellationToken::new(), Arc::new(PodFeed::default()));
    let (sender, changes) = mpsc::channel(1000);
    let (tell, told) = mpsc::unbounded_channel();
    let happens = broadcast::Sender::new(4);
    let paths = HostPaths {
        root_dir: dir.path().into(),
        pod_logs_dir: dir.path().into(),
        container_logs_dir: dir.path().into(),
        cgroup_root: "/".into(),
    };
    let local = Local {
        node: "node".into(),
        paths,
        feed: Arc::clone(&feed),
        store: Store::open(dir.path(), "node", &[], Arc::clone(&feed), sender).unwrap(),
        runtime: Arc::new(Place(streams.into())),
        views: Arc::new(Fixed { broken, hang, told: tell, happens: happens.clone() }),
        tell: |told, _, _, _| format!("Pod {} has {} lives", told[0].full_name, told.len()),
    };
    tokio::spawn(socket.serve(local, stop.clone()));
    Bed { _dir: dir, path, feed, told, changes, happens, _stop: stop.drop_guard() }
}

impl Bed {
    /// Ask, with a body, and take what comes until the end.
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
        let sent = if body.is_null() { String::new() } else { body.to_string() };
        let (code, text) = self.send(line, &sent).await;
        (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line}: {e}: {text}")))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.json(&format!("GET {path}"), &Value::Null).await
    }

    /// A pod of a file, as the loop would show it.
    fn show(&self, namespace: &str, name: &str, uid: &str, status: Value) {
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
