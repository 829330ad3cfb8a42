//! Sizes of file systems. Each one is read under its own key of the pool, because statfs on a dead server hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use podwright_linux::mountinfo;

use super::procfs;
use super::sample::{DiskSample, FsSample};
use crate::host::{Pool, PoolKey};

/// The file systems that the runtime reports.
#[derive(Clone, Debug, Default)]
pub(super) struct RuntimeMounts {
    /// When they were read; `None`: never.
    pub(super) read: Option<Instant>,
    pub(super) images: Option<PathBuf>,
    /// Writable layers; `None`: where images are.
    pub(super) layers: Option<PathBuf>,
}

/// The file systems at these paths; those that fail or hang are left out.
pub(super) async fn read_all(pool: &Pool, paths: BTreeSet<PathBuf>) -> BTreeMap<PathBuf, FsSample> {
    let one = |path: PathBuf| async move {
        let key = PoolKey::new(OWNER, format!("file system of {}", path.display()));
        let at = path.clone();
        match pool.run(key, STATFS_LIMIT, move || statfs(&at)).await {
            Ok(Ok(fs)) => Some((path, fs)),
            Ok(Err(error)) => {
                tracing::debug!(path = %path.display(), %error, "statfs failed");
                None
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "statfs failed");
                None
            }
        }
    };
    join_all(paths.into_iter().map(one)).await.into_iter().flatten().collect()
}

/// The file system at a path. Blocks.
pub(super) fn statfs(path: &Path) -> rustix::io::Result<FsSample> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(FsSample {
        at: Timestamp::now(),
        available: bytes(stat.f_bavail),
        capacity: bytes(stat.f_blocks),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// The mounted local block devices with their counters.
pub(super) async fn disks(pool: &Pool) -> BTreeMap<String, DiskSample> {
    let work = || {
        let counters = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let mut disks = BTreeMap::new();
        for mount in mountinfo::read().unwrap_or_default() {
            let Some(device) = mount.source.to_str().filter(|source| source.starts_with("/dev/")) else { continue };
            if disks.len() >= DISKS_MAX || disks.contains_key(device) {
                continue;
            }
            let counters = procfs::disk_counters(&counters, device.trim_start_matches("/dev/"));
            disks.insert(device.to_owned(), DiskSample { fs: statfs(&mount.point).ok(), counters });
        }
        disks
    };
    pool.run(PoolKey::new(OWNER, "local file systems"), STATFS_LIMIT, work).await.unwrap_or_default()
}

/// The owner of the pool's threads for statistics.
pub(super) const OWNER: &str = "stats";
/// A local file system answers within microseconds.
const STATFS_LIMIT: Duration = Duration::from_secs(2);
/// Devices in cAdvisor's metrics.
const DISKS_MAX: usize = 64;
