//! Log rotation: renames a container's log that is too large, and makes the runtime open a new file.
//!
//! ```text
//! <pod logs dir>/<pod>/<container>/
//! ├─ 0.log                       written by the runtime
//! ├─ 0.log.20260102-030405       the previous one, uncompressed, so that followers can finish it
//! └─ 0.log.20260102-020405.gz    older ones; the oldest is removed beyond `containerLogMaxFiles` files
//! ```
//! The file is renamed first, then the runtime reopens the log; until it does, it writes to the renamed file, so no line is
//! lost. If the reopen fails, the rename is undone. A crash between the two leaves no `0.log`: the next round makes the runtime
//! reopen it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::{Timestamp, ToSpan};
use podwright_core::model::ContainerId;
use podwright_cri::{BoxFuture, Code, CriError};
use podwright_tasks::PoolKey;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::host::{Pool, PoolError};

/// The limits of container logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationConfig {
    /// `containerLogMaxSize`, in bytes.
    pub max_size: u64,
    /// `containerLogMaxFiles`, including the current one; at least 2.
    pub max_files: usize,
    /// `containerLogMonitorInterval`.
    pub interval: Duration,
}

impl Default for RotationConfig {
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5, interval: Duration::from_secs(10) }
    }
}

/// A running container and its log.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningContainer {
    /// The runtime's id.
    pub id: ContainerId,
    /// The path of `<attempt>.log`.
    pub log: PathBuf,
}

/// A failed rotation.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The runtime did not open a new file; the rename was undone.
    #[error("reopen the log of container {id}: {source}")]
    Reopen {
        /// The container's id.
        id: ContainerId,
        /// The runtime's error.
        source: CriError,
    },
    /// A file operation failed.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file operation was not begun, or its thread is lost.
    #[error("work on {}: {source}", path.display())]
    Pool {
        /// The log.
        path: PathBuf,
        /// The pool's error.
        source: PoolError,
    },
}

/// Calls the runtime's ReopenContainerLog.
pub type Reopen = Arc<dyn Fn(ContainerId) -> BoxFuture<'static, Result<(), CriError>> + Send + Sync>;

/// Lists the running containers.
pub type ListRunning = Arc<dyn Fn() -> BoxFuture<'static, Vec<RunningContainer>> + Send + Sync>;

/// Checks the logs of all running containers periodically. Never returns.
///
/// Each rotation is a task: compressing one large log, or a runtime that does not reopen it, delays no other log.
pub async fn run(config: RotationConfig, running: ListRunning, reopen: Reopen, pool: Pool) {
    let mut ticks = interval(config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rotations: BTreeMap<ContainerId, AbortOnDropHandle<()>> = BTreeMap::new();
    loop {
        ticks.tick().await;
        rotations.retain(|_, rotation| !rotation.is_finished());
        // All are checked in one closure: one per log would be most of the work of an idle agent.
        let all = running().await;
        let due = match pool.run("container logs", CHECK_MAX, move || due(all, config.max_size)).await {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!(%error, "checking the sizes of logs failed");
                continue;
            }
        };
        for container in due {
            let (reopen, pool) = (reopen.clone(), pool.clone());
            rotations.entry(container.id.clone()).or_insert_with(|| {
                AbortOnDropHandle::new(podwright_tasks::spawn("log-rotation", async move {
                    if let Err(error) = rotate(config, &container, &reopen, &pool, Timestamp::now()).await {
                        tracing::warn!(container_id = %container.id, %error, "log rotation failed");
                    }
                }))
            });
        }
    }
}

