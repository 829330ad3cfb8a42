//! Execs whose end someone waits for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use podwright_shim::protocol::ExecExited;
use tokio::sync::oneshot;

use crate::machine::SandboxId;

/// By the id of the exec, which is unique in the engine.
#[derive(Debug, Default)]
pub(crate) struct ExecWaiters(Mutex<BTreeMap<String, (SandboxId, oneshot::Sender<ExecExited>)>>);

impl ExecWaiters {
    /// The end of an exec that is about to be started. The receiver fails if the shim is lost.
    pub(crate) fn expect(&self, sandbox: &SandboxId, exec: &str) -> oneshot::Receiver<ExecExited> {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.lock();
        // Those of callers that have left.
        waiters.retain(|_, (_, sender)| !sender.is_closed());
        waiters.insert(exec.to_owned(), (sandbox.clone(), sender));
        receiver
    }

    pub(super) fn ended(&self, exited: ExecExited) {
        if let Some((_, sender)) = self.lock().remove(&exited.exec) {
            let _ = sender.send(exited);
        }
    }

    pub(super) fn shim_lost(&self, sandbox: &SandboxId) {
        self.lock().retain(|_, (of, _)| of != sandbox);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (SandboxId, oneshot::Sender<ExecExited>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
