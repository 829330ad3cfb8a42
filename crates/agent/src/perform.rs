//! Effects become calls: one file per kind of foreign thing, one dispatch over [`Call`].
//!
//! What a call may do when it is cancelled or late:
//! - **Run, Create, Start** are never dropped once sent: they end, or hit their limit and are in doubt. Cancelled before they
//!   were sent, they answer so and are not in doubt.
//! - **Stops and removals** of what is not there have succeeded.
//! - **Pulls, hooks, probes and host work** end at once when cancelled.
//!
//! Waiting for a turn (sandboxes, pulls) is not counted into a call's limit: the limit is the foreign side's, not ours.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_core::model::{Answer, Call, CallError, FullName, HostCall, KubeEvent, Name, Pod, PodUid, RuntimeCall};
use podwright_cri::{BoxFuture, Code, CriError, ImageService, RuntimeService};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::host::Pool;
use crate::objects::{NoApiServer, ObjectClient};
use crate::translate::{HostView, NodeSettings, RuntimeFeatures};

mod container;
mod grpc;
mod hook;
mod host;
mod http;
pub mod image;
mod logs;
mod probe;
mod sandbox;
mod situation;
mod target;
mod userns;

pub use image::PullConfig;

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

    /// Makes the link that log collectors follow to a new container's log. A courtesy: failures are only logged.
    fn link_log<'a>(&'a self, pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()>;

    /// Removes that link.
    fn unlink_log<'a>(&'a self, pod: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()>;
}

/// What the runtime can do, as last told; written by the one who asks it, read at each translation.
#[derive(Clone, Debug, Default)]
pub struct SharedFeatures(Arc<Mutex<RuntimeFeatures>>);

impl SharedFeatures {
    /// As last told.
    pub fn get(&self) -> RuntimeFeatures {
        *self.0.lock().expect("nobody panics with it")
    }

    /// The runtime told.
    pub fn set(&self, features: RuntimeFeatures) {
        *self.0.lock().expect("nobody panics with it") = features;
    }
}

/// Tells people about something that is no result of a call. Must not wait.
pub type EventSink = Arc<dyn Fn(KubeEvent) + Send + Sync>;

/// Performs calls.
pub struct CallExecutor {
    runtime: Arc<dyn RuntimeService>,
    facts: Arc<NodeSettings>,
    host: Arc<dyn HostExecutor>,
    features: SharedFeatures,
    images: image::Images,
    /// RunPodSandbox under way. First come first served: tokio's semaphore is fair.
    runs: Semaphore,
    /// StopPodSandbox under way, apart from the runs: pods that hang while starting hold no ending up.
    stops: Semaphore,
    /// RemovePodSandbox under way. It waits for disks more than for processors, so that a few go well beside the stops.
    removals: Semaphore,
    /// Ranges of user ids are handed out one at a time.
    userns: userns::Ranges,
    objects: Arc<dyn ObjectClient>,
    tell: EventSink,
    pool: Pool,
}

/// What [`CallExecutor`] are made of.
pub struct CallExecutorConfig {
    /// Sandboxes and containers.
    pub runtime: Arc<dyn RuntimeService>,
    /// Images.
    pub images: Arc<dyn ImageService>,
    /// The node.
    pub facts: Arc<NodeSettings>,
    /// The machine.
    pub host: Arc<dyn HostExecutor>,
    /// What the runtime can do.
    pub features: SharedFeatures,
    /// Where blocking file work runs.
    pub pool: Pool,
    /// Pulls.
    pub pulls: PullConfig,
    /// RunPodSandbox calls at once, and as many that stop one (twice the cores: more take longer together); half as many remove one.
    pub sandbox_parallel: usize,
    /// `maxPods`: as many user namespaces can be had.
    pub max_pods: usize,
}

