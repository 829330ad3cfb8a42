//! What this kernel can do, found by trying and not by its version.

// A short-lived clone is tried, which makes system calls only.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::fsctx::{self, FsContext, MountChange};
use crate::namespace::{self, CloneOptions, Cloned, clone3, exit_now};
use crate::{exit_info, mountinfo};

/// Features that change what the engine does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFeatures {
    /// Layers of an overlay are added one by one (6.7).
    pub overlay_lowerdir_add: bool,
    /// The exit status of a process can be read after it was reaped (6.15).
    pub pidfd_exit_info: bool,
    /// The inode of a pidfd identifies its process (6.9).
    pub pidfs: bool,
    /// A tmpfs can be idmapped (6.3): secrets of pods in user namespaces.
    pub idmapped_tmpfs: bool,
    /// The root file system is the initramfs, from which no pivot_root is possible.
    pub root_is_initramfs: bool,
    /// What is missing without which no container can be started, by the names of the kernel; empty: nothing.
    pub missing: Vec<&'static str>,
}

/// Tries every feature. Needs root; leaves nothing behind. If one is missing, the optional ones are not tried.
pub fn probe() -> io::Result<KernelFeatures> {
    let missing = missing();
    if !missing.is_empty() {
        let root_is_initramfs = root_is_initramfs();
        return Ok(KernelFeatures { missing, root_is_initramfs, ..KernelFeatures::default() });
    }
    let (pidfs, pidfd_exit_info) = probe_pidfd()?;
    Ok(KernelFeatures {
        overlay_lowerdir_add: overlay_lowerdir_add(),
        pidfd_exit_info,
        pidfs,
        idmapped_tmpfs: probe_idmapped_tmpfs().is_ok(),
        root_is_initramfs: root_is_initramfs(),
        missing,
    })
}

/// What is missing to run containers in cgroups of v2, by the names of the kernel. `dir` is such a cgroup, not the root.
pub fn missing_in_cgroup(dir: &Path) -> io::Result<Vec<&'static str>> {
    let mut missing = vec![];
    let cgroup = File::open(dir)?;
    if try_clone3(&CloneOptions { flags: 0, cgroup: Some(cgroup.as_fd()) }).is_err() {
        missing.push("CLONE_INTO_CGROUP");
    }
    if !dir.join("cgroup.kill").exists() {
        missing.push("cgroup.kill");
    }
    Ok(missing)
}

/// Whether layers of an overlay are added one by one. Before 6.5 the kernel takes every option and refuses the mount: such a kernel
/// is recognised by an option that does not exist.
pub fn overlay_lowerdir_add() -> bool {
    let takes = |key| FsContext::open("overlay").is_ok_and(|overlay| overlay.set(key, "/").is_ok());
    takes("lowerdir+") && !takes("podwright-no-such-option")
}

