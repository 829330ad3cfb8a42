use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use podwright_core::model::ContainerId;

fn run() -> Call {
    Call::Runtime(RuntimeCall::RunSandbox { attempt: 1 })
}

fn create(image_id: &str) -> Call {
    Call::Runtime(RuntimeCall::CreateContainer {
        sandbox: "s-1".into(),
        sandbox_attempt: 1,
        name: "web".into(),
        attempt: 2,
        image_id: image_id.into(),
        ips: vec!["10.0.0.2".into()],
    })
}

fn id() -> ContainerId {
    "c-1".into()
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_run_with_its_configuration() {
    let bench = Bench::new();
    assert_eq!(bench.call(web(), run()).await, Ok(Answer::Sandbox("s-new".into())));
    let requests = bench.fake.run_requests.lock().unwrap();
    let config = requests[0].config.as_ref().unwrap();
    assert_eq!(config.metadata.as_ref().unwrap().attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_can_not_be_translated_causes_no_runtime_call() {
    let bench = Bench::new();
    let error = bench.call(json!({"containers": [], "hostUsers": false}), run()).await.unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "CreatePodSandboxError");
    assert!(!error.in_doubt() && error.message().contains("user namespaces"));
    let error = bench.call(json!({"containers": [], "runtimeClassName": "gvisor"}), run()).await.unwrap_err();
    assert!(error.message().contains("RuntimeClass \"gvisor\""));
    assert!(bench.fake.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_cancelled_after_it_was_sent_continues() {
    let bench = Bench::new();
    let released = Arc::new(tokio::sync::Notify::new());
    bench.fake.next("RunPodSandbox", Step::Until(Arc::clone(&released)));
    let cancel = CancellationToken::new();
    let executor = Arc::clone(&bench.executor);
    let token = cancel.clone();
    let call =
        tokio::spawn(async move { executor.perform("u-1".into(), Arc::new(pod(web())), run(), LIMIT, token).await });
    settle().await;
    cancel.cancel();
    settle().await;
    assert!(!call.is_finished(), "it is not dropped");
    released.notify_one();
    assert_eq!(call.await.unwrap(), Ok(Answer::Sandbox("s-new".into())));
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_before_it_was_sent_is_not_in_doubt() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let start = Call::Runtime(RuntimeCall::StartContainer { name: "web".into(), id: id() });
    for call in [run(), create("i"), start] {
        let bench = Bench::new();
        let error = bench.call_with(web(), call.clone(), cancel.clone()).await.unwrap_err();
        assert!(error.is_cancelled() && !error.in_doubt(), "{call:?}");
        assert!(!bench.fake.calls().iter().any(|a| a.starts_with("Run") || a.starts_with("Create")), "{call:?}");
        assert!(!bench.fake.calls().iter().any(|a| a.starts_with("Start")), "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_response_is_in_doubt() {
    let start = Call::Runtime(RuntimeCall::StartContainer { name: "web".into(), id: id() });
    let stop =
        Call::Runtime(RuntimeCall::StopContainer { name: "web".into(), id: id(), timeout: Duration::from_secs(1) });
    let table = [
        ("RunPodSandbox", run(), "CreatePodSandboxError"),
        ("CreateContainer", create("i"), "CreateContainerError"),
        ("StartContainer", start, "RunContainerError"),
        ("StopContainer", stop, "KillContainerError"),
    ];
    for (name, call, reason) in table {
        let bench = Bench::new();
        bench.fake.next(name, Step::Hang);
        let began = Instant::now();
        let error = bench.call(web(), call.clone()).await.unwrap_err();
        assert!(error.in_doubt() && !error.is_unavailable() && !error.is_cancelled(), "{call:?}: {error:?}");
        assert_eq!(error.reason().unwrap_or_default(), reason);
        assert!(began.elapsed() <= LIMIT + Duration::from_millis(10), "{call:?}");
        // An error response is not in doubt.
        bench.fake.next(name, Step::Fail(CriError::new(Code::Other, name, "no")));
        let error = bench.call(web(), call.clone()).await.unwrap_err();
        assert!(!error.in_doubt() && error.message().contains("no"), "{call:?}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reserved_name_means_that_the_runtime_is_busy_with_an_earlier_call() {
    let bench = Bench::new();
    let taken = [
        CriError::new(Code::AlreadyExists, "X", "exists"),
        CriError::new(Code::Other, "X", "failed to reserve container name \"a_0\": name \"a_0\" is reserved for \"c\""),
    ];
    for error in taken {
        bench.fake.next("RunPodSandbox", Step::Fail(error.clone()));
        assert!(bench.call(web(), run()).await.unwrap_err().retry() == Retry::Soon, "{error}");
        bench.fake.next("CreateContainer", Step::Fail(error.clone()));
        assert!(bench.call(web(), create("i")).await.unwrap_err().retry() == Retry::Soon, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_runtime_is_reported_as_unavailable() {
    let bench = Bench::new();
    bench.fake.next("RunPodSandbox", Step::Fail(CriError::not_sent("RunPodSandbox", "connection refused")));
    let error = bench.call(web(), run()).await.unwrap_err();
    assert!(error.is_unavailable() && !error.in_doubt());
    bench.fake.next("RunPodSandbox", Step::Fail(CriError::new(Code::Unavailable, "RunPodSandbox", "lost")));
    let error = bench.call(web(), run()).await.unwrap_err();
    assert!(error.is_unavailable() && error.in_doubt());
}

#[tokio::test(start_paused = true)]
async fn stop_and_remove_of_missing_objects_succeed() {
    let table = [
        ("StopPodSandbox", Call::Runtime(RuntimeCall::StopSandbox { id: "s".into() })),
        ("RemovePodSandbox", Call::Runtime(RuntimeCall::RemoveSandbox { id: "s".into() })),
        (
            "StopContainer",
            Call::Runtime(RuntimeCall::StopContainer {
                name: "web".into(),
                id: id(),
                timeout: Duration::from_millis(1500),
            }),
        ),
        ("RemoveContainer", Call::Runtime(RuntimeCall::RemoveContainer { name: "web".into(), id: id() })),
    ];
    for (name, call) in table {
        let bench = Bench::new();
        bench.fake.next(name, Step::Fail(CriError::new(Code::NotFound, name, "gone")));
        assert_eq!(bench.call(web(), call.clone()).await, Ok(Answer::Done), "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_grace_period_of_a_stop_is_rounded_up_to_whole_seconds() {
    let bench = Bench::new();
    for (timeout, expected) in [(0, "c-1 0"), (1000, "c-1 1"), (1001, "c-1 2")] {
        let timeout = Duration::from_millis(timeout);
        bench
            .call(web(), Call::Runtime(RuntimeCall::StopContainer { name: "web".into(), id: id(), timeout }))
            .await
            .unwrap();
        assert_eq!(bench.fake.calls().last().unwrap(), &format!("StopContainer {expected}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_is_updated_to_the_resources_of_the_call() {
    let bench = Bench::new();
    let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "4Ki"}});
    let resources = Box::new(serde_json::from_value(resources).unwrap());
    let update = Call::Runtime(RuntimeCall::UpdateContainer { name: "web".into(), id: id(), resources });
    assert_eq!(bench.call(web(), update.clone()).await, Ok(Answer::Done));
    assert_eq!(bench.fake.calls().last().unwrap(), "UpdateContainerResources c-1 (1024, 200000, 4096)");
    let busy = CriError::new(Code::Other, "UpdateContainerResources", "device or resource busy");
    bench.fake.next("UpdateContainerResources", Step::Fail(busy));
    assert_eq!(bench.call(web(), update).await.unwrap_err().message(), "device or resource busy");
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_limits_of_a_pod_without_its_overhead() {
    let bench = Bench::new();
    let memory = Some(3 << 20);
    let update = Call::Runtime(RuntimeCall::UpdateSandbox {
        id: "s".into(),
        cpu_shares: 1024,
        cpu_quota_us: Some(200_000),
        memory,
    });
    assert_eq!(bench.call(web(), update.clone()).await, Ok(Answer::Done));
    let told = bench.fake.calls().last().unwrap().clone();
    assert_eq!(told, "UpdatePodSandboxResources s (1024, 200000, 3145728) (0, 0, 0)");
    let mut with_overhead = web();
    with_overhead["overhead"] = json!({"cpu": "500m", "memory": "1Mi"});
    assert_eq!(bench.call(with_overhead, update.clone()).await, Ok(Answer::Done));
    let told = bench.fake.calls().last().unwrap().clone();
    assert_eq!(told, "UpdatePodSandboxResources s (512, 150000, 2097152) (512, 50000, 1048576)");
    // Also as containerd 2.2 answers.
    let unknown = CriError::new(Code::Other, "UpdatePodSandboxResources", "not implemented yet");
    for answer in [CriError::unimplemented("UpdatePodSandboxResources"), unknown] {
        bench.fake.next("UpdatePodSandboxResources", Step::Fail(answer));
        assert_eq!(bench.call(web(), update.clone()).await, Ok(Answer::Done));
    }
    let refused = CriError::new(Code::Other, "UpdatePodSandboxResources", "the machine has no more memory");
    bench.fake.next("UpdatePodSandboxResources", Step::Fail(refused));
    assert_eq!(bench.call(web(), update).await.unwrap_err().message(), "the machine has no more memory");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_wait_for_a_permit_and_the_wait_does_not_count_towards_the_limit() {
    let bench = Bench::new();
    let released = Arc::new(tokio::sync::Notify::new());
    for _ in 0..2 {
        bench.fake.next("RunPodSandbox", Step::Until(Arc::clone(&released)));
    }
    let start = |cancel: CancellationToken| {
        let executor = Arc::clone(&bench.executor);
        tokio::spawn(async move { executor.perform("u-1".into(), Arc::new(pod(web())), run(), LIMIT, cancel).await })
    };
    let cancel = CancellationToken::new();
    let first = [start(CancellationToken::new()), start(CancellationToken::new())];
    settle().await;
    let impatient = start(cancel.clone());
    let patient = start(CancellationToken::new());
    settle().await;
    assert_eq!(bench.fake.now_under_way("RunPodSandbox"), 2);
    // Runs do not delay stops.
    bench.call(web(), Call::Runtime(RuntimeCall::StopSandbox { id: "s".into() })).await.unwrap();
    cancel.cancel();
    let error = impatient.await.unwrap().unwrap_err();
    assert!(error.is_cancelled() && !error.in_doubt());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(bench.fake.max_under_way("RunPodSandbox"), 2);
    bench.fake.next("RunPodSandbox", Step::Hang);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.fake.now_under_way("RunPodSandbox"), 3, "calls that hang release their permits");
    released.notify_waiters();
    for call in first {
        call.await.unwrap().unwrap();
    }
    // Its time limit is counted from when it was sent.
    let began = tokio::time::Instant::now();
    assert!(patient.await.unwrap().unwrap_err().in_doubt());
    assert_eq!(began.elapsed(), LIMIT - Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_container_runs_as_the_user_of_the_image_unless_the_pod_sets_one() {
    let bench = Bench::new();
    let image = podwright_cri::v1::Image { id: "i".into(), username: "www".into(), ..Default::default() };
    bench.fake.images.lock().unwrap().insert("i".into(), image);
    assert_eq!(bench.call(web(), create("i")).await, Ok(Answer::Container("c-new".into())));
    let own_user = json!({"containers": [{"name": "web", "securityContext": {"runAsUser": 5}}]});
    bench.call(own_user, create("i")).await.unwrap();
    assert_eq!(bench.fake.calls(), ["ImageStatus i", "CreateContainer web", "CreateContainer web"]);
    let requests = bench.fake.create_requests.lock().unwrap();
    let context = |n: usize| {
        let linux = requests[n].config.as_ref().unwrap().linux.as_ref().unwrap();
        linux.security_context.clone().unwrap()
    };
    assert_eq!(context(0).run_as_username, "www");
    assert_eq!(context(1).run_as_user.unwrap().value, 5);
    assert_eq!(requests[0].pod_sandbox_id, "s-1");
    let sandbox = requests[0].sandbox_config.as_ref().unwrap();
    assert_eq!(sandbox.metadata.as_ref().unwrap().attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_image_can_not_be_inspected_is_not_in_doubt() {
    let bench = Bench::new();
    bench.fake.next("ImageStatus", Step::Hang);
    let error = bench.call(web(), create("i")).await.unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "CreateContainerConfigError");
    assert!(!error.in_doubt(), "nothing was created: {error:?}");
    assert!(bench.fake.create_requests.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_debug_container_uses_the_namespaces_of_its_target() {
    let spec = json!({"containers": [{"name": "app"}],
        "ephemeralContainers": [{"name": "web", "image": "e", "targetContainerName": "app"}]});
    let bench = Bench::new();
    let error = bench.call(spec.clone(), create("i")).await.unwrap_err();
    assert!(error.message().contains("unable to find target container \"app\""), "{}", error.message());
    let labels =
        podwright_cri::labels::Owner { name: "shop", namespace: "default", uid: "u-1", container: Some("app") };
    let container =
        podwright_cri::v1::Container { id: "c-app".into(), state: 1, labels: labels.to_labels(), ..Default::default() };
    bench.fake.containers.lock().unwrap().push(container);
    bench.call(spec, create("i")).await.unwrap();
    let requests = bench.fake.create_requests.lock().unwrap();
    let linux = requests[0].config.as_ref().unwrap().linux.as_ref().unwrap();
    let namespaces = linux.security_context.as_ref().unwrap().namespace_options.as_ref().unwrap();
    assert_eq!(namespaces.target_id, "c-app");
}

#[tokio::test]
async fn the_log_of_a_removed_container_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("pods");
    let of_web = logs.join("default_shop_u-1/web");
    std::fs::create_dir_all(&of_web).unwrap();
    for name in ["2.log", "2.log.20260101-000000.gz", "3.log", "22.log"] {
        std::fs::write(of_web.join(name), "x").unwrap();
    }
    let outside = dir.path().join("precious.log");
    std::fs::write(&outside, "x").unwrap();
    let bench = Bench::with(|config| {
        let mut node = (*config.settings).clone();
        node.paths.pod_logs_dir = logs;
        config.settings = Arc::new(node);
    });
    bench.call(web(), create("i")).await.unwrap();
    let status = |log_path: String| podwright_cri::v1::ContainerStatusResponse {
        status: Some(podwright_cri::v1::ContainerStatus { log_path, ..Default::default() }),
        ..Default::default()
    };
    let remove = || Call::Runtime(RuntimeCall::RemoveContainer { name: "web".into(), id: "c-new".into() });
    let path = of_web.join("2.log").to_str().unwrap().to_owned();
    bench.fake.statuses.lock().unwrap().insert("c-new".into(), status(path));
    bench.call(web(), remove()).await.unwrap();
    assert_eq!(bench.host.calls.lock().unwrap().clone(), ["link web 2 c-new", "unlink web c-new"]);
    let mut left: Vec<_> = std::fs::read_dir(&of_web).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["22.log", "3.log"]);
    for path in [outside.to_str().unwrap().to_owned(), format!("{}/../../../precious.log", of_web.display())] {
        bench.fake.statuses.lock().unwrap().insert("c-new".into(), status(path));
        bench.call(web(), remove()).await.unwrap();
        assert!(outside.exists(), "files outside of the logs directory are not removed");
    }
}

#[tokio::test(start_paused = true)]
async fn host_calls_go_to_the_host_executor() {
    let bench = Bench::new();
    let calls = [
        Call::Host(HostCall::MakeCgroup),
        Call::Host(HostCall::MakeDirs),
        Call::Host(HostCall::MountVolume { volume: "v".into() }),
        Call::Host(HostCall::RemoveLogs),
    ];
    for call in calls {
        assert_eq!(bench.call(web(), call).await, Ok(Answer::Done));
    }
    let calls = bench.host.calls.lock().unwrap().clone();
    assert_eq!(calls, ["u-1 MakeCgroup", "u-1 MakeDirs", "u-1 MountVolume { volume: v }", "u-1 RemoveLogs"]);
    assert!(bench.fake.calls().is_empty());
}

#[tokio::test]
async fn a_large_environment_is_translated_off_the_async_workers() {
    let bench = Bench::new();
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    // Runs on the same worker, whenever that is free.
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let env: Vec<_> = (0..20_000).map(|n| json!({"name": format!("V{n}"), "value": "x"})).collect();
    let pod = json!({"containers": [{"name": "web", "env": env, "securityContext": {"runAsUser": 1}}]});
    bench.call(pod, create("i")).await.unwrap();
    other.abort();
    assert!(turns.load(Ordering::Relaxed) > 100, "{turns:?}");
}
