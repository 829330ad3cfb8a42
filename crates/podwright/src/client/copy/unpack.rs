//! Writes a tar stream that a container sent. Nothing is written outside of the destination, whatever the stream says.
//!
//! The names of entries may not contain `..`; directories are opened with `openat2` beneath the destination; an existing file or
//! link is replaced, once its new content is complete, and never written through. Only a device or FIFO that the user named is written;
//! below a copied directory it is an error. Links that lead out of the copy and special files are left out, with a warning.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use podwright_image::{TarEntry, TarError, TarKind, TarReader};
use podwright_linux::beneath::ConfinedDir;
use podwright_tasks::error_chain;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, renameat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::paths::LocalTarget;
use crate::print::plain;
use crate::special_file::open_special;

/// Entries of one copy: a bound on what a container can send, far above the largest images.
const ENTRIES_MAX: u64 = 10_000_000;
/// Set-user-ID and the like are not taken over from a container.
const MODE_MASK: u32 = 0o777;
/// Names that are tried for a file that is being written.
const ASIDE_ATTEMPTS_MAX: u32 = 100;

/// Why a copy from a container failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("read the tar stream of the container: {}", error_chain(.0))]
    Tar(#[from] TarError),
    #[error("the container sent the entry {0:?}, which is not part of the copy")]
    Foreign(String),
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Unpacks to the end of the stream. Returns how many entries were written.
pub(super) fn unpack(stream: impl Read, target: &LocalTarget) -> Result<u64, CopyError> {
    let mut tar = TarReader::new(stream, ENTRIES_MAX);
    let (mut copy, mut written) = (None, 0);
    while let Some(entry) = tar.next_entry()? {
        let Some(path) = relative(&entry.path, target.strip.as_deref()) else {
            return Err(CopyError::Foreign(plain(&String::from_utf8_lossy(&entry.path))));
        };
        if path.as_os_str().is_empty() {
            written += u64::from(first(&mut tar, &entry, target, &mut copy)?);
            continue;
        }
        let copy = match &copy {
            Some(copy) => copy,
            // The content of a directory, without an entry for itself.
            None if target.name.is_none() => copy.insert(CopiedTree::make(target, entry.mode)?),
            None => return Err(CopyError::Foreign(plain(&path.to_string_lossy()))),
        };
        written += u64::from(copy.write(&mut tar, &entry, &path, target)?);
    }
    // The pipe must be read to its end, or `tar` in the container fails.
    let mut rest = tar.into_rest();
    io::copy(&mut rest, &mut io::sink()).map_err(TarError::Read)?;
    Ok(written)
}

/// The copied object itself: a file, or the directory that everything else is below of.
fn first(
    tar: &mut TarReader<impl Read>,
    entry: &TarEntry,
    target: &LocalTarget,
    copy: &mut Option<CopiedTree>,
) -> Result<bool, CopyError> {
    let failed = |source| CopyError::Write { path: target.dir.clone(), source };
    match (&entry.kind, &target.name) {
        (TarKind::Directory, _) => {
            if copy.is_none() {
                *copy = Some(CopiedTree::make(target, entry.mode)?);
            }
            Ok(true)
        }
        (TarKind::File, Some(name)) if copy.is_none() => {
            std::fs::create_dir_all(&target.dir).map_err(failed)?;
            let dir = ConfinedDir::open(&target.dir).map_err(failed)?;
            write_named(tar, &dir, name, entry.mode)
                .map_err(|source| CopyError::Write { path: target.dir.join(name), source })?;
            Ok(true)
        }
        (TarKind::File, _) => Err(CopyError::Foreign(plain(&String::from_utf8_lossy(&entry.path)))),
        (TarKind::Symlink(to), _) => {
            let to = plain(&String::from_utf8_lossy(to));
            eprintln!("podwright: it is a symbolic link to {to}: copy that path");
            Ok(false)
        }
        _ => {
            eprintln!("podwright: it is neither a file nor a directory");
            Ok(false)
        }
    }
}

/// The directory that is being written.
struct CopiedTree(ConfinedDir);

impl CopiedTree {
    fn make(target: &LocalTarget, mode: u32) -> Result<Self, CopyError> {
        let failed = |path: &Path, source| CopyError::Write { path: path.to_owned(), source };
        std::fs::create_dir_all(&target.dir).map_err(|source| failed(&target.dir, source))?;
        let dir = ConfinedDir::open(&target.dir).map_err(|source| failed(&target.dir, source))?;
        let Some(name) = &target.name else { return Ok(Self(dir)) };
        make_dir(&dir, name, mode).map(Self).map_err(|source| failed(&target.dir.join(name), source))
    }

    /// False: the entry was left out.
    fn write(
        &self,
        tar: &mut TarReader<impl Read>,
        entry: &TarEntry,
        path: &Path,
        target: &LocalTarget,
    ) -> Result<bool, CopyError> {
        let written = self.write_entry(tar, entry, path, target.strip.as_deref());
        written.map_err(|source| {
            let root = target.name.as_ref().map_or_else(|| target.dir.clone(), |name| target.dir.join(name));
            CopyError::Write { path: root.join(path), source }
        })
    }

    fn write_entry(
        &self,
        tar: &mut TarReader<impl Read>,
        entry: &TarEntry,
        path: &Path,
        strip: Option<&str>,
    ) -> io::Result<bool> {
        let (parent, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().ok_or(Errno::INVAL)?);
        let parent = ConfinedDir::from_fd(self.0.make_dirs(parent, 0o755)?);
        match &entry.kind {
            TarKind::Directory => _ = make_dir(&parent, name, entry.mode)?,
            TarKind::File => write_file(tar, &parent, name, entry.mode)?,
            TarKind::Symlink(to) if stays_inside(path, to) => {
                remove_entry(&parent, name)?;
                symlinkat(OsStr::from_bytes(to), &parent, name)?;
            }
            TarKind::HardLink(to) => {
                // Another name of a file of this copy; a copy of its content is the same to a reader.
                let source = relative(to, strip).filter(|to| !to.as_os_str().is_empty()).ok_or(Errno::XDEV)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let mut source = File::from(self.0.open_beneath(&source, flags)?);
                if !source.metadata()?.is_file() {
                    return Err(Errno::INVAL.into());
                }
                write_file(&mut source, &parent, name, entry.mode)?;
            }
            TarKind::Symlink(to) => {
                let to = plain(&String::from_utf8_lossy(to));
                warn(path, &format!("a symbolic link to {to}, which is not part of the copy"));
                return Ok(false);
            }
            TarKind::CharDevice(..) | TarKind::BlockDevice(..) | TarKind::Fifo => {
                warn(path, "neither a file nor a directory");
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn warn(path: &Path, what: &str) {
    eprintln!("podwright: {} was not copied: it is {what}", plain(&path.to_string_lossy()));
}

/// A new or existing directory; a link of this name is an error.
fn make_dir(parent: &ConfinedDir, name: &OsStr, mode: u32) -> io::Result<ConfinedDir> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let fd = parent.open_beneath(Path::new(name), flags)?;
    // The owner can always write what follows.
    fchmod(&fd, Mode::from_raw_mode(mode & MODE_MASK | 0o700))?;
    Ok(ConfinedDir::from_fd(fd))
}

/// Writes the file that the user named, or the device or FIFO.
fn write_named(content: &mut impl Read, dir: &ConfinedDir, name: &OsStr, mode: u32) -> io::Result<()> {
    match open_special(dir, Path::new(name))? {
        Some(mut special) => io::copy(content, &mut special).map(|_| ()),
        None => write_file(content, dir, name, mode),
    }
}

/// Writes the file aside and renames it: a copy that fails leaves what was there.
fn write_file(content: &mut impl Read, dir: &ConfinedDir, name: &OsStr, mode: u32) -> io::Result<()> {
    let replaces = check_replaceable(dir, name)?;
    let (aside, mut file) = create_aside(dir, mode)?;
    let written = io::copy(content, &mut file)
        // What was there must not be lost with the power. A new file is not worth the wait.
        .and_then(|_| if replaces { file.sync_all() } else { Ok(()) })
        .and_then(|()| Ok(renameat(dir, &aside, dir, name)?));
    if written.is_err() {
        let _ = unlinkat(dir, &aside, AtFlags::empty());
    }
    written
}

fn create_aside(dir: &ConfinedDir, mode: u32) -> io::Result<(String, File)> {
    let mut attempt = 0;
    loop {
        let name = format!(".podwright-cp.{}.{attempt}", std::process::id());
        match dir.create_file(Path::new(&name), mode & MODE_MASK) {
            Ok(file) => return Ok((name, file)),
            // A file of the user, or one that the container sent.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ASIDE_ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Removes the file or link that has this name.
fn remove_entry(dir: &ConfinedDir, name: &OsStr) -> io::Result<()> {
    check_replaceable(dir, name)?;
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Directories, devices, FIFOs and sockets are not replaced. Those of a name that the container chose are not written either.
/// `false`: there is nothing to replace.
fn check_replaceable(dir: &ConfinedDir, name: &OsStr) -> io::Result<bool> {
    let found = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile | FileType::Symlink => Ok(true),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is a device, FIFO or socket, which is not replaced")),
    }
}

/// The path of an entry below the copied object; empty: the object itself. `None`: it is not part of the copy.
fn relative(entry: &[u8], strip: Option<&str>) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(entry.to_vec()));
    let mut parts = vec![];
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_owned()),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    match strip {
        None => Some(parts.iter().collect()),
        Some(strip) if parts.first().is_some_and(|first| first == strip) => Some(parts[1..].iter().collect()),
        Some(_) => None,
    }
}

/// The link, which is at this path, leads to a path of the copy.
fn stays_inside(link: &Path, to: &[u8]) -> bool {
    let mut depth = link.components().count() - 1;
    for part in Path::new(OsStr::from_bytes(to)).components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
