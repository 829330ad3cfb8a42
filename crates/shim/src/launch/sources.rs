//! Step 4: everything of the host that appears in the container, opened once and cloned as detached mounts.
//!
//! From here on no path of the host is looked up again (CVE-2021-30465).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use podwright_linux::fsctx::{self, MountChange, MountPropagation, attributes};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::dev::HOST_DEVICES;
use super::targets::{self, Make, open_host};
use super::{ContainerStdio, LaunchFailure, LaunchStep, PodNamespaces, rootfs};
use crate::plan::{DeviceNode, LaunchPlan, MountKind, MountPlan, Propagation};

/// A detached mount and what its target must be.
#[derive(Debug)]
pub(super) struct MountSource {
    pub(super) tree: OwnedFd,
    pub(super) make: Make,
}

/// What is mounted from the host.
#[derive(Debug, Default)]
pub(super) struct MountSources {
    /// Per mount of the plan; `None`: a file system that is made inside.
    pub(super) mounts: Vec<Option<MountSource>>,
    /// v1 hierarchies: name and detached mount.
    pub(super) cgroups: Vec<(String, OwnedFd)>,
    /// `/dev/null` for each masked path.
    pub(super) nulls: Vec<OwnedFd>,
    /// In a user namespace: device nodes by their path in the container.
    pub(super) devices: Vec<(String, OwnedFd)>,
    /// The terminal, for `/dev/console`.
    pub(super) console: Option<OwnedFd>,
}

/// Opens all sources of a plan.
pub(super) fn open(
    plan: &LaunchPlan,
    namespaces: &PodNamespaces,
    stdio: &ContainerStdio,
) -> Result<MountSources, LaunchFailure> {
    let mut sources = MountSources::default();
    let user = namespaces.user.as_ref().map(AsFd::as_fd);
    for mount in &plan.mounts {
        let source = match mount.kind() {
            MountKind::Bind => Some(bind(mount, user)?),
            // sysfs belongs to the network namespace: without one of its own, a user namespace may not mount it.
            MountKind::Sysfs if user.is_some() && namespaces.net.is_none() => Some(host_sys(mount)?),
            _ => None,
        };
        sources.mounts.push(source);
    }
    // Afterwards: layers of a user namespace are prepared in another mount namespace, in which binds would not be shared.
    for (mount, source) in plan.mounts.iter().zip(&mut sources.mounts) {
        if mount.kind() == MountKind::Image {
            *source = Some(image(mount, user, &plan.staging_dir)?);
        }
    }
    if let Some(mount) = plan.mounts.iter().find(|mount| mount.kind() == MountKind::Cgroup) {
        for cgroup in plan.cgroups.iter().filter(|cgroup| !cgroup.hierarchy.is_empty()) {
            let failed = |e| failed(&cgroup.directory, e);
            let tree = fsctx::clone_tree(open_host(&cgroup.directory).map_err(|e| failed(e.into()))?, false)
                .map_err(failed)?;
            let readonly = mount.attributes & attributes::RDONLY;
            let set = readonly | attributes::NOSUID | attributes::NODEV | attributes::NOEXEC;
            fsctx::change(&tree, false, &MountChange { set, ..private() }).map_err(failed)?;
            sources.cgroups.push((cgroup.hierarchy.clone(), tree));
        }
    }
    for _ in &plan.masked_paths {
        sources.nulls.push(device("/dev/null", false, 1, 3)?);
    }
    if user.is_some() {
        sources.devices = devices(&plan.devices)?;
    }
    if let ContainerStdio::Terminal(slave) = stdio {
        sources.console = Some(console(slave)?);
    }
    Ok(sources)
}

fn bind(mount: &MountPlan, user: Option<BorrowedFd<'_>>) -> Result<MountSource, LaunchFailure> {
    let failed = |e| failed(&mount.source, e);
    let open = match open_host(&mount.source) {
        Err(Errno::NOENT) if mount.make_source => {
            std::fs::create_dir_all(&mount.source).map_err(failed)?;
            open_host(&mount.source)
        }
        opened => opened,
    };
    let open = open.map_err(|e| failed(e.into()))?;
    let tree = fsctx::clone_tree(&open, mount.recursive).map_err(failed)?;
    configure(&tree, mount, user).map_err(failed)?;
    let stat = rustix::fs::fstat(&open).map_err(|e| failed(e.into()))?;
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(MountSource { tree, make: if directory { Make::Directory } else { Make::File } })
}

/// Attributes, ids and propagation of a detached bind mount.
fn configure(tree: &OwnedFd, mount: &MountPlan, user: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
    if mount.idmapped {
        let user = user.ok_or_else(|| std::io::Error::other("id mappings without a user namespace"))?;
        fsctx::change(tree, true, &MountChange { idmap: Some(user), ..MountChange::default() })?;
    }
    let propagation = match mount.propagation() {
        Propagation::Unset | Propagation::Private => MountPropagation::Private,
        Propagation::Slave => MountPropagation::Slave,
        Propagation::Shared => MountPropagation::Shared,
    };
    let change =
        MountChange { propagation: Some(propagation), set: mount.recursive_attributes, ..MountChange::default() };
    fsctx::change(tree, true, &change)?;
    if mount.attributes != 0 {
        fsctx::change(tree, false, &MountChange { set: mount.attributes, ..MountChange::default() })?;
    }
    Ok(())
}

