//! The HTTP server over real sockets.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::serve::{HEADER_MAX, MONITORS_MAX};

#[derive(Default)]
struct Shown {
    health: Mutex<Health>,
    hang: bool,
}

impl Views for Shown {
    fn pods(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            Bytes::from_static(b"{\"kind\":\"PodList\"}")
        })
    }
    fn metrics(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(async { Bytes::from_static(b"kubelet_running_pods 1\n") })
    }
    fn health(&self) -> BoxFuture<'_, Health> {
        Box::pin(async { self.health.lock().unwrap().clone() })
    }
}

async fn start(views: Arc<Shown>) -> (SocketAddr, CancellationToken) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    tokio::spawn(serve(listener, views, stop.clone()));
    (address, stop)
}

/// Status and body.
async fn ask(address: SocketAddr, line: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), body.to_owned())
}

#[tokio::test]
async fn health_and_pods_are_shown() {
    let views = Arc::new(Shown::default());
    let (address, _stop) = start(views.clone()).await;
    for path in ["/healthz", "/livez", "/readyz", "/healthz?verbose"] {
        assert_eq!(ask(address, &format!("GET {path}")).await, (200, "ok".into()), "{path}");
    }
    assert_eq!(ask(address, "GET /pods").await, (200, "{\"kind\":\"PodList\"}".into()));
    assert_eq!(ask(address, "GET /metrics").await, (200, "kubelet_running_pods 1\n".into()));
    assert_eq!(ask(address, "HEAD /pods").await, (200, String::new()));
    assert_eq!(ask(address, "POST /pods").await.0, 405);
    assert_eq!(ask(address, "GET /../etc/passwd").await.0, 404);
    *views.health.lock().unwrap() = Health { dead: None, lacks: vec!["the runtime does not answer".into()] };
    assert_eq!(ask(address, "GET /livez").await.0, 200);
    assert_eq!(ask(address, "GET /readyz").await, (503, "the runtime does not answer".into()));
    *views.health.lock().unwrap() = Health { dead: Some("the loop stands still".into()), lacks: Vec::new() };
    assert_eq!(ask(address, "GET /healthz").await, (500, "the loop stands still".into()));
}

#[tokio::test]
async fn garbage_and_huge_heads_are_refused() {
    let (address, _stop) = start(Arc::new(Shown::default())).await;
    assert_eq!(ask(address, "\x16\x03\x01 nonsense").await.0, 400);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    let _ = stream.write_all(head.as_bytes()).await;
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&text));
    assert_eq!(ask(address, "GET /healthz").await.0, 200);
}

#[tokio::test]
async fn silent_callers_lose_their_place() {
    let (address, _stop) = start(Arc::new(Shown::default())).await;
    let mut silent = Vec::new();
    for _ in 0..MONITORS_MAX + 10 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answer = timeout(HEADER_MAX * 4, ask(address, "GET /healthz")).await.expect("others get their turn");
    assert_eq!(answer.0, 200);
}

#[tokio::test]
async fn a_view_that_hangs_ends_in_an_error() {
    tokio::time::pause();
    let (address, _stop) = start(Arc::new(Shown { hang: true, ..Shown::default() })).await;
    assert_eq!(ask(address, "GET /pods").await, (500, "the agent does not answer".into()));
}

#[tokio::test]
async fn it_stops_when_told() {
    let (address, stop) = start(Arc::new(Shown::default())).await;
    stop.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(TcpStream::connect(address).await.is_err());
}
