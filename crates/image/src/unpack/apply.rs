//! Creates the files of one layer below its root, by descriptor and without following a symlink.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use podwright_linux::beneath::remove_tree;
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, OFlags, ResolveFlags, linkat, makedev, mkdirat, mknodat, openat, openat2,
    statat, symlinkat,
};
use rustix::io::Errno;

use super::entry_path::{EntryPath, entry_path};
use super::{UnpackError, UnpackRequest};
use crate::tar_reader::{TarEntry, TarKind};
use step::EntryStep;

mod metadata;
mod step;

/// Creates entries below one root.
pub(super) struct Applier<'a> {
    request: &'a UnpackRequest<'a>,
    root: OwnedFd,
    /// Directories of the tar with their times, which are set at the end: every new entry changes the time of its directory.
    directories: Vec<(PathBuf, (i64, u32))>,
    /// Bytes of the paths in `directories`.
    directory_bytes: usize,
    /// The directory of the last entry: entries come ordered by directory.
    last_parent: Option<(PathBuf, OwnedFd)>,
    content_bytes: u64,
    /// Bytes and estimated metadata since the free space was last checked.
    unchecked: u64,
    /// Directories that the tar only implies.
    implied: u64,
}

impl<'a> Applier<'a> {
    pub(super) fn open(request: &'a UnpackRequest<'a>) -> Result<Self, UnpackError> {
        let failed = |e: Errno| UnpackError::Create {
            layer: request.layer,
            action: "open",
            path: request.root.display().to_string(),
            source: e.into(),
        };
        let root = openat(CWD, request.root, DIRECTORY, Mode::empty()).map_err(failed)?;
        let (directories, last_parent) = (vec![], None);
        let (directory_bytes, content_bytes, unchecked, implied) = (0, 0, 0, 0);
        Ok(Self { request, root, directories, directory_bytes, last_parent, content_bytes, unchecked, implied })
    }

    /// Creates one entry. The last one of a name wins.
    pub(super) fn apply(&mut self, entry: &TarEntry, content: &mut impl Read) -> Result<(), UnpackError> {
        let step = EntryStep { request: self.request, path: &entry.path };
        self.charge(ENTRY_BYTES, &step)?;
        match entry_path(&entry.path).map_err(|reason| step.refused(reason))? {
            EntryPath::Bookkeeping => Ok(()),
            EntryPath::Root if entry.kind == TarKind::Directory => {
                let root = self.root.try_clone().map_err(step.failed("open"))?;
                self.set_directory(Path::new(""), root.as_fd(), entry)
            }
            EntryPath::Root => Err(step.refused("the root is not a directory")),
            EntryPath::Opaque(dir) => {
                let dir = self.parent(&dir, &step)?;
                metadata::set_opaque(dir.as_fd()).map_err(step.failed("mark as opaque"))
            }
            EntryPath::Whiteout(dir, name) => {
                let parent = self.parent(&dir, &step)?;
                self.whiteout(parent.as_fd(), &name, &step)
            }
            EntryPath::Name(dir, name) => {
                let parent = self.parent(&dir, &step)?;
                self.create(parent.as_fd(), &dir, &name, entry, content)
            }
        }
    }

    /// Sets the times of directories. Returns the bytes of file content.
    pub(super) fn finish(self) -> Result<u64, UnpackError> {
        for (path, mtime) in &self.directories {
            let step = EntryStep { request: self.request, path: path.as_os_str().as_bytes() };
            match open_dir(self.root.as_fd(), path) {
                Ok(dir) => metadata::set_time(dir.as_fd(), *mtime).map_err(step.failed("set times of"))?,
                // A later entry of the same name replaced it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(step.failed("open")(e.into())),
            }
        }
        Ok(self.content_bytes)
    }

    fn create(
        &mut self,
        parent: BorrowedFd<'_>,
        dir: &Path,
        name: &Path,
        entry: &TarEntry,
        content: &mut impl Read,
    ) -> Result<(), UnpackError> {
        let step = EntryStep { request: self.request, path: &entry.path };
        let existing = existing(parent, name).map_err(step.failed("stat"))?;
        let keep = existing == Some(Existing::Directory) && entry.kind == TarKind::Directory;
        if existing.is_some() && !keep {
            self.last_parent = None;
            remove_tree(parent, name.as_os_str(), name).map_err(step.not_removed())?;
        }
        match &entry.kind {
            TarKind::File => self.file(parent, name, entry, content),
            TarKind::Directory => {
                if !keep {
                    mkdirat(parent, name, Mode::RWXU).map_err(|e| step.failed("create directory")(e.into()))?;
                }
                let made = openat(parent, name, DIRECTORY, Mode::empty());
                let made = made.map_err(|e| step.failed("open")(e.into()))?;
                // A hidden name that appears again as a directory: the directory below must stay hidden.
                if existing == Some(Existing::Whiteout) {
                    metadata::set_opaque(made.as_fd()).map_err(step.failed("mark as opaque"))?;
                }
                self.set_directory(&dir.join(name), made.as_fd(), entry)
            }
            TarKind::Symlink(target) => {
                if target.is_empty() || target.contains(&0) {
                    return Err(step.refused("the target of the symlink is empty or has a zero byte"));
                }
                let made = symlinkat(target.as_slice(), parent, name);
                made.map_err(|e| step.failed("create symlink")(e.into()))?;
                metadata::set_by_name(parent, name, entry, false).map_err(step.failed("set owner of"))
            }
            TarKind::HardLink(target) => self.hard_link(parent, name, target, &step),
            TarKind::CharDevice(major, minor) => {
                node(parent, name, FileType::CharacterDevice, makedev(*major, *minor), entry, &step)
            }
            TarKind::BlockDevice(major, minor) => {
                node(parent, name, FileType::BlockDevice, makedev(*major, *minor), entry, &step)
            }
            TarKind::Fifo => node(parent, name, FileType::Fifo, 0, entry, &step),
        }
    }

