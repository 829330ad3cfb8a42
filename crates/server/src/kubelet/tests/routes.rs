//! What the routes answer.

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn routes_answer_with_the_texts_of_the_go_kubelet() {
    let server = start(Options::default()).await;
    for (line, expected) in [
        ("GET /healthz", (200, "ok")),
        ("GET /healthz?verbose", (200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n")),
        ("GET /configz", (200, r#"{"kubeletconfig":{}}"#)),
        ("GET /metrics", (200, "kubelet_running_pods 1\n")),
        ("GET /logs/syslog", (200, "booted\n")),
        ("GET /logs/../pki/kubelet.key", (403, "403 Forbidden\n")),
        ("GET /logs/%2e%2e/pki/kubelet.key", (403, "403 Forbidden\n")),
        ("GET /containerLogs/default/web/c", (200, "hello\n")),
        ("GET /containerLogs/default/web/c?timestamps=true", (200, "2024-01-01T00:00:00Z hello\n")),
        ("GET /containerLogs/default/none/c", (404, "pod \"none\" does not exist")),
        ("GET /containerLogs/default/web/x", (404, "container \"x\" not found in pod \"web\"")),
        ("GET /containerLogs/default/web/other", (400, "container \"other\" in pod \"web\" is not available")),
        (
            "GET /containerLogs/default/web/c?previous=true",
            (400, "previous terminated container \"c\" in pod \"web\" not found"),
        ),
        ("GET /containerLogs/default/web/c?tailLines=x", (400, "{\"message\": \"Unable to decode query.\"}")),
        ("GET /containerLogs/default/web/c?tailLines=-1", (422, "{\"message\": \"Invalid request.\"}")),
        ("POST /containerLogs/default/web/c", (405, "405: Method Not Allowed")),
        ("POST /pods", (405, "405: Method Not Allowed")),
        ("GET /run/default/web/c?cmd=ls", (405, "405: Method Not Allowed")),
        ("POST /run/default/web/c?cmd=ls+-l", (200, "ls|-l!")),
        ("POST /run/default/web/c?cmd=false", (500, "command 'false' exited with 3: !")),
        ("POST /run/default/none/c?cmd=ls", (404, "pod does not exist")),
        ("POST /exec/default/web/c?command=ls", (400, "you must specify at least 1 of stdin, stdout, stderr")),
        ("POST /exec/default/none/c?output=1", (404, "pod does not exist")),
        ("POST /exec/default/web/2/c?output=1", (404, "pod not found")),
        ("POST /exec/default/web/other?output=1", (500, "container not found (\"other\")")),
        ("POST /attach/default/web/other?output=1", (500, "container other not found in pod web_default")),
        ("POST /exec/default/web/c?command=ls&command=-l&output=1", (500, "Upgrade request required\n")),
        ("GET /debug/flags/v", (406, "unsupported http method\n")),
        ("GET /debug/pprof/", (404, "404 page not found\n")),
        ("GET /stats/summary", (200, r#"{"only":false}"#)),
        ("POST /stats/summary", (200, r#"{"only":false}"#)),
        ("GET /stats/summary?only_cpu_and_memory=true", (200, r#"{"only":true}"#)),
        ("GET /stats/summary?only_cpu_and_memory=x", (200, r#"{"only":false}"#)),
        ("PUT /stats/summary", (405, "405: Method Not Allowed")),
        ("GET /stats/", (404, "404: Page Not Found")),
        ("GET /metrics/cadvisor", (200, "page Cadvisor\n")),
        ("GET /metrics/resource", (200, "page Resource\n")),
        ("GET /metrics/probes", (200, "page Probes\n")),
        ("GET /metrics/slis", (200, "page Slis\n")),
        ("DELETE /metrics/slis", (200, "metrics reset\n")),
        ("GET /metrics/other", (404, "404 page not found\n")),
    ] {
        let (code, body) = server.admin(line).await;
        assert_eq!((code, body.as_str()), expected, "{line}");
    }
    let (code, pods) = server.admin("GET /pods").await;
    assert!(code == 200 && pods.contains("\"shown\""), "authorized readers see everything: {pods}");
    let (code, pods) = server.admin("GET /runningpods/").await;
    assert!(code == 200 && pods.contains("\"uid\":\"1\""), "{pods}");
    let (code, listing) = server.admin("GET /logs/").await;
    assert!(code == 200 && listing.contains("<a href=\"syslog\">syslog</a>"), "{listing}");
    let put = server.request(Credential::Certificate("admin"), "PUT /debug/flags/v", "4").await;
    assert_eq!(put, (200, "successfully set klog.logging.verbosity to 4\n".into()));
    assert_eq!(server.verbosity.load(Ordering::SeqCst), 4);
    let put = server.request(Credential::Certificate("admin"), "PUT /debug/flags/v", "many").await;
    assert_eq!(put, (400, "strconv.ParseUint: parsing \"many\": invalid syntax\n".into()));
}

#[tokio::test]
async fn a_static_pod_is_found_by_its_own_uid_and_that_of_its_mirror_only() {
    let server = start(Options::default()).await;
    for (uid, expected) in [
        ("static", (200, "ls!")),
        ("mirror", (200, "ls!")),
        ("another", (404, "pod not found")),
        ("1", (404, "pod not found")),
    ] {
        let (code, body) = server.admin(&format!("POST /run/default/static-node/{uid}/c?cmd=ls")).await;
        assert_eq!((code, body.as_str()), expected, "{uid}");
    }
    let (code, body) = server.admin("POST /run/default/web/mirror/c?cmd=ls").await;
    assert_eq!((code, body.as_str()), (404, "pod not found"), "the mirror of another pod");
}

/// A streaming server that returns the request header, then every byte.
async fn streaming() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
                stream.write_all(switch).await.unwrap();
                stream.write_all(&head).await.unwrap();
                let mut buffer = [0; 512];
                while let Ok(size @ 1..) = stream.read(&mut buffer).await {
                    stream.write_all(&buffer[..size]).await.unwrap();
                }
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn streams_are_proxied_over_tls_without_the_clients_token() {
    let server = start(Options { streams: streaming().await, ..Options::default() }).await;
    server.reviewer.allowed.lock().unwrap().push("create proxy".into());
    for (path, upstream) in [
        ("exec/default/web/c?command=ls&command=-l&output=1&input=1", "/exec/token"),
        ("attach/default/web/c?output=1", "/attach/token"),
        ("portForward/default/web", "/portforward/token"),
    ] {
        let mut stream = server.connect(None, b"http/1.1").await;
        let head = format!(
            "POST /{path} HTTP/1.1\r\nHost: node:10250\r\nAuthorization: Bearer good\r\nConnection: Upgrade\r\n\
             Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = String::new();
        while seen.matches("\r\n\r\n").count() < 2 {
            seen.push(char::from(stream.read_u8().await.unwrap()));
        }
        let seen = seen.to_lowercase();
        let (response, request) = seen.split_once("\r\n\r\n").unwrap();
        assert!(response.starts_with("http/1.1 101") && !response.contains("close"), "{response}");
        assert!(request.starts_with(&format!("post {upstream} http/1.1")), "{request}");
        assert!(request.contains("host: node:10250") && request.contains("x-forwarded-for: 127.0.0.1"), "{request}");
        assert!(!request.contains("good"), "the token reached the runtime: {request}");
        stream.write_all(b"ping").await.unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"ping");
        // Longer than the limit on an idle connection for a header.
        drop(stream);
    }
}

#[tokio::test]
async fn http2_is_served() {
    let server = start(Options::default()).await;
    let stream = server.connect(Some("admin"), b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for path in ["/healthz", "/containerLogs/default/web/c"] {
        let request = http::Request::get(format!("https://node{path}")).body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body == "ok" || body == "hello\n", "{body:?}");
    }
}
