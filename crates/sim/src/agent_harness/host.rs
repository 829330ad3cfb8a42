//! The host in memory: cgroups, directories, volumes and logs are strings in a set. The real executor works on threads, and
//! paused time does not wait for threads.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_agent::perform::HostExecutor;
use podwright_agent::pod_spec::{FieldRefError, VolumeSpecError};
use podwright_agent::translate::HostView;
use podwright_core::model::{Answer, CallError, HostCall, Pod, PodUid};
use podwright_cri::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// Clones share the same host.
#[derive(Clone, Default)]
pub struct FakeHost(Arc<Mutex<HostState>>);

#[derive(Default)]
struct HostState {
    /// UID and name of each resource.
    resources: BTreeSet<(String, String)>,
    /// UID and name of volumes that hang, and until when.
    hung: Vec<(String, String, Instant)>,
}

impl FakeHost {
    /// Mounts and removals of this volume hang until then.
    pub fn hang(&self, uid: &str, volume: &str, until: Instant) {
        self.0.lock().expect("not poisoned").hung.push((uid.into(), volume.into(), until));
    }

    /// UID and name of everything on the host.
    pub fn resources(&self) -> BTreeSet<(String, String)> {
        self.0.lock().expect("not poisoned").resources.clone()
    }

    pub(super) fn leftovers(&self) -> BTreeSet<PodUid> {
        self.resources().into_iter().map(|(uid, _)| uid.into()).collect()
    }

    pub(super) fn sweep(&self, uid: &str) {
        self.0.lock().expect("not poisoned").resources.retain(|(of, _)| of != uid);
    }

    async fn work(&self, uid: &str, call: &HostCall) {
        sleep(LATENCY).await;
        let until = match call {
            HostCall::MountVolume { volume } => self.hung_until(uid, |v| v == volume.as_str()),
            HostCall::RemoveVolumes => self.hung_until(uid, |_| true),
            _ => None,
        };
        if let Some(until) = until {
            sleep_until(until).await;
        }
        let mut state = self.0.lock().expect("not poisoned");
        let mut put = |what: &str| {
            state.resources.insert((uid.to_owned(), what.to_owned()));
        };
        match call {
            HostCall::MakeCgroup => put("cgroup"),
            HostCall::MakeDirs => put("dirs"),
            HostCall::PrepareContainer { .. } => put("logs"),
            HostCall::MountVolume { volume } => put(&format!("volume {volume}")),
            HostCall::ResizeCgroup { .. } | HostCall::ReadMemory { .. } => {}
            HostCall::RemoveCgroup => state.remove(uid, "cgroup"),
            HostCall::RemoveDirs => state.remove(uid, "dirs"),
            HostCall::RemoveLogs => state.remove(uid, "logs"),
            HostCall::RemoveVolumes => state.remove(uid, "volume"),
        }
    }

    fn hung_until(&self, uid: &str, volume: impl Fn(&str) -> bool) -> Option<Instant> {
        let state = self.0.lock().expect("not poisoned");
        let hung = state.hung.iter().filter(|(of, v, _)| of == uid && volume(v));
        hung.map(|(.., until)| *until).max()
    }
}

impl HostState {
    fn remove(&mut self, uid: &str, what: &str) {
        self.resources.retain(|(of, thing)| of != uid || !thing.starts_with(what));
    }
}

impl HostExecutor for FakeHost {
    fn perform(
        &self,
        uid: PodUid,
        _: Arc<Pod>,
        call: HostCall,
        limit: Duration,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let late = || CallError::InDoubt { reason: None, message: "the host did not answer in time".into() };
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(CallError::Cancelled),
                done = timeout(limit, self.work(uid.as_str(), &call)) => done.map(|()| Answer::Done).map_err(|_| late()),
            }
        })
    }

    fn link_log<'a>(&'a self, _: &'a Pod, _: &'a str, _: u32, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn unlink_log<'a>(&'a self, _: &'a Pod, _: &'a str, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

impl HostView for FakeHost {
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        Ok(dir(pod).join("volumes").join(volume))
    }
    fn sub_path(&self, pod: &Pod, container: &str, index: usize, _: &str, _: &str) -> PathBuf {
        dir(pod).join("volume-subpaths").join(container).join(index.to_string())
    }
    fn hosts_file(&self, pod: &Pod) -> PathBuf {
        dir(pod).join("etc-hosts")
    }
    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        dir(pod).join("containers").join(container).join(attempt.to_string())
    }
    fn field(&self, _: &Pod, path: &str, _: &[String]) -> Result<String, FieldRefError> {
        Err(FieldRefError::Unsupported(path.into()))
    }
    fn resource_field(&self, _: &Pod, _: &str, selector: &ResourceFieldSelector) -> Result<String, FieldRefError> {
        Err(FieldRefError::UnsupportedResource(selector.resource.clone()))
    }
}

fn dir(pod: &Pod) -> PathBuf {
    PathBuf::from("/harness/pods").join(pod.metadata.uid.as_deref().unwrap_or_default())
}

const LATENCY: Duration = Duration::from_millis(1);