impl CallExecutor {
    /// CallExecutor that are ready to work.
    pub fn new(config: CallExecutorConfig) -> Self {
        let sandboxes = config.sandbox_parallel.max(1);
        Self {
            userns: userns::Ranges::new(config.facts.paths.pods_dir(), config.max_pods),
            runtime: config.runtime,
            facts: config.facts,
            host: config.host,
            features: config.features,
            images: image::Images::new(config.images, config.pulls, config.pool.clone()),
            pool: config.pool,
            runs: Semaphore::new(sandboxes),
            stops: Semaphore::new(sandboxes),
            removals: Semaphore::new(sandboxes.div_ceil(2)),
            objects: Arc::new(NoApiServer),
            tell: Arc::new(|_| {}),
        }
    }

    /// With someone who has the API objects that pods refer to.
    pub fn with_objects(self, objects: Arc<dyn ObjectClient>) -> Self {
        Self { objects, ..self }
    }

    /// With someone who tells people what a call noticed on its way and did not fail of.
    pub fn with_event_sink(self, tell: EventSink) -> Self {
        Self { tell, ..self }
    }

    /// Tells people of something odd that is no failure.
    fn warn(&self, pod: &Pod, container: Option<&Name>, reason: &'static str, message: String) {
        let meta = &pod.metadata;
        let [uid, namespace, name] = [&meta.uid, &meta.namespace, &meta.name].map(|t| t.as_deref().unwrap_or_default());
        (self.tell)(KubeEvent {
            uid: uid.into(),
            pod: FullName { namespace: namespace.into(), name: name.into() },
            container: container.cloned(),
            warning: true,
            reason,
            message,
        });
    }

    /// Performs one call. Comes back exactly once, within the call's limit after its turn came.
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
        pod: &Pod,
        call: RuntimeCall,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let limit = context.limit;
        match call {
            RuntimeCall::RunSandbox { attempt } => self.run_sandbox(uid, pod, attempt, context).await,
            RuntimeCall::StopSandbox { id } => self.stop_sandbox(&id, context).await,
            RuntimeCall::RemoveSandbox { id } => self.remove_sandbox(&id, context).await,
            RuntimeCall::CreateContainer { sandbox, sandbox_attempt, name, attempt, image_id, ips } => {
                let ask = container::CreateCall { sandbox, sandbox_attempt, name, attempt, image_id, ips };
                self.create_container(uid, pod, ask, context).await
            }
            RuntimeCall::StartContainer { id, .. } => self.start_container(&id, context).await,
            RuntimeCall::StopContainer { id, timeout, .. } => self.stop_container(&id, timeout, context).await,
            RuntimeCall::RemoveContainer { name, id } => self.remove_container(pod, &name, &id, context).await,
            RuntimeCall::ImageStatus { image, .. } => context.or_cancelled(self.images.status(&image, limit)).await,
            RuntimeCall::PullImage { image, .. } => {
                context.or_cancelled(self.pull_image(uid, pod, &image, limit)).await
            }
            RuntimeCall::Hook { kind, name, id, handler, ips } => {
                let ask = hook::HookCall { kind, name, id, handler, ips };
                context.or_cancelled(self.run_hook(pod, &ask, limit)).await
            }
            RuntimeCall::Probe { kind, name, id, ips } => {
                let ask = probe::ProbeCall { kind, name, id, ips };
                context.or_cancelled(self.run_probe(pod, &ask, limit)).await
            }
        }
    }
}

/// How long a call may take, and who may interrupt it.
struct CallContext {
    limit: Duration,
    cancel: CancellationToken,
}

impl CallContext {
    /// Waits for one of the permits. Cancelled first: nothing was sent.
    async fn wait<'a>(&self, slots: &'a Semaphore) -> Result<tokio::sync::SemaphorePermit<'a>, CallError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(CallError::Cancelled),
            permit = slots.acquire() => Ok(permit.expect("the semaphore is never closed")),
        }
    }

    /// The last moment at which a call that must not be dropped can still be called off.
    fn check_not_cancelled(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() { Err(CallError::Cancelled) } else { Ok(()) }
    }

    /// Drops the work when cancelled.
    async fn or_cancelled<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(CallError::Cancelled),
            result = work => result,
        }
    }
}

/// What is left until a deadline; never nothing, so that a call fails by its own clock.
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

/// What failed because an earlier call for the same thing is still under way is busy. A call in doubt stays in doubt.
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

#[cfg(test)]
pub(crate) mod fakes;
#[cfg(test)]
mod tests;
