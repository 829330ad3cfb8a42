//! Lifecycle hooks by every means.

use super::*;

async fn hook(bench: &Bench, kind: HookKind, handler: Value, limit: Duration) -> Result<Answer, CallError> {
    let key = if kind == HookKind::PostStart { "postStart" } else { "preStop" };
    let spec = json!({"containers": [{"name": "web", "lifecycle": {key: handler}}]});
    let ips = vec!["127.0.0.1".to_owned()];
    let call = Call::Runtime(RuntimeCall::Hook { kind, name: "web".into(), id: "c-1".into(), handler: None, ips });
    bench.executor.perform("u-1".into(), Arc::new(pod(spec)), call, limit, CancellationToken::new()).await
}

#[tokio::test(start_paused = true)]
async fn exec_hooks_end_with_their_command_or_their_time() {
    let bench = Bench::new();
    let exec = || json!({"exec": {"command": ["sh", "-c", "true"]}});
    assert_eq!(hook(&bench, HookKind::PostStart, exec(), LIMIT).await, Ok(Answer::Done));
    assert_eq!(bench.fake.asked(), ["ExecSync c-1 sh -c true 30"]);
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
    assert_eq!(bench.fake.asked().last().unwrap(), "ExecSync c-1 sh -c true 2");
}

#[tokio::test(start_paused = true)]
async fn sleep_hooks_sleep_and_can_be_cancelled() {
    let bench = Bench::new();
    let began = Instant::now();
    hook(&bench, HookKind::PreStop, json!({"sleep": {"seconds": 7}}), LIMIT).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 7);
    let error = hook(&bench, HookKind::PreStop, json!({"sleep": {"seconds": 70}}), LIMIT).await.unwrap_err();
    assert!(error.message().contains("no end within 30s"), "{}", error.message());

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
async fn http_hooks_are_content_with_any_answer() {
    let (bench, told) = Bench::listening();
    let server = serve(None).await;
    let port = server.address.port();
    let get = |path: &str, scheme: &str| {
        json!({"httpGet": {"port": port, "path": path, "scheme": scheme,
            "httpHeaders": [{"name": "Authorization", "value": "secret"}]}})
    };
    hook(&bench, HookKind::PreStop, get("/500", "HTTP"), LIMIT).await.unwrap();
    assert_eq!(server.asked.lock().unwrap()[0], format!("/500 {} kube-lifecycle/1.36 secret", server.address));
    // Asked for TLS and answered without: once more, without TLS and without the secret.
    hook(&bench, HookKind::PreStop, get("/x", "HTTPS"), LIMIT).await.unwrap();
    assert_eq!(server.asked.lock().unwrap()[1], format!("/x {} kube-lifecycle/1.36 -", server.address));
    let fallback = "request to HTTPS lifecycle hook 127.0.0.1:PORT got HTTP response, retry with HTTP succeeded";
    let fallback = fallback.replace("PORT", &port.to_string());
    assert_eq!(*told.lock().unwrap(), [format!("LifecycleHTTPFallback: {fallback}")]);
    // Redirects are followed on the same host, and there only.
    hook(&bench, HookKind::PreStop, get("/302?/there", "HTTP"), LIMIT).await.unwrap();
    hook(&bench, HookKind::PreStop, get("/302?http://other.example/", "HTTP"), LIMIT).await.unwrap();
    let asked: Vec<String> =
        server.asked.lock().unwrap()[2..].iter().map(|a| a.split(' ').next().unwrap().into()).collect();
    assert_eq!(asked, ["/302?/there", "/there", "/302?http://other.example/"]);
    let error = hook(&bench, HookKind::PreStop, get("/302/loop", "HTTP"), LIMIT).await.unwrap_err();
    assert!(error.message().contains("stopped after 10 redirects"), "{}", error.message());
    hook(&bench, HookKind::PreStop, json!({"tcpSocket": {"port": port}}), LIMIT).await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = hook(&bench, HookKind::PreStop, json!({"httpGet": {"port": free, "path": "/p"}}), LIMIT).await;
    assert!(error.unwrap_err().message().starts_with("HTTP lifecycle hook (/p) for Container \"web\""));
}

#[tokio::test(start_paused = true)]
async fn a_container_the_spec_does_not_know_has_its_hook_with_it() {
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
    assert_eq!(bench.fake.asked(), ["ExecSync c-1 bye 30"]);
    assert_eq!(bench.call(web(), call(None)).await, Ok(Answer::Done));
    assert!(bench.call(web(), call(Some("{"))).await.unwrap_err().message().contains("not JSON"));
    // A container without that hook has nothing to do.
    assert_eq!(hook(&bench, HookKind::PreStop, Value::Null, LIMIT).await, Ok(Answer::Done));
    assert_eq!(bench.fake.asked().len(), 1);
}
