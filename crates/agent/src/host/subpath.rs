//! subPath: a directory or file inside a volume, mounted into a container.
//!
//! Containers write to the volume and may replace a directory with a symlink at any moment. So the path is resolved once, by
//! the kernel and only beneath the volume, and the result is bind-mounted by file descriptor to a directory of the agent. The
//! runtime gets that path, which containers can't change.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use podwright_linux::beneath::{self, ConfinedDir};
use podwright_linux::mount;
use podwright_linux::mountinfo::{self, MountInfoError};
use podwright_tasks::error_chain;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use super::{dirs, unmount};
use crate::pod_spec::VolumeSpecError;

/// A subPath that can't be bound.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// An absolute path, or one with `..`.
    #[error("it must be a relative path without '..'")]
    NotRelative,
    /// A symlink leads out of the volume.
    #[error("it leads out of the volume")]
    Outside,
    /// The volume is missing or of an unsupported type.
    #[error(transparent)]
    Volume(#[from] VolumeSpecError),
    /// The volume's directory can't be opened.
    #[error("open the volume")]
    OpenVolume(#[source] io::Error),
    /// The path inside the volume can't be opened or created.
    #[error(transparent)]
    Resolve(io::Error),
    /// The bind mount can't be set up.
    #[error("{step} {}", target.display())]
    Bind {
        /// The failed operation.
        step: &'static str,
        /// The mount point.
        target: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
}

impl SubPathError {
    fn resolve(error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let escapes = [Errno::XDEV, Errno::LOOP].iter().any(|e| error.raw_os_error() == Some(e.raw_os_error()));
        if escapes { Self::Outside } else { Self::Resolve(error) }
    }

    fn bind<E: Into<io::Error>>(step: &'static str, target: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let target = target.to_owned();
        move |error| Self::Bind { step, target, source: error.into() }
    }
}

/// Binds `path` of the volume to `target`. Missing directories of the path are created with the volume's mode.
pub(super) fn bind(volume: &Path, path: &str, target: &Path) -> Result<(), SubPathError> {
    let inside = Path::new(path);
    if inside.is_absolute() || inside.components().any(|c| c == Component::ParentDir) {
        return Err(SubPathError::NotRelative);
    }
    let root = ConfinedDir::open(volume).map_err(SubPathError::OpenVolume)?;
    let source = match root.open_beneath(inside, OFlags::PATH) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // With fsGroup or another user, the container can write there only with the volume's own mode.
            let mode = fstat(&root).map_err(SubPathError::resolve)?.st_mode & 0o7777;
            root.make_dirs(inside, mode)
        }
        result => result,
    };
    let source = source.map_err(SubPathError::resolve)?;
    let stat = fstat(&source).map_err(SubPathError::resolve)?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if is_bound(target, &stat)? {
        return Ok(());
    }
    create_target(target, is_dir).map_err(SubPathError::bind("create", target))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let onto = openat(CWD, target, flags, Mode::empty()).map_err(SubPathError::bind("open", target))?;
    mount::bind(source.as_fd(), onto.as_fd()).map_err(SubPathError::bind("bind to", target))
}

/// Whether an earlier attempt of the container has bound the same file. A mount of another file is detached.
fn is_bound(target: &Path, source: &Stat) -> Result<bool, SubPathError> {
    let Some(real) = unmount::real_path(target) else { return Ok(false) };
    let mounts = mountinfo::read()?;
    let stacked = mounts.iter().filter(|m| m.point == real).count();
    if stacked == 0 {
        return Ok(false);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(CWD, target, flags, Mode::empty()).and_then(fstat);
    if stacked == 1 && found.is_ok_and(|f| (f.st_dev, f.st_ino) == (source.st_dev, source.st_ino)) {
        return Ok(true);
    }
    for _ in 0..stacked {
        mount::detach(target).map_err(SubPathError::bind("detach", target))?;
    }
    Ok(false)
}

/// Creates the mount point. Only the agent writes there, so an entry of the wrong type is a leftover and is removed.
fn create_target(target: &Path, is_dir: bool) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        dirs::create_dir_all(parent, 0o750)?;
    }
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == is_dir && !found.is_symlink() => return Ok(()),
        Ok(_) => beneath::remove_path(target).map_err(|e| io::Error::other(error_chain(&e)))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if is_dir {
        return dirs::create_dir_all(target, 0o750);
    }
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(target).map(drop)
}