    fn file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &Path,
        entry: &TarEntry,
        content: &mut impl Read,
    ) -> Result<(), UnpackError> {
        let step = EntryStep { request: self.request, path: &entry.path };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(fd.map_err(|e| step.failed("create file")(e.into()))?);
        let mut buffer = [0; 64 << 10];
        loop {
            let count = content.read(&mut buffer).map_err(|e| step.stream(e))?;
            if count == 0 {
                break;
            }
            self.charge(count as u64, &step)?;
            file.write_all(&buffer[..count]).map_err(step.failed("write"))?;
            self.content_bytes += count as u64;
        }
        metadata::set(file.as_fd(), entry).map_err(step.failed("set metadata of"))?;
        metadata::set_time(file.as_fd(), entry.mtime).map_err(step.failed("set times of"))
    }

    /// Counts what is about to be written, and checks now and then that the disk keeps its reserve.
    fn charge(&mut self, bytes: u64, step: &EntryStep<'_>) -> Result<(), UnpackError> {
        self.unchecked += bytes;
        if self.unchecked <= DISK_CHECK_BYTES {
            return Ok(());
        }
        self.unchecked = 0;
        self.request.disk.check(0).map_err(|source| UnpackError::Disk { layer: self.request.layer, source })?;
        step.check_cancelled()
    }

    /// Only to what this layer holds. Its directory is opened like every other one: beneath the root, without symlinks.
    fn hard_link(
        &self,
        parent: BorrowedFd<'_>,
        name: &Path,
        target: &[u8],
        step: &EntryStep<'_>,
    ) -> Result<(), UnpackError> {
        let target = match entry_path(target) {
            Ok(EntryPath::Name(dir, name)) => (dir, name),
            Ok(_) => return Err(step.refused("the hard link names no file")),
            Err(_) => return Err(step.refused("the hard link leads out of the layer")),
        };
        let absent = "the hard link names a file that is not in this layer";
        let from = match open_dir(self.root.as_fd(), &target.0) {
            Ok(dir) => dir,
            Err(Errno::LOOP) => return Err(step.refused("the hard link leads through a symlink")),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(step.refused(absent)),
            Err(e) => return Err(step.failed("open")(e.into())),
        };
        match existing(from.as_fd(), &target.1).map_err(step.failed("stat"))? {
            Some(Existing::Other) => {}
            Some(Existing::Directory) => return Err(step.refused("the hard link names a directory")),
            Some(Existing::Whiteout) | None => return Err(step.refused(absent)),
        }
        // Without AT_SYMLINK_FOLLOW: a link to a symlink is a link to the symlink itself.
        linkat(from, &target.1, parent, name, AtFlags::empty()).map_err(|e| step.failed("link")(e.into()))
    }

    /// Hides a name of the layers below, as overlayfs wants it: a character device 0/0.
    fn whiteout(&self, parent: BorrowedFd<'_>, name: &Path, step: &EntryStep<'_>) -> Result<(), UnpackError> {
        match existing(parent, name).map_err(step.failed("stat"))? {
            None => mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(|e| step.failed("create whiteout")(e.into())),
            // A directory of this layer hides nothing below it unless it is opaque; anything else does.
            Some(Existing::Directory) => {
                let dir = openat(parent, name, DIRECTORY, Mode::empty()).map_err(|e| step.failed("open")(e.into()))?;
                metadata::set_opaque(dir.as_fd()).map_err(step.failed("mark as opaque"))
            }
            Some(Existing::Whiteout | Existing::Other) => Ok(()),
        }
    }

    fn set_directory(&mut self, path: &Path, fd: BorrowedFd<'_>, entry: &TarEntry) -> Result<(), UnpackError> {
        let step = EntryStep { request: self.request, path: &entry.path };
        metadata::set(fd, entry).map_err(step.failed("set metadata of"))?;
        self.directory_bytes += path.as_os_str().len() + size_of::<(PathBuf, (i64, u32))>();
        if self.directory_bytes > DIRECTORIES_BYTES_MAX {
            return Err(step.refused("the names of all directories together are too long"));
        }
        self.directories.push((path.to_owned(), entry.mtime));
        Ok(())
    }

    /// Opens the directory of an entry, and creates what the tar only implies.
    fn parent(&mut self, path: &Path, step: &EntryStep<'_>) -> Result<OwnedFd, UnpackError> {
        if let Some((last, fd)) = &self.last_parent
            && last == path
        {
            return fd.try_clone().map_err(step.failed("open"));
        }
        let found = match open_dir(self.root.as_fd(), path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR) => self.make_parents(path, step)?,
            Err(e) => return Err(step.lookup(e)),
        };
        let copy = found.try_clone().map_err(step.failed("open"))?;
        self.last_parent = Some((path.to_owned(), copy));
        Ok(found)
    }

    fn make_parents(&mut self, path: &Path, step: &EntryStep<'_>) -> Result<OwnedFd, UnpackError> {
        let mut here = open_dir(self.root.as_fd(), Path::new("")).map_err(|e| step.lookup(e))?;
        let mut prefix = PathBuf::new();
        for part in path {
            prefix.push(part);
            here = match openat2(here.as_fd(), part, LOOKUP, Mode::empty(), CONFINED) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => self.make_parent(here.as_fd(), part, &prefix, step)?,
                Err(Errno::NOTDIR)
                    if existing(here.as_fd(), Path::new(part)).ok() == Some(Some(Existing::Whiteout)) =>
                {
                    remove_tree(here.as_fd(), part, &prefix).map_err(step.not_removed())?;
                    let made = self.make_parent(here.as_fd(), part, &prefix, step)?;
                    metadata::set_opaque(made.as_fd()).map_err(step.failed("mark as opaque"))?;
                    made
                }
                Err(e) => return Err(step.lookup(e)),
            };
        }
        Ok(here)
    }

    /// Like the directory of the same name in the layers below, because overlayfs shows only the topmost one's metadata.
    fn make_parent(
        &mut self,
        at: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        step: &EntryStep<'_>,
    ) -> Result<OwnedFd, UnpackError> {
        self.charge(ENTRY_BYTES, step)?;
        self.implied += 1;
        if self.implied > self.request.limits.layer_entries {
            return Err(step.refused("too many directories that have no entry of their own"));
        }
        mkdirat(at, name, Mode::from_raw_mode(0o755)).map_err(|e| step.failed("create directory")(e.into()))?;
        let made = openat(at, name, DIRECTORY, Mode::empty()).map_err(|e| step.failed("open")(e.into()))?;
        for lower in self.request.lowers {
            let lower = openat(CWD, lower, DIRECTORY, Mode::empty()).map_err(|e| step.failed("open")(e.into()))?;
            match open_dir(lower.as_fd(), path) {
                Ok(like) => {
                    metadata::copy(like.as_fd(), made.as_fd()).map_err(step.failed("copy metadata of"))?;
                    return Ok(made);
                }
                Err(Errno::NOENT) => {}
                // Something else hides the directories further below.
                Err(_) => break,
            }
        }
        metadata::set_mode(made.as_fd(), 0o755).map_err(step.failed("set mode of"))?;
        Ok(made)
    }
}

