//! Performs calls on the container runtime and the host: one file per kind of object, one dispatch over [`Call`].
//!
//! Rules for cancellation and time limits:
//! - **Run, Create, Start** are never dropped once sent: they end, or reach their time limit and are in doubt. If they are cancelled
//!   before they are sent, they fail as cancelled and are not in doubt.
//! - **Stop and Remove** succeed if the object does not exist.
//! - **Pulls, hooks, probes and host calls** end at once when cancelled.
//!
//! Waiting for a permit (sandboxes, pulls) does not count towards the time limit of a call: the limit applies to the runtime.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_core::concurrency::ConcurrencyLimit;
use podwright_core::model::{Answer, Call, CallError, FullName, HostCall, KubeEvent, Name, Pod, PodUid, RuntimeCall};
use podwright_cri::{BoxFuture, Code, CriError, ImageService, RuntimeService};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::host::Pool;
use crate::name_lookup::NameResolver;
use crate::objects::{NoApiServer, ObjectClient};
use crate::translate::{HostView, NodeSettings, RuntimeFeatures, resized_sandbox};

mod container;
mod files;
mod grpc;
mod handlers;
mod hook;
mod host;
mod host_ports;
mod http;
mod image;
mod logs;
mod permits;
mod probe;
mod sandbox;
mod subordinate_ids;
mod target;
mod translation_context;
mod userns;

pub(crate) use image::canonical_image_name;
#[cfg(feature = "fuzzing")]
pub use image::match_credentials;
pub use image::{PullConfig, PullRecords};

use handlers::Handlers;
use permits::AdaptivePermits;
use userns::UserNamespaceRanges;

/// Performs calls on the host: cgroups, directories, volumes, logs.
pub trait HostExecutor: HostView + Send + Sync + 'static {
    /// Performs one call.
    fn perform(
        &self,
        uid: PodUid,
        pod: Arc<Pod>,
        call: HostCall,
        limit: Duration,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Creates the link under `/var/log/containers` for log collectors. Failures are only logged.
    fn link_log<'a>(&'a self, pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()>;

    /// Removes the link of [`HostExecutor::link_log`]. Failures are only logged.
    fn unlink_log<'a>(&'a self, pod: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()>;
}

/// The features that the runtime reported last: written by the observer, read for each translation to CRI.
#[derive(Clone, Debug, Default)]
pub struct SharedFeatures(Arc<Mutex<RuntimeFeatures>>);

impl SharedFeatures {
    /// The features reported last.
    pub(crate) fn get(&self) -> RuntimeFeatures {
        *self.0.lock().expect("no panic under this lock")
    }

    /// Stores newly reported features.
    pub(crate) fn set(&self, features: RuntimeFeatures) {
        *self.0.lock().expect("no panic under this lock") = features;
    }
}

/// Records an event that is not the result of a call. Must not block.
pub type EventSink = Arc<dyn Fn(KubeEvent) + Send + Sync>;

/// Performs calls.
pub struct CallExecutor {
    runtime: Arc<dyn RuntimeService>,
    settings: Arc<NodeSettings>,
    host: Arc<dyn HostExecutor>,
    features: SharedFeatures,
    images: image::Images,
    /// Permits of RunPodSandbox.
    runs: AdaptivePermits,
    /// Permits of StopPodSandbox, separate from `runs`: pods that hang while starting must not delay the termination of others, and
    /// more stops than starts run well at the same time.
    stops: AdaptivePermits,
    /// Permits of RemovePodSandbox. It waits for disks more than for CPUs, so a few run well in parallel to the stops.
    removals: Semaphore,
    userns: UserNamespaceRanges,
    objects: Arc<dyn ObjectClient>,
    events: EventSink,
    handlers: Handlers,
    pool: Pool,
}

