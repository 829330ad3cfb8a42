use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

use super::*;

struct Watch(BufReader<UnixStream>);

impl Watch {
    /// With HTTP/1.0 the lines are not chunked.
    async fn open(server: &TestServer, query: &str) -> Self {
        Self::of(server, &format!("/api/v1/pods?watch=true{query}")).await
    }

    async fn of(server: &TestServer, path: &str) -> Self {
        let mut stream = UnixStream::connect(&server.path).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut watch = Self(BufReader::new(stream));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(watch.0.read_line(&mut line).await.unwrap() > 0, "the response header is incomplete");
        }
        watch
    }

    async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(5), self.0.read_line(&mut line));
        (read.await.expect("a line in time").unwrap() > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    async fn summary(&mut self) -> String {
        let event = self.next().await.expect("an event");
        let phase = event["object"]["status"]["phase"].as_str().unwrap_or("");
        format!(
            "{} {} {phase}",
            event["type"].as_str().unwrap(),
            event["object"]["metadata"]["name"].as_str().unwrap_or("")
        )
    }
}

#[tokio::test]
async fn events_are_watched_from_the_start_or_from_a_resource_version() {
    let server = start();
    let mut watch = Watch::of(&server, "/api/v1/namespaces/default/events?watch=1").await;
    let summary = |event: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", text(&event["type"]), text(&event["object"]["reason"]), event["object"]["count"])
    };
    assert_eq!(summary(watch.next().await.unwrap()), "ADDED Pulled 1");
    let version = server.get("/api/v1/events").await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/events?watch=1&resourceVersion={version}&fieldSelector=reason%3DPulled");
    let mut resumed = Watch::of(&server, &path).await;
    // Late notifications about events that were already listed are dropped, and so are events that don't match.
    for (namespace, reason, count) in
        [("default", "Pulled", 1), ("other", "Started", 1), ("default", "Started", 1), ("default", "Pulled", 2)]
    {
        server.kube_events.send(correlated(namespace, reason, count)).unwrap();
    }
    assert_eq!(summary(watch.next().await.unwrap()), "ADDED Started 1");
    assert_eq!(summary(watch.next().await.unwrap()), "MODIFIED Pulled 2");
    assert_eq!(summary(resumed.next().await.unwrap()), "MODIFIED Pulled 2");
    let (_, list) = server.get("/api/v1/namespaces/default/events").await;
    let name = list["items"][0]["metadata"]["name"].as_str().unwrap();
    assert_eq!(server.get(&format!("/api/v1/namespaces/default/events/{name}")).await.1, {
        let mut one = list["items"][0].clone();
        (one["kind"], one["apiVersion"]) = (json!("Event"), json!("v1"));
        one
    });
    assert_eq!(server.get("/api/v1/namespaces/other/events/nothing").await.0, 404);
}

#[tokio::test]
async fn a_watch_sends_every_change_in_order_and_can_be_resumed() {
    let server = start();
    server.publish("default", "a", "1", json!({"phase": "Pending"}));
    let mut watch = Watch::open(&server, "").await;
    assert_eq!(watch.summary().await, "ADDED a Pending");
    let version = server.feed.version();
    server.publish("default", "a", "1", json!({"phase": "Running"}));
    server.publish("other", "b", "2", json!({"phase": "Running"}));
    server.feed.remove_object(&"1".into());
    for expected in ["MODIFIED a Running", "ADDED b Running", "DELETED a Running"] {
        assert_eq!(watch.summary().await, expected);
    }
    let mut resumed = Watch::open(&server, &format!("&resourceVersion={version}&labelSelector=app%3Da")).await;
    assert_eq!(resumed.summary().await, "MODIFIED a Running");
    let gone = resumed.next().await.unwrap();
    assert_eq!(
        gone["object"]["metadata"]["resourceVersion"],
        server.feed.version().to_string(),
        "the resource version of the deletion"
    );
    // A pod that starts or stops to match the selector is added or deleted.
    let mut running = Watch::open(&server, "&fieldSelector=status.phase%3DRunning").await;
    assert_eq!(running.summary().await, "ADDED b Running");
    server.publish("other", "b", "2", json!({"phase": "Failed"}));
    assert_eq!(running.summary().await, "DELETED b Running");
}

