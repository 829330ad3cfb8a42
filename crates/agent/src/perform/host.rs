//! Host calls, performed by [`Host`].

use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Answer, CallError, HostCall, Pod, PodUid};
use podwright_cri::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{CallContext, HostExecutor};
use crate::host::{CgroupChange, Host, HostError};
use crate::translate::{References, needs_environment, sub_paths};

impl HostExecutor for Host {
    fn perform(
        &self,
        uid: PodUid,
        pod: Arc<Pod>,
        call: HostCall,
        limit: Duration,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let context = CallContext { limit, cancel };
            context.or_cancelled(perform(self, uid.as_str(), &pod, call, limit)).await
        })
    }

    fn link_log<'a>(&'a self, pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { log_failure(self.logs().link(pod, container, attempt, id, LINK_TIME_MAX).await) })
    }

    fn unlink_log<'a>(&'a self, pod: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { log_failure(self.logs().unlink(pod, container, id, LINK_TIME_MAX).await) })
    }
}

async fn perform(host: &Host, uid: &str, pod: &Arc<Pod>, call: HostCall, limit: Duration) -> Result<Answer, CallError> {
    match call {
        HostCall::PrepareContainer { name, attempt, ips } => {
            let references = match needs_environment(pod, name.as_str()) {
                true => References::fetch(host.objects(), pod, name.as_str()).await,
                false => References::default(),
            };
            let parts = sub_paths(pod, name.as_str(), &ips, &references, host)?;
            host.prepare_container(pod, name.as_str(), attempt, &ips, parts, limit).await?;
        }
        HostCall::MakeCgroup => return Ok(Answer::Cgroup { made: host.cgroups().create(pod, limit).await? }),
        HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory } => {
            let change = CgroupChange { cpu_shares, cpu_quota_us, memory };
            host.cgroups().resize(pod, &change, limit).await?;
        }
        HostCall::ReadMemory { containers } => {
            return Ok(Answer::Memory(host.cgroups().memory_use(pod, containers, limit).await?));
        }
        HostCall::RemoveCgroup => host.cgroups().remove(uid, limit).await?,
        HostCall::MakeDirs => host.dirs().create(uid, limit).await?,
        HostCall::MountVolume { volume } => host.volumes().mount(pod, volume.as_str(), limit).await?,
        HostCall::RemoveVolumes => {
            host.volumes().remove(uid, limit).await?;
            host.objects().release(&uid.into());
        }
        HostCall::RemoveDirs => host.dirs().remove(uid, limit).await?,
        HostCall::RemoveLogs => host.logs().remove(pod, limit).await?,
    }
    Ok(Answer::Done)
}

fn log_failure(result: Result<(), HostError>) {
    if let Err(error) = result {
        tracing::warn!(error = error.message(), "link to a container log failed");
    }
}

/// A hung file system under the links delays a container by at most this and does not fail its start.
const LINK_TIME_MAX: Duration = Duration::from_secs(2);
