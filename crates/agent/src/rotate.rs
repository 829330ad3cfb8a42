//! Log rotation: a container's log that has grown too large gets a new name, and the runtime a new file.
//!
//! ```text
//! <pod logs dir>/<pod>/<container>/
//! ├─ 0.log                       the runtime writes here
//! ├─ 0.log.20260102-030405       the one before, plain, so that followers can finish it
//! └─ 0.log.20260102-020405.gz    older ones; the oldest goes when there are more than `containerLogMaxFiles` in all
//! ```
//! The name changes first, then the runtime is asked to open the file anew; until it does, it goes on writing to the same
//! file under its new name, so no line is lost. If it can't, the old name comes back. A crash between the two leaves no
//! `0.log`: the next round asks the runtime again.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use podwright_core::model::ContainerId;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// When logs are rotated and how many stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// `containerLogMaxSize`, in bytes.
    pub max_size: u64,
    /// `containerLogMaxFiles`, the one being written included; at least 2.
    pub max_files: usize,
    /// `containerLogMonitorInterval`.
    pub interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5, interval: Duration::from_secs(10) }
    }
}

/// A running container and the log it writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The runtime's id.
    pub id: ContainerId,
    /// `…/<n>.log`.
    pub log: PathBuf,
}

/// Why a log was not rotated, or not all of it done.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The runtime did not open a new file; the old name is back.
    #[error("reopen the log of container {id}: {message}")]
    Reopen {
        /// Whose.
        id: ContainerId,
        /// The runtime's word.
        message: String,
    },
    /// A step on the files failed.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// CRI ReopenContainerLog.
pub type Reopen = Arc<dyn Fn(ContainerId) -> BoxFuture<Result<(), String>> + Send + Sync>;

/// The containers that run now.
pub type ListRunning = Arc<dyn Fn() -> BoxFuture<Vec<Running>> + Send + Sync>;

/// Look at the logs of all running containers, again and again. Ends only with its task.
pub async fn run(config: Config, running: ListRunning, reopen: Reopen) {
    let mut ticks = interval(config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // All are looked at in one go: a hop to another thread for each would be most of what an idle agent does.
        let all = running().await;
        let due = spawn_blocking(move || due(all, config.max_size)).await.unwrap_or_default();
        for container in due {
            if let Err(error) = rotate(config, &container, &reopen, Timestamp::now()).await {
                tracing::warn!(container = %container.id, %error, "a log could not be rotated");
            }
        }
    }
}

/// Rotate one container's log if it is too large. True if it was.
pub async fn rotate(config: Config, container: &Running, reopen: &Reopen, now: Timestamp) -> Result<bool, RotateError> {
    let log = container.log.clone();
    let renamed = match blocking(move || make_way(&log, config.max_size, now)).await? {
        Fate::Fits => return Ok(false),
        Fate::Missing => None,
        Fate::Renamed(to) => Some(to),
    };
    let answer = timeout(REOPEN_MAX, reopen(container.id.clone())).await;
    if let Err(message) = answer.unwrap_or_else(|_| Err(format!("no answer within {} s", REOPEN_MAX.as_secs()))) {
        if let Some(to) = renamed {
            let log = container.log.clone();
            blocking(move || put_back(&to, &log)).await?;
        }
        return Err(RotateError::Reopen { id: container.id.clone(), message });
    }
    let log = container.log.clone();
    blocking(move || tidy(&log, config.max_files)).await?;
    Ok(renamed.is_some())
}

/// What to do with the files beside a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be removed: left by a crash, or the oldest of too many.
    pub remove: Vec<String>,
    /// To be compressed.
    pub compress: Vec<String>,
}

/// Decide about the rotated files of the log of this name, of which `max_files` may stay, itself included.
pub fn plan(log: &str, siblings: &[String], max_files: usize) -> Plan {
    let mut plan = Plan::default();
    let mut rotated = Vec::new();
    for name in siblings {
        let Some(rest) = name.strip_prefix(log).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if rest.ends_with(TMP) || siblings.iter().any(|other| other.strip_suffix(GZ) == Some(name)) {
            // Half compressed, or compressed and not yet removed.
            plan.remove.push(name.clone());
        } else if is_stamp(rest.strip_suffix(GZ).unwrap_or(rest)) {
            rotated.push(name.clone());
        }
    }
    rotated.sort();
    let excess = rotated.len().saturating_sub(max_files.saturating_sub(1));
    plan.remove.extend(rotated.drain(..excess));
    // The newest stays as it is: someone may be reading it to its end, and the runtime may only just have let go of it.
    rotated.pop();
    plan.compress.extend(rotated.into_iter().filter(|name| !name.ends_with(GZ)));
    plan
}

