//! Calls of the verbs: what they ask of the driver, and what happens when their caller leaves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use podwright_cri::v1;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{DriverInput, ExecWaiters};
use crate::machine::{ContainerId, ContainerKey, Refusal, SandboxId, SandboxKey, SandboxResources, WaiterId};
use crate::store::{ContainerRecord, SandboxRecord};

/// A call that changes something.
#[derive(Debug)]
pub(crate) enum EngineCall {
    Run {
        id: SandboxId,
        key: SandboxKey,
        planned: SandboxResources,
        record: Box<SandboxRecord>,
    },
    StopSandbox(SandboxId),
    RemoveSandbox(SandboxId),
    Create {
        id: ContainerId,
        key: ContainerKey,
        record: Box<ContainerRecord>,
    },
    Start(ContainerId),
    Stop(ContainerId, Duration),
    Remove(ContainerId),
    /// The limits are set already; the record follows.
    SetResources(ContainerId, Box<v1::LinuxContainerResources>),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallFailure {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the engine is stopping")]
    Stopped,
}

/// The object that an abandoned call was for.
#[derive(Clone, Debug)]
pub(super) enum AbandonedCall {
    Sandbox(SandboxId),
    Container(ContainerId),
}

/// Calls whose callers have left, for the driver.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    calls: Mutex<Vec<(WaiterId, AbandonedCall)>>,
    added: Notify,
}

impl Abandoned {
    pub(super) async fn changed(&self) {
        self.added.notified().await;
    }

    pub(super) fn take(&self) -> Vec<(WaiterId, AbandonedCall)> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, waiter: WaiterId, of: AbandonedCall) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push((waiter, of));
        self.added.notify_one();
    }
}

/// For the verbs.
#[derive(Debug)]
pub(crate) struct DriverHandle {
    inputs: mpsc::Sender<DriverInput>,
    next_waiter: AtomicU64,
    abandoned: Arc<Abandoned>,
    pub(crate) execs: Arc<ExecWaiters>,
}

/// Reports the loss of the caller, unless the call is over.
struct Caller<'a> {
    abandoned: &'a Abandoned,
    waiter: WaiterId,
    of: Option<AbandonedCall>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            self.abandoned.add(self.waiter, of);
        }
    }
}

impl DriverHandle {
    pub(super) fn new(inputs: mpsc::Sender<DriverInput>, abandoned: Arc<Abandoned>, execs: Arc<ExecWaiters>) -> Self {
        Self { inputs, next_waiter: AtomicU64::new(1), abandoned, execs }
    }

    /// Makes a call and waits for its answer. Dropping the future abandons the wait, not the work.
    pub(crate) async fn call(&self, call: EngineCall) -> Result<(), CallFailure> {
        let waiter = WaiterId(self.next_waiter.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        let of = call.object();
        self.inputs.send(DriverInput::Call(waiter, call, sender)).await.map_err(|_| CallFailure::Stopped)?;
        let mut caller = Caller { abandoned: &self.abandoned, waiter, of: Some(of) };
        let answered = answer.await;
        caller.of = None;
        Ok(answered.map_err(|_| CallFailure::Stopped)??)
    }
}

impl EngineCall {
    pub(super) fn object(&self) -> AbandonedCall {
        match self {
            Self::Run { id, .. } | Self::StopSandbox(id) | Self::RemoveSandbox(id) => {
                AbandonedCall::Sandbox(id.clone())
            }
            Self::Create { id, .. }
            | Self::Start(id)
            | Self::Stop(id, _)
            | Self::Remove(id)
            | Self::SetResources(id, _) => AbandonedCall::Container(id.clone()),
        }
    }
}

/// The name that a sandbox reserves.
pub(super) fn sandbox_key(record: &SandboxRecord) -> SandboxKey {
    let metadata = record.config.metadata.clone().unwrap_or_default();
    let v1::PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
    SandboxKey { name, namespace, uid, attempt }
}

/// The name that a container reserves.
pub(super) fn container_key(record: &ContainerRecord) -> ContainerKey {
    let v1::ContainerMetadata { name, attempt } = record.config.metadata.clone().unwrap_or_default();
    ContainerKey { sandbox: SandboxId(record.sandbox_id.clone()), name, attempt }
}
