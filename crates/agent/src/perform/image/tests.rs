use base64::Engine;
use podwright_core::image_access::VerificationPolicy;
use podwright_core::model::{Answer, Call, CallError, RuntimeCall};
use podwright_cri::{Code, CriError, v1};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::objects::fake::FakeObjects;
use crate::perform::fakes::Step;
use crate::perform::tests::{Bench, LIMIT, image_facts, settle, web};
use crate::translate::tests::pod;

fn pull(bench: &Bench, image: &str, cancel: &CancellationToken) -> JoinHandle<Result<Answer, CallError>> {
    pull_for("u-1", bench, image, cancel)
}

fn pull_for(
    uid: &str,
    bench: &Bench,
    image: &str,
    cancel: &CancellationToken,
) -> JoinHandle<Result<Answer, CallError>> {
    let (executor, cancel, uid) = (Arc::clone(&bench.executor), cancel.clone(), uid.into());
    let call = Call::Runtime(RuntimeCall::PullImage { name: "web".into(), image: image.into() });
    tokio::spawn(async move { executor.perform(uid, Arc::new(pod(web())), call, LIMIT, cancel).await })
}

fn present(id: &str) -> Result<Answer, CallError> {
    Ok(Answer::Image(Some(image_facts(id))))
}

#[tokio::test(start_paused = true)]
async fn the_status_of_an_image_has_its_user() {
    let bench = Bench::new();
    let status = |image: &str| {
        bench.call(web(), Call::Runtime(RuntimeCall::ImageStatus { name: "web".into(), image: image.into() }))
    };
    assert_eq!(status("nginx").await, Ok(Answer::Image(None)));
    let image = v1::Image { id: "sha".into(), uid: Some(v1::Int64Value { value: 7 }), ..Default::default() };
    bench.fake.images.lock().unwrap().insert("nginx:latest".into(), image);
    let facts = ImageFacts { id: "sha".into(), uid: Some(7), username: String::new() };
    assert_eq!(status("nginx").await, Ok(Answer::Image(Some(facts))));
    let error = status("Not Valid").await.unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "InvalidImageName");
    assert!(error.message().contains("couldn't parse image name \"Not Valid\""));
    bench.fake.next("ImageStatus", Step::Hang);
    let error = status("nginx").await.unwrap_err();
    assert_eq!((error.reason().unwrap_or_default(), error.in_doubt()), ("ImageInspectError", false));
}

#[tokio::test(start_paused = true)]
async fn inspecting_a_pulled_image_has_its_own_time_limit() {
    let bench = Bench::new();
    bench.fake.next("ImageStatus", Step::Hang);
    let call = Call::Runtime(RuntimeCall::PullImage { name: "web".into(), image: "nginx".into() });
    let hour = Duration::from_secs(3600);
    let began = tokio::time::Instant::now();
    let done = bench.executor.perform("u-1".into(), Arc::new(pod(web())), call, hour, CancellationToken::new()).await;
    assert_eq!(done.unwrap_err().reason(), Some("ImageInspectError"));
    assert_eq!(began.elapsed(), INSPECT_TIME_MAX);
}