/// What is under a name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Directory,
    Whiteout,
    Other,
}

fn existing(parent: BorrowedFd<'_>, name: &Path) -> io::Result<Option<Existing>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Existing::Directory,
            FileType::CharacterDevice if found.st_rdev == 0 => Existing::Whiteout,
            _ => Existing::Other,
        })),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Opens a directory below another; a symlink anywhere on the way is `ELOOP`.
fn open_dir(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, LOOKUP, Mode::empty(), CONFINED)
}

fn node(
    parent: BorrowedFd<'_>,
    name: &Path,
    kind: FileType,
    device: Dev,
    entry: &TarEntry,
    step: &EntryStep<'_>,
) -> Result<(), UnpackError> {
    let made = mknodat(parent, name, kind, Mode::from_raw_mode(entry.mode & 0o777), device);
    made.map_err(|e| step.failed("create device or pipe")(e.into()))?;
    metadata::set_by_name(parent, name, entry, true).map_err(step.failed("set owner of"))
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Without `O_NOFOLLOW`, so that a symlink at the end is `ELOOP` too and not `ENOTDIR`.
const LOOKUP: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// What an entry without content costs on the disk: its inode and its name, rounded up to a block.
const ENTRY_BYTES: u64 = 4 << 10;
/// The free space is checked once per this many bytes.
const DISK_CHECK_BYTES: u64 = 16 << 20;
/// Names of directories that are kept until their times are set; real images need less than a tenth.
const DIRECTORIES_BYTES_MAX: usize = 64 << 20;
