//! Places inside the container's root, reached without leaving it: no path is resolved by the rules of the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;

use super::{LaunchFailure, LaunchStep};

/// What a missing target becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Directory,
    File,
}

/// Opens a target, making what is missing of it. Symbolic links of the image are followed inside the root.
pub(super) fn open_target(root: BorrowedFd<'_>, path: &str, make: Make) -> Result<OwnedFd, LaunchFailure> {
    let failed = |e: Errno| LaunchFailure::io(LaunchStep::Mount, format!("mount target {path}"), &e.into());
    let names = components(path)?;
    match openat2(root, names.join("/").as_str(), PATH, Mode::empty(), inside()) {
        Err(Errno::NOENT) => {}
        found => return found.map_err(failed),
    }
    let Some((last, parents)) = names.split_last() else {
        return Err(LaunchFailure::new(
            LaunchStep::Mount,
            format!("mount target {path}: the root cannot be mounted over"),
        ));
    };
    let parent = make_directories(root, parents).map_err(failed)?;
    let parent = parent.as_ref().map_or(root, AsFd::as_fd);
    match make {
        Make::Directory => make_directory(parent, last).map_err(failed),
        Make::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
            openat(parent, *last, flags, Mode::from_raw_mode(0o644)).map_err(failed)
        }
    }
}

/// Makes a directory and its parents.
pub(super) fn make_all(root: BorrowedFd<'_>, path: &str) -> Result<(), LaunchFailure> {
    let names = components(path)?;
    match make_directories(root, &names) {
        // What is in the way is found again, with a better message, where the directory is used.
        Ok(_) | Err(Errno::NOTDIR | Errno::ROFS | Errno::EXIST) => Ok(()),
        Err(e) => Err(LaunchFailure::io(LaunchStep::WorkingDirectory, format!("mkdir {path}"), &e.into())),
    }
}

/// Opens an existing path without following any link. `None`: it does not exist.
pub(super) fn open_existing(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>, LaunchFailure> {
    let names = components(path)?;
    match openat2(root, names.join("/").as_str(), PATH, Mode::empty(), inside() | ResolveFlags::NO_SYMLINKS) {
        Ok(open) => Ok(Some(open)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(e) => Err(LaunchFailure::io(LaunchStep::Mask, path, &e.into())),
    }
}

/// Opens a path of the host; links are followed.
pub(super) fn open_host(path: &str) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// `None`: no names, the root itself.
fn make_directories(root: BorrowedFd<'_>, names: &[&str]) -> Result<Option<OwnedFd>, Errno> {
    let mut current: Option<OwnedFd> = None;
    for end in 1..=names.len() {
        let prefix = names[..end].join("/");
        let flags = PATH | OFlags::DIRECTORY;
        let next = match openat2(root, prefix.as_str(), flags, Mode::empty(), inside()) {
            Err(Errno::NOENT) => make_directory(current.as_ref().map_or(root, AsFd::as_fd), names[end - 1])?,
            found => found?,
        };
        current = Some(next);
    }
    Ok(current)
}

/// A dangling link in the place of the directory is an error, not a way out.
fn make_directory(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    openat2(parent, name, PATH | OFlags::DIRECTORY, Mode::empty(), inside() | ResolveFlags::NO_SYMLINKS)
}

fn components(path: &str) -> Result<Vec<&str>, LaunchFailure> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    if names.contains(&"..") {
        return Err(LaunchFailure::new(LaunchStep::Plan, format!("{path}: a path inside a container cannot have ..")));
    }
    Ok(names)
}

fn inside() -> ResolveFlags {
    ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS
}

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn targets_are_made_inside_the_root_whatever_its_links_say() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("run")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        symlink(&outside, root.join("escape")).unwrap();
        symlink("../../../outside", root.join("up")).unwrap();
        let held: OwnedFd = fs::File::open(&root).unwrap().into();
        let make = |path, kind| open_target(held.as_fd(), path, kind);
        make("/var/run/app/dir", Make::Directory).unwrap();
        make("/var/run/app/file", Make::File).unwrap();
        assert!(root.join("run/app/dir").is_dir() && root.join("run/app/file").is_file());
        for path in ["/escape/new", "/up/new"] {
            assert_eq!(make(path, Make::Directory).unwrap_err().errno, Some(libc::EEXIST), "{path}");
        }
        assert!(make("/a/../../b", Make::Directory).is_err());
        assert!(fs::read_dir(&outside).unwrap().next().is_none());
        assert_eq!(open_existing(held.as_fd(), "/var/run/app").unwrap_err().errno, Some(libc::ELOOP));
        assert!(open_existing(held.as_fd(), "/nothing").unwrap().is_none());
    }
}