/// The dependencies and limits of a [`CallExecutor`].
pub struct CallExecutorConfig {
    /// CRI RuntimeService.
    pub runtime: Arc<dyn RuntimeService>,
    /// CRI ImageService.
    pub images: Arc<dyn ImageService>,
    /// Properties of the node that are needed for the translation to CRI.
    pub settings: Arc<NodeSettings>,
    /// Performs the host calls.
    pub host: Arc<dyn HostExecutor>,
    /// Shared with the observer, which writes them.
    pub features: SharedFeatures,
    /// Runs blocking file access.
    pub pool: Pool,
    /// Limits and credentials of pulls.
    pub pulls: PullConfig,
    /// Parallel RunPodSandbox calls at first (twice the number of CPUs: more took longer in total where it was measured), and
    /// `STOPS_PER_RUN` times as many StopPodSandbox calls; both adapt to the runtime. Half as many RemovePodSandbox calls.
    pub sandbox_parallel: usize,
    /// `maxPods`: the number of user namespaces.
    pub max_pods: usize,
}

impl CallExecutor {
    /// An executor without API objects and without an event sink.
    pub fn new(config: CallExecutorConfig) -> Self {
        let sandboxes = config.sandbox_parallel.max(1);
        let (runtime, settings) = (Arc::clone(&config.runtime), Arc::clone(&config.settings));
        let events: EventSink = Arc::new(|_| {});
        let names = NameResolver::system(config.pool.clone());
        let handlers = Handlers { runtime, settings, names, events: Arc::clone(&events) };
        Self {
            userns: UserNamespaceRanges::new(config.settings.paths.pods_dir(), config.max_pods),
            runtime: config.runtime,
            settings: config.settings,
            host: config.host,
            features: config.features,
            images: image::Images::new(config.images, config.pulls, config.pool.clone()),
            handlers,
            pool: config.pool,
            runs: AdaptivePermits::new(ConcurrencyLimit::new(sandboxes, SANDBOX_CALLS_MAX)),
            stops: AdaptivePermits::new(ConcurrencyLimit::new(sandboxes * STOPS_PER_RUN, SANDBOX_CALLS_MAX)),
            removals: Semaphore::new(sandboxes.div_ceil(2)),
            objects: Arc::new(NoApiServer),
            events,
        }
    }

    /// Sets the client for the API objects that pods refer to.
    pub fn with_objects(self, objects: Arc<dyn ObjectClient>) -> Self {
        Self { objects, ..self }
    }

    /// Sets the receiver of events about problems that did not fail a call.
    pub fn with_event_sink(self, events: EventSink) -> Self {
        Self { events: Arc::clone(&events), handlers: Handlers { events, ..self.handlers }, ..self }
    }

    #[cfg(test)]
    fn with_names(self, names: NameResolver) -> Self {
        Self { handlers: Handlers { names, ..self.handlers }, ..self }
    }

    /// Performs one call. Ends within its time limit, counted from when it got its permit.
    pub async fn perform(
        &self,
        uid: PodUid,
        pod: Arc<Pod>,
        call: Call,
        limit: Duration,
        cancel: CancellationToken,
    ) -> Result<Answer, CallError> {
        match call {
            Call::Host(call) => self.host.perform(uid, pod, call, limit, cancel).await,
            Call::Runtime(call) => self.perform_runtime(&uid, &pod, call, &CallContext { limit, cancel }).await,
        }
    }

    async fn perform_runtime(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        call: RuntimeCall,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let limit = context.limit;
        match call {
            RuntimeCall::RunSandbox { attempt } => self.run_sandbox(uid, pod, attempt, context).await,
            RuntimeCall::StopSandbox { id } => self.stop_sandbox(&id, context).await,
            RuntimeCall::RemoveSandbox { id } => self.remove_sandbox(&id, context).await,
            RuntimeCall::CreateContainer { sandbox, sandbox_attempt, name, attempt, image_id, ips } => {
                let create = container::CreateCall { sandbox, sandbox_attempt, name, attempt, image_id, ips };
                self.create_container(uid, pod, create, context).await
            }
            RuntimeCall::StartContainer { id, .. } => self.start_container(&id, context).await,
            RuntimeCall::StopContainer { id, timeout, .. } => self.stop_container(&id, timeout, context).await,
            RuntimeCall::UpdateContainer { name, id, resources } => {
                self.update_container(pod, &name, &id, *resources, context).await
            }
            RuntimeCall::UpdateSandbox { id, cpu_shares, cpu_quota_us, memory } => {
                let resources = resized_sandbox(pod, cpu_shares, cpu_quota_us, memory, &self.settings);
                self.update_sandbox(pod, &id, resources, context).await
            }
            RuntimeCall::RemoveContainer { name, id } => self.remove_container(pod, &name, &id, context).await,
            RuntimeCall::ImageStatus { image, .. } => {
                context.or_cancelled(self.image_status(uid, pod, &image, limit)).await
            }
            RuntimeCall::PullImage { image, .. } => {
                context.or_cancelled(self.pull_image(uid, pod, &image, limit)).await
            }
            RuntimeCall::Hook { kind, name, id, handler, ips } => {
                let hook = hook::HookCall { kind, name, id, handler, ips };
                context.or_cancelled(self.handlers.run_hook(pod, &hook, limit)).await
            }
            RuntimeCall::Probe { kind, name, id, ips } => {
                let probe = probe::ProbeCall { kind, name, id, ips };
                context.or_cancelled(self.handlers.run_probe(pod, &probe, limit)).await
            }
        }
    }
}