#[tokio::test(start_paused = true)]
async fn calls_for_the_same_image_share_one_pull() {
    let bench = Bench::new();
    let released = Arc::new(Notify::new());
    bench.fake.next("PullImage", Step::Until(Arc::clone(&released)));
    let never = CancellationToken::new();
    let impatient = CancellationToken::new();
    let first = pull(&bench, "nginx", &impatient);
    settle().await;
    let second = pull(&bench, "nginx:latest", &never);
    let third = pull(&bench, "nginx", &never);
    settle().await;
    impatient.cancel();
    let error = first.await.unwrap().unwrap_err();
    assert!(error.is_cancelled() && !error.in_doubt());
    settle().await;
    released.notify_one();
    // "nginx:latest" is the same image.
    assert_eq!(second.await.unwrap(), present("id-of-nginx:latest"));
    assert_eq!(third.await.unwrap(), present("id-of-nginx:latest"));
    assert_eq!(bench.fake.pull_requests.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_waiting_calls_is_aborted_and_frees_its_permit() {
    let bench = Bench::with(|config| config.pulls.parallel = 1);
    bench.fake.next("PullImage", Step::Hang);
    let cancel = CancellationToken::new();
    let (one, two) = (pull(&bench, "a", &cancel), pull(&bench, "a", &cancel));
    settle().await;
    assert_eq!(bench.fake.now_under_way("PullImage"), 1);
    let next = pull(&bench, "b", &CancellationToken::new());
    settle().await;
    let began = tokio::time::Instant::now();
    cancel.cancel();
    assert!(one.await.unwrap().unwrap_err().is_cancelled() && two.await.unwrap().unwrap_err().is_cancelled());
    assert_eq!(next.await.unwrap(), present("id-of-b:latest"));
    assert!(began.elapsed() < Duration::from_millis(100));
    assert_eq!(bench.fake.now_under_way("PullImage"), 0);
    // A later call pulls it again.
    assert_eq!(pull(&bench, "a", &CancellationToken::new()).await.unwrap(), present("id-of-a:latest"));
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_hangs_does_not_block_pulls_from_others() {
    let bench = Bench::new();
    for _ in 0..2 {
        bench.fake.next("PullImage", Step::Hang);
    }
    let never = CancellationToken::new();
    let stuck: Vec<_> = (0..6).map(|n| pull(&bench, &format!("slow.example/{n}"), &never)).collect();
    settle().await;
    assert_eq!(bench.fake.now_under_way("PullImage"), 2);
    let began = tokio::time::Instant::now();
    assert_eq!(pull(&bench, "fast.example/x", &never).await.unwrap(), present("id-of-fast.example/x:latest"));
    assert!(began.elapsed() < Duration::from_millis(100));
    let mut failed = 0;
    for call in stuck {
        failed += usize::from(call.await.unwrap().is_err());
    }
    assert_eq!(failed, 2, "the others started after the first two timed out");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_parallel_pulls_is_limited() {
    let bench = Bench::with(|config| config.pulls.parallel = 3);
    let released = Arc::new(Notify::new());
    for _ in 0..3 {
        bench.fake.next("PullImage", Step::Until(Arc::clone(&released)));
    }
    let never = CancellationToken::new();
    let pulls: Vec<_> =
        (0..8).map(|n| pull_for(&format!("u-{n}"), &bench, &format!("r{n}.example/app"), &never)).collect();
    settle().await;
    released.notify_waiters();
    for call in pulls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(bench.fake.max_under_way("PullImage"), 3);
}

#[tokio::test(start_paused = true)]
async fn pull_failures_have_the_reasons_of_the_kubelet_and_are_not_in_doubt() {
    let bench = Bench::new();
    let table = [
        (CriError::new(Code::NotFound, "PullImage", "manifest unknown"), "ErrImagePull"),
        (CriError::new(Code::Other, "PullImage", "RegistryUnavailable: connection refused"), "RegistryUnavailable"),
        (CriError::new(Code::DeadlineExceeded, "PullImage", "late"), "ErrImagePull"),
    ];
    for (failure, reason) in table {
        bench.fake.next("PullImage", Step::Fail(failure.clone()));
        let error = pull(&bench, "nginx", &CancellationToken::new()).await.unwrap().unwrap_err();
        assert_eq!(error.reason().unwrap_or_default(), reason, "{failure}");
        assert!(!error.in_doubt() && !error.is_unavailable());
    }
    bench.fake.next("PullImage", Step::Fail(CriError::not_sent("PullImage", "connection refused")));
    let error = pull(&bench, "nginx", &CancellationToken::new()).await.unwrap().unwrap_err();
    assert!(error.is_unavailable());
    let error = pull(&bench, "UPPER", &CancellationToken::new()).await.unwrap().unwrap_err();
    assert_eq!(error.reason().unwrap_or_default(), "InvalidImageName");
}

#[tokio::test]
async fn an_image_pulled_with_the_secret_of_one_pod_is_not_used_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let records = PullRecords::new(dir.path(), VerificationPolicy::default(), Pool::default());
    let mut bench = Bench::with(|config| config.pulls.records = Some(records));
    let objects = FakeObjects::default();
    for (name, user) in [("a", "alice"), ("b", "bob"), ("c", "alice")] {
        let content = json!({"auths": {"r.example": {"username": user, "password": "p"}}}).to_string();
        let data = base64::engine::general_purpose::STANDARD.encode(content);
        let meta = json!({"name": name, "namespace": "default", "uid": name});
        let secret =
            json!({"metadata": meta, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": data}});
        objects.secrets.lock().unwrap().insert(name.into(), serde_json::from_value(secret).unwrap());
    }
    let executor = Arc::into_inner(bench.executor).expect("the only reference");
    bench.executor = Arc::new(executor.with_objects(Arc::new(objects)));
    let spec = |secret: &str| {
        let secrets: Vec<Value> =
            Some(secret).filter(|s| !s.is_empty()).map(|name| json!({"name": name})).into_iter().collect();
        json!({"containers": [{"name": "web"}], "imagePullSecrets": secrets})
    };
    let image = || "r.example/app".to_owned();
    let status = async |secret: &str| {
        let call = Call::Runtime(RuntimeCall::ImageStatus { name: "web".into(), image: image() });
        matches!(bench.call(spec(secret), call).await, Ok(Answer::Image(Some(_))))
    };
    let found = v1::Image { id: "sha256:1".into(), ..Default::default() };
    for name in ["r.example/app:latest", "id-of-r.example/app:latest"] {
        bench.fake.images.lock().unwrap().insert(name.into(), found.clone());
    }
    assert!(status("").await, "nothing is recorded of a preloaded image");
    let call = Call::Runtime(RuntimeCall::PullImage { name: "web".into(), image: image() });
    bench.call(spec("a"), call.clone()).await.unwrap();
    assert!(status("a").await);
    assert!(status("c").await, "another secret with the same credential");
    assert!(!status("b").await && !status("").await, "the registry has to decide");
    bench.call(spec(""), call).await.unwrap();
    assert!(status("b").await && status("").await, "the image can be pulled without a credential");
}

#[tokio::test]
async fn credentials_are_tried_in_order_and_never_appear_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"auths": {"r.example": {"username": "u1", "password": "hunter2"},
        "r.example/team": {"username": "u2", "password": "hunter3"}}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let bench = Bench::with(|config| config.pulls.credential_dirs = vec![dir.path().to_owned()]);
    let denied = |text: &str| Step::Fail(CriError::new(Code::Other, "PullImage", text));
    bench.fake.next("PullImage", denied("denied"));
    pull(&bench, "r.example/team/app", &CancellationToken::new()).await.unwrap().unwrap();
    let users: Vec<String> = bench
        .fake
        .pull_requests
        .lock()
        .unwrap()
        .iter()
        .map(|request| request.auth.as_ref().map_or_else(String::new, |auth| auth.username.clone()))
        .collect();
    assert_eq!(users, ["u2", "u1"]);
    bench.fake.next("PullImage", denied("login u2:hunter3 refused"));
    bench.fake.next("PullImage", denied("https://r.example/x?token=hunter2 refused"));
    let error = pull(&bench, "r.example/team/app", &CancellationToken::new()).await.unwrap().unwrap_err();
    assert!(!error.message().contains("hunter"), "{}", error.message());
    assert!(error.message().contains("refused"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_own_pulls_holds_no_permit_of_a_registry() {
    let bench = Bench::with(|config| (config.pulls.parallel, config.pulls.parallel_per_host) = (5, 2));
    let never = CancellationToken::new();
    for _ in 0..4 {
        bench.fake.next("PullImage", Step::Hang);
    }
    let images = ["tarpit-a.example/1", "tarpit-a.example/2", "tarpit-b.example/1", "tarpit-b.example/2"];
    let slow = images.into_iter().chain(["hub.example/1", "hub.example/2"]).map(|image| pull(&bench, image, &never));
    let slow: Vec<_> = slow.collect();
    settle().await;
    let began = tokio::time::Instant::now();
    let other = pull_for("u-2", &bench, "hub.example/3", &never).await.unwrap();
    assert_eq!(other, present("id-of-hub.example/3:latest"));
    assert!(began.elapsed() < Duration::from_millis(100));
    slow.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_many_slow_pulls_leaves_a_permit_to_others() {
    let bench = Bench::with(|config| (config.pulls.parallel, config.pulls.parallel_per_host) = (3, 3));
    let never = CancellationToken::new();
    for _ in 0..3 {
        bench.fake.next("PullImage", Step::Hang);
    }
    let slow: Vec<_> = (0..4).map(|n| pull(&bench, &format!("tarpit-{n}.example/x"), &never)).collect();
    settle().await;
    // One that the greedy pod waits for as well, and one of its own.
    let other = ["tarpit-3.example/x", "quick.example/y"].map(|image| pull_for("u-2", &bench, image, &never));
    settle().await;
    let images: Vec<_> = bench.fake.pull_requests.lock().unwrap().iter().filter_map(|r| r.image.clone()).collect();
    let images: Vec<_> = images.iter().map(|image| image.image.split('/').next().unwrap()).collect();
    assert_eq!(images, ["tarpit-0.example", "tarpit-1.example", "tarpit-3.example"]);
    slow.iter().chain(&other).for_each(JoinHandle::abort);
}
