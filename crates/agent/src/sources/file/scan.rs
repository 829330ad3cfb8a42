//! One scan of the manifests: lists the files and reads those that changed. Blocking.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inotify::{WatchDescriptor, WatchMask, Watches};
use podwright_core::model::Manifest;
use rustix::fs::{Mode, OFlags};

use crate::sources::{Decode, InvalidManifest, MANIFEST_MAX, pods};

/// The path to scan, and its last known state.
pub(super) struct ScanRequest {
    pub(super) path: PathBuf,
    pub(super) all_names: bool,
    pub(super) known: BTreeMap<OsString, KnownFile>,
    pub(super) watches: Option<Watches>,
}

/// The state of a file before the scan.
#[derive(Clone, Copy, Default)]
pub(super) struct KnownFile {
    /// The file's metadata when it was read.
    pub(super) stamp: Option<FileStamp>,
    /// The hash of the content that was read.
    pub(super) hash: Option<u64>,
    /// It was closed or renamed into place since then: read it even if its metadata is unchanged.
    pub(super) closed: bool,
    pub(super) writer: Option<Writer>,
}

/// How a process may be writing the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Writer {
    /// It was created; a link is complete with that, a new file is not.
    Appeared,
    /// It was created a while ago and not written since: it was complete when it got its name.
    Quiet,
    /// It was written to and not closed.
    Writes,
}

/// The metadata by which an unchanged file is recognised: device, inode, size, mtime, ctime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FileStamp([i128; 5]);

/// The result of a scan.
pub(super) struct Scan {
    pub(super) inner: Option<WatchDescriptor>,
    pub(super) outer: Option<WatchDescriptor>,
    /// All manifests by file name, or the error of the path itself.
    pub(super) found: io::Result<BTreeMap<OsString, ScannedFile>>,
    /// The path does not exist: an empty set.
    pub(super) missing: bool,
}

/// One manifest file.
#[derive(Debug)]
pub(super) enum ScannedFile {
    /// Unchanged since the last read.
    Same,
    /// A process is writing it.
    Written { origin: String },
    /// New metadata, same content.
    Touched(FileStamp),
    /// Read again.
    Read { stamp: Option<FileStamp>, hash: Option<u64>, origin: String, outcome: ManifestResult },
}

/// The pods of a file.
pub(super) type ManifestResult = Result<Vec<Manifest>, ManifestFileError>;

/// A file without usable pods. Comparable, so that the same error is reported once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ManifestFileError {
    /// The system's message.
    #[error("{0}")]
    Unreadable(String),
    #[error("the link can't be followed: {0}")]
    BrokenLink(String),
    #[error("{0} bytes, a manifest may have {MANIFEST_MAX}")]
    TooLarge(u64),
    #[error(transparent)]
    Invalid(InvalidManifest),
}

/// Watches, then lists, then reads, so that no change is missed.
pub(super) fn scan(request: ScanRequest, decode: &Decode) -> Scan {
    let ScanRequest { path, all_names, known, watches } = request;
    let (inner, outer) = match watches {
        Some(mut watches) => watch(&mut watches, &path),
        None => (None, None),
    };
    let file = |name: &OsStr, path: &Path| examine(path, known.get(name).copied().unwrap_or_default(), decode);
    let metadata = fs::metadata(&path);
    let missing = metadata.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let found = match metadata {
        Ok(meta) if meta.is_dir() => names(&path, all_names).map(|names| {
            names.into_iter().filter_map(|name| file(&name, &path.join(&name)).map(|found| (name, found))).collect()
        }),
        Ok(meta) if !meta.is_file() => Err(io::Error::other("it is neither a directory nor a file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // A single file may have any name. A missing path is an empty set.
        Ok(_) | Err(_) => {
            let name = path.file_name().unwrap_or_default();
            Ok(file(name, &path).map(|found| (name.to_owned(), found)).into_iter().collect())
        }
    };
    Scan { inner, outer, found, missing }
}

/// Whether a file of this name in a manifest directory is read. `all`: with any extension.
pub fn is_manifest(name: &OsStr, all: bool) -> bool {
    let bytes = name.as_bytes();
    let known = [&b".yaml"[..], b".yml", b".json"].iter().any(|end| bytes.ends_with(end));
    !bytes.starts_with(b".") && (all || known)
}

/// Watches the directory and its parent: the directory itself may be created, removed, or be a link that is swapped.
fn watch(watches: &mut Watches, path: &Path) -> (Option<WatchDescriptor>, Option<WatchDescriptor>) {
    let moves =
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVED_TO | WatchMask::ONLYDIR;
    let writes = WatchMask::MODIFY | WatchMask::CLOSE_WRITE;
    let inner = watches.add(path, moves | writes | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF).ok();
    // For a single file, its writes are events of the parent. The parent may be the same directory, reached through a link:
    // MASK_ADD keeps the mask of the first watch.
    let mask = WatchMask::MASK_ADD | if inner.is_some() { moves } else { moves | writes };
    let parent = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    let outer = parent.and_then(|parent| watches.add(parent, mask).ok());
    (inner, outer)
}

fn names(dir: &Path, all: bool) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if is_manifest(&name, all) {
            names.push(name);
        }
    }
    if names.len() > FILES_MAX {
        return Err(io::Error::other(format!("{} manifests, more than the limit of {FILES_MAX}", names.len())));
    }
    Ok(names)
}