/// Records a warning event about a problem that did not fail the call.
fn warn(events: &EventSink, pod: &Pod, container: Option<&Name>, reason: &'static str, message: String) {
    let meta = &pod.metadata;
    let [uid, namespace, name] = [&meta.uid, &meta.namespace, &meta.name].map(|t| t.as_deref().unwrap_or_default());
    events(KubeEvent {
        annotations: vec![],
        uid: Some(uid.into()),
        pod: FullName { namespace: namespace.into(), name: name.into() },
        container: container.cloned(),
        warning: true,
        reason,
        message,
    });
}

/// Time limit and cancellation of one call.
struct CallContext {
    limit: Duration,
    cancel: CancellationToken,
}

impl CallContext {
    /// Waits for a permit. If the call is cancelled meanwhile, nothing was sent.
    async fn acquire<'a>(&self, permits: &'a Semaphore) -> Result<tokio::sync::SemaphorePermit<'a>, CallError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(CallError::Cancelled),
            permit = permits.acquire() => Ok(permit.expect("the semaphore is never closed")),
        }
    }

    /// Called right before sending a call that must not be dropped afterwards.
    fn check_not_cancelled(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() { Err(CallError::Cancelled) } else { Ok(()) }
    }

    /// Drops the work when the call is cancelled.
    async fn or_cancelled<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(CallError::Cancelled),
            result = work => result,
        }
    }
}

/// Time until a deadline; at least 1 ms, so that a late call fails with its own timeout error.
fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// The runtime's failure as core's error. `reason` is `None` where users know no reason for it.
pub(crate) fn failure(reason: impl Into<Option<&'static str>>, error: &CriError) -> CallError {
    let message = error.to_string();
    match (error.in_doubt(), error.code) {
        (true, Code::Unavailable) => CallError::ConnectionLost { message },
        (true, _) => CallError::InDoubt { reason: reason.into().map(str::to_owned), message },
        (false, _) => read_failure(reason, error),
    }
}

/// A failure to create something. A name that is reserved was taken by an earlier call for the very same thing, whose answer was
/// lost or is still to come: the runtime is busy with it, or it appears in the next observation.
pub(crate) fn create_failure(reason: &'static str, error: &CriError) -> CallError {
    busy_if(error.name_is_reserved(), failure(reason, error))
}

/// A call that failed because an earlier call for the same object is in progress is busy. A call in doubt stays in doubt.
pub(crate) fn busy_if(busy: bool, failed: CallError) -> CallError {
    match failed {
        CallError::Failed { message, .. } if busy => CallError::Busy { message },
        other => other,
    }
}

/// A failure of a call that changes nothing: it can be made again whatever became of it.
pub(crate) fn read_failure(reason: impl Into<Option<&'static str>>, error: &CriError) -> CallError {
    let message = error.to_string();
    match error.code {
        Code::Unavailable => CallError::Unavailable { message },
        _ => CallError::Failed { reason: reason.into().map(str::to_owned), message },
    }
}

/// Stops wait for networks and disks more than for CPUs.
const STOPS_PER_RUN: usize = 6;
/// Calls of one kind on sandboxes at the same time, whatever is measured.
const SANDBOX_CALLS_MAX: usize = 64;

#[cfg(test)]
pub(crate) mod fakes;
#[cfg(test)]
mod tests;
