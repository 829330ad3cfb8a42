//! Steps 11 and 12: the mounts of a plan, in its order, each moved onto a descriptor inside the root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_linux::fsctx::{self, FsContext, MountChange, attributes};

use super::sources::{MountSource, MountSources};
use super::targets::{Make, open_existing, open_target};
use super::{LaunchFailure, LaunchStep, dev, mask};
use crate::plan::{LaunchPlan, MountKind, MountPlan};

/// Makes every mount below `root`.
pub(super) fn make_all(plan: &LaunchPlan, root: BorrowedFd<'_>, sources: &MountSources) -> Result<(), LaunchFailure> {
    make_selected(plan, root, sources, |_| true)?;
    mask_root(plan, root, sources)
}

/// Makes the mounts that need no process of the PID namespace, and the directories of those that do.
pub(super) fn make_outside(
    plan: &LaunchPlan,
    root: BorrowedFd<'_>,
    sources: &MountSources,
) -> Result<(), LaunchFailure> {
    make_selected(plan, root, sources, |mount| !is_of_proc(plan, mount))?;
    for proc in plan.mounts.iter().filter(|mount| mount.kind() == MountKind::Proc) {
        open_target(root, &proc.target, Make::Directory)?;
    }
    mask_root(plan, root, sources)
}

/// Makes what [`make_outside`] has left: a procfs shows the PID namespace of the process that mounts it.
pub(super) fn make_proc(plan: &LaunchPlan, root: BorrowedFd<'_>, sources: &MountSources) -> Result<(), LaunchFailure> {
    make_selected(plan, root, sources, |mount| is_of_proc(plan, mount))
}

/// Whether this is a procfs, or mounted below one.
pub(super) fn is_of_proc(plan: &LaunchPlan, mount: &MountPlan) -> bool {
    let mut all = plan.mounts.iter().filter(|mount| mount.kind() == MountKind::Proc);
    all.any(|proc| mount.target == proc.target || mask::inside(&mount.target, &proc.target).is_some())
}

fn make_selected(
    plan: &LaunchPlan,
    root: BorrowedFd<'_>,
    sources: &MountSources,
    selected: impl Fn(&MountPlan) -> bool,
) -> Result<(), LaunchFailure> {
    let mut own = vec![];
    for (mount, source) in plan.mounts.iter().zip(&sources.mounts).filter(|(mount, _)| selected(mount)) {
        if let Some(MountSource { tree, make }) = source {
            attach(tree, root, mount, *make)?;
        }
        match (mount.kind(), source) {
            (MountKind::Bind | MountKind::Image, _) => {}
            (MountKind::Proc | MountKind::Sysfs, _) => {
                // Masks are applied through the descriptor of the mount, whatever is mounted over it later.
                let tree = match source {
                    Some(MountSource { tree, .. }) => tree.as_fd(),
                    None => own_file_system(root, mount, &mut own)?,
                };
                mask::apply(plan, tree, &mount.target, &[], sources)?;
            }
            (MountKind::Dev, _) => {
                let tree = new_file_system(mount, &["mode=755", "size=65536k"])?;
                attach(&tree, root, mount, Make::Directory)?;
                dev::fill(root, &mount.target, &tree, &plan.devices, sources)?;
            }
            (MountKind::Cgroup, _) if !sources.cgroups.is_empty() => cgroup_v1(root, mount, sources)?,
            (MountKind::Tmpfs | MountKind::Cgroup | MountKind::Mqueue | MountKind::Devpts, _) => {
                attach(&new_file_system(mount, &[])?, root, mount, Make::Directory)?;
            }
        }
    }
    Ok(())
}

/// The masks outside of proc and sysfs, which have been applied to these.
fn mask_root(plan: &LaunchPlan, root: BorrowedFd<'_>, sources: &MountSources) -> Result<(), LaunchFailure> {
    let masked_there = |mount: &&MountPlan| matches!(mount.kind(), MountKind::Proc | MountKind::Sysfs);
    let except: Vec<String> = plan.mounts.iter().filter(masked_there).map(|mount| mount.target.clone()).collect();
    mask::apply(plan, root, "/", &except, sources)
}

/// proc and sysfs: their target is no link, so that the masks are where the container sees the file system.
fn own_file_system<'a>(
    root: BorrowedFd<'_>,
    mount: &MountPlan,
    own: &'a mut Vec<OwnedFd>,
) -> Result<BorrowedFd<'a>, LaunchFailure> {
    let tree = new_file_system(mount, &[])?;
    open_existing(root, &mount.target).map_err(|failure| LaunchFailure { step: LaunchStep::Mount, ..failure })?;
    attach(&tree, root, mount, Make::Directory)?;
    own.push(tree);
    Ok(own[own.len() - 1].as_fd())
}

fn new_file_system(mount: &MountPlan, defaults: &[&str]) -> Result<OwnedFd, LaunchFailure> {
    let fstype = match mount.kind() {
        MountKind::Proc => "proc",
        MountKind::Sysfs => "sysfs",
        MountKind::Cgroup => "cgroup2",
        MountKind::Mqueue => "mqueue",
        MountKind::Devpts => "devpts",
        MountKind::Tmpfs | MountKind::Dev | MountKind::Bind | MountKind::Image => "tmpfs",
    };
    let context = FsContext::open(fstype).map_err(|e| failed(mount, fstype, &e))?;
    let made = (|| {
        // What mount tables show as the device; `none` otherwise.
        context.set("source", fstype)?;
        for option in defaults {
            context.option(option)?;
        }
        for option in &mount.options {
            context.option(option)?;
        }
        context.mount(mount.attributes)
    })();
    made.map_err(|e| {
        let subject = context.message().map_or_else(|| fstype.to_owned(), |text| format!("{fstype}: {text}"));
        failed(mount, &subject, &e)
    })
}

fn attach(tree: &OwnedFd, root: BorrowedFd<'_>, mount: &MountPlan, make: Make) -> Result<(), LaunchFailure> {
    let target = open_target(root, &mount.target, make)?;
    fsctx::attach(tree, target).map_err(|e| failed(mount, "attach", &e))
}

/// v1: a tmpfs with a directory per hierarchy, each the container's own cgroup, and a link per controller of a shared hierarchy.
fn cgroup_v1(root: BorrowedFd<'_>, mount: &MountPlan, sources: &MountSources) -> Result<(), LaunchFailure> {
    let plain = MountPlan {
        kind: MountKind::Tmpfs.into(),
        attributes: mount.attributes & !attributes::RDONLY,
        options: vec!["mode=755".to_owned()],
        ..mount.clone()
    };
    let tree = new_file_system(&plain, &[])?;
    attach(&tree, root, mount, Make::Directory)?;
    for (hierarchy, cgroup) in &sources.cgroups {
        let target = open_target(root, &format!("{}/{hierarchy}", mount.target), Make::Directory)?;
        fsctx::attach(cgroup, target).map_err(|e| failed(mount, hierarchy, &e))?;
        for controller in hierarchy.split(',').filter(|controller| *controller != hierarchy) {
            rustix::fs::symlinkat(hierarchy.as_str(), &tree, controller)
                .map_err(|e| failed(mount, controller, &e.into()))?;
        }
    }
    let set = mount.attributes & attributes::RDONLY;
    fsctx::change(&tree, false, &MountChange { set, ..MountChange::default() }).map_err(|e| failed(mount, "cgroup", &e))
}

fn failed(mount: &MountPlan, subject: &str, error: &std::io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Mount, format!("mount {}: {subject}", mount.target), error)
}