/// Reads a file if it has changed. `None`: it is not a regular file.
fn examine(path: &Path, known: KnownFile, decode: &Decode) -> Option<ScannedFile> {
    let origin = path.to_string_lossy().into_owned();
    let broken = |error| ScannedFile::Read { stamp: None, hash: None, origin: origin.clone(), outcome: Err(error) };
    let own = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(broken(ManifestFileError::Unreadable(error.to_string()))),
    };
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        // A link to a missing or inaccessible path, or to itself.
        Err(error) if own.is_symlink() => return Some(broken(ManifestFileError::BrokenLink(error.to_string()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(broken(ManifestFileError::Unreadable(error.to_string()))),
    };
    if !meta.is_file() {
        return None;
    }
    let complete = match known.writer {
        None => true,
        Some(Writer::Writes) => false,
        Some(Writer::Appeared) => own.is_symlink() || own.nlink() > 1,
        Some(Writer::Quiet) => own.is_symlink() || own.nlink() > 1 || meta.len() > 0,
    };
    if !complete {
        return Some(ScannedFile::Written { origin });
    }
    if !known.closed && known.stamp == Some(FileStamp::of(&meta)) {
        return Some(ScannedFile::Same);
    }
    Some(match read(path) {
        Ok(None) => return None,
        Ok(Some((FileContent::Whole(bytes), stamp))) => {
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let hash = hasher.finish();
            if known.hash == Some(hash) {
                return Some(ScannedFile::Touched(stamp));
            }
            let outcome = pods(&bytes, &origin, decode).map_err(ManifestFileError::Invalid);
            ScannedFile::Read { stamp: Some(stamp), hash: Some(hash), origin, outcome }
        }
        Ok(Some((FileContent::TooLarge(size), stamp))) => ScannedFile::Read {
            stamp: Some(stamp),
            hash: None,
            origin,
            outcome: Err(ManifestFileError::TooLarge(size)),
        },
        // Modified during the read: it is read again after its writer closes it, or in the next scan.
        Ok(Some((FileContent::Changing, _))) => ScannedFile::Written { origin },
        Err(error) => broken(ManifestFileError::Unreadable(error.to_string())),
    })
}

enum FileContent {
    Whole(Vec<u8>),
    TooLarge(u64),
    Changing,
}

/// Reads a regular file; `None` if it is not one. Does not block on a pipe.
fn read(path: &Path) -> io::Result<Option<(FileContent, FileStamp)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    let stamp = FileStamp::of(&meta);
    if meta.len() > MANIFEST_MAX {
        return Ok(Some((FileContent::TooLarge(meta.len()), stamp)));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
    (&mut file).take(MANIFEST_MAX + 1).read_to_end(&mut bytes)?;
    if FileStamp::of(&file.metadata()?) != stamp || bytes.len() as u64 != meta.len() {
        return Ok(Some((FileContent::Changing, stamp)));
    }
    Ok(Some((FileContent::Whole(bytes), stamp)))
}

impl FileStamp {
    fn of(meta: &Metadata) -> Self {
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self([
            meta.dev().into(),
            meta.ino().into(),
            meta.len().into(),
            nanos(meta.mtime(), meta.mtime_nsec()),
            nanos(meta.ctime(), meta.ctime_nsec()),
        ])
    }
}

/// Far more than a node can run; a directory with more is a mistake, and reading it would delay everything else.
const FILES_MAX: usize = 5_000;
