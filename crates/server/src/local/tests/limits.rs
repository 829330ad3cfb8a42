use super::*;

#[tokio::test]
async fn a_body_that_is_too_large_is_rejected_before_it_is_read() {
    let server = start();
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let head =
        format!("POST /api/v1/namespaces/default/pods HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 100 << 20);
    stream.write_all(head.as_bytes()).await.unwrap();
    // The response arrives before any byte of the body is sent.
    let mut response = vec![0; 4096];
    let size = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut response))
        .await
        .expect("a response at once")
        .unwrap();
    assert!(response[..size].starts_with(b"HTTP/1.0 413"), "{}", String::from_utf8_lossy(&response[..size]));
    // A client that sends the body anyway still receives the response.
    let (code, message) = server.send("POST /api/v1/namespaces/default/pods", &" ".repeat(20 << 20)).await;
    assert!(code == 413 && message.contains("limit is 2097152"), "{code} {message}");
    assert_eq!(server.get("/version").await.0, 200);
}

#[tokio::test]
async fn a_chunked_body_that_is_too_large_is_rejected() {
    let server = start();
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let head = "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    for _ in 0..3 {
        let _ = stream.write_all(chunk.as_bytes()).await;
    }
    let mut response = vec![0; 64];
    let size = stream.read(&mut response).await.unwrap_or(0);
    assert!(size == 0 || response.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&response));
    assert_eq!(server.get("/version").await.0, 200);
}

#[tokio::test]
async fn the_number_of_watches_is_limited_and_short_requests_are_still_served() {
    let server = start();
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..STREAMS_MAX + 5 {
        let mut stream = UnixStream::connect(&server.path).await.unwrap();
        stream.write_all(b"GET /api/v1/pods?watch=1 HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        refused += usize::from(head.ends_with(b"429"));
        held.push(stream);
    }
    assert_eq!(refused, 5);
    assert_eq!(server.get("/version").await.0, 200);
    // Closed connections release their permits.
    held.clear();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (code, _) = server.send("GET /api/v1/pods?watch=1&timeoutSeconds=0", "").await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn a_panic_fails_only_its_own_request() {
    let server = start();
    server.publish(
        "default",
        "web",
        "1",
        json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}, "containerID": "x://another"}]}),
    );
    let line = "POST /api/v1/namespaces/default/pods/web/exec?command=a&stdout=1 HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut response = String::new();
    // The fake runtime asserts the container id, and panics.
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.0 500") && response.contains("panicked"), "{response}");
    assert_eq!(server.get("/version").await.0, 200);
}
