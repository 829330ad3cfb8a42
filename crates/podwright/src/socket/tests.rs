//! The door and the answers, over a real socket.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::Timestamp;
use podwright_agent::the_loop::{KeptEvent, Shown, Told};
use podwright_core::model::{FullName, KubeEvent, Now, Transition};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::listen::BoxFuture;

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

#[derive(Default)]
struct Fixed {
    pods: Vec<Value>,
    broken: Vec<(String, String)>,
    hang: bool,
}

impl Views for Fixed {
    fn pods(&self) -> BoxFuture<'_, Option<Shown>> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            let pods = self.pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
            Some(Shown { pods, broken: self.broken.clone(), runtime_up: true })
        })
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Told>>> {
        let at = Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
        let told = Told {
            full_name: FullName { namespace: "default".into(), name: "web".into() },
            uid: "u".into(),
            state: None,
            pod: None,
            origin: None,
            story: vec![Transition { at, what: "phase Pending → Running".into(), cause: "as it is".into() }],
            forgotten: 0,
            waits: vec![],
            runtime_up: true,
        };
        Box::pin(async move { Some(if pod == "default/web" { vec![told] } else { vec![] }) })
    }

    fn events(&self) -> Vec<KeptEvent> {
        let at = Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
        let kept = |namespace: &str| KeptEvent {
            event: KubeEvent {
                uid: "u".into(),
                pod: FullName { namespace: namespace.into(), name: "web".into() },
                container: None,
                warning: false,
                reason: "Pulled",
                message: "m".into(),
            },
            field_path: None,
            first: at,
            last: at,
            count: 1,
        };
        vec![kept("default"), kept("other")]
    }
}

struct Bed {
    _dir: tempfile::TempDir,
    path: PathBuf,
    _stop: tokio_util::sync::DropGuard,
}

fn start(views: Fixed) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let socket = Socket::open(dir.path()).unwrap();
    let (path, stop) = (socket.path().to_owned(), CancellationToken::new());
    let about = About { node: "node".into(), pod_logs: "/logs".into() };
    tokio::spawn(socket.serve(about, Arc::new(views), stop.clone()));
    Bed { _dir: dir, path, _stop: stop.drop_guard() }
}

impl Bed {
    async fn ask(&self, line: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        stream.write_all(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), body.to_owned())
    }

    async fn json(&self, path: &str) -> (u16, Value) {
        let (code, body) = self.ask(&format!("GET {path}")).await;
        (code, serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}")))
    }
}

fn pod(namespace: &str, name: &str, created: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "uid": created, "creationTimestamp": created}})
}

#[tokio::test]
async fn answers_have_the_api_servers_shapes() {
    let (early, late) = ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z");
    let pods = vec![pod("other", "b", early), pod("default", "web", early), pod("default", "web", late)];
    let bed = start(Fixed { pods, broken: vec![("/m/x.yaml".into(), "line 3".into())], hang: false });
    let (code, all) = bed.json("/api/v1/pods").await;
    assert_eq!((code, &all["kind"], &all["apiVersion"]), (200, &json!("PodList"), &json!("v1")));
    let names = |list: &Value| {
        list["items"].as_array().unwrap().iter().map(|p| p["metadata"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&all), ["web", "web", "b"]);
    assert_eq!(names(&bed.json("/api/v1/namespaces/other/pods").await.1), ["b"]);
    let (code, one) = bed.json("/api/v1/namespaces/default/pods/web").await;
    assert_eq!((code, &one["kind"], &one["metadata"]["uid"]), (200, &json!("Pod"), &json!(late)), "the newest life");
    let (_, events) = bed.json("/api/v1/namespaces/other/events").await;
    assert_eq!((&events["kind"], events["items"].as_array().unwrap().len()), (&json!("EventList"), 1));
    let (_, manifests) = bed.json("/podwright/v1/manifests").await;
    assert_eq!(manifests, json!({"broken": [{"origin": "/m/x.yaml", "message": "line 3"}]}));
    let (code, story) = bed.ask("GET /podwright/v1/explain?pod=default%2Fweb").await;
    assert!(code == 200 && story.starts_with("Pod default/web is gone"), "{story}");
}

#[tokio::test]
async fn refusals_are_status_objects() {
    let bed = start(Fixed { broken: vec![("/m/x.yaml".into(), "line 3".into())], ..Fixed::default() });
    for (path, code, reason) in [
        ("/api/v1/namespaces/default/pods/no", 404, "NotFound"),
        ("/api/v1/nodes", 404, "NotFound"),
        ("/api/v1/pods?watch=1", 400, "BadRequest"),
        ("/podwright/v1/explain?pod=no", 404, "NotFound"),
    ] {
        let (got, status) = bed.json(path).await;
        assert_eq!((got, &status["kind"], &status["reason"]), (code, &json!("Status"), &json!(reason)), "{path}");
        assert_eq!(status["code"], code);
    }
    let said = bed.json("/podwright/v1/explain?pod=no").await.1["message"].to_string();
    assert!(said.contains("/m/x.yaml: line 3"), "a broken manifest may be why: {said}");
    assert_eq!(bed.ask("DELETE /api/v1/namespaces/default/pods/no").await.0, 405);
    assert_eq!(bed.ask("\x16\x03\x01 nonsense").await.0, 400);
}

#[tokio::test]
async fn an_agent_that_hangs_says_so() {
    tokio::time::pause();
    let bed = start(Fixed { hang: true, ..Fixed::default() });
    let (code, status) = bed.json("/api/v1/pods").await;
    assert_eq!((code, &status["reason"]), (503, &json!("ServiceUnavailable")));
}
