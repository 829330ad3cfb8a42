//! Calls that need API objects.

use std::sync::Mutex;

use super::*;
use crate::objects::fake::FakeObjects;

/// CallExecutor with objects, and what they told people.
fn bench() -> (Bench, Arc<FakeObjects>, Arc<Mutex<Vec<String>>>) {
    let objects = Arc::new(FakeObjects::default());
    let (mut bench, told) = Bench::listening();
    let executor = Arc::into_inner(bench.executor).expect("nobody else has them");
    bench.executor = Arc::new(executor.with_objects(objects.clone()));
    (bench, objects, told)
}

#[tokio::test]
async fn a_runtime_class_becomes_its_handler() {
    let (bench, _, _) = bench();
    let mut spec = web();
    spec["runtimeClassName"] = json!("fast");
    bench.call(spec.clone(), Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })).await.unwrap();
    assert_eq!(bench.fake.run_requests.lock().unwrap()[0].runtime_handler, "fast-handler");
    spec["runtimeClassName"] = json!("none");
    let error = bench.call(spec, Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })).await.unwrap_err();
    assert!(error.message().contains("runtimeclass \"none\" not found"), "{error:?}");
    assert_eq!(bench.fake.run_requests.lock().unwrap().len(), 1, "nothing was asked of the runtime");
}

#[tokio::test]
async fn a_pull_has_the_pods_logins_and_a_missing_one_is_told_of() {
    let (bench, objects, told) = bench();
    // {"auths": {"docker.io": {"username": "u", "password": "hunter2"}}}
    let auths = "eyJhdXRocyI6IHsiZG9ja2VyLmlvIjogeyJ1c2VybmFtZSI6ICJ1IiwgInBhc3N3b3JkIjogImh1bnRlcjIifX19";
    objects.put_secret("s", json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": auths}}));
    let mut spec = web();
    spec["imagePullSecrets"] = json!([{"name": "s"}, {"name": "none"}]);
    let call = Call::Runtime(RuntimeCall::PullImage { name: "web".into(), image: "nginx".into() });
    bench.call(spec, call).await.unwrap();
    let auth = bench.fake.pull_requests.lock().unwrap()[0].auth.clone().expect("a login");
    assert_eq!((auth.username.as_str(), auth.password.as_str()), ("u", "hunter2"));
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("FailedToRetrieveImagePullSecret: ") && told[0].contains("(none)"), "{told:?}");
}
