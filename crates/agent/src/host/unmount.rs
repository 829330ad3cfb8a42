//! Unmounts everything below a directory without accessing the mounted file systems.
//!
//! The mounts are read from the kernel's mount table. Each is unmounted on its own thread; one that can't be unmounted in
//! time, because it is busy or its server is dead, is detached (`MNT_DETACH`), and the kernel completes that later.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_linux::{mount, mountinfo};
use rustix::io::Errno;

use super::io::{HostIo, MOUNT_TABLE_KEY};
use super::{HostCause, PoolError, PoolKey};

impl HostIo {
    /// Unmounts everything at and below `dir`.
    pub(super) async fn unmount_all(&self, dir: PathBuf, deadline: Instant) -> Result<(), HostCause> {
        // Mounts may be stacked on one mount point, or hide others: repeat until none is left.
        for _ in 0..ROUNDS_MAX {
            let points = self.mounts_under(dir.clone(), deadline).await?;
            if points.is_empty() {
                return Ok(());
            }
            for point in points {
                self.unmount_one(&dir, &point, deadline).await?;
            }
        }
        Err(HostCause::StillMounted { path: dir, rounds: ROUNDS_MAX })
    }

    async fn mounts_under(&self, dir: PathBuf, deadline: Instant) -> Result<Vec<PathBuf>, HostCause> {
        self.run(MOUNT_TABLE_KEY, remaining(deadline), move |_| {
            let Some(dir) = real_path(&dir) else { return Ok(Vec::new()) };
            let mounts = mountinfo::read()?;
            Ok(mountinfo::under(&mounts, &dir).iter().map(|m| m.point.clone()).collect())
        })
        .await
    }

    async fn unmount_one(&self, dir: &Path, point: &Path, deadline: Instant) -> Result<(), HostCause> {
        let limit = UNMOUNT_LIMIT.min(remaining(deadline) / 2);
        let owned = point.to_owned();
        let key = PoolKey::new(format!("unmounts in {}", dir.display()), format!("unmount {}", point.display()));
        let tried = self.pool.run(key, limit, move || unmount(&owned, limit)).await;
        match tried {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) if e.raw_os_error() != Some(Errno::BUSY.raw_os_error()) => {
                return Err(HostCause::io("unmount", point)(e));
            }
            // Busy, or its server is dead: detach it.
            Ok(Err(_)) | Err(PoolError::Timeout { .. } | PoolError::Stuck { .. } | PoolError::Busy { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        tracing::warn!(path = %point.display(), "unmount failed, detaching the mount");
        let owned = point.to_owned();
        // Its own key, so that a thread that hangs in the unmount does not block this one.
        let key = format!("detach {}", point.display());
        self.run(key, remaining(deadline), move |_| match mount::detach(&owned) {
            Err(e) if !is_gone(&e) => Err(HostCause::io("detach", &owned)(e)),
            _ => Ok(()),
        })
        .await
    }
}

/// Unmounts; a busy mount is retried for a short time.
fn unmount(point: &Path, limit: Duration) -> std::io::Result<()> {
    let until = Instant::now() + limit.min(BUSY_LIMIT);
    loop {
        match mount::unmount(point) {
            Err(e) if is_gone(&e) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Not a mount point, or it does not exist: there is nothing to unmount.
fn is_gone(e: &std::io::Error) -> bool {
    [Errno::INVAL, Errno::NOENT].iter().any(|gone| e.raw_os_error() == Some(gone.raw_os_error()))
}

/// A path as in the mount table. Only the parent, which the agent owns, is accessed: the last component may be a hung mount.
pub(super) fn real_path(path: &Path) -> Option<PathBuf> {
    Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// A healthy file system is unmounted in milliseconds, one with many dirty pages in seconds.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(5);
/// A pod's processes are killed before its volumes are removed; any other user of a mount will not end soon.
const BUSY_LIMIT: Duration = Duration::from_millis(500);
const ROUNDS_MAX: usize = 8;
