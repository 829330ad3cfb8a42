//! The executor with a fake runtime.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_core::model::{Call, HostCall, ImageFacts, Retry};
use serde_json::{Value, json};

use super::fakes::{FakeRuntime, Step};
use super::*;
use crate::pod_spec::{FieldRefError, VolumeSpecError};
use crate::translate::tests::{TestHost, pod, settings};

mod calls;
mod handlers;
mod objects;

/// A host that only records its calls.
#[derive(Default)]
pub(super) struct FakeHost {
    calls: Mutex<Vec<String>>,
}

impl HostView for FakeHost {
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        TestHost.volume(pod, volume)
    }
    fn sub_path(&self, pod: &Pod, container: &str, index: usize, volume: &str, sub_path: &str) -> PathBuf {
        TestHost.sub_path(pod, container, index, volume, sub_path)
    }
    fn hosts_file(&self, pod: &Pod) -> PathBuf {
        TestHost.hosts_file(pod)
    }
    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        TestHost.termination_log(pod, container, attempt)
    }
    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, FieldRefError> {
        TestHost.field(pod, path, ips)
    }
    fn resource_field(
        &self,
        pod: &Pod,
        container: &str,
        selector: &ResourceFieldSelector,
    ) -> Result<String, FieldRefError> {
        TestHost.resource_field(pod, container, selector)
    }
}

impl HostExecutor for FakeHost {
    fn perform(
        &self,
        uid: PodUid,
        _: Arc<Pod>,
        call: HostCall,
        _: Duration,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>> {
        self.calls.lock().unwrap().push(format!("{uid} {call:?}"));
        Box::pin(async { Ok(Answer::Done) })
    }

    fn link_log<'a>(&'a self, _: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()> {
        self.calls.lock().unwrap().push(format!("link {container} {attempt} {id}"));
        Box::pin(async {})
    }

    fn unlink_log<'a>(&'a self, _: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()> {
        self.calls.lock().unwrap().push(format!("unlink {container} {id}"));
        Box::pin(async {})
    }
}

/// A call executor with a fake runtime.
pub(super) struct Bench {
    pub(super) fake: Arc<FakeRuntime>,
    pub(super) host: Arc<FakeHost>,
    pub(super) executor: Arc<CallExecutor>,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With the recorded events.
    pub(super) fn with_events() -> (Self, Arc<Mutex<Vec<String>>>) {
        let (mut bench, events) = (Self::new(), Arc::<Mutex<Vec<String>>>::default());
        let recorded = Arc::clone(&events);
        let sink =
            move |event: KubeEvent| recorded.lock().unwrap().push(format!("{}: {}", event.reason, event.message));
        let executor = Arc::into_inner(bench.executor).expect("the only reference");
        bench.executor = Arc::new(executor.with_event_sink(Arc::new(sink)));
        (bench, events)
    }

    pub(super) fn with(change: impl FnOnce(&mut CallExecutorConfig)) -> Self {
        let fake = Arc::new(FakeRuntime::default());
        let host = Arc::new(FakeHost::default());
        let node = NodeSettings { resolv_conf: None, ..settings() };
        let mut config = CallExecutorConfig {
            runtime: Arc::clone(&fake) as Arc<dyn RuntimeService>,
            images: Arc::clone(&fake) as Arc<dyn ImageService>,
            settings: Arc::new(node),
            host: Arc::clone(&host) as Arc<dyn HostExecutor>,
            features: SharedFeatures::default(),
            pool: Pool::default(),
            pulls: PullConfig {
                parallel: 5,
                parallel_per_host: 2,
                rate: None,
                credential_dirs: Vec::new(),
                records: None,
            },
            sandbox_parallel: 2,
            max_pods: 10,
        };
        change(&mut config);
        Self { fake, host, executor: Arc::new(CallExecutor::new(config)) }
    }

    pub(super) async fn call(&self, spec: Value, call: Call) -> Result<Answer, CallError> {
        self.call_with(spec, call, CancellationToken::new()).await
    }

    pub(super) async fn call_with(
        &self,
        spec: Value,
        call: Call,
        cancel: CancellationToken,
    ) -> Result<Answer, CallError> {
        self.executor.perform("u-1".into(), Arc::new(pod(spec)), call, LIMIT, cancel).await
    }
}

pub(super) const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn web() -> Value {
    json!({"containers": [{"name": "web", "image": "nginx"}]})
}

pub(super) fn image_facts(id: &str) -> ImageFacts {
    ImageFacts { id: id.into(), ..ImageFacts::default() }
}

/// Lets all tasks run that do not wait for time.
pub(super) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
