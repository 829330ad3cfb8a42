//! The health server over real TCP sockets.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::serve::{HEADER_TIMEOUT, TCP_CONNECTIONS_MAX};

#[derive(Default)]
struct FakeAgent {
    not_live: Mutex<Option<String>>,
    not_ready: Mutex<Vec<String>>,
    hang: bool,
    /// The list of pods is larger than the buffers of a connection.
    large: bool,
    /// There is no list of pods.
    unavailable: bool,
}

impl AgentStatus for FakeAgent {
    fn pods(&self) -> BoxFuture<'_, Option<Bytes>> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            match self.large {
                _ if self.unavailable => None,
                true => Some(Bytes::from(vec![b'x'; 16 << 20])),
                false => Some(Bytes::from_static(b"{\"kind\":\"PodList\"}")),
            }
        })
    }
    fn metrics(&self, page: MetricsPage) -> BoxFuture<'_, Bytes> {
        Box::pin(async move {
            match page {
                MetricsPage::Agent => Bytes::from_static(b"kubelet_running_pods 1\n"),
                other => Bytes::from(format!("page {other:?}\n")),
            }
        })
    }
    fn stats_summary(&self, only_cpu_and_memory: bool) -> BoxFuture<'_, Result<Bytes, SampleError>> {
        Box::pin(async move { Ok(Bytes::from(format!("{{\"only\":{only_cpu_and_memory}}}"))) })
    }
    fn record_healthcheck(&self, _: &str, _: bool) {}
    fn reset_healthchecks(&self) {}
    fn static_pod_name<'a>(&'a self, mirror: &'a str) -> BoxFuture<'a, Option<FullName>> {
        let name = (mirror == "mirror").then(|| FullName { namespace: "default".into(), name: "static-node".into() });
        Box::pin(async { name })
    }
    fn not_live(&self) -> Option<String> {
        self.not_live.lock().unwrap().clone()
    }
    fn not_ready(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            if self.hang {
                std::future::pending::<()>().await;
            }
            self.not_ready.lock().unwrap().clone()
        })
    }
}

async fn start(agent: Arc<FakeAgent>) -> (SocketAddr, CancellationToken) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    tokio::spawn(serve(listener, agent, stop.clone()));
    (address, stop)
}

/// Sends one request line; returns the status code and the body.
async fn request(address: SocketAddr, line: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), body.to_owned())
}

#[tokio::test]
async fn health_pods_and_metrics_are_served() {
    let agent = Arc::new(FakeAgent::default());
    let (address, _stop) = start(agent.clone()).await;
    for path in ["/healthz", "/livez", "/readyz", "/healthz?verbose"] {
        assert_eq!(request(address, &format!("GET {path}")).await, (200, "ok".into()), "{path}");
    }
    assert_eq!(request(address, "GET /pods").await, (200, "{\"kind\":\"PodList\"}".into()));
    assert_eq!(request(address, "GET /metrics").await, (200, "kubelet_running_pods 1\n".into()));
    assert_eq!(request(address, "GET /metrics/resource").await, (200, "page Resource\n".into()));
    assert_eq!(request(address, "GET /stats/summary").await, (200, "{\"only\":false}".into()));
    assert_eq!(request(address, "HEAD /pods").await, (200, String::new()));
    assert_eq!(request(address, "POST /pods").await.0, 405);
    assert_eq!(request(address, "GET /../etc/passwd").await.0, 404);
    *agent.not_ready.lock().unwrap() = vec!["the runtime does not answer".into()];
    assert_eq!(request(address, "GET /livez").await.0, 200);
    assert_eq!(request(address, "GET /readyz").await, (503, "the runtime does not answer".into()));
    *agent.not_live.lock().unwrap() = Some("the event loop hangs".into());
    assert_eq!(request(address, "GET /healthz").await, (500, "the event loop hangs".into()));
}

#[tokio::test]
async fn malformed_requests_and_huge_headers_are_rejected() {
    let (address, _stop) = start(Arc::new(FakeAgent::default())).await;
    assert_eq!(request(address, "\x16\x03\x01 nonsense").await.0, 400);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    let _ = stream.write_all(head.as_bytes()).await;
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&text));
    assert_eq!(request(address, "GET /healthz").await.0, 200);
}

#[tokio::test]
async fn idle_connections_time_out_and_free_their_slots() {
    let (address, _stop) = start(Arc::new(FakeAgent::default())).await;
    let mut idle = Vec::new();
    for _ in 0..TCP_CONNECTIONS_MAX + 10 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let response = timeout(HEADER_TIMEOUT * 4, request(address, "GET /healthz")).await.expect("a response in time");
    assert_eq!(response.0, 200);
}

#[tokio::test]
async fn an_agent_that_hangs_results_in_a_500_after_the_timeout() {
    tokio::time::pause();
    let (address, _stop) = start(Arc::new(FakeAgent { hang: true, ..FakeAgent::default() })).await;
    assert_eq!(request(address, "GET /pods").await, (500, "the agent did not respond in time".into()));
}

#[tokio::test]
async fn a_stopped_server_accepts_no_connections() {
    let (address, stop) = start(Arc::new(FakeAgent::default())).await;
    stop.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_nothing_do_not_delay_health() {
    let (address, _stop) = start(Arc::new(FakeAgent { large: true, ..FakeAgent::default() })).await;
    let mut clients = Vec::new();
    for n in 0..2 * TCP_CONNECTIONS_MAX {
        let mut client = TcpStream::connect(address).await.unwrap();
        if n % 2 == 0 {
            client.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        }
        clients.push(client);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    for path in ["/livez", "/healthz", "/readyz"] {
        let answered = timeout(Duration::from_millis(100), request(address, &format!("GET {path}"))).await;
        assert_eq!(answered.expect("an answer within 100 ms"), (200, "ok".into()), "{path}");
    }
}

#[tokio::test]
async fn liveness_does_not_wait_for_what_readiness_waits_for() {
    let (address, _stop) = start(Arc::new(FakeAgent { hang: true, ..FakeAgent::default() })).await;
    let live = timeout(Duration::from_secs(2), request(address, "GET /livez")).await;
    assert_eq!(live.expect("an answer at once"), (200, "ok".into()));
}

#[tokio::test]
async fn a_list_of_pods_that_is_not_available_is_503_and_not_empty() {
    let (address, _stop) = start(Arc::new(FakeAgent { unavailable: true, ..FakeAgent::default() })).await;
    assert_eq!(request(address, "GET /pods").await, (503, "the list of pods is not available yet".into()));
}