/// The containers whose logs are not as they should be, or can't be looked at: [`rotate`] says why.
fn due(mut all: Vec<Running>, max_size: u64) -> Vec<Running> {
    all.retain(|container| !matches!(look(&container.log, max_size), Ok(Size::Fits)));
    all
}

enum Size {
    Fits,
    Missing,
    TooLarge,
}

fn look(log: &Path, max_size: u64) -> Result<Size, RotateError> {
    match fs::symlink_metadata(log) {
        Ok(meta) if meta.is_file() && meta.size() > max_size => Ok(Size::TooLarge),
        Ok(_) => Ok(Size::Fits),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Its directory gone too: the pod is going, and there is nothing to open.
            let there = log.parent().is_some_and(Path::is_dir);
            Ok(if there { Size::Missing } else { Size::Fits })
        }
        Err(source) => Err(failed("look at", log)(source)),
    }
}

/// What became of the log.
enum Fate {
    /// It fits, and stays.
    Fits,
    Missing,
    Renamed(PathBuf),
}

fn make_way(log: &Path, max_size: u64, now: Timestamp) -> Result<Fate, RotateError> {
    match look(log, max_size)? {
        Size::Fits => return Ok(Fate::Fits),
        Size::Missing => return Ok(Fate::Missing),
        Size::TooLarge => {}
    }
    let mut to = log.as_os_str().to_owned();
    to.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    let to = PathBuf::from(to);
    renameat_with(CWD, log, CWD, &to, RenameFlags::NOREPLACE).map_err(|errno| failed("rename", log)(errno.into()))?;
    Ok(Fate::Renamed(to))
}

/// Unless the runtime did open a new file, whatever it answered: that one must not be lost.
fn put_back(from: &Path, log: &Path) -> Result<(), RotateError> {
    match renameat_with(CWD, from, CWD, log, RenameFlags::NOREPLACE) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed("rename back", from)(errno.into())),
    }
}

fn tidy(log: &Path, max_files: usize) -> Result<(), RotateError> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(OsStr::to_str)) else { return Ok(()) };
    let siblings: Vec<String> = fs::read_dir(dir)
        .map_err(failed("list", dir))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let plan = plan(name, &siblings, max_files);
    for name in plan.remove {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    for name in plan.compress {
        compress(&dir.join(name))?;
    }
    Ok(())
}

/// `x` becomes `x.gz`: complete, or not there.
fn compress(path: &Path) -> Result<(), RotateError> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (packed, half) = (with(GZ), with(&format!("{GZ}{TMP}")));
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut from = OpenOptions::new().read(true).custom_flags(nofollow).open(path).map_err(failed("open", path))?;
    let mode = from.metadata().map_err(failed("look at", path))?.mode() & 0o777;
    let done =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&half).and_then(|to| pack(&mut from, to));
    if let Err(source) = done.and_then(|()| fs::rename(&half, &packed)) {
        let _ = fs::remove_file(&half);
        return Err(failed("compress", path)(source));
    }
    fs::remove_file(path).map_err(failed("remove", path))
}

fn pack(from: &mut File, to: File) -> io::Result<()> {
    let mut encoder = GzEncoder::new(to, Compression::fast());
    io::copy(from, &mut encoder)?;
    encoder.finish()?.sync_data()
}

fn is_stamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 15 && bytes.iter().enumerate().all(|(i, b)| if i == 8 { *b == b'-' } else { b.is_ascii_digit() })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RotateError> + Send + 'static,
) -> Result<T, RotateError> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(failed("work on", Path::new("the log"))(io::Error::other(error))),
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotateError + use<> {
    let path = path.to_owned();
    move |source| RotateError::Io { step, path, source }
}

const GZ: &str = ".gz";
const TMP: &str = ".tmp";
/// Beyond the call's own limit, so that a caller without one can't stop the rotation of all others.
const REOPEN_MAX: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests;
