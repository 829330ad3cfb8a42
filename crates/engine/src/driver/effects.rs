//! Effects begin: steps as tasks of their own, signals at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use podwright_shim::client::RequestPacket;
use podwright_shim::protocol::{AbortLaunch, StopSignal, request};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::mpsc;

use super::lanes::RecordKey;
use super::{DriverInput, container, create, sandbox};
use crate::context::{EngineContext, failure};
use crate::machine::container::SignalPath;
use crate::machine::{
    AdoptError, ContainerEffect, ContainerEvent, ContainerId, Failure, Found, MachineEvent, SandboxEvent, SandboxId,
    SandboxStep,
};
use crate::recover::{self, ExitReporter};
use crate::shims::ShimCallError;

/// Begins effects. What becomes of them is an input of the driver.
#[derive(Debug)]
pub(super) struct EffectExecutor {
    context: Arc<EngineContext>,
    results: mpsc::Sender<DriverInput>,
}

impl EffectExecutor {
    pub(super) fn new(context: Arc<EngineContext>, results: mpsc::Sender<DriverInput>) -> Self {
        Self { context, results }
    }

    /// Writes a record. One that can not be written (the disk is full) counts in memory and is written later, except for that of a start.
    pub(super) fn write<E: std::error::Error + Send + 'static>(
        &self,
        sandbox: SandboxId,
        key: RecordKey,
        write: impl FnOnce(&EngineContext) -> Result<(), E> + Send + 'static,
    ) {
        let (context, results) = (Arc::clone(&self.context), self.results.clone());
        podwright_tasks::spawn("engine-record", async move {
            let shared = Arc::clone(&context);
            // Everything of the pod waits for its records, which wait for no other work of it.
            let work = move || write(&shared).map_err(|e| failure(&e).message);
            let written = context.pool.run_to_end(format!("records {sandbox}"), work).await;
            let failed = written.map_err(|e| e.to_string()).flatten().err();
            if let Some(error) = &failed {
                tracing::error!(sandbox_id = %sandbox, error, "record not written, will be retried");
            }
            context.unwritten.note(key.to_string(), failed.clone());
            let _ = results.send(DriverInput::Written(sandbox, failed.map(|error| (key, error)))).await;
        });
    }

    /// A step that panics has failed.
    pub(super) fn begin_step(&self, id: SandboxId, step: SandboxStep) {
        let (context, reporter) = (Arc::clone(&self.context), self.exit_reporter());
        self.spawn("sandbox-step", async move {
            let event = if step == SandboxStep::Adopt {
                adopt(&context, &id, reporter).await
            } else {
                let done = podwright_tasks::catch(sandbox::perform(&context, &id, step)).await;
                let result = done.unwrap_or_else(|panic| Err(Failure::new(panic.0)));
                if let Err(failure) = &result {
                    tracing::warn!(sandbox_id = %id, step = ?step, error = %failure, "step of a sandbox failed");
                }
                SandboxEvent::StepDone(step, result)
            };
            Some(MachineEvent::Sandbox(id, event))
        });
    }

    /// A stop does not wait for the pause: it waits for the adoption.
    pub(super) fn adopt_after(&self, id: SandboxId, pause: Duration) {
        let (context, reporter) = (Arc::clone(&self.context), self.exit_reporter());
        self.spawn("sandbox-step", async move {
            let until = tokio::time::Instant::now() + pause;
            let is_ready = || context.objects().machines.sandbox(&id).is_some_and(|sandbox| sandbox.is_ready());
            while tokio::time::Instant::now() < until && is_ready() {
                tokio::time::sleep(PAUSE_CHECK).await;
            }
            let event = adopt(&context, &id, reporter).await;
            Some(MachineEvent::Sandbox(id, event))
        });
    }

    pub(super) fn begin_container_effect(&self, sandbox: &SandboxId, id: ContainerId, effect: ContainerEffect) {
        let context = Arc::clone(&self.context);
        match effect {
            ContainerEffect::Create => self.spawn("container-create", async move {
                let done = podwright_tasks::catch(create::create(&context, &id)).await;
                let result = done.unwrap_or_else(|panic| Err(Failure::new(panic.0)));
                Some(MachineEvent::Container(id, ContainerEvent::CreateDone(result)))
            }),
            ContainerEffect::Launch => self.spawn("container-launch", async move {
                let done = podwright_tasks::catch(container::launch(&context, &id)).await;
                // Sent: the result is a report of the shim.
                let failure = done.unwrap_or_else(|panic| Err(Failure::new(panic.0))).err()?;
                Some(MachineEvent::Container(id, ContainerEvent::LaunchFailed(failure)))
            }),
            ContainerEffect::Watch => {
                let reporter = self.exit_reporter();
                self.spawn("container-watch", async move {
                    let found = podwright_tasks::catch(recover::watch(&context, &id, reporter)).await;
                    Some(MachineEvent::Container(id, ContainerEvent::Watched(found.unwrap_or(Found::Gone))))
                });
            }
            ContainerEffect::Cleanup => self.spawn("container-cleanup", async move {
                let done = podwright_tasks::catch(container::clean_up(&context, &id)).await;
                let result = done.unwrap_or_else(|panic| Err(Failure::new(panic.0)));
                Some(MachineEvent::Container(id, ContainerEvent::Cleaned(result)))
            }),
            ContainerEffect::KillCgroup => self.spawn("container-kill-cgroup", async move {
                container::end_cgroup(&context, &id).await;
                None
            }),
            ContainerEffect::AbortLaunch => abort_launch(&context, sandbox, &id),
            ContainerEffect::Kill => {
                kill(&context, &id);
                self.spawn("container-thaw", async move {
                    container::thaw(&context, &id).await;
                    None
                });
            }
            ContainerEffect::StopSignal(SignalPath::Shim) => self.spawn("container-stop-signal", async move {
                send_stop_signal(&context, &id).await;
                None
            }),
            ContainerEffect::StopSignal(SignalPath::Pidfd) => self.spawn("container-stop-signal", async move {
                recover::stop_signal(&context, &id).await;
                None
            }),
            // Made to items of the lane, and to the driver's own timer.
            ContainerEffect::Persist(_) | ContainerEffect::Publish(_) | ContainerEffect::WakeAt(_) => {}
        }
    }

    /// Of the exits that this process observes itself.
    pub(super) fn exit_reporter(&self) -> ExitReporter {
        let results = self.results.clone();
        Arc::new(move |id, record| {
            let results = results.clone();
            Box::pin(async move {
                let event = MachineEvent::Container(id, ContainerEvent::Exited(record));
                let _ = results.send(DriverInput::Happened(event)).await;
            })
        })
    }

    fn spawn(&self, name: &'static str, step: impl Future<Output = Option<MachineEvent>> + Send + 'static) {
        let results = self.results.clone();
        podwright_tasks::spawn(name, async move {
            if let Some(event) = step.await {
                let _ = results.send(DriverInput::Happened(event)).await;
            }
        });
    }
}

