//! File systems and bind mounts that are attached nowhere yet: made, configured and checked by descriptor, then moved to their place.

// mount_setattr has no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// `MOUNT_ATTR_*`.
pub mod attributes {
    /// Read-only.
    pub const RDONLY: u64 = 0x1;
    /// Set-user-id bits have no effect.
    pub const NOSUID: u64 = 0x2;
    /// Device nodes cannot be opened.
    pub const NODEV: u64 = 0x4;
    /// No file can be executed.
    pub const NOEXEC: u64 = 0x8;
    /// The three bits that select how access times are kept; all values but zero.
    pub(crate) const ATIME_MASK: u64 = 0x70;
}

/// A file system that is being configured.
#[derive(Debug)]
pub struct FsContext(OwnedFd);

impl FsContext {
    /// A new file system of this type.
    pub fn open(fstype: &str) -> io::Result<Self> {
        Ok(Self(fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC)?))
    }

    /// Sets `key=value`. The kernel takes at most 255 bytes.
    pub fn set(&self, key: &str, value: &str) -> io::Result<()> {
        Ok(fsconfig_set_string(&self.0, key, value)?)
    }

    /// Sets an option without a value.
    pub fn flag(&self, key: &str) -> io::Result<()> {
        Ok(fsconfig_set_flag(&self.0, key)?)
    }

    /// Sets an option as it is written in a list of options: `mode=755` or `noswap`.
    pub fn option(&self, option: &str) -> io::Result<()> {
        match option.split_once('=') {
            Some((key, value)) => self.set(key, value),
            None => self.flag(option),
        }
    }

    /// Makes the file system and a mount of it, attached nowhere. `attributes`: [`attributes`].
    pub fn mount(&self, attributes: u64) -> io::Result<OwnedFd> {
        fsconfig_create(&self.0)?;
        let attributes = u32::try_from(attributes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let attributes = MountAttrFlags::from_bits_retain(attributes);
        Ok(fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    }

    /// What the kernel says about the last error, e.g. `overlay: upper fs does not support RENAME_WHITEOUT`. `None`: nothing.
    pub fn message(&self) -> Option<String> {
        let mut buffer = [0; 1024];
        let length = rustix::io::read(&self.0, &mut buffer).ok()?;
        // The first two bytes are the kind: "e ", "w ", "i ".
        let text = String::from_utf8_lossy(&buffer[..length]);
        Some(text.get(2..)?.trim_end().to_owned()).filter(|text| !text.is_empty())
    }
}

/// How later mounts spread, `MS_PRIVATE` and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountPropagation {
    /// Not at all.
    Private,
    /// From the peer group to this mount.
    Slave,
    /// Both ways.
    Shared,
}

/// Changes of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountChange<'fd> {
    /// [`attributes`] to set.
    pub set: u64,
    /// [`attributes`] to clear.
    pub clear: u64,
    /// `None`: unchanged.
    pub propagation: Option<MountPropagation>,
    /// A user namespace: ids on disk are ids inside it. Detached mounts only.
    pub idmap: Option<BorrowedFd<'fd>>,
}

/// Changes a mount, or it and every mount below (all or none).
pub fn change(mount: impl AsFd, recursive: bool, change: &MountChange<'_>) -> io::Result<()> {
    let mut attr = MountAttr {
        attr_set: change.set,
        attr_clr: change.clear,
        propagation: match change.propagation {
            None => 0,
            Some(MountPropagation::Private) => 1 << 18,
            Some(MountPropagation::Slave) => 1 << 19,
            Some(MountPropagation::Shared) => 1 << 20,
        },
        userns_fd: 0,
    };
    if change.set & attributes::ATIME_MASK != 0 {
        // The kernel wants the whole field cleared when one of its values is set.
        attr.attr_clr |= attributes::ATIME_MASK;
    }
    if let Some(user) = change.idmap {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = u64::try_from(user.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated string, `attr` has the size that is passed, both live until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A detached bind mount of an open file or directory, with the mounts below it if `recursive`.
pub fn clone_tree(of: impl AsFd, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(open_tree(of, c"", flags)?)
}

/// Moves a detached mount onto an open file or directory.
pub fn attach(mount: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", target, c"", flags)?)
}

/// Changes the propagation of `/` and everything below it in this mount namespace.
pub fn change_root(propagation: MountPropagation) -> io::Result<()> {
    let root =
        rustix::fs::open(c"/", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    change(root, true, &MountChange { propagation: Some(propagation), ..MountChange::default() })
}

/// `struct mount_attr` of 32 bytes.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;
const AT_RECURSIVE: i32 = 0x8000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_detached_tmpfs_is_made_changed_and_attached() {
        let dir = tempfile::tempdir().unwrap();
        let context = FsContext::open("tmpfs").unwrap();
        context.option("mode=0711").unwrap();
        let mount = context.mount(attributes::NODEV).unwrap();
        change(&mount, true, &MountChange { set: attributes::RDONLY | attributes::NOEXEC, ..Default::default() })
            .unwrap();
        attach(mount, File::open(dir.path()).unwrap()).unwrap();
        let written = fs::write(dir.path().join("file"), "x");
        let mounts = crate::mountinfo::read().unwrap();
        crate::mount::unmount(dir.path()).unwrap();
        assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EROFS));
        let seen = mounts.iter().find(|m| m.point == dir.path()).unwrap();
        assert!(seen.super_options.contains("mode=711"), "{seen:?}");
    }

    #[test]
    fn the_kernel_explains_a_refused_option() {
        let context = FsContext::open("tmpfs").unwrap();
        assert!(context.set("size", "many").is_err());
        assert!(context.message().unwrap().contains("size"));
        assert_eq!(context.message(), None);
    }

    #[test]
    fn a_clone_can_be_made_read_only_without_changing_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        let tree = clone_tree(File::open(&source).unwrap(), true).unwrap();
        change(&tree, true, &MountChange { set: attributes::RDONLY, ..Default::default() }).unwrap();
        attach(tree, File::open(&target).unwrap()).unwrap();
        let written = fs::write(target.join("file"), "x");
        crate::mount::unmount(&target).unwrap();
        assert!(written.is_err());
        fs::write(source.join("file"), "x").unwrap();
    }
}
