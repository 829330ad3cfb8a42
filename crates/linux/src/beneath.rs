//! Operations inside a directory whose content is controlled by a container (`openat2` with `RESOLVE_BENEATH`).
//!
//! A container may write symlinks into its volumes and swap them at any time. The kernel resolves every path here with `openat2`,
//! and refuses one that leads out; what was opened is then used by descriptor, never by path again.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat2};
use rustix::io::Errno;

mod remove;
mod usage;
pub mod walk;

pub use remove::{RemoveError, remove_tree};
pub use usage::{TreeUsage, tree_usage};

/// A directory; paths opened through it never lead out of it.
#[derive(Debug)]
pub struct ConfinedDir(OwnedFd);

impl ConfinedDir {
    /// Opens the directory itself; its own path is trusted and may contain symlinks.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Uses a directory that is already open.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Opens a path below. A symlink may point anywhere inside; one that leads out is refused (`CrossesDevices`).
    pub fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        resolve(self.0.as_fd(), path, flags, ResolveFlags::BENEATH)
    }

    /// Opens a directory below, and creates the missing parts of its path with exactly this mode, whatever the umask.
    pub fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut here = resolve(self.0.as_fd(), Path::new("."), flags, ResolveFlags::BENEATH)?;
        let mut prefix = std::path::PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => prefix.push(name),
                Component::CurDir => continue,
                // A path that must stay inside needs none of these.
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV.into()),
            }
            // From the root each time, because a symlink on the path may go up while it stays inside.
            here = match self.open_beneath(&prefix, flags) {
                Ok(fd) => fd,
                Err(e) if e.kind() == io::ErrorKind::NotFound => make_dir(here.as_fd(), prefix.file_name(), mode)?,
                Err(e) => return Err(e),
            };
        }
        Ok(here)
    }

    /// Creates a new file with exactly this mode, whatever the umask. An existing entry, a link included, is an error.
    pub fn create_file(&self, path: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(self.0.as_fd(), path, flags, Mode::from_raw_mode(0o600), how)?;
        fchmod(&fd, Mode::from_raw_mode(mode))?;
        Ok(fd.into())
    }

    /// Reads a small file. Anything but a regular file, or more than `max` bytes, is an error.
    pub fn read_file(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        // Without O_NONBLOCK the open would block on a FIFO that the container created.
        let file: File = self.open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK)?.into();
        let about = file.metadata()?;
        if !about.is_file() || about.len() > max {
            return Err(Errno::INVAL.into());
        }
        let mut content = Vec::new();
        file.take(max).read_to_end(&mut content)?;
        Ok(content)
    }
}

impl AsFd for ConfinedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates one directory and opens it. A dangling symlink of this name is refused, its target is not created.
fn make_dir(parent: BorrowedFd<'_>, name: Option<&OsStr>, mode: u32) -> io::Result<OwnedFd> {
    let name = Path::new(name.ok_or(Errno::INVAL)?);
    let made = match mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(e.into()),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let fd = resolve(parent, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?;
    if made {
        fchmod(&fd, Mode::from_raw_mode(mode))?;
    }
    Ok(fd)
}

fn resolve(at: BorrowedFd<'_>, path: &Path, flags: OFlags, how: ResolveFlags) -> io::Result<OwnedFd> {
    // The kernel returns EAGAIN if a rename during the lookup makes it uncertain that the path stays inside.
    for _ in 0..RESOLVE_ATTEMPTS_MAX {
        let how = how | ResolveFlags::NO_MAGICLINKS;
        match openat2(at, path, flags | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Removes a tree by its path: see [`remove_tree`]. The path of its parent is trusted. A missing tree is success.
pub fn remove_path(path: &Path) -> Result<(), RemoveError> {
    let failed = |source| RemoveError::Remove { path: path.into(), source };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(Errno::INVAL.into()));
    };
    match rustix::fs::openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => remove_tree(fd.as_fd(), name, path),
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(failed(e.into())),
    }
}

/// Renames that may disturb one lookup before it fails.
const RESOLVE_ATTEMPTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
