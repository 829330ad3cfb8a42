//! subPath: a part of a volume, pinned.
//!
//! The volume belongs to its containers, which may swap a directory for a link at any moment. So the path is resolved once, by
//! the kernel and inside of the volume only, and what was found is bind-mounted by descriptor to a place of our own. The
//! runtime is given that place, where nobody can swap anything.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use podwright_linux::beneath::{self, Root};
use podwright_linux::{mount, mountinfo};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use super::{chain, dirs, unmount};

/// One volume mount with a subPath, its expression resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// Its place among the container's volume mounts.
    pub index: usize,
    /// The volume.
    pub volume: String,
    /// The path inside of it.
    pub path: String,
}

/// Pins `path` of the volume at `target`. What is missing of the path is made, as directories like the volume's own.
pub(super) fn pin(volume: &Path, path: &str, target: &Path) -> Result<(), String> {
    let told = |e: io::Error| match e.raw_os_error() {
        Some(n) if [Errno::XDEV, Errno::LOOP].iter().any(|e| e.raw_os_error() == n) => {
            "it leads out of the volume".into()
        }
        _ => e.to_string(),
    };
    let inside = Path::new(path);
    if inside.is_absolute() || inside.components().any(|c| c == Component::ParentDir) {
        return Err("it must be a relative path without '..'".into());
    }
    let root = Root::open(volume).map_err(|e| format!("open the volume: {e}"))?;
    let source = match root.open_beneath(inside, OFlags::PATH) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // Not a mode of our choice: with fsGroup or another user, only the volume's own lets the container write there.
            let mode = fstat(&root).map_err(|e| told(e.into()))?.st_mode & 0o7777;
            root.make_dirs(inside, mode)
        }
        result => result,
    };
    let source = source.map_err(told)?;
    let about = fstat(&source).map_err(|e| told(e.into()))?;
    let is_dir = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
    if is_pinned(target, &about)? {
        return Ok(());
    }
    make_target(target, is_dir).map_err(|e| format!("make {}: {e}", target.display()))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(CWD, target, flags, Mode::empty()).map_err(|e| format!("open {}: {e}", target.display()))?;
    mount::bind(source.as_fd(), place.as_fd()).map_err(|e| format!("bind to {}: {e}", target.display()))
}

/// An earlier attempt of the container has pinned the same thing. If it pinned another, that is taken down.
fn is_pinned(target: &Path, source: &Stat) -> Result<bool, String> {
    let Some(real) = unmount::real_path(target) else { return Ok(false) };
    let mounts = mountinfo::read().map_err(|e| chain(&e))?;
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
        mount::detach(target).map_err(|e| format!("detach {}: {e}", target.display()))?;
    }
    Ok(false)
}

/// The place is ours alone: what is there and of the wrong kind is left over from before.
fn make_target(target: &Path, is_dir: bool) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        dirs::make_all(parent, 0o750).map_err(|(_, e)| e)?;
    }
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == is_dir && !found.is_symlink() => return Ok(()),
        Ok(_) => beneath::remove_path(target).map_err(|e| io::Error::other(chain(&e)))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if is_dir {
        return dirs::make_all(target, 0o750).map_err(|(_, e)| e);
    }
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(target).map(drop)
}
