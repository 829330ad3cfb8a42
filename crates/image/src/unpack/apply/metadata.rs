//! Owner, mode, extended attributes and times, in this order: a change of owner clears setuid bits and file capabilities.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, fstat, futimens, utimensat,
};
use rustix::io::Errno;

use crate::tar_reader::TarEntry;

/// Owner, mode and extended attributes of an open file or directory.
pub(super) fn set(fd: BorrowedFd<'_>, entry: &TarEntry) -> io::Result<()> {
    fchown(fd, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
    set_mode(fd, entry.mode)?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
        match fsetxattr(fd, name.as_str(), value, XattrFlags::empty()) {
            // Without file capabilities a program lacks its rights; a user attribute is never needed to run one.
            Err(Errno::NOTSUP) if name.starts_with("user.") => {}
            result => result?,
        }
    }
    Ok(())
}

/// Owner and times of what can't be opened: symlinks, devices, pipes. The name was just created by us.
pub(super) fn set_by_name(parent: BorrowedFd<'_>, name: &Path, entry: &TarEntry, with_mode: bool) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if with_mode {
        chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
    }
    Ok(utimensat(parent, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The modification time; the access time becomes the same.
pub(super) fn set_time(fd: BorrowedFd<'_>, mtime: (i64, u32)) -> io::Result<()> {
    Ok(futimens(fd, &times(mtime))?)
}

/// Exactly this mode, whatever the umask.
pub(super) fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(fchmod(fd, Mode::from_raw_mode(mode))?)
}

/// Hides everything of this directory in the layers below.
pub(super) fn set_opaque(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())?)
}

/// Makes a directory like another one.
pub(super) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let like = fstat(from)?;
    fchown(to, Some(Uid::from_raw(like.st_uid)), Some(Gid::from_raw(like.st_gid)))?;
    set_mode(to, like.st_mode & 0o7777)?;
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = flistxattr(from, names.as_mut_slice())?;
    for name in names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        if !name.is_empty() && is_kept(name) {
            let mut value = vec![0; XATTR_BYTES_MAX];
            let length = fgetxattr(from, name, value.as_mut_slice())?;
            fsetxattr(to, name, &value[..length], XattrFlags::empty())?;
        }
    }
    let mtime = Timespec { tv_sec: like.st_mtime, tv_nsec: i64::try_from(like.st_mtime_nsec).unwrap_or(0) };
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Ok(futimens(to, &Timestamps { last_access: omitted, last_modification: mtime })?)
}

/// Attributes that programs use. Others would affect the host: `trusted.overlay.*` and `user.overlay.*` control overlayfs,
/// `security.selinux` and `security.ima` its security modules.
fn is_kept(name: &str) -> bool {
    name == "security.capability" || (name.starts_with("user.") && !name.starts_with("user.overlay."))
}

fn times(mtime: (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// The attribute by which overlayfs knows an opaque directory.
const OPAQUE: &str = "trusted.overlay.opaque";
/// Linux: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX`.
const XATTR_BYTES_MAX: usize = 64 << 10;
