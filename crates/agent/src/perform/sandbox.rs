//! Sandboxes: run, stop, remove.

use podwright_core::model::{Answer, CallError, Pod, PodUid, SandboxId};
use podwright_cri::v1::RunPodSandboxRequest;

use super::{Hands, Turn, failure, failure_to_make};
use crate::translate::sandbox_config;

impl Hands {
    pub(super) async fn run_sandbox(
        &self,
        uid: &PodUid,
        pod: &Pod,
        attempt: u32,
        turn: &Turn,
    ) -> Result<Answer, CallError> {
        if let Some(class) = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()) {
            let message = format!("RuntimeClass {class:?} not found: no API server is configured on this node");
            return Err(CallError::new(REASON, message));
        }
        let situation = turn.or_cancelled(self.situation(uid, pod, turn.limit)).await?;
        let config = sandbox_config(pod, attempt, &self.facts, &situation)?;
        let _permit = turn.wait(&self.runs).await?;
        turn.check_sent_allowed()?;
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        match self.runtime.run_pod_sandbox(request, turn.limit).await {
            Ok(id) => Ok(Answer::Sandbox(id.into())),
            Err(error) => Err(failure_to_make(REASON, &error)),
        }
    }

    pub(super) async fn stop_sandbox(&self, id: &SandboxId, turn: &Turn) -> Result<Answer, CallError> {
        let _permit = turn.wait(&self.stops).await?;
        match self.runtime.stop_pod_sandbox(id.as_str(), turn.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_not_found() => Ok(Answer::Done),
            Err(error) => Err(failure("KillPodSandboxError", &error)),
        }
    }

    pub(super) async fn remove_sandbox(&self, id: &SandboxId, turn: &Turn) -> Result<Answer, CallError> {
        match self.runtime.remove_pod_sandbox(id.as_str(), turn.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_not_found() => Ok(Answer::Done),
            Err(error) => Err(failure("", &error)),
        }
    }
}

/// Kubernetes: ErrCreatePodSandbox.
const REASON: &str = "CreatePodSandboxError";
