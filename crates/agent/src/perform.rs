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

use podwright_core::model::{Answer, Call, CallError, FullName, KubeEvent, Name, Pod, PodUid};
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

/// Who does a call's work on this machine itself: cgroups, directories, volumes, logs.
pub trait HostHands: HostView + Send + Sync + 'static {
    /// Performs one of the calls that [`is_host_call`] is true for.
    fn perform(
        &self,
        uid: PodUid,
        pod: Arc<Pod>,
        call: Call,
        limit: Duration,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Makes the link that log collectors follow to a new container's log. A courtesy: failures are only logged.
    fn link_log<'a>(&'a self, pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()>;

    /// Removes that link.
    fn unlink_log<'a>(&'a self, pod: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()>;
}

/// The call is about this machine, not about the runtime.
pub fn is_host_call(call: &Call) -> bool {
    match call {
        Call::PrepareContainer { .. }
        | Call::MakeCgroup
        | Call::RemoveCgroup
        | Call::MakeDirs
        | Call::MountVolume { .. }
        | Call::RemoveVolumes
        | Call::RemoveDirs
        | Call::RemoveLogs => true,
        Call::RunSandbox { .. }
        | Call::StopSandbox { .. }
        | Call::RemoveSandbox { .. }
        | Call::CreateContainer { .. }
        | Call::StartContainer { .. }
        | Call::StopContainer { .. }
        | Call::RemoveContainer { .. }
        | Call::ImageStatus { .. }
        | Call::PullImage { .. }
        | Call::Hook { .. }
        | Call::Probe { .. } => false,
    }
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
    host: Arc<dyn HostHands>,
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
    pub host: Arc<dyn HostHands>,
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
        if is_host_call(&call) {
            return self.host.perform(uid, pod, call, limit, cancel).await;
        }
        let context = CallContext { limit, cancel };
        match call {
            Call::RunSandbox { attempt } => self.run_sandbox(&uid, &pod, attempt, &context).await,
            Call::StopSandbox { id } => self.stop_sandbox(&id, &context).await,
            Call::RemoveSandbox { id } => self.remove_sandbox(&id, &context).await,
            Call::CreateContainer { sandbox, sandbox_attempt, name, attempt, image_id, ips } => {
                let ask = container::CreateCall { sandbox, sandbox_attempt, name, attempt, image_id, ips };
                self.create_container(&uid, &pod, ask, &context).await
            }
            Call::StartContainer { id, .. } => self.start_container(&id, &context).await,
            Call::StopContainer { id, timeout, .. } => self.stop_container(&id, timeout, &context).await,
            Call::RemoveContainer { name, id } => self.remove_container(&pod, &name, &id, &context).await,
            Call::ImageStatus { image, .. } => context.or_cancelled(self.images.status(&image, limit)).await,
            Call::PullImage { image, .. } => context.or_cancelled(self.pull_image(&uid, &pod, &image, limit)).await,
            Call::Hook { kind, name, id, handler, ips } => {
                let ask = hook::HookCall { kind, name, id, handler, ips };
                context.or_cancelled(self.run_hook(&pod, &ask, limit)).await
            }
            Call::Probe { kind, name, id, ips } => {
                let ask = probe::ProbeCall { kind, name, id, ips };
                context.or_cancelled(self.run_probe(&pod, &ask, limit)).await
            }
            Call::PrepareContainer { .. }
            | Call::MakeCgroup
            | Call::RemoveCgroup
            | Call::MakeDirs
            | Call::MountVolume { .. }
            | Call::RemoveVolumes
            | Call::RemoveDirs
            | Call::RemoveLogs => unreachable!("host calls were taken above"),
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
            () = self.cancel.cancelled() => Err(cancelled()),
            permit = slots.acquire() => Ok(permit.expect("the semaphore is never closed")),
        }
    }

    /// The last moment at which a call that must not be dropped can still be called off.
    fn check_not_cancelled(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }

    /// Drops the work when cancelled.
    async fn or_cancelled<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled()),
            result = work => result,
        }
    }
}

/// What is left until a deadline; never nothing, so that a call fails by its own clock.
fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn cancelled() -> CallError {
    CallError { message: "cancelled".into(), cancelled: true, ..CallError::default() }
}

/// The runtime's failure in core's words.
pub(crate) fn failure(reason: &str, error: &CriError) -> CallError {
    CallError {
        reason: reason.into(),
        message: error.to_string(),
        in_doubt: error.in_doubt(),
        busy: false,
        cancelled: false,
        unavailable: error.code == Code::Unavailable,
    }
}

/// A failure to make something. A name that is taken was taken by an earlier call for the very same thing, whose answer was lost
/// or is still to come: the runtime is busy with it, or it shows at the next look.
pub(crate) fn create_failure(reason: &str, error: &CriError) -> CallError {
    let taken = error.code == Code::AlreadyExists || error.message.contains("is reserved for");
    let failed = failure(reason, error);
    CallError { busy: taken, ..failed }
}

/// A failure of a call that changes nothing: whatever became of it, it can be made again.
pub(crate) fn read_failure(reason: &str, error: &CriError) -> CallError {
    CallError { in_doubt: false, ..failure(reason, error) }
}

#[cfg(test)]
pub(crate) mod fakes;
#[cfg(test)]
mod tests;
