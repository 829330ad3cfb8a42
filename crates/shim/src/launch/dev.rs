//! Step 11, `/dev`: a tmpfs with the nodes that every container has, those of the plan, and the usual links.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_linux::fsctx;
use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, chownat, makedev, mknodat, symlinkat};

use super::sources::MountSources;
use super::targets::{Make, open_target};
use super::{LaunchFailure, LaunchStep};
use crate::plan::DeviceNode;

/// Fills a `/dev` that was just mounted at `target` and whose root is `dev`.
pub(super) fn fill(
    root: BorrowedFd<'_>,
    target: &str,
    dev: &OwnedFd,
    extra: &[DeviceNode],
    sources: &MountSources,
) -> Result<(), LaunchFailure> {
    if sources.devices.is_empty() {
        for (name, (major, minor)) in HOST_DEVICES {
            node(dev.as_fd(), name, FileType::CharacterDevice, 0o666, (major, minor), (0, 0))?;
        }
    } else {
        for (path, tree) in &sources.devices {
            let place = open_target(root, path, Make::File)?;
            fsctx::attach(tree, place).map_err(|e| failed(path, &e))?;
        }
    }
    // As runc: only where the kernel has it. Here /proc is still that of the host.
    let has_kcore = std::path::Path::new(KCORE).exists();
    for (name, to) in LINKS.into_iter().filter(|(_, to)| has_kcore || *to != KCORE) {
        symlinkat(to, dev, name).map_err(|e| failed(name, &e.into()))?;
    }
    if sources.devices.is_empty() {
        for device in extra {
            plan_node(root, target, dev, device)?;
        }
    }
    if let Some(console) = &sources.console {
        let place = open_target(root, &format!("{target}/console"), Make::File)?;
        fsctx::attach(console, place).map_err(|e| failed("console", &e))?;
    }
    Ok(())
}

/// A node of the plan replaces one of the usual ones.
fn plan_node(root: BorrowedFd<'_>, target: &str, dev: &OwnedFd, device: &DeviceNode) -> Result<(), LaunchFailure> {
    let inside = device.path.strip_prefix(target).and_then(|rest| rest.strip_prefix('/'));
    let Some(inside) = inside.filter(|name| !name.is_empty()) else {
        let text = format!("device {}: not below {target}", device.path);
        return Err(LaunchFailure::new(LaunchStep::Device, text));
    };
    let kind = if device.block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let (parent, name) = inside.rsplit_once('/').unwrap_or(("", inside));
    let directory = match parent {
        "" => None,
        // Symbolic links cannot be there: this tmpfs has just been made by us.
        parent => Some(open_target(root, &format!("{target}/{parent}"), Make::Directory)?),
    };
    let directory = directory.as_ref().map_or(dev.as_fd(), AsFd::as_fd);
    let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    node(directory, name, kind, device.mode, (device.major, device.minor), (device.uid, device.gid))
}

fn node(
    directory: BorrowedFd<'_>,
    name: &str,
    kind: FileType,
    mode: u32,
    (major, minor): (u32, u32),
    (uid, gid): (u32, u32),
) -> Result<(), LaunchFailure> {
    let failed = |e: rustix::io::Errno| failed(name, &e.into());
    let bits = Mode::from_raw_mode(mode & 0o7777);
    mknodat(directory, name, kind, bits, makedev(major, minor)).map_err(failed)?;
    // Not by the mode of mknod: the umask applies there.
    rustix::fs::chmodat(directory, name, bits, AtFlags::empty()).map_err(failed)?;
    if (uid, gid) != (0, 0) {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}

fn failed(name: &str, error: &std::io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Device, format!("device {name}"), error)
}

/// In every container, mode 0666.
pub(super) const HOST_DEVICES: [(&str, (u32, u32)); 6] =
    [("null", (1, 3)), ("zero", (1, 5)), ("full", (1, 7)), ("random", (1, 8)), ("urandom", (1, 9)), ("tty", (5, 0))];

const LINKS: [(&str, &str); 6] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", KCORE),
];
const KCORE: &str = "/proc/kcore";
