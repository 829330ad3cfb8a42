//! Mounts and unmounts, by descriptor where the path could be replaced meanwhile.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount as umount,
};

/// The options of a tmpfs.
#[derive(Clone, Copy, Debug)]
pub struct Tmpfs {
    /// Maximum size in bytes; `None`: the kernel's default, half of the host's memory.
    pub size: Option<u64>,
    /// Mode of its root directory.
    pub mode: u32,
}

/// Mounts a tmpfs whose pages are not swapped, if the kernel has the option `noswap` (6.4; not in user namespaces).
pub fn tmpfs(target: &Path, tmpfs: &Tmpfs) -> io::Result<()> {
    let mut options = format!("mode={:o}", tmpfs.mode);
    if let Some(size) = tmpfs.size {
        options.push_str(&format!(",size={size}"));
    }
    let mount_with = |options: &str| {
        let options = CString::new(options).expect("digits and commas hold no NUL");
        mount("tmpfs", target, "tmpfs", MountFlags::empty(), options.as_c_str())
    };
    match mount_with(&format!("{options},noswap")) {
        Err(Errno::INVAL | Errno::PERM) => Ok(mount_with(&options)?),
        mounted => Ok(mounted?),
    }
}

/// A detached bind mount of an open file or directory. It does not depend on a path any more: whatever is renamed or linked
/// later, it stays the same inode.
fn clone_tree(of: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(of, c"", flags)?)
}

/// Bind-mounts an open file or directory over another open one of the same kind.
pub fn bind(source: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let tree = clone_tree(source)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, c"", target, c"", flags)?)
}

/// Unmounts. Blocks as long as the file system does.
pub fn unmount(target: &Path) -> io::Result<()> {
    Ok(umount(target, UnmountFlags::NOFOLLOW)?)
}

/// Detaches the mount from the tree now; the kernel cleans up after its last user (`MNT_DETACH`).
pub fn detach(target: &Path) -> io::Result<()> {
    Ok(umount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo;
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_tmpfs_has_its_size_and_mode_and_can_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        tmpfs(dir.path(), &Tmpfs { size: Some(64 * 1024), mode: 0o1777 }).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777, 0o1777);
        let full = fs::write(dir.path().join("big"), vec![0; 128 * 1024]);
        let mounts = mountinfo::read().unwrap();
        unmount(dir.path()).unwrap();
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let seen = mounts.iter().find(|m| m.point == dir.path()).unwrap();
        assert_eq!(seen.fstype, "tmpfs");
        assert!(seen.super_options.contains("size=64k"), "{}", seen.super_options);
        assert!(mountinfo::under(&mountinfo::read().unwrap(), dir.path()).is_empty());
    }

    #[test]
    fn a_tmpfs_is_not_swapped_where_the_kernel_can_prevent_it() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, ours) = (dir.path().join("plain"), dir.path().join("ours"));
        fs::create_dir(&plain).unwrap();
        fs::create_dir(&ours).unwrap();
        let supported = mount("tmpfs", &plain, "tmpfs", MountFlags::empty(), c"noswap").is_ok();
        tmpfs(&ours, &Tmpfs { size: None, mode: 0o755 }).unwrap();
        let mounts = mountinfo::read().unwrap();
        unmount(&ours).unwrap();
        if supported {
            unmount(&plain).unwrap();
        }
        let seen = mounts.iter().find(|m| m.point == ours).unwrap();
        assert_eq!(seen.super_options.split(',').any(|option| option == "noswap"), supported, "{seen:?}");
    }

    #[test]
    fn a_bind_stays_on_its_inode_when_the_path_is_swapped() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        let held = File::open(&source).unwrap();
        let inode = held.metadata().unwrap().ino();
        // The swap that an attacker would make between check and use.
        fs::rename(&source, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", &source).unwrap();
        bind(&held, File::open(&target).unwrap()).unwrap();
        let seen = fs::metadata(&target).unwrap().ino();
        unmount(&target).unwrap();
        assert_eq!(seen, inode);
    }

    #[test]
    fn a_busy_mount_can_only_be_detached() {
        let dir = tempfile::tempdir().unwrap();
        tmpfs(dir.path(), &Tmpfs { size: None, mode: 0o755 }).unwrap();
        let user = File::create(dir.path().join("open")).unwrap();
        let busy = unmount(dir.path());
        detach(dir.path()).unwrap();
        assert_eq!(busy.unwrap_err().raw_os_error(), Some(16));
        assert!(!dir.path().join("open").exists());
        drop(user);
    }
}