#[tokio::test]
async fn a_watch_from_an_old_or_future_version_expires() {
    let server = start();
    for n in 0..600 {
        server.publish("default", "a", "1", json!({"phase": n.to_string()}));
    }
    for late in ["1".to_owned(), (server.feed.version() + 1).to_string()] {
        let mut watch = Watch::open(&server, &format!("&resourceVersion={late}")).await;
        let event = watch.next().await.unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
            (&json!("ERROR"), &json!(410), &json!("Expired"))
        );
        assert_eq!(watch.next().await, None, "the watch ends");
    }
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark() {
    let server = start();
    let mut watch = Watch::open(&server, "&timeoutSeconds=1&allowWatchBookmarks=true").await;
    let bookmark = watch.next().await.unwrap();
    let version = server.feed.version().to_string();
    assert_eq!(
        (&bookmark["type"], &bookmark["object"]["metadata"]["resourceVersion"]),
        (&json!("BOOKMARK"), &json!(version))
    );
    assert_eq!(watch.next().await, None);
}

/// A streaming server that responds with this header, and then sends everything back twice.
async fn streaming(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = vec![0; 4096];
            let size = stream.read(&mut read).await.unwrap();
            let request = String::from_utf8_lossy(&read[..size]).to_lowercase();
            assert!(
                request.starts_with("post /exec/ls+-l http/1.1\r\n") && request.contains("upgrade: spdy/3.1"),
                "{request}"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            while let Ok(size @ 1..) = stream.read(&mut read).await {
                let twice = [&read[..size], &read[..size]].concat();
                stream.write_all(&twice).await.unwrap();
            }
        }
    });
    format!("http://{address}")
}

const EXEC: &str = "POST /api/v1/namespaces/default/pods/web/exec?command=ls&command=-l&stdout=1";
const UPGRADE: &str = "HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

fn running(server: &TestServer) {
    let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
                        "containerID": "containerd://abc"});
    server.publish("default", "web", "1", json!({"containerStatuses": [status]}));
}

async fn upgrade(server: &TestServer, line: &str) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    stream.write_all(format!("{line} {UPGRADE}").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    (stream, String::from_utf8_lossy(&head).to_lowercase())
}

#[tokio::test]
async fn an_upgraded_connection_is_proxied_byte_for_byte() {
    let url = streaming("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nfirst").await;
    let server = start_with(&url, vec![], false);
    running(&server);
    let (mut stream, head) = upgrade(&server, EXEC).await;
    assert!(
        head.starts_with("http/1.1 101 ") && head.contains("upgrade: spdy/3.1") && head.contains("v4.channel.k8s.io"),
        "{head}"
    );
    assert!(!head.contains("close"), "clients refuse an upgrade with `Connection: close`: {head}");
    let mut first = [0; 5];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first", "the bytes after the header are lost");
    for part in [&b"\x80\x03\x00\x01"[..], &[0xff; 9000]] {
        stream.write_all(part).await.unwrap();
        let mut back = vec![0; part.len() * 2];
        tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(back, [part, part].concat());
    }
}

#[tokio::test]
async fn failed_upgrades_are_reported_with_their_cause() {
    let no = streaming("HTTP/1.1 403 Forbidden\r\nContent-Length: 7\r\n\r\nno way!").await;
    let garbage = streaming("\x16\x03\x01garbage\r\n\r\n").await;
    for (url, expected) in [
        (no.as_str(), "refuses the upgrade: 403 Forbidden no way!"),
        (garbage.as_str(), "streaming server"),
        ("http://127.0.0.1:1", "can't be reached"),
        ("http://192.0.2.1:80", "not a loopback address"),
    ] {
        let server = start_with(url, vec![], false);
        running(&server);
        let (mut stream, head) = upgrade(&server, EXEC).await;
        let mut body = String::new();
        stream.read_to_string(&mut body).await.unwrap();
        assert!(head.starts_with("http/1.1 500") && body.contains(expected), "{url}: {head} {body}");
    }
    let server = start();
    running(&server);
    assert!(server.send(EXEC, "").await.1.contains("Upgrade request required"));
    assert!(
        server.send("POST /api/v1/namespaces/default/pods/web/exec?command=a", "").await.1.contains("at least 1 of")
    );
    server.publish("default", "web", "1", json!({}));
    assert!(server.send(EXEC, "").await.1.contains("is not running"));
}
