//! Step 5: the root of a container as a detached mount: nothing in the host's mount table, nothing to undo.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_linux::fsctx::{self, FsContext, MountChange, MountPropagation};
use podwright_linux::{features, namespace};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount};

use super::sources::private;
use super::targets::open_host;
use super::{LaunchFailure, LaunchStep};
use crate::plan::{OverlayLayers, Propagation, RootfsPlan};

/// Makes the root. `user`: ids of the layers are those inside this namespace; upper and work belong to its root already.
pub(super) fn make(
    plan: &RootfsPlan,
    propagation: Propagation,
    user: Option<BorrowedFd<'_>>,
    staging: &str,
) -> Result<OwnedFd, LaunchFailure> {
    let tree = match (&plan.layers, plan.directory.is_empty()) {
        (Some(layers), true) => overlay(layers, user, staging)?,
        (None, false) => directory(&plan.directory)?,
        _ => return Err(LaunchFailure::new(LaunchStep::Plan, "a root needs either a directory or layers")),
    };
    let propagation = match propagation {
        Propagation::Unset | Propagation::Private => MountPropagation::Private,
        Propagation::Slave => MountPropagation::Slave,
        Propagation::Shared => MountPropagation::Shared,
    };
    let change = MountChange { propagation: Some(propagation), ..MountChange::default() };
    fsctx::change(&tree, true, &change).map_err(|e| failed("propagation", &e))?;
    Ok(tree)
}

fn directory(path: &str) -> Result<OwnedFd, LaunchFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(path, &e.into()))?;
    fsctx::clone_tree(open, true).map_err(|e| failed(path, &e))
}

/// A detached overlay. Without an upper directory it is read-only.
pub(super) fn overlay(
    layers: &OverlayLayers,
    user: Option<BorrowedFd<'_>>,
    staging: &str,
) -> Result<OwnedFd, LaunchFailure> {
    let lower = match user {
        Some(user) => idmapped(&layers.lower, user, staging)?,
        None => layers.lower.clone(),
    };
    if layers.by_mount_call || !features::overlay_lowerdir_add() {
        return overlay_by_mount_call(&lower, layers, staging);
    }
    let context = FsContext::open("overlay").map_err(|e| failed("overlay", &e))?;
    // Descriptors behind /proc/self/fd names of paths that are too long; needed until the file system exists.
    let mut held = vec![];
    let configured = (|| -> std::io::Result<OwnedFd> {
        for directory in &lower {
            context.set("lowerdir+", &short(directory, &mut held)?)?;
        }
        if !layers.upper.is_empty() {
            context.set("upperdir", &short(&layers.upper, &mut held)?)?;
            context.set("workdir", &short(&layers.work, &mut held)?)?;
            // A crash of the node loses the container's files anyway; syncing them would cost every exit.
            context.flag("volatile")?;
        }
        for option in OPTIONS {
            context.option(option)?;
        }
        context.mount(0)
    })();
    configured.map_err(|e| {
        let subject = context.message().map_or_else(|| "overlay".to_owned(), |text| format!("overlay: {text}"));
        failed(&subject, &e)
    })
}

/// For kernels that take all layers in one text of at most a page: relative names, mounted aside and cloned.
fn overlay_by_mount_call(lower: &[String], layers: &OverlayLayers, staging: &str) -> Result<OwnedFd, LaunchFailure> {
    let step = |e: &std::io::Error| failed("overlay", e);
    let parent = common_parent(lower);
    let relative = |layer: &String| escaped(layer.strip_prefix(&parent).unwrap_or(layer));
    let mut options = format!("lowerdir={}", lower.iter().map(relative).collect::<Vec<_>>().join(":"));
    if !layers.upper.is_empty() {
        options += &format!(",upperdir={},workdir={},volatile", escaped(&layers.upper), escaped(&layers.work));
    }
    OPTIONS.iter().for_each(|option| options = format!("{options},{option}"));
    if options.len() >= rustix::param::page_size() {
        let text = format!("root: {} layers are more than this kernel takes", lower.len());
        return Err(LaunchFailure::new(LaunchStep::Rootfs, text));
    }
    mount_aside().map_err(|e| step(&e))?;
    let options = std::ffi::CString::new(options).map_err(|e| step(&e.into()))?;
    if !parent.is_empty() {
        rustix::process::chdir(parent.as_str()).map_err(|e| failed(&parent, &e.into()))?;
    }
    let mounted = mount("overlay", staging, "overlay", MountFlags::empty(), options.as_c_str());
    rustix::process::chdir(c"/").map_err(|e| step(&e.into()))?;
    mounted.map_err(|e| step(&e.into()))?;
    fsctx::clone_tree(open_host(staging).map_err(|e| step(&e.into()))?, false).map_err(|e| step(&e))
}

