//! Lifecycle hooks of every kind.

use super::*;

async fn hook(bench: &Bench, kind: HookKind, handler: Value, limit: Duration) -> Result<Answer, CallError> {
    let key = if kind == HookKind::PostStart { "postStart" } else { "preStop" };
    let spec = json!({"containers": [{"name": "web", "lifecycle": {key: handler}}]});
    let ips = vec!["127.0.0.1".to_owned()];
    let call = Call::Runtime(RuntimeCall::Hook { kind, name: "web".into(), id: "c-1".into(), handler: None, ips });
    bench.executor.perform("u-1".into(), Arc::new(pod(spec)), call, limit, CancellationToken::new()).await
}

#[tokio::test(start_paused = true)]
async fn exec_hooks_end_with_their_command_or_at_their_time_limit() {
    let bench = Bench::new();
    let exec = || json!({"exec": {"command": ["sh", "-c", "true"]}});
    assert_eq!(hook(&bench, HookKind::PostStart, exec(), LIMIT).await, Ok(Answer::Done));
    assert_eq!(bench.fake.calls(), ["ExecSync c-1 sh -c true 30"]);
    let refused = ExecSyncResponse { exit_code: 3, stderr: "a secret".into(), ..Default::default() };
    bench.fake.exec.lock().unwrap().push_back(refused);
    let error = hook(&bench, HookKind::PostStart, exec(), LIMIT).await.unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "PostStartHookError");
    assert_eq!(
        error.message(),
        "Exec lifecycle hook ([sh -c true]) for Container \"web\" in Pod \"shop_default(u-1)\" failed - error: \
         command 'sh -c true' exited with 3"
    );
    bench.fake.next("ExecSync", Step::Hang);
    let began = Instant::now();
    let error = hook(&bench, HookKind::PreStop, exec(), Duration::from_millis(1500)).await.unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "FailedPreStopHook");
    assert!(!error.in_doubt() && began.elapsed() <= Duration::from_millis(1600));
    assert_eq!(bench.fake.calls().last().unwrap(), "ExecSync c-1 sh -c true 2");
}

#[tokio::test(start_paused = true)]
async fn sleep_hooks_sleep_and_can_be_cancelled() {
    let bench = Bench::new();
    let began = Instant::now();
    hook(&bench, HookKind::PreStop, json!({"sleep": {"seconds": 7}}), LIMIT).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 7);
    let error = hook(&bench, HookKind::PreStop, json!({"sleep": {"seconds": 70}}), LIMIT).await.unwrap_err();
    assert!(error.message().contains("not finished within 30s"), "{}", error.message());

    let cancel = CancellationToken::new();
    let (executor, token) = (Arc::clone(&bench.executor), cancel.clone());
    let spec = json!({"containers": [{"name": "web", "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}]});
    let call = Call::Runtime(RuntimeCall::Hook {
        kind: HookKind::PreStop,
        name: "web".into(),
        id: "c-1".into(),
        handler: None,
        ips: vec![],
    });
    let task =
        tokio::spawn(async move { executor.perform("u-1".into(), Arc::new(pod(spec)), call, LIMIT, token).await });
    settle().await;
    let began = Instant::now();
    cancel.cancel();
    assert!(task.await.unwrap().unwrap_err().is_cancelled());
    assert_eq!(began.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn http_hooks_accept_any_status_code() {
    let (bench, events) = Bench::with_events();
    let server = serve(None).await;
    let port = server.address.port();
    let get = |path: &str, scheme: &str| {
        json!({"httpGet": {"port": port, "path": path, "scheme": scheme,
            "httpHeaders": [{"name": "Authorization", "value": "secret"}]}})
    };
    hook(&bench, HookKind::PreStop, get("/500", "HTTP"), LIMIT).await.unwrap();
    assert_eq!(server.requests.lock().unwrap()[0], format!("/500 {} kube-lifecycle/1.36 secret", server.address));
    // A plain HTTP response to a TLS handshake: retried without TLS and without the Authorization header.
    hook(&bench, HookKind::PreStop, get("/x", "HTTPS"), LIMIT).await.unwrap();
    assert_eq!(server.requests.lock().unwrap()[1], format!("/x {} kube-lifecycle/1.36 -", server.address));
    let fallback = "request to HTTPS lifecycle hook 127.0.0.1:PORT got HTTP response, retry with HTTP succeeded";
    let fallback = fallback.replace("PORT", &port.to_string());
    assert_eq!(*events.lock().unwrap(), [format!("LifecycleHTTPFallback: {fallback}")]);
    // Redirects are followed only on the same host.
    hook(&bench, HookKind::PreStop, get("/302?/there", "HTTP"), LIMIT).await.unwrap();
    hook(&bench, HookKind::PreStop, get("/302?http://other.example/", "HTTP"), LIMIT).await.unwrap();
    let paths: Vec<String> =
        server.requests.lock().unwrap()[2..].iter().map(|a| a.split(' ').next().unwrap().into()).collect();
    assert_eq!(paths, ["/302?/there", "/there", "/302?http://other.example/"]);
    let error = hook(&bench, HookKind::PreStop, get("/302/loop", "HTTP"), LIMIT).await.unwrap_err();
    assert!(error.message().contains("stopped after 10 redirects"), "{}", error.message());
    hook(&bench, HookKind::PreStop, json!({"tcpSocket": {"port": port}}), LIMIT).await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = hook(&bench, HookKind::PreStop, json!({"httpGet": {"port": free, "path": "/p"}}), LIMIT).await;
    assert!(error.unwrap_err().message().starts_with("HTTP lifecycle hook (/p) for Container \"web\""));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_the_spec_no_longer_has_uses_the_hook_in_its_annotation() {
    let bench = Bench::new();
    let call = |handler: Option<&str>| {
        Call::Runtime(RuntimeCall::Hook {
            kind: HookKind::PreStop,
            name: "gone".into(),
            id: "c-1".into(),
            handler: handler.map(str::to_owned),
            ips: vec![],
        })
    };
    bench.call(web(), call(Some(r#"{"exec":{"command":["bye"]}}"#))).await.unwrap();
    assert_eq!(bench.fake.calls(), ["ExecSync c-1 bye 30"]);
    assert_eq!(bench.call(web(), call(None)).await, Ok(Answer::Done));
    assert!(bench.call(web(), call(Some("{"))).await.unwrap_err().message().contains("not valid JSON"));
    // A container without a hook succeeds at once.
    assert_eq!(hook(&bench, HookKind::PreStop, Value::Null, LIMIT).await, Ok(Answer::Done));
    assert_eq!(bench.fake.calls().len(), 1);
}
