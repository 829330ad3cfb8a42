use super::*;

#[tokio::test]
async fn a_huge_body_is_refused_before_it_is_read() {
    let bed = start();
    let mut stream = UnixStream::connect(&bed.path).await.unwrap();
    let head =
        format!("POST /api/v1/namespaces/default/pods HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 100 << 20);
    stream.write_all(head.as_bytes()).await.unwrap();
    // Not a byte of it was sent, and the answer is there.
    let mut answer = vec![0; 4096];
    let size = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut answer)).await.expect("at once").unwrap();
    assert!(answer[..size].starts_with(b"HTTP/1.0 413"), "{}", String::from_utf8_lossy(&answer[..size]));
    // And who sends it all the same reads why, without being cut off.
    let (code, said) = bed.send("POST /api/v1/namespaces/default/pods", &" ".repeat(20 << 20)).await;
    assert!(code == 413 && said.contains("limit is 2097152"), "{code} {said}");
    assert_eq!(bed.get("/version").await.0, 200);
}

#[tokio::test]
async fn a_body_without_a_length_is_counted() {
    let bed = start();
    let mut stream = UnixStream::connect(&bed.path).await.unwrap();
    let head = "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    for _ in 0..3 {
        let _ = stream.write_all(chunk.as_bytes()).await;
    }
    let mut answer = vec![0; 64];
    let size = stream.read(&mut answer).await.unwrap_or(0);
    assert!(size == 0 || answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(bed.get("/version").await.0, 200);
}

#[tokio::test]
async fn watches_have_an_end_and_short_questions_always_have_room() {
    let bed = start();
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..STREAMS_MAX + 5 {
        let mut stream = UnixStream::connect(&bed.path).await.unwrap();
        stream.write_all(b"GET /api/v1/pods?watch=1 HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        refused += usize::from(head.ends_with(b"429"));
        held.push(stream);
    }
    assert_eq!(refused, 5);
    assert_eq!(bed.get("/version").await.0, 200);
    // Dropped, they give their places back.
    held.clear();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (code, _) = bed.send("GET /api/v1/pods?watch=1&timeoutSeconds=0", "").await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn a_panic_costs_one_answer() {
    let bed = start();
    bed.show(
        "default",
        "web",
        "1",
        json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}, "containerID": "x://another"}]}),
    );
    let line = "POST /api/v1/namespaces/default/pods/web/exec?command=a&stdout=1 HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut stream = UnixStream::connect(&bed.path).await.unwrap();
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut said = String::new();
    // The runtime of this test asserts what it is asked for.
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.starts_with("HTTP/1.0 500") && said.contains("a bug was met"), "{said}");
    assert_eq!(bed.get("/version").await.0, 200);
}
