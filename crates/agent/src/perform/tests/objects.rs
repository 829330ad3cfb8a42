//! Calls that need API objects.

use std::sync::Mutex;

use super::*;
use crate::objects::fake::FakeObjects;

/// An executor with API objects, and the recorded events.
fn bench() -> (Bench, Arc<FakeObjects>, Arc<Mutex<Vec<String>>>) {
    let objects = Arc::new(FakeObjects::default());
    let (mut bench, events) = Bench::with_events();
    let executor = Arc::into_inner(bench.executor).expect("the only reference");
    bench.executor = Arc::new(executor.with_objects(objects.clone()));
    (bench, objects, events)
}

#[tokio::test]
async fn a_runtime_class_is_resolved_to_its_handler() {
    let (bench, _, _) = bench();
    let mut spec = web();
    spec["runtimeClassName"] = json!("fast");
    bench.call(spec.clone(), Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })).await.unwrap();
    assert_eq!(bench.fake.run_requests.lock().unwrap()[0].runtime_handler, "fast-handler");
    spec["runtimeClassName"] = json!("none");
    let error = bench.call(spec, Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })).await.unwrap_err();
    assert!(error.message().contains("runtimeclass \"none\" not found"), "{error:?}");
    assert_eq!(bench.fake.run_requests.lock().unwrap().len(), 1, "no second runtime call");
}

#[tokio::test]
async fn a_pull_uses_the_pull_secrets_and_a_missing_one_causes_an_event() {
    let (bench, objects, events) = bench();
    // {"auths": {"docker.io": {"username": "u", "password": "hunter2"}}}
    let auths = "eyJhdXRocyI6IHsiZG9ja2VyLmlvIjogeyJ1c2VybmFtZSI6ICJ1IiwgInBhc3N3b3JkIjogImh1bnRlcjIifX19";
    objects.put_secret("s", json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": auths}}));
    let mut spec = web();
    spec["imagePullSecrets"] = json!([{"name": "s"}, {"name": "none"}]);
    let call = Call::Runtime(RuntimeCall::PullImage { name: "web".into(), image: "nginx".into() });
    bench.call(spec, call).await.unwrap();
    let auth = bench.fake.pull_requests.lock().unwrap()[0].auth.clone().expect("a credential");
    assert_eq!((auth.username.as_str(), auth.password.as_str()), ("u", "hunter2"));
    let events = events.lock().unwrap();
    assert_eq!(events.len(), 1);
    assert!(events[0].starts_with("FailedToRetrieveImagePullSecret: ") && events[0].contains("(none)"), "{events:?}");
}