/// Rotates one container's log if it is too large. True if it was rotated.
pub async fn rotate(
    config: RotationConfig,
    container: &RunningContainer,
    reopen: &Reopen,
    pool: &Pool,
    now: Timestamp,
) -> Result<bool, RotateError> {
    let log = container.log.clone();
    let renamed = match blocking(pool, &container.log, move || rename_if_too_large(&log, config.max_size, now)).await? {
        LogState::Fits => return Ok(false),
        LogState::Missing => None,
        LogState::Renamed(to) => Some(to),
    };
    let answer = timeout(REOPEN_MAX, reopen(container.id.clone())).await;
    if let Err(source) = answer.unwrap_or_else(|_| Err(no_response())) {
        if let Some(to) = renamed {
            let log = container.log.clone();
            blocking(pool, &container.log, move || undo_rename(&to, &log)).await?;
        }
        return Err(RotateError::Reopen { id: container.id.clone(), source });
    }
    let log = container.log.clone();
    blocking(pool, &container.log, move || clean_up(&log, config.max_files)).await?;
    Ok(renamed.is_some())
}

fn no_response() -> CriError {
    let message = format!("no response within {} s", REOPEN_MAX.as_secs());
    CriError::new(Code::DeadlineExceeded, "ReopenContainerLog", message)
}

/// The actions on the rotated files of a log.
#[derive(Debug, Default, PartialEq, Eq)]
struct CleanupPlan {
    /// Leftovers of a crash, and the oldest files beyond the limit.
    remove: Vec<String>,
    compress: Vec<String>,
}

/// Plans the cleanup of the rotated files of a log. `max_files` includes the log itself.
fn plan(log: &str, siblings: &[String], max_files: usize) -> CleanupPlan {
    let mut plan = CleanupPlan::default();
    let mut rotated = Vec::new();
    for name in siblings {
        let Some(rest) = name.strip_prefix(log).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if rest.ends_with(TMP) || siblings.iter().any(|other| other.strip_suffix(GZ) == Some(name)) {
            // Partly compressed, or compressed and not yet removed.
            plan.remove.push(name.clone());
        } else if is_timestamp(rest.strip_suffix(GZ).unwrap_or(rest)) {
            rotated.push(name.clone());
        }
    }
    rotated.sort();
    let excess = rotated.len().saturating_sub(max_files.saturating_sub(1));
    plan.remove.extend(rotated.drain(..excess));
    // The newest stays uncompressed: a follower may be reading it, and the runtime may only just have closed it.
    rotated.pop();
    plan.compress.extend(rotated.into_iter().filter(|name| !name.ends_with(GZ)));
    plan
}

/// The containers whose logs are too large, missing or unreadable; [`rotate`] handles each.
fn due(mut all: Vec<RunningContainer>, max_size: u64) -> Vec<RunningContainer> {
    all.retain(|container| !matches!(check_size(&container.log, max_size), Ok(Size::Fits)));
    all
}

enum Size {
    Fits,
    Missing,
    TooLarge,
}

fn check_size(log: &Path, max_size: u64) -> Result<Size, RotateError> {
    match fs::symlink_metadata(log) {
        Ok(meta) if meta.is_file() && meta.size() > max_size => Ok(Size::TooLarge),
        Ok(_) => Ok(Size::Fits),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // If the directory is gone too, the pod is being removed and there is nothing to reopen.
            let has_dir = log.parent().is_some_and(Path::is_dir);
            Ok(if has_dir { Size::Missing } else { Size::Fits })
        }
        Err(source) => Err(failed("stat", log)(source)),
    }
}

/// The log before the runtime reopens it.
enum LogState {
    /// Below the limit.
    Fits,
    Missing,
    Renamed(PathBuf),
}

fn rename_if_too_large(log: &Path, max_size: u64, now: Timestamp) -> Result<LogState, RotateError> {
    match check_size(log, max_size)? {
        Size::Fits => return Ok(LogState::Fits),
        Size::Missing => return Ok(LogState::Missing),
        Size::TooLarge => {}
    }
    let Some((dir, name)) = split(log) else { return Ok(LogState::Fits) };
    let to = dir.join(format!("{name}.{}", part_time(name, &siblings(dir)?, now)));
    renameat_with(CWD, log, CWD, &to, RenameFlags::NOREPLACE).map_err(|errno| failed("rename", log)(errno.into()))?;
    Ok(LogState::Renamed(to))
}

