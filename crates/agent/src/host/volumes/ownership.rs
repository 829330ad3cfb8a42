//! fsGroup: a volume and all in it belong to a group, whose members may write (Go kubelet: changeFilePermission).
//!
//! The tree may have been written by a container, so every entry is opened without following links, looked at, and changed
//! through its descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, chmod, chownat, fstat, openat, openat2,
};
use rustix::io::Errno;

use super::failed;
use crate::host::HostError;

/// The group, and when to give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup {
    pub(super) gid: u32,
    /// `OnRootMismatch`: leave everything if the top directory is already right.
    pub(super) only_on_mismatch: bool,
}

/// Gives the tree to the group.
pub(super) fn apply(dir: &Path, group: FsGroup, read_only: bool) -> Result<(), HostError> {
    let told = |e: Errno| failed(format!("set the group of {}: {e}", dir.display()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, dir, flags, Mode::empty()).map_err(told)?;
    if group.only_on_mismatch && is_right(top.as_fd(), group.gid, read_only).map_err(told)? {
        return Ok(());
    }
    walk(top.as_fd(), group.gid, read_only, 0).map_err(told)
}

/// The top directory has the group, its permissions and the bit that hands the group on.
fn is_right(top: BorrowedFd<'_>, gid: u32, read_only: bool) -> rustix::io::Result<bool> {
    let found = fstat(top)?;
    let wanted = bits(FileType::Directory, read_only);
    Ok(found.st_gid == gid && found.st_mode & wanted == wanted)
}

fn walk(dir: BorrowedFd<'_>, gid: u32, read_only: bool, depth: usize) -> rustix::io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    // The top itself is an O_PATH descriptor, which can't be read.
    let readable = openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let fd = match open_entry(dir, name) {
            // It went away, or something is mounted there, which is not of this volume.
            Err(Errno::NOENT | Errno::XDEV) => continue,
            other => other?,
        };
        match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => walk(fd.as_fd(), gid, read_only, depth + 1)?,
            kind => change(fd.as_fd(), kind, gid, read_only)?,
        }
    }
    // The directory last, so that its own state says that all below it is done.
    change(dir, FileType::Directory, gid, read_only)
}

fn open_entry(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how)
}

fn change(fd: BorrowedFd<'_>, kind: FileType, gid: u32, read_only: bool) -> rustix::io::Result<()> {
    chownat(fd, c"", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    if kind == FileType::Symlink {
        return Ok(());
    }
    // Asked after the change of owner, which takes setuid and setgid bits off files.
    let mode = fstat(fd)?.st_mode & 0o7777 | bits(kind, read_only);
    // The descriptor was opened by path only, and such ones take no fchmod; this name leads to the same inode.
    chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(mode))
}

fn bits(kind: FileType, read_only: bool) -> u32 {
    let access = if read_only { 0o440 } else { 0o660 };
    if kind == FileType::Directory { access | 0o2110 } else { access }
}

/// Each level holds two descriptors. Volumes made here are shallow; a deeper one is refused rather than half done unseen.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn about(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    const ALWAYS: FsGroup = FsGroup { gid: 4321, only_on_mismatch: false };

    #[test]
    fn all_of_the_tree_and_nothing_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("volume").join(name);
        fs::create_dir_all(at("sub")).unwrap();
        fs::write(at("sub/file"), "").unwrap();
        set_mode(&at("sub/file"), 0o600);
        set_mode(&at("sub"), 0o700);
        set_mode(&at(""), 0o777);
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        set_mode(&outside, 0o600);
        symlink("../outside", at("link")).unwrap();
        apply(&at(""), ALWAYS, false).unwrap();
        assert_eq!(about(&at("")), (4321, 0o2777));
        assert_eq!(about(&at("sub")), (4321, 0o2770));
        assert_eq!(about(&at("sub/file")), (4321, 0o660));
        assert_eq!(about(&at("link")).0, 4321);
        assert_eq!(about(&outside), (0, 0o600));
    }

    #[test]
    fn read_only_volumes_are_not_made_writable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o400);
        apply(dir.path(), ALWAYS, true).unwrap();
        assert_eq!(about(&file), (4321, 0o440));
    }

    #[test]
    fn on_root_mismatch_trusts_the_top() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let group = FsGroup { only_on_mismatch: true, ..ALWAYS };
        apply(dir.path(), group, false).unwrap();
        fs::write(&file, "").unwrap();
        rustix::fs::chown(&file, None, Some(Gid::from_raw(0))).unwrap();
        apply(dir.path(), group, false).unwrap();
        assert_eq!(about(&file).0, 0, "the top was right");
        set_mode(dir.path(), 0o700);
        apply(dir.path(), group, false).unwrap();
        assert_eq!(about(&file).0, 4321, "the top was wrong");
    }
}
