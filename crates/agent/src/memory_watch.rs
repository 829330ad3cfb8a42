//! Waits for the kernel's reports that memory is short, and passes them to core as hints: between two readings of the node, a pod can
//! use up all memory.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use podwright_core::eviction::EvictionConfig;
use podwright_core::model::Event;
use podwright_linux::cgroup::{CgroupPath, CgroupTree, CgroupVersion, UsageDetail};
use podwright_linux::memory_events::MemoryEvents;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::event_loop::Handle;
use crate::host::Pool;

/// The usage at which memory is short moves with the page cache; Go kubelet: `notifierRefreshInterval`.
const REFRESH: Duration = Duration::from_secs(10);
/// Reading a few files of the root cgroup.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// Watches the kernel's reports of memory pressure.
pub struct MemoryWatch {
    tree: Option<CgroupTree>,
    config: EvictionConfig,
    /// Bytes.
    memory_total: i64,
    pool: Pool,
}

impl MemoryWatch {
    /// `memory_total` is the memory of the node in bytes.
    pub fn new(tree: Option<CgroupTree>, config: EvictionConfig, memory_total: i64, pool: Pool) -> Self {
        Self { tree, config, memory_total, pool }
    }

    /// Sends [`Event::MemoryShort`] to core, forever. Without thresholds, or where the kernel reports nothing, it only waits.
    pub async fn run(self, handle: Handle) {
        let Some(threshold) = self.config.memory_threshold(self.memory_total) else {
            return std::future::pending().await;
        };
        loop {
            match self.wait(threshold).await {
                Ok(true) => {
                    tracing::debug!("the kernel reports that memory is short");
                    handle.send(Event::MemoryShort).await;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(%error, "the kernel does not report that memory is short");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// True after a report, false when the usage to wait for may have changed.
    async fn wait(&self, threshold: i64) -> io::Result<bool> {
        let events = match self.usage_when_short(threshold).await {
            Some((dir, bytes)) => MemoryEvents::on_usage(&dir, bytes)?,
            None => MemoryEvents::on_stalls()?,
        };
        if !events.is_priority() {
            let events = register(events, Interest::READABLE)?;
            let reported = tokio::time::timeout(REFRESH, events.readable()).await;
            return reported.map_or(Ok(false), |ready| ready.map(|_| true));
        }
        let events = register(events, Interest::PRIORITY)?;
        drop(events.ready(Interest::PRIORITY).await?);
        Ok(true)
    }

    /// The memory cgroup of v1, and its usage at which memory is short: the capacity without the threshold, and with the page cache
    /// that can be reclaimed. `None` for v2.
    async fn usage_when_short(&self, threshold: i64) -> Option<(PathBuf, u64)> {
        let tree = self.tree.clone().filter(|tree| tree.version() == CgroupVersion::V1)?;
        let dir = tree.directory_of("memory", &CgroupPath::root())?;
        let read = move || tree.usage(&CgroupPath::root(), UsageDetail::CpuAndMemory);
        let usage = self.pool.run("memory of the node", READ_LIMIT, read).await.ok()??;
        let inactive = usage.memory.inactive_file.unwrap_or(0);
        let bytes = u64::try_from(self.memory_total.saturating_sub(threshold)).unwrap_or(0).saturating_add(inactive);
        Some((dir, bytes))
    }
}

#[expect(deprecated, reason = "its replacement is unsafe, for types that change their descriptor; these do not")]
fn register(events: MemoryEvents, interest: Interest) -> io::Result<AsyncFd<MemoryEvents>> {
    AsyncFd::with_interest(events, interest)
}