/// The time in the name of the next rotated file: later than all others, because the order of the names decides which is the oldest, and
/// the clock may have been set back.
fn part_time(log: &str, siblings: &[String], now: Timestamp) -> String {
    let times = siblings.iter().filter_map(|name| name.strip_prefix(log)?.strip_prefix('.'));
    let times = times.map(|rest| rest.strip_suffix(GZ).unwrap_or(rest)).filter(|rest| is_timestamp(rest));
    let after = times.max().and_then(|last| {
        let last = DateTime::strptime(TIME_FORMAT, last).ok()?;
        Some(last.checked_add(1.second()).ok()?.strftime(TIME_FORMAT).to_string())
    });
    let now = now.strftime(TIME_FORMAT).to_string();
    after.map_or(now.clone(), |after| after.max(now))
}

/// Keeps a new file that the runtime opened despite its error.
fn undo_rename(from: &Path, log: &Path) -> Result<(), RotateError> {
    match renameat_with(CWD, from, CWD, log, RenameFlags::NOREPLACE) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed("rename back", from)(errno.into())),
    }
}

fn clean_up(log: &Path, max_files: usize) -> Result<(), RotateError> {
    let Some((dir, name)) = split(log) else { return Ok(()) };
    let plan = plan(name, &siblings(dir)?, max_files);
    for name in plan.remove {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    for name in plan.compress {
        compress(&dir.join(name))?;
    }
    Ok(())
}

/// The directory of the log, and its name.
fn split(log: &Path) -> Option<(&Path, &str)> {
    Some((log.parent()?, log.file_name().and_then(OsStr::to_str)?))
}

/// The names of all files in the directory of a log.
fn siblings(dir: &Path) -> Result<Vec<String>, RotateError> {
    let entries = fs::read_dir(dir).map_err(failed("list", dir))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// Compresses `x` to `x.gz`, completely or not at all.
fn compress(path: &Path) -> Result<(), RotateError> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (compressed, partial) = (with(GZ), with(&format!("{GZ}{TMP}")));
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut from = OpenOptions::new().read(true).custom_flags(nofollow).open(path).map_err(failed("open", path))?;
    let mode = from.metadata().map_err(failed("stat", path))?.mode() & 0o777;
    let done =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial).and_then(|to| gzip(&mut from, to));
    if let Err(source) = done.and_then(|()| fs::rename(&partial, &compressed)) {
        let _ = fs::remove_file(&partial);
        return Err(failed("compress", path)(source));
    }
    fs::remove_file(path).map_err(failed("remove", path))
}

fn gzip(from: &mut File, to: File) -> io::Result<()> {
    let mut encoder = GzEncoder::new(to, Compression::fast());
    io::copy(from, &mut encoder)?;
    encoder.finish()?.sync_data()
}

fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 15 && bytes.iter().enumerate().all(|(i, b)| if i == 8 { *b == b'-' } else { b.is_ascii_digit() })
}

/// Waits for the end: compressing takes as long as it takes, and half a rotation must not be repeated meanwhile.
async fn blocking<T: Send + 'static>(
    pool: &Pool,
    log: &Path,
    work: impl FnOnce() -> Result<T, RotateError> + Send + 'static,
) -> Result<T, RotateError> {
    // One owner: at most a few are compressed at a time.
    let key = PoolKey::new("log rotation", format!("log {}", log.display()));
    let done = pool.run_to_end(key, work).await;
    done.unwrap_or_else(|source| Err(RotateError::Pool { path: log.to_owned(), source }))
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotateError + use<> {
    let path = path.to_owned();
    move |source| RotateError::Io { step, path, source }
}

const TIME_FORMAT: &str = "%Y%m%d-%H%M%S";
const GZ: &str = ".gz";
const TMP: &str = ".tmp";
/// For the sizes of all logs.
const CHECK_MAX: Duration = Duration::from_secs(30);
/// Longer than the limit of the call itself: a `Reopen` without a limit must not stop the rotation of other logs.
const REOPEN_MAX: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests;
