//! Every route with every kind of credential.

use super::*;

/// Routes, and the subresources in the order in which they are asked for.
const ROUTES: [(&str, &str); 14] = [
    ("GET /pods", "get [pods proxy]"),
    ("GET /runningpods/", "get [pods proxy]"),
    ("GET /healthz", "get [healthz proxy]"),
    ("GET /healthz/syncloop", "get [healthz proxy]"),
    ("GET /configz", "get [configz proxy]"),
    ("GET /metrics", "get [metrics]"),
    ("GET /stats/summary", "get [stats]"),
    ("GET /logs/syslog", "get [log]"),
    ("GET /containerLogs/default/web/c", "get [proxy]"),
    ("POST /exec/default/web/c?command=ls&output=1", "create [proxy]"),
    ("POST /run/default/web/c?cmd=ls", "create [proxy]"),
    ("PUT /debug/flags/v", "update [proxy]"),
    ("DELETE /pods", "delete [pods proxy]"),
    ("GET /nowhere", "get [proxy]"),
];

#[tokio::test]
async fn every_route_needs_a_valid_credential_and_a_permission() {
    let server = start(Options::default()).await;
    for (line, access) in ROUTES {
        for unknown in [Credential::None, Credential::Token("bad"), Credential::Token("")] {
            assert_eq!(server.request(unknown, line, "").await, (401, "Unauthorized".into()), "{line} {unknown:?}");
        }
        let (verb, subresources) = access.split_once(' ').unwrap();
        let refusal = format!("Forbidden (user=jane, verb={verb}, resource=nodes, subresource(s)={subresources})\n");
        assert_eq!(server.request(Credential::Token("good"), line, "").await, (403, refusal), "{line}");
        let (code, body) = server.admin(line).await;
        assert!(![401, 403].contains(&code) && code != 0, "{line}: {code} {body}");
    }
}

#[tokio::test]
async fn the_second_subresource_suffices() {
    let server = start(Options::default()).await;
    server.reviewer.allowed.lock().unwrap().push("get proxy".into());
    let jane = Credential::Token("good");
    assert_eq!(server.request(jane, "GET /healthz", "").await, (200, "ok".into()));
    assert_eq!(server.request(jane, "GET /metrics", "").await.0, 403, "it has no second one");
    assert_eq!(server.request(jane, "POST /run/default/web/c?cmd=ls", "").await.0, 403, "another verb");
}

#[tokio::test]
async fn decisions_are_cached() {
    let server = start(Options::default()).await;
    for _ in 0..5 {
        assert_eq!(server.admin("GET /metrics").await.0, 200);
    }
    // Each connection has a new certificate of the same user, and so another credential-id.
    let before = server.reviewer.reviews.load(Ordering::SeqCst);
    server.reviewer.allowed.lock().unwrap().push("get metrics".into());
    for _ in 0..5 {
        assert_eq!(server.request(Credential::Token("good"), "GET /metrics", "").await.0, 200);
    }
    assert_eq!(server.reviewer.reviews.load(Ordering::SeqCst) - before, 2, "one of the token, one of the access");
    server.reviewer.down.store(true, Ordering::SeqCst);
    assert_eq!(server.request(Credential::Token("good"), "GET /metrics", "").await.0, 200);
}

#[tokio::test]
async fn without_reviews_nothing_is_allowed() {
    let server = start(Options::default()).await;
    server.reviewer.down.store(true, Ordering::SeqCst);
    let failed = "Authorization error (user=admin, verb=get, resource=nodes, subresource=pods)";
    assert_eq!(server.admin("GET /pods").await, (500, failed.into()));
    assert_eq!(server.request(Credential::Token("good"), "GET /pods", "").await, (401, "Unauthorized".into()));
    server.reviewer.down.store(false, Ordering::SeqCst);
    assert_eq!(server.admin("GET /pods").await.0, 200, "errors are not cached");
    assert_eq!(server.request(Credential::Token("good"), "GET /pods", "").await.0, 403);
}

#[tokio::test]
async fn a_large_token_is_refused_without_a_review() {
    let server = start(Options::default()).await;
    for (size, reviews) in [(16 << 10, 1), ((16 << 10) + 1, 1), (60 << 10, 1)] {
        let token = "x".repeat(size);
        assert_eq!(server.request(Credential::Token(&token), "GET /pods", "").await, (401, "Unauthorized".into()));
        assert_eq!(server.reviewer.reviews.load(Ordering::SeqCst), reviews, "{size}");
    }
}

#[tokio::test]
async fn anonymous_requests_are_reviewed_and_bad_credentials_are_not_anonymous() {
    let server = start(Options { anonymous: true, ..Options::default() }).await;
    let refusal = "Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[metrics])\n";
    assert_eq!(server.request(Credential::None, "GET /metrics", "").await, (403, refusal.into()));
    server.reviewer.allowed.lock().unwrap().push("get metrics".into());
    assert_eq!(server.request(Credential::None, "GET /metrics", "").await.0, 200);
    assert_eq!(server.request(Credential::Token("bad"), "GET /metrics", "").await, (401, "Unauthorized".into()));
    let foreign = TestAuthority::new().client("admin");
    let mut stream = server.connect_as(Some(foreign), b"http/1.1").await;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    assert!(text.starts_with("HTTP/1.0 401"), "{text}");
}

#[tokio::test]
async fn always_allow_needs_a_credential_all_the_same() {
    let server = start(Options { allow_all: true, ..Options::default() }).await;
    assert_eq!(server.request(Credential::None, "GET /pods", "").await.0, 401);
    assert_eq!(server.request(Credential::Token("good"), "GET /pods", "").await.0, 200);
}

#[tokio::test]
async fn a_replaced_ca_is_used_without_a_restart() {
    let mut server = start(Options::default()).await;
    assert_eq!(server.admin("GET /healthz").await.0, 200);
    let (old, new) = (server.authority.client("admin"), TestAuthority::new());
    fs::write(server.dir.path().join("ca.crt"), "garbage").unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(server.admin("GET /healthz").await.0, 200, "a CA that cannot be read leaves the old one");
    fs::write(server.dir.path().join("ca.crt"), &new.pem).unwrap();
    server.authority = new;
    let began = std::time::Instant::now();
    while server.admin("GET /healthz").await.0 != 200 {
        assert!(began.elapsed() < Duration::from_secs(20), "the new CA is not used");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut stream = server.connect_as(Some(old), b"http/1.1").await;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    assert!(text.starts_with("HTTP/1.0 401"), "the old CA is still trusted: {text}");
}
