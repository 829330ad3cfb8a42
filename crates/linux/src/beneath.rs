//! Working inside a directory whose content belongs to someone else.
//!
//! A container may write symlinks into its volumes and swap them while we look. The kernel resolves every path here with
//! `openat2`, and refuses whatever leads out; what was opened is then used by descriptor, never by path again.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat2};
use rustix::io::Errno;

mod remove;
mod usage;

pub use remove::{RemoveError, remove_tree};
pub use usage::usage;

/// A directory that nothing opened through it can leave.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the directory itself; its own path is trusted and may go through symlinks.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Works inside a directory that is already open.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Opens what lies below. A symlink may lead anywhere inside; one that leads out is refused (`CrossesDevices`).
    pub fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        resolve(self.0.as_fd(), path, flags, ResolveFlags::BENEATH)
    }

    /// Opens what a process with this directory as its root would open: absolute symlinks begin here, `..` ends here.
    pub fn open_in_root(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        resolve(self.0.as_fd(), path, flags, ResolveFlags::IN_ROOT)
    }

    /// Opens a directory below, and makes those parts of its path that are missing, with this very mode whatever the umask.
    pub fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut here = resolve(self.0.as_fd(), Path::new("."), flags, ResolveFlags::BENEATH)?;
        let mut prefix = std::path::PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => prefix.push(name),
                Component::CurDir => continue,
                // A path that was meant to stay inside has no business with these.
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV.into()),
            }
            // From the root each time, because a symlink on the way may go up as long as it stays inside.
            here = match self.open_beneath(&prefix, flags) {
                Ok(fd) => fd,
                Err(e) if e.kind() == io::ErrorKind::NotFound => make_dir(here.as_fd(), prefix.file_name(), mode)?,
                Err(e) => return Err(e),
            };
        }
        Ok(here)
    }

    /// Makes a new file, with this very mode whatever the umask. What is already there, a link included, is an error.
    pub fn create_file(&self, path: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(self.0.as_fd(), path, flags, Mode::from_raw_mode(0o600), how)?;
        fchmod(&fd, Mode::from_raw_mode(mode))?;
        Ok(fd.into())
    }

    /// Reads a small file. Anything but a regular file, or more than `max` bytes, is an error.
    pub fn read_file(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        // Without O_NONBLOCK a pipe put there by someone else would hold us at the open.
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

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes one directory and opens it. A dangling symlink of this name is refused, not filled in behind its back.
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
    // The kernel answers EAGAIN when something was renamed on the way and it can't be sure that we stayed inside.
    for _ in 0..RESOLVE_ATTEMPTS_MAX {
        let how = how | ResolveFlags::NO_MAGICLINKS;
        match openat2(at, path, flags | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Removes a tree by its path: see [`remove_tree`]. The path of its parent is trusted. Not there is success.
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

/// Renames that may disturb one look before it is given up.
const RESOLVE_ATTEMPTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