fn image(mount: &MountPlan, user: Option<BorrowedFd<'_>>, staging: &str) -> Result<MountSource, LaunchFailure> {
    let layers = mount.layers.as_ref().ok_or_else(|| {
        LaunchFailure::new(LaunchStep::Plan, format!("mount {}: an image volume without layers", mount.target))
    })?;
    let tree = rootfs::overlay(layers, user, staging)?;
    let tree = if mount.sub_path.is_empty() {
        tree
    } else {
        // A part of a detached mount can be cloned since 6.15 only.
        rootfs::attach_aside(&tree, staging)?;
        let missing = || LaunchFailure::new(LaunchStep::Source, format!("{}: not in the image", mount.sub_path));
        let part = targets::open_existing(tree.as_fd(), &mount.sub_path)?.ok_or_else(missing)?;
        fsctx::clone_tree(&part, false).map_err(|e| failed(&mount.sub_path, e))?
    };
    let set = mount.attributes | attributes::RDONLY;
    fsctx::change(&tree, true, &MountChange { set, ..private() }).map_err(|e| failed(&mount.target, e))?;
    let stat = rustix::fs::fstat(&tree).map_err(|e| failed(&mount.target, e.into()))?;
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(MountSource { tree, make: if directory { Make::Directory } else { Make::File } })
}

fn host_sys(mount: &MountPlan) -> Result<MountSource, LaunchFailure> {
    let failed = |e| failed("/sys", e);
    let tree = fsctx::clone_tree(open_host("/sys").map_err(|e| failed(e.into()))?, true).map_err(failed)?;
    let set = mount.attributes | attributes::RDONLY;
    fsctx::change(&tree, true, &MountChange { set, ..private() }).map_err(failed)?;
    Ok(MountSource { tree, make: Make::Directory })
}

/// A clone of a device node of the host; its numbers are what they should be.
pub(super) fn device(path: &str, block: bool, major: u32, minor: u32) -> Result<OwnedFd, LaunchFailure> {
    let failed = |e| failed(path, e);
    let open = open_host(path).map_err(|e| failed(e.into()))?;
    let stat = rustix::fs::fstat(&open).map_err(|e| failed(e.into()))?;
    let expected = if block { FileType::BlockDevice } else { FileType::CharacterDevice };
    if FileType::from_raw_mode(stat.st_mode) != expected || stat.st_rdev != rustix::fs::makedev(major, minor) {
        return Err(LaunchFailure::new(LaunchStep::Device, format!("{path}: not the device {major}:{minor}")));
    }
    let tree = fsctx::clone_tree(&open, false).map_err(failed)?;
    fsctx::change(&tree, false, &private()).map_err(failed)?;
    Ok(tree)
}

fn devices(extra: &[DeviceNode]) -> Result<Vec<(String, OwnedFd)>, LaunchFailure> {
    let mut found = vec![];
    for (name, minor_of) in HOST_DEVICES {
        let (major, minor) = minor_of;
        found.push((format!("/dev/{name}"), device(&format!("/dev/{name}"), false, major, minor)?));
    }
    for node in extra {
        let host = if node.host_path.is_empty() { &node.path } else { &node.host_path };
        found.push((node.path.clone(), device(host, node.block, node.major, node.minor)?));
    }
    Ok(found)
}

/// The slave of the terminal, opened again by its name: only a mount of our own namespace can be cloned. It must be the same node.
fn console(slave: &OwnedFd) -> Result<OwnedFd, LaunchFailure> {
    let failed = |e: std::io::Error| LaunchFailure::io(LaunchStep::Terminal, "open the terminal", &e);
    let name = std::fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd())).map_err(failed)?;
    let open = open_host(&name.to_string_lossy()).map_err(|e| failed(e.into()))?;
    let stat = |fd: &OwnedFd| rustix::fs::fstat(fd).map_err(|e| failed(e.into()));
    let (theirs, ours) = (stat(slave)?, stat(&open)?);
    if (theirs.st_dev, theirs.st_ino, theirs.st_rdev) != (ours.st_dev, ours.st_ino, ours.st_rdev) {
        return Err(LaunchFailure::new(LaunchStep::Terminal, "the terminal is not the one that was opened"));
    }
    let tree = fsctx::clone_tree(&open, false).map_err(failed)?;
    fsctx::change(&tree, false, &private()).map_err(failed)?;
    Ok(tree)
}

/// A mount that neither sends nor receives later mounts.
pub(super) fn private() -> MountChange<'static> {
    MountChange { propagation: Some(MountPropagation::Private), ..MountChange::default() }
}

fn failed(source: &str, error: std::io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Source, format!("mount source {source}"), &error)
}
