//! Removes a tree that may be hostile: follows no symlink, enters no mount, and handles any depth.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, renameat, unlinkat};
use rustix::io::Errno;

/// Why a tree was not removed completely.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// It is a mount point; the mounted file system was not touched.
    #[error("{} is a mount point", .0.display())]
    Mounted(PathBuf),
    /// A system call failed.
    #[error("remove {}", path.display())]
    Remove {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// Removes the entry `name` of the directory `parent`: a file, a link itself, or a whole tree. `path` is only for messages.
///
/// Removes everything that can be removed, even if something else can't; returns the first failure. A missing entry is success.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), RemoveError> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // EISDIR: a directory; POSIX specifies EPERM instead.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(refused(path, e)),
    }
    let top = match open_dir(parent, name) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(refused(path, e)),
    };
    let mut removal = Removal { top: top.as_fd(), flattened: 0, failure: None };
    loop {
        let before = removal.flattened;
        removal.empty(top.as_fd(), path, 0)?;
        // Subtrees that were too deep have been moved to the top directory; another round removes them.
        if removal.flattened == before || removal.failure.is_some() {
            break;
        }
    }
    if let Some(failure) = removal.failure {
        return Err(failure);
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(refused(path, e)),
    }
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    /// Directories that were moved to the top because they were too deep.
    flattened: u64,
    failure: Option<RemoveError>,
}

impl Removal<'_> {
    /// Empties a directory. Fails only if the directory can't be read.
    fn empty(&mut self, dir: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<(), RemoveError> {
        let entries = Dir::read_from(dir).map_err(|e| refused(path, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| refused(path, e))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = path.join(name);
            let is_dir = match entry.file_type() {
                FileType::Directory => true,
                // The type may be unknown: then the error of unlink shows it.
                _ => match unlinkat(dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => false,
                    Err(Errno::ISDIR) => true,
                    Err(e) => {
                        self.fail(refused(&path, e));
                        false
                    }
                },
            };
            if is_dir {
                self.remove_dir(dir, name, &path, depth);
            }
        }
        Ok(())
    }

    fn remove_dir(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &Path, depth: usize) {
        if depth >= DEPTH_MAX {
            // Each level costs a descriptor and a stack frame, and the container chooses the depth: so flatten.
            let moved = format!(".removing-{}-{}", std::process::id(), self.flattened);
            self.flattened += 1;
            if let Err(e) = renameat(parent, name, self.top, moved) {
                self.fail(refused(path, e));
            }
            return;
        }
        let result = open_dir(parent, name).map_err(|e| refused(path, e)).and_then(|fd| {
            self.empty(fd.as_fd(), path, depth + 1)?;
            match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                // The cause is recorded already.
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.failure.is_some() => Ok(()),
                Err(e) => Err(refused(path, e)),
            }
        });
        match result {
            Err(RemoveError::Remove { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.fail(e),
            Ok(()) => {}
        }
    }

    fn fail(&mut self, e: RemoveError) {
        self.failure.get_or_insert(e);
    }
}

/// Opens a directory, but no symlink and no mount point. The kernel refuses a mount point before it calls the mounted file system,
/// so a hung one can't block us.
fn open_dir(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    openat2(parent, name, flags, Mode::empty(), how)
}

fn refused(path: &Path, e: Errno) -> RemoveError {
    match e {
        Errno::XDEV | Errno::BUSY => RemoveError::Mounted(path.into()),
        e => RemoveError::Remove { path: path.into(), source: e.into() },
    }
}

/// Levels before a subtree is moved to the top.
const DEPTH_MAX: usize = 48;
