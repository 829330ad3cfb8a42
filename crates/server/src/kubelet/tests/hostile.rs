//! Clients that waste connections, time and memory.

use super::*;

#[tokio::test]
async fn half_open_connections_do_not_lock_others_out() {
    let server = start(Options::default()).await;
    let mut open = Vec::new();
    for _ in 0..1000 {
        // Neither a handshake nor a close.
        open.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(server.admin("GET /healthz").await, (200, "ok".into()));
    drop(open);
}

#[tokio::test]
async fn an_authorized_connection_survives_a_flood_of_others() {
    let server = start(Options::default()).await;
    let mut kept = server.connect(Some("admin"), b"http/1.1").await;
    let mut ask = async || {
        kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut text = String::new();
        while !text.ends_with("\r\n\r\nok") {
            text.push(char::from(kept.read_u8().await.unwrap()));
        }
    };
    ask().await;
    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(TcpStream::connect(server.address).await.unwrap());
    }
    ask().await;
    drop(open);
}

#[tokio::test]
async fn a_user_without_permissions_does_not_lock_others_out() {
    let server = start(Options::default()).await;
    let mut open = Vec::new();
    for _ in 0..200 {
        let mut stream = server.connect(Some("jane"), b"http/1.1").await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 403");
        open.push(stream);
    }
    assert_eq!(server.admin("GET /healthz").await, (200, "ok".into()));
    drop(open);
}

#[tokio::test]
async fn large_and_slow_headers_end_the_connection() {
    let server = start(Options::default()).await;
    let mut large = server.connect(Some("admin"), b"http/1.1").await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(100 << 10));
    let _ = large.write_all(head.as_bytes()).await;
    let mut text = Vec::new();
    let _ = large.read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    let mut slow = server.connect(Some("admin"), b"http/1.1").await;
    let began = std::time::Instant::now();
    for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: xxxxxxxxxxxxxxxxxxxxx".iter() {
        if slow.write_all(&[*byte]).await.is_err() || slow.flush().await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(server.admin("GET /healthz").await.0, 200);
}

#[tokio::test]
async fn a_large_body_is_refused() {
    let server = start(Options::default()).await;
    let body = "4".repeat(65 << 10);
    let admin = Credential::Certificate("admin");
    assert_eq!(server.request(admin, "PUT /debug/flags/v", &body).await.0, 400);
    assert_eq!(server.verbosity.load(Ordering::SeqCst), 0);
}

/// Streams that all clients behind one API server have together.
const STREAMS_OF_ONE_USER: usize = 448;

#[tokio::test]
async fn one_user_cannot_take_all_streams() {
    // Three files per stream: both ends of its connection, and the log.
    podwright_linux::rlimit::raise_open_files().unwrap();
    let server = start(Options::default()).await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..STREAMS_OF_ONE_USER + 4 {
        let mut stream = server.connect(Some("admin"), b"http/1.1").await;
        let line = b"GET /containerLogs/default/web/c?follow=true HTTP/1.0\r\n\r\n";
        stream.write_all(line).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        refused += usize::from(&head == b"HTTP/1.0 429");
        open.push(stream);
    }
    assert_eq!(refused, 4);
    // The last ones have no inotify instance, and get new lines too.
    let log = server.dir.path().join("pods/default_web_1/c/0.log");
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    std::io::Write::write_all(&mut log, b"2024-01-01T00:00:01Z stdout F again\n").unwrap();
    let last = &mut open[STREAMS_OF_ONE_USER - 1];
    let mut text = String::new();
    while !text.ends_with("hello\nagain\n") {
        let byte = tokio::time::timeout(Duration::from_secs(20), last.read_u8()).await;
        text.push(char::from(byte.unwrap_or_else(|_| panic!("{text}")).unwrap()));
    }
    // The user still has connections for all else.
    assert_eq!(server.admin("GET /healthz").await, (200, "ok".into()));
    server.reviewer.allowed.lock().unwrap().push("get proxy".into());
    let jane = server.request(Credential::Token("good"), "GET /containerLogs/default/web/c", "").await;
    assert_eq!(jane, (200, "hello\nagain\n".into()));
}
