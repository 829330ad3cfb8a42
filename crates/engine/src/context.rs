//! What the parts of the engine share: directories, images, network, cgroups, threads, and the objects.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use podwright_image::ImageStore;
use podwright_linux::cgroup::{CgroupPath, CgroupTree};
use podwright_linux::features::KernelFeatures;
use podwright_net::{NetnsPins, Network};
use podwright_shim::plan::CgroupMembership;
use podwright_tasks::{Pool, PoolError, PoolKey, error_chain};
use tokio::sync::mpsc;

use crate::events::EventHub;
use crate::exec_output::ExecOutputBudget;
use crate::machine::{ContainerId, Failure, Moment, SandboxId};
use crate::objects::Objects;
use crate::settings::EngineSettings;
use crate::shims::{FromShim, Shims};
use crate::spec::{self, SpecHost};
use crate::stats::{EngineStats, MeasuredContainer};
use crate::store::{EngineRunDir, EngineStore};
use crate::unreadable::UnreadableObjects;
use crate::unwritten::UnwrittenRecords;

/// Shared by the verbs, the driver and its steps.
#[derive(Debug)]
pub(crate) struct EngineContext {
    pub(crate) settings: EngineSettings,
    pub(crate) store: EngineStore,
    /// Held for its lock.
    pub(crate) run_dir: EngineRunDir,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) shims: Shims,
    pub(crate) pins: Arc<NetnsPins>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) cgroups: CgroupTree,
    pub(crate) host: SpecHost,
    pub(crate) features: KernelFeatures,
    pub(crate) boot_id: String,
    /// After the lock was taken: what is older is of an earlier engine.
    pub(crate) opened_at: SystemTime,
    pub(crate) pool: Pool,
    pub(crate) events: EventHub,
    pub(crate) stats: Arc<EngineStats>,
    /// Where the connections of shims report.
    pub(crate) reports: mpsc::Sender<FromShim>,
    pub(crate) objects: Mutex<Objects>,
    pub(crate) unreadable: UnreadableObjects,
    pub(crate) unwritten: UnwrittenRecords,
    pub(crate) exec_output: ExecOutputBudget,
}

impl EngineContext {
    /// For a short time: never held over an await or a system call that can block.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs blocking work for one sandbox. Its error and that of the pool become the failure of a step.
    pub(crate) async fn blocking<T, E>(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        limit: Duration,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        self.blocking_on(&sandbox.0, limit, work).await
    }

    /// As [`Self::blocking`], for work that may hang apart from other work of its sandbox, which must not wait for it.
    pub(crate) async fn blocking_on<T, E>(
        self: &Arc<Self>,
        key: impl Into<PoolKey>,
        limit: Duration,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        let context = Arc::clone(self);
        let done = self.pool.run(key, limit, move || work(&context).map_err(|e| failure(&e))).await;
        done.unwrap_or_else(|error: PoolError| Err(Failure::new(error.to_string())))
    }

    /// The directory of container roots while they are assembled; nothing stays in it.
    pub(crate) fn staging_dir(&self, sandbox: &SandboxId, container: &ContainerId) -> PathBuf {
        self.shims.pod_dir(sandbox).join("rootfs").join(&container.0)
    }

    /// The shared memory of a pod.
    pub(crate) fn shm_dir(&self, sandbox: &SandboxId) -> PathBuf {
        self.shims.pod_dir(sandbox).join("shm")
    }

    /// Where the usage of a container is measured; `None`: it is gone.
    pub(crate) fn measured(&self, objects: &Objects, id: &ContainerId) -> Option<MeasuredContainer> {
        let sandbox = SandboxId(objects.containers.get(id)?.record.sandbox_id.clone());
        let pod = spec::pod_cgroup(&objects.sandboxes.get(&sandbox)?.record.config).ok()?;
        let cgroup = CgroupPath::parse(&pod).ok()?.join(&id.0).ok()?;
        Some(MeasuredContainer { id: id.0.clone(), cgroup, upper: self.store.container_dir(id).ok()?.join("upper") })
    }

    /// A cgroup as the launcher joins it.
    pub(crate) fn memberships(&self, path: &CgroupPath) -> Vec<CgroupMembership> {
        let text = |dir: PathBuf| dir.to_string_lossy().into_owned();
        let all = self.cgroups.directories(path).into_iter();
        all.map(|(hierarchy, dir)| CgroupMembership { hierarchy, directory: text(dir) }).collect()
    }
}

/// The time of an event.
pub(crate) fn now() -> Moment {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let wall_ns = i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX);
    Moment { boot: podwright_linux::clock::boot_time(), wall_ns }
}

/// The failure of a step: the error with its causes, as the caller of the CRI reads it.
pub(crate) fn failure(error: &dyn std::error::Error) -> Failure {
    let mut text = error_chain(error);
    let end = text.floor_char_boundary(FAILURE_BYTES_MAX);
    text.truncate(end);
    Failure::new(text)
}

/// Removes a file or directory tree. A missing one is success.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    podwright_linux::beneath::remove_path(path).map_err(io::Error::other)
}

/// Messages of the CRI are bounded; see [`Failure`].
const FAILURE_BYTES_MAX: usize = 4096;