fn missing() -> Vec<&'static str> {
    let mut missing = vec![];
    let root = openat2(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    match root {
        Err(_) => missing.push("openat2"),
        Ok(root) => {
            let nothing = MountChange::default();
            let tried = fsctx::clone_tree(&root, false).and_then(|tree| fsctx::change(&tree, true, &nothing));
            if tried.is_err() {
                missing.push("open_tree and mount_setattr");
            }
        }
    }
    // SAFETY: integers only; no descriptor has such a number.
    if unsafe { libc::syscall(libc::SYS_close_range, u32::MAX - 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } != 0 {
        missing.push("close_range");
    }
    if try_clone3(&CloneOptions::default()).is_err() {
        missing.push("clone3 and waitid with a pidfd");
    }
    if FsContext::open("tmpfs").and_then(|tmpfs| tmpfs.mount(0)).is_err() {
        missing.push("fsopen and fsmount");
    }
    missing
}

/// A process that ends at once.
fn try_clone3(options: &CloneOptions<'_>) -> io::Result<()> {
    // SAFETY: the child makes one system call and allocates nothing, so that locks of other threads do not matter.
    let Cloned::Parent { pidfd, .. } = unsafe { clone3(options) }? else { exit_now(0) };
    exit_info::wait(&pidfd, true).map(drop)
}

fn root_is_initramfs() -> bool {
    let is_root = |mount: &&mountinfo::Mount| mount.point.as_os_str() == "/";
    let roots = |mounts: &[mountinfo::Mount]| mounts.iter().filter(is_root).all(|mount| mount.fstype == "rootfs");
    mountinfo::read().is_ok_and(|mounts| roots(&mounts))
}

/// pidfs, and the exit status of a process that was reaped.
fn probe_pidfd() -> io::Result<(bool, bool)> {
    // SAFETY: the child makes one system call and allocates nothing, so that locks of other threads do not matter.
    let Cloned::Parent { pidfd, .. } = unsafe { clone3(&CloneOptions::default()) }? else { exit_now(7) };
    let pidfs = rustix::fs::fstatfs(&pidfd)?.f_type == PIDFS_MAGIC;
    exit_info::wait(&pidfd, true)?;
    Ok((pidfs, exit_info::recorded(&pidfd)?.is_some_and(|info| info.code == 7)))
}

fn probe_idmapped_tmpfs() -> io::Result<()> {
    let options = CloneOptions { flags: namespace::flags::NEWUSER, cgroup: None };
    // SAFETY: as above: the child makes system calls only, until it is killed.
    let Cloned::Parent { pid, pidfd } = unsafe { clone3(&options) }? else {
        loop {
            // SAFETY: no arguments; it returns after a signal with a handler, of which there is none that ends the loop.
            unsafe { libc::pause() };
        }
    };
    let tried = idmap_with(pid);
    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
    exit_info::wait(&pidfd, true)?;
    tried
}

fn idmap_with(pid: u32) -> io::Result<()> {
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{map}"), "0 100000 65536\n")?;
    }
    let user: OwnedFd = std::fs::File::open(format!("/proc/{pid}/ns/user"))?.into();
    let tmpfs = FsContext::open("tmpfs")?.mount(0)?;
    fsctx::change(&tmpfs, false, &MountChange { idmap: Some(user.as_fd()), ..MountChange::default() })
}

/// "PIDF".
const PIDFS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_bpf::{SeccompAction, SeccompProfile, SeccompRule, compile, install, to_bytes};

    /// In a thread of its own, without these system calls, as on an older kernel.
    fn probe_without(calls: &[&str]) -> io::Result<KernelFeatures> {
        let rule = SeccompRule {
            names: calls.iter().map(ToString::to_string).collect(),
            action: SeccompAction::Errno(38),
            conditions: vec![],
        };
        let profile = SeccompProfile { default_action: SeccompAction::Allow, architectures: vec![], rules: vec![rule] };
        let program = to_bytes(&compile(&profile).unwrap());
        let probed = std::thread::spawn(move || {
            install(&program, 0).unwrap();
            probe()
        });
        probed.join().unwrap()
    }

    #[test]
    fn what_the_kernel_lacks_is_named() {
        for (calls, name) in [
            (["clone3"].as_slice(), "clone3 and waitid with a pidfd"),
            (&["openat2"], "openat2"),
            (&["mount_setattr"], "open_tree and mount_setattr"),
            (&["close_range"], "close_range"),
            (&["fsopen"], "fsopen and fsmount"),
        ] {
            assert_eq!(probe_without(calls).unwrap().missing, [name]);
        }
    }

    #[test]
    fn what_a_cgroup_lacks_is_named() {
        let no_cgroup = tempfile::tempdir().unwrap();
        assert_eq!(missing_in_cgroup(no_cgroup.path()).unwrap(), ["CLONE_INTO_CGROUP", "cgroup.kill"]);
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(root) = roots.into_iter().find(|root| root.join("cgroup.procs").exists()) else { return };
        let cgroup = root.join(format!("podwright-test-{}", std::process::id()));
        std::fs::create_dir(&cgroup).unwrap();
        let missing = missing_in_cgroup(&cgroup);
        std::fs::remove_dir(&cgroup).unwrap();
        assert_eq!(missing.unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn features_are_those_of_the_running_kernel() {
        let found = probe().unwrap();
        assert_eq!(found.missing, Vec::<&str>::new());
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).filter_map(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        // Distributions add features to older kernels, but do not take them away.
        for (since, has) in [
            ((6, 7), found.overlay_lowerdir_add),
            ((6, 15), found.pidfd_exit_info),
            ((6, 9), found.pidfs),
            ((6, 3), found.idmapped_tmpfs),
        ] {
            assert!(has || version < since, "{release}: {found:?}");
        }
    }
}