async fn adopt(context: &Arc<EngineContext>, id: &SandboxId, reporter: ExitReporter) -> SandboxEvent {
    let adopted = podwright_tasks::catch(recover::adopt(context, id, reporter)).await;
    let adopted = adopted.unwrap_or_else(|panic| Err(AdoptError::Failed(Failure::new(panic.0))));
    if let Err(error) = &adopted {
        tracing::warn!(sandbox_id = %id, ?error, "pod not adopted");
    }
    SandboxEvent::Adopted(adopted)
}

/// A launch that was not sent yet is given up by the flag, one that was by the shim.
fn abort_launch(context: &EngineContext, sandbox: &SandboxId, id: &ContainerId) {
    let objects = context.objects();
    if let Some(entry) = objects.containers.get(id) {
        entry.abort_launch.store(true, Ordering::SeqCst);
    }
    if let Some(link) = objects.sandboxes.get(sandbox).and_then(|entry| entry.link.as_ref()) {
        link.notify(request::RequestKind::AbortLaunch(AbortLaunch { container: id.0.clone() }));
    }
}

/// A process that is gone needs no signal: its exit is on the way. The machine repeats a kill that did not help.
fn kill(context: &EngineContext, id: &ContainerId) {
    let pidfd = context.objects().containers.get(id).and_then(|entry| entry.pidfd());
    match pidfd {
        Some(pidfd) => drop(pidfd_send_signal(&pidfd, Signal::KILL)),
        None => tracing::warn!(container_id = %id, "no descriptor of the process to kill"),
    }
}

async fn send_stop_signal(context: &Arc<EngineContext>, id: &ContainerId) {
    let (link, signal) = {
        let objects = context.objects();
        let Some(entry) = objects.containers.get(id) else { return };
        let sandbox = objects.sandboxes.get(&SandboxId(entry.record.sandbox_id.clone()));
        let Some(link) = sandbox.and_then(|entry| entry.link.clone()) else { return };
        (link, u32::try_from(entry.record.stop_signal).unwrap_or(15))
    };
    let body = request::RequestKind::StopSignal(StopSignal { container: id.0.clone(), signal });
    match link.call(RequestPacket::new(body), STOP_SIGNAL_LIMIT).await {
        Ok(_) => {}
        // One that the shim has not adopted. The note on disk is the same, so it is sent once.
        Err(ShimCallError::Refused(_)) => recover::stop_signal(context, id).await,
        Err(error @ ShimCallError::TimedOut(_)) => {
            // Nor would it report the exit. Its loss is handled, and the next one sends the signal.
            tracing::error!(container_id = %id, %error, "shim hangs, killing it");
            let _ = pidfd_send_signal(link.pidfd(), Signal::KILL);
        }
        Err(error) => tracing::warn!(container_id = %id, %error, "stop signal not sent"),
    }
}

/// How soon a stop ends the pause before an adoption.
const PAUSE_CHECK: Duration = Duration::from_millis(100);
const STOP_SIGNAL_LIMIT: Duration = Duration::from_secs(30);
