//! Calls on this machine, handed to [`Host`].

use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Answer, Call, CallError, Pod, PodUid};
use podwright_cri::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{CallContext, HostHands};
use crate::host::{Host, HostError};
use crate::translate::{References, needs_environment, sub_paths};

impl HostHands for Host {
    fn perform(
        &self,
        uid: PodUid,
        pod: Arc<Pod>,
        call: Call,
        limit: Duration,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let context = CallContext { limit, cancel };
            context.or_cancelled(work(self, uid.as_str(), &pod, call, limit)).await
        })
    }

    fn link_log<'a>(&'a self, pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { logged(self.logs().link(pod, container, attempt, id, LINK_TIME_MAX).await) })
    }

    fn unlink_log<'a>(&'a self, pod: &'a Pod, container: &'a str, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { logged(self.logs().unlink(pod, container, id, LINK_TIME_MAX).await) })
    }
}

async fn work(host: &Host, uid: &str, pod: &Arc<Pod>, call: Call, limit: Duration) -> Result<Answer, CallError> {
    match call {
        Call::PrepareContainer { name, attempt, ips } => {
            let references = match needs_environment(pod, name.as_str()) {
                true => References::fetch(host.objects(), pod, name.as_str()).await,
                false => References::default(),
            };
            let parts = sub_paths(pod, name.as_str(), &ips, &references, host)?;
            host.prepare_container(pod, name.as_str(), attempt, &ips, parts, limit).await?;
        }
        Call::MakeCgroup => return Ok(Answer::Cgroup { made: host.cgroups().create(pod, limit).await? }),
        Call::RemoveCgroup => host.cgroups().remove(uid, limit).await?,
        Call::MakeDirs => host.dirs().create(uid, limit).await?,
        Call::MountVolume { volume } => host.volumes().mount(pod, volume.as_str(), limit).await?,
        Call::RemoveVolumes => {
            host.volumes().remove(uid, limit).await?;
            host.objects().release(&uid.into());
        }
        Call::RemoveDirs => host.dirs().remove(uid, limit).await?,
        Call::RemoveLogs => host.logs().remove(pod, limit).await?,
        other => return Err(CallError::new("", format!("not a call on this machine: {other:?}"))),
    }
    Ok(Answer::Done)
}

fn logged(result: Result<(), HostError>) {
    if let Err(error) = result {
        tracing::warn!(error = error.message(), "log link failed");
    }
}

/// A hung file system under the links costs a container this much, and not its start.
const LINK_TIME_MAX: Duration = Duration::from_secs(2);