/// The longest directory, with a slash at its end, that holds all paths. Empty: there is none.
fn common_parent(paths: &[String]) -> String {
    let Some(first) = paths.first() else { return String::new() };
    let mut parent = first.as_str();
    while let Some(at) = parent.strip_suffix('/').unwrap_or(parent).rfind('/') {
        parent = &first[..=at];
        if paths.iter().all(|path| path.len() > parent.len() && path.starts_with(parent)) {
            return parent.to_owned();
        }
    }
    String::new()
}

/// A path in a text of options, in which colons separate layers and commas options.
fn escaped(path: &str) -> String {
    path.chars().flat_map(|c| matches!(c, '\\' | ':' | ',').then_some('\\').into_iter().chain([c])).collect()
}

/// A mount namespace that ends with this process or is left behind by the pivot, and sends nothing to the host.
fn mount_aside() -> std::io::Result<()> {
    namespace::unshare(namespace::flags::NEWNS)?;
    fsctx::change_root(MountPropagation::Slave)
}

/// Attaches a mount in a mount namespace aside. Its descriptor then names an attached mount.
pub(super) fn attach_aside(tree: &OwnedFd, staging: &str) -> Result<(), LaunchFailure> {
    let attached = mount_aside().and_then(|()| fsctx::attach(tree, open_host(staging)?));
    attached.map_err(|e| failed("attach in a mount namespace aside", &e))
}

/// Layers as the user namespace sees them: overlayfs takes idmapped layers, but cannot be idmapped itself.
fn idmapped(lower: &[String], user: BorrowedFd<'_>, staging: &str) -> Result<Vec<String>, LaunchFailure> {
    let tmpfs = FsContext::open("tmpfs").and_then(|context| context.mount(0));
    attach_aside(&tmpfs.map_err(|e| failed("idmapped layers", &e))?, staging)?;
    let mut names = vec![];
    for (index, layer) in lower.iter().enumerate() {
        let failed = |e: std::io::Error| failed(layer, &e);
        let tree = fsctx::clone_tree(open_host(layer).map_err(|e| failed(e.into()))?, false).map_err(failed)?;
        fsctx::change(&tree, false, &MountChange { idmap: Some(user), ..private() }).map_err(failed)?;
        let name = format!("{staging}/{index}");
        std::fs::create_dir(&name).map_err(failed)?;
        fsctx::attach(&tree, open_host(&name).map_err(|e| failed(e.into()))?).map_err(failed)?;
        names.push(name);
    }
    Ok(names)
}

/// A name of this directory that fits into an option of a file system.
fn short(directory: &str, held: &mut Vec<OwnedFd>) -> std::io::Result<String> {
    if directory.len() <= OPTION_MAX {
        return Ok(directory.to_owned());
    }
    let open = open_host(directory)?;
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open.as_fd()));
    held.push(open);
    Ok(name)
}

fn failed(subject: &str, error: &std::io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Rootfs, format!("root: {subject}"), error)
}

/// Features that would let a layer steer the overlay, or that need the layers to stay on one file system, are off.
const OPTIONS: [&str; 4] = ["redirect_dir=off", "index=off", "metacopy=off", "xino=off"];
/// `fsconfig` takes 256 bytes with the NUL.
const OPTION_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_short_names_below_their_common_directory() {
        let paths = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        for (all, expected) in [
            (&["/var/l/1/fs", "/var/l/12/fs"][..], "/var/l/"),
            (&["/var/l/1/fs"], "/var/l/1/"),
            (&["/a/b", "/c/d"], "/"),
            (&["/a/b", "/a/b/c"], "/a/"),
            (&["relative"], ""),
            (&[], ""),
        ] {
            assert_eq!(common_parent(&paths(all)), expected, "{all:?}");
        }
        assert_eq!(escaped(r"/a:b,c\d"), r"/a\:b\,c\\d");
    }
}
