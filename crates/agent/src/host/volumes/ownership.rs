//! fsGroup: gives a volume and its files to a group whose members may write (Go kubelet: `changeFilePermission`).
//!
//! A container may have written the tree, so every entry is opened without following links, checked, and changed through its
//! file descriptor.

use std::ffi::CStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use podwright_linux::beneath::walk::{TreeVisitor, WalkMiss, walk};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chmod, chownat, fstat, openat, openat2,
};
use rustix::io::Errno;

use super::VolumeError;
use super::set_ups::Cancelled;

/// `fsGroup` and its change policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup {
    pub(super) gid: u32,
    /// `OnRootMismatch`: change nothing if the top directory has the right group and mode.
    pub(super) only_on_mismatch: bool,
}

/// Gives the tree to the group.
pub(super) fn apply(dir: &Path, group: FsGroup, read_only: bool) -> Result<(), VolumeError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, dir, flags, Mode::empty()).map_err(VolumeError::io("set the group of", dir))?;
    apply_opened(top.as_fd(), dir, group, read_only, &Cancelled::default())
}

/// As [`apply`], for a directory that is open; `dir` is for messages only.
pub(super) fn apply_opened(
    top: BorrowedFd<'_>,
    dir: &Path,
    group: FsGroup,
    read_only: bool,
    cancelled: &Cancelled,
) -> Result<(), VolumeError> {
    let failed = VolumeError::io("set the group of", dir);
    if group.only_on_mismatch && is_applied(top, group.gid, read_only).map_err(&failed)? {
        return Ok(());
    }
    // The top itself is an O_PATH descriptor, which can't be read.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = openat(top, c".", flags, Mode::empty()).map_err(&failed)?;
    match walk(readable, OPEN_DIRS, &mut GroupChange { gid: group.gid, read_only, cancelled }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(errno) => Err(failed(errno)),
    }
}

/// Whether the top directory has the group, its permissions and the setgid bit.
fn is_applied(top: BorrowedFd<'_>, gid: u32, read_only: bool) -> rustix::io::Result<bool> {
    let found = fstat(top)?;
    let expected = bits(FileType::Directory, read_only);
    Ok(found.st_gid == gid && found.st_mode & expected == expected)
}

/// Changes files on the way, and each directory last, so that its state implies that everything below it is done.
struct GroupChange<'a> {
    gid: u32,
    read_only: bool,
    cancelled: &'a Cancelled,
}

impl GroupChange<'_> {
    fn change(&self, fd: BorrowedFd<'_>, kind: FileType) -> rustix::io::Result<()> {
        self.cancelled.check()?;
        change(fd, kind, self.gid, self.read_only)
    }
}

impl TreeVisitor for GroupChange<'_> {
    type End = Errno;

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> ControlFlow<Errno, bool> {
        let changed = open_entry(dir, name).and_then(|fd| match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => Ok(true),
            kind => self.change(fd.as_fd(), kind).map(|()| false),
        });
        match changed {
            // It was removed, or another file system is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => ControlFlow::Continue(false),
            Err(e) => ControlFlow::Break(e),
            Ok(is_dir) => ControlFlow::Continue(is_dir),
        }
    }

    fn entered(&mut self, _dir: &Stat) {}

    fn left(&mut self, dir: BorrowedFd<'_>) -> ControlFlow<Errno> {
        match self.change(dir, FileType::Directory) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => ControlFlow::Break(e),
        }
    }

    /// A volume that would be changed only in part is an error. A directory that was just replaced by a file or link is not.
    fn missed(&mut self, miss: WalkMiss) -> ControlFlow<Errno> {
        match miss {
            WalkMiss::Unreadable(Errno::NOTDIR | Errno::LOOP) => ControlFlow::Continue(()),
            miss => ControlFlow::Break(miss.errno()),
        }
    }
}

fn open_entry(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how)
}

fn change(fd: BorrowedFd<'_>, kind: FileType, gid: u32, read_only: bool) -> rustix::io::Result<()> {
    chownat(fd, c"", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    if kind == FileType::Symlink {
        return Ok(());
    }
    // Read after the change of owner, which clears the setuid and setgid bits of files.
    let mode = fstat(fd)?.st_mode & 0o7777 | bits(kind, read_only);
    // fchmod does not work on O_PATH descriptors; this path leads to the same inode.
    chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(mode))
}

fn bits(kind: FileType, read_only: bool) -> u32 {
    let access = if read_only { 0o440 } else { 0o660 };
    if kind == FileType::Directory { access | 0o2110 } else { access }
}

/// Descriptors of a walk. Only directories that are moved above more levels than these disturb it.
const OPEN_DIRS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn group_and_mode(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    const ALWAYS: FsGroup = FsGroup { gid: 4321, only_on_mismatch: false };

    #[test]
    fn the_whole_tree_is_changed_and_links_are_not_followed() {
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
        assert_eq!(group_and_mode(&at("")), (4321, 0o2777));
        assert_eq!(group_and_mode(&at("sub")), (4321, 0o2770));
        assert_eq!(group_and_mode(&at("sub/file")), (4321, 0o660));
        assert_eq!(group_and_mode(&at("link")).0, 4321);
        assert_eq!(group_and_mode(&outside), (0, 0o600));
    }

    /// One pod must not be able to keep the next one with the same volume from starting.
    #[test]
    fn a_volume_of_any_depth_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        fs::create_dir(&top).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut here = openat(CWD, &top, flags, Mode::empty()).unwrap();
        for _ in 0..1000 {
            rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o700)).unwrap();
            here = openat(&here, "d", flags, Mode::empty()).unwrap();
        }
        let applied = apply(&top, ALWAYS, false);
        let last = fstat(&here).unwrap();
        let state = (group_and_mode(&top).0, last.st_gid, last.st_mode & 0o7777);
        podwright_linux::beneath::remove_path(&top).unwrap();
        applied.unwrap();
        assert_eq!(state, (4321, 4321, 0o2770));
    }

    #[test]
    fn read_only_volumes_are_not_made_writable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o400);
        apply(dir.path(), ALWAYS, true).unwrap();
        assert_eq!(group_and_mode(&file), (4321, 0o440));
    }

    #[test]
    fn on_root_mismatch_checks_the_top_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let group = FsGroup { only_on_mismatch: true, ..ALWAYS };
        apply(dir.path(), group, false).unwrap();
        fs::write(&file, "").unwrap();
        rustix::fs::chown(&file, None, Some(Gid::from_raw(0))).unwrap();
        apply(dir.path(), group, false).unwrap();
        assert_eq!(group_and_mode(&file).0, 0, "the top was right");
        set_mode(dir.path(), 0o700);
        apply(dir.path(), group, false).unwrap();
        assert_eq!(group_and_mode(&file).0, 4321, "the top was wrong");
    }
}
