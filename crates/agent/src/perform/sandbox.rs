//! RunPodSandbox, StopPodSandbox, RemovePodSandbox, UpdatePodSandboxResources.

use podwright_core::model::{Answer, CallError, Pod, PodUid, SandboxId};
use podwright_cri::v1::{LinuxContainerResources, RunPodSandboxRequest, UpdatePodSandboxResourcesRequest};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::permits::PERMIT_TIME_MAX;
use super::{CallContext, CallExecutor, create_failure, failure};
use crate::translate::{overhead, sandbox_config};

impl CallExecutor {
    pub(super) async fn run_sandbox(
        &self,
        uid: &PodUid,
        pod: &Pod,
        attempt: u32,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let runtime_handler = context.or_cancelled(self.runtime_handler(pod)).await?;
        let situation = context.or_cancelled(self.situation(uid, pod, context.limit)).await?;
        let config = sandbox_config(pod, attempt, &self.settings, &situation)?;
        let check_ports = async {
            self.warn_of_used_host_ports(pod).await;
            Ok(())
        };
        context.or_cancelled(check_ports).await?;
        let permit = self.runs.acquire(context).await?;
        context.check_not_cancelled()?;
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler };
        match permit.hold(self.runtime.run_pod_sandbox(request, context.limit)).await {
            Ok(id) => Ok(Answer::Sandbox(id.into())),
            Err(error) => Err(create_failure(REASON, &error)),
        }
    }

    /// The runtime handler of the pod's RuntimeClass; empty: the default handler.
    async fn runtime_handler(&self, pod: &Pod) -> Result<String, CallError> {
        let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let found = self.objects.runtime_handler(class).await;
        found.map_err(|error| {
            let message = format!("failed to look up the runtime handler of the pod's RuntimeClass: {error}");
            CallError::with_reason(REASON, message)
        })
    }

    pub(super) async fn stop_sandbox(&self, id: &SandboxId, context: &CallContext) -> Result<Answer, CallError> {
        let permit = self.stops.acquire(context).await?;
        match permit.hold(self.runtime.stop_pod_sandbox(id.as_str(), context.limit)).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_not_found() => Ok(Answer::Done),
            Err(error) => Err(failure("KillPodSandboxError", &error)),
        }
    }

    /// Before limits of the pod's cgroup change. A runtime that does not know the call has no objection (Go kubelet:
    /// `updatePodSandboxResources`).
    pub(super) async fn update_sandbox(
        &self,
        pod: &Pod,
        id: &SandboxId,
        resources: LinuxContainerResources,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        context.check_not_cancelled()?;
        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.as_str().to_owned(),
            overhead: Some(overhead(pod, &self.settings)),
            resources: Some(resources),
        };
        match self.runtime.update_pod_sandbox_resources(request, context.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_unimplemented() => Ok(Answer::Done),
            Err(error) => Err(failure(None, &error).map_message(|_| error.message.clone())),
        }
    }

    /// Separate from the stops, and few at a time: users wait for stops, but not for removals.
    pub(super) async fn remove_sandbox(&self, id: &SandboxId, context: &CallContext) -> Result<Answer, CallError> {
        let permit = context.acquire(&self.removals).await?;
        match holding(permit, self.runtime.remove_pod_sandbox(id.as_str(), context.limit)).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_not_found() => Ok(Answer::Done),
            Err(error) => Err(failure(None, &error)),
        }
    }
}

/// Holds the permit during the call, for at most [`PERMIT_TIME_MAX`].
async fn holding<T>(permit: SemaphorePermit<'_>, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    match timeout(PERMIT_TIME_MAX, &mut call).await {
        Ok(done) => done,
        Err(_) => {
            drop(permit);
            call.await
        }
    }
}

/// Kubernetes: ErrCreatePodSandbox.
const REASON: &str = "CreatePodSandboxError";
