//! Network namespaces: pinned at `<run>/netns/<sandbox id>` by a bind mount, and entered on a thread that ends afterwards.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use podwright_linux::{mount, namespace};
use rustix::io::Errno;

/// The directory of pinned network namespaces. A pin keeps a namespace while no process is in it, and gives CNI plugins a path.
#[derive(Debug)]
pub struct NetnsPins {
    dir: PathBuf,
    /// Ids pinned by this process: a sweep with an older list of owners must not remove them.
    pinned: Mutex<BTreeSet<String>>,
}

impl NetnsPins {
    /// Pins live below `dir`, which is made when the first one is.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        NetnsPins { dir: dir.into(), pinned: Mutex::default() }
    }

    /// Where a sandbox's namespace is or will be pinned.
    pub fn path(&self, sandbox_id: &str) -> PathBuf {
        self.dir.join(sandbox_id)
    }

    /// Pins an open namespace.
    pub fn pin(&self, sandbox_id: &str, netns: impl AsFd) -> io::Result<PathBuf> {
        if sandbox_id.is_empty() || sandbox_id.contains('/') || sandbox_id.starts_with('.') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a sandbox id is a plain file name"));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let path = self.path(sandbox_id);
        self.pinned().insert(sandbox_id.to_owned());
        let pinned = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .and_then(|target| mount::bind(netns, &target));
        if let Err(e) = pinned {
            self.pinned().remove(sandbox_id);
            let _ = fs::remove_file(&path);
            return Err(e);
        }
        Ok(path)
    }

    /// Removes a pin, whether it is mounted or only a file. A missing one is no error.
    pub fn unpin(&self, sandbox_id: &str) -> io::Result<()> {
        unpin(&self.path(sandbox_id))?;
        self.pinned().remove(sandbox_id);
        Ok(())
    }

    /// Whether this process has pinned it.
    pub(crate) fn holds(&self, sandbox_id: &str) -> bool {
        self.pinned().contains(sandbox_id)
    }

    /// Unpins what is neither owned nor pinned by this process, and returns how many. A name that is no id of a sandbox is left
    /// alone: the directory may be one that `ip netns` or another runtime uses too.
    pub(crate) fn sweep(&self, owned: &BTreeSet<&str>) -> io::Result<usize> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(e),
        };
        let mut removed = 0;
        for entry in entries {
            let name = entry?.file_name();
            let Some(id) = name.to_str() else { continue };
            if is_sandbox_id(id) && !owned.contains(id) && !self.pinned().contains(id) {
                self.unpin(id)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn pinned(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Whether a name has the form of a sandbox id: 64 letters and digits, or more.
fn is_sandbox_id(name: &str) -> bool {
    name.len() >= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Removes a pin by its path.
fn unpin(path: &Path) -> io::Result<()> {
    // Several mounts on top of each other can only come from repeated pins; the bound keeps a strange mount table from looping.
    for _ in 0..16 {
        match mount::detach(path) {
            Ok(()) => {}
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::NOENT)) => break,
            Err(e) => return Err(e),
        }
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Opens a pinned namespace. A file that is no namespace is refused: after a reboot, pins are empty files.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let file = File::open(path)?;
    let kind = rustix::fs::fstatfs(&file)?.f_type;
    if kind != NSFS_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pinned namespace"));
    }
    Ok(file.into())
}

/// Runs `work` on a thread of its own inside the namespace.
pub(crate) fn inside<T: Send>(netns: impl AsFd + Sync, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let entered = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
            namespace::enter(&netns, namespace::flags::NEWNET)?;
            Ok(work())
        })?;
        match entered.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// `NSFS_MAGIC`.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_linux::mountinfo;

    #[test]
    fn ids_that_are_no_file_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pins = NetnsPins::new(dir.path().join("netns"));
        for id in ["", "..", "a/b", ".hidden"] {
            let own = File::open("/proc/thread-self/ns/net").unwrap();
            assert_eq!(pins.pin(id, own).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{id}");
        }
        assert!(!dir.path().join("netns").exists());
    }

    #[test]
    fn a_file_without_a_namespace_is_swept_and_cannot_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pins = NetnsPins::new(dir.path());
        let (left, owned) = ("1".repeat(64), "2".repeat(64));
        for name in [&left, &owned, "blue", "cni-5c1ed0a2-9f0a-6a5c-4d2e-0f5b6d1f3c11"] {
            fs::write(pins.path(name), "").unwrap();
        }
        assert_eq!(open(&pins.path(&left)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(pins.sweep(&BTreeSet::from([owned.as_str()])).unwrap(), 1);
        assert!(!pins.path(&left).exists() && pins.path(&owned).exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "names of others stay");
        assert!(mountinfo::read().unwrap().iter().all(|m| !m.point.starts_with(dir.path())));
        pins.unpin("missing").unwrap();
    }
}
