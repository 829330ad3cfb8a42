//! The engine as a runtime: opened on its directories, it serves the CRI.

mod lost_files;
mod on_disk;
mod open;
mod overlay_probe;
mod requirements;
mod runtime;
mod streams;

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_cri::RuntimeService;
use podwright_image::ImageStore;
use podwright_linux::cgroup::CgroupPath;

pub use open::EngineError;
pub use overlay_probe::OverlayProbeError;

use crate::context::EngineContext;
use crate::images::ContainersOnDisk;
use runtime::EngineRuntime;

/// The embedded container engine: open from [`Engine::open`] to [`Engine::close`].
#[derive(Debug)]
pub struct Engine {
    context: Arc<EngineContext>,
    runtime: Arc<EngineRuntime>,
}

impl Engine {
    /// The calls of the CRI.
    pub fn runtime(&self) -> Arc<dyn RuntimeService> {
        Arc::clone(&self.runtime) as _
    }

    /// The images that containers are made of.
    pub fn images(&self) -> &Arc<ImageStore> {
        &self.context.images
    }

    /// What the containers keep on disk, for the image service.
    pub fn containers_on_disk(&self) -> Arc<dyn ContainersOnDisk> {
        Arc::clone(&self.context) as _
    }

    /// Ends the zygote. Pods and their shims go on; another engine takes them up. Without pods the network and the cgroup of the
    /// shims are removed. Blocks for at most five seconds.
    pub fn close(&self) {
        self.context.shims.end_zygote();
        // One that can not be read may run.
        if !self.context.unreadable.is_empty() {
            return;
        }
        if self.context.objects().sandboxes.is_empty() {
            self.remove_shim_cgroup();
        }
        let until = Instant::now() + NETWORK_WAIT;
        while self.context.objects().sandboxes.is_empty() && Instant::now() < until {
            match self.context.network.remove_if_unused() {
                // The kernel is still deleting the links of the last pods.
                Ok(false) => std::thread::sleep(NETWORK_PAUSE),
                Ok(true) => return,
                Err(error) => return tracing::warn!(%error, "network not removed"),
            }
        }
    }

    fn remove_shim_cgroup(&self) {
        let path = CgroupPath::parse(&self.context.settings.shim_cgroup);
        if let Err(error) = path.and_then(|path| self.context.cgroups.remove(&path, CGROUP_WAIT)) {
            tracing::warn!(%error, "cgroup of the shims not removed");
        }
    }
}

/// Links are deleted a little over a second after the release at the latest.
const NETWORK_WAIT: Duration = Duration::from_secs(2);
/// The zygote has ended; the last shim may still be ending.
const CGROUP_WAIT: Duration = Duration::from_secs(1);
const NETWORK_PAUSE: Duration = Duration::from_millis(20);
