//! Taking down all that is mounted below a directory, without asking any of it how it is.
//!
//! The mounts are read from the kernel's list. Each is unmounted on a thread of its own; one that doesn't go in time, because
//! it is in use or its server is dead, is detached, and the kernel finishes that when it can.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_linux::{mount, mountinfo};
use rustix::io::Errno;

use super::{Host, HostError, PoolError, chain};

impl Host {
    /// Unmounts everything at and below `dir`.
    pub(super) async fn unmount_all(&self, dir: PathBuf, deadline: Instant) -> Result<(), HostError> {
        // A point may carry several mounts, and one may have hidden another: so look again until nothing is left.
        for _ in 0..ROUNDS_MAX {
            let points = self.mounts_under(dir.clone(), deadline).await?;
            if points.is_empty() {
                return Ok(());
            }
            for point in points {
                self.unmount_one(&point, deadline).await?;
            }
        }
        Err(HostError::new("", format!("{} still has mounts after {ROUNDS_MAX} rounds", dir.display())))
    }

    async fn mounts_under(&self, dir: PathBuf, deadline: Instant) -> Result<Vec<PathBuf>, HostError> {
        self.run("mountinfo", remaining(deadline), "", move |_| {
            let Some(dir) = real_path(&dir) else { return Ok(Vec::new()) };
            let mounts = mountinfo::read().map_err(|e| HostError::new("", chain(&e)))?;
            Ok(mountinfo::under(&mounts, &dir).iter().map(|m| m.point.clone()).collect())
        })
        .await
    }

    async fn unmount_one(&self, point: &Path, deadline: Instant) -> Result<(), HostError> {
        let patience = PATIENCE.min(remaining(deadline) / 2);
        let owned = point.to_owned();
        let key = format!("unmount {}", point.display());
        let tried = self.pool.run(&key, patience, move || unmount(&owned, patience)).await;
        match tried {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) if e.raw_os_error() != Some(Errno::BUSY.raw_os_error()) => {
                return Err(HostError::new("", format!("unmount {}: {e}", point.display())));
            }
            // In use, or dead: let go of it.
            Ok(Err(_)) | Err(PoolError::Timeout { .. } | PoolError::Stuck { .. } | PoolError::Busy { .. }) => {}
            Err(e) => return Err(HostError { in_doubt: e.in_doubt(), ..HostError::new("", e.to_string()) }),
        }
        tracing::warn!(mount = %point.display(), "mount does not go: detaching it");
        let (owned, shown) = (point.to_owned(), point.display().to_string());
        // A key of its own: the thread that hangs in the unmount must not keep this one from running.
        self.run(&format!("detach {shown}"), remaining(deadline), "", move |_| match mount::detach(&owned) {
            Err(e) if !is_gone(&e) => Err(HostError::new("", format!("detach {shown}: {e}"))),
            _ => Ok(()),
        })
        .await
    }
}

/// Unmounts, and waits a little for the last user to go.
fn unmount(point: &Path, patience: Duration) -> std::io::Result<()> {
    let until = Instant::now() + patience.min(BUSY_PATIENCE);
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

/// Not a mount point, or not there: both mean that the work is done.
fn is_gone(e: &std::io::Error) -> bool {
    [Errno::INVAL, Errno::NOENT].iter().any(|gone| e.raw_os_error() == Some(gone.raw_os_error()))
}

/// A path as the kernel's list spells it. Only the parent is looked at, which is ours: the last part may be a dead mount.
pub(super) fn real_path(path: &Path) -> Option<PathBuf> {
    Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// A live file system is unmounted in milliseconds, one with much to write back in seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The processes of a pod are gone before its volumes are removed; what still uses a mount then won't stop soon.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
const ROUNDS_MAX: usize = 8;
