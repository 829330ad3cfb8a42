//! One look at the manifests: which files are there, and what those say that changed. Blocking.

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

use crate::sources::{Decode, MANIFEST_MAX, pods};

/// What to look at, and what is known of it.
pub(super) struct Question {
    pub(super) path: PathBuf,
    pub(super) all_names: bool,
    pub(super) known: BTreeMap<OsString, Known>,
    pub(super) watches: Option<Watches>,
}

/// What is known of a name before the look.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// What its file looked like when it was read.
    pub(super) stamp: Option<Stamp>,
    /// Of the bytes that were read.
    pub(super) hash: Option<u64>,
    /// It was closed or renamed into place since: read it whatever it looks like.
    pub(super) closed: bool,
    pub(super) writer: Option<Writer>,
}

/// Someone may be writing the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Writer {
    /// It appeared; a link is complete with that, a new file isn't.
    Appeared,
    /// It appeared a while ago and was not written since: it was complete when it got its name.
    Quiet,
    /// It is written to.
    Writes,
}

/// What makes a file the same one, unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stamp([i128; 5]);

/// What the look brought.
pub(super) struct Look {
    pub(super) inner: Option<WatchDescriptor>,
    pub(super) outer: Option<WatchDescriptor>,
    /// Everything that counts as a manifest, or why the whole can't be seen.
    pub(super) found: io::Result<BTreeMap<OsString, Found>>,
}

/// One file that is there.
#[derive(Debug)]
pub(super) enum Found {
    /// As it was when it was last read, or not to be read now.
    Same,
    /// Touched, with the same bytes.
    Touched(Stamp),
    /// Read anew.
    Read { stamp: Option<Stamp>, hash: Option<u64>, origin: String, outcome: Result<Vec<Manifest>, String> },
}

/// Watch, then list, then read: so that nothing falls between.
pub(super) fn look(question: Question, decode: &Decode) -> Look {
    let Question { path, all_names, known, watches } = question;
    let (inner, outer) = match watches {
        Some(mut watches) => watch(&mut watches, &path),
        None => (None, None),
    };
    let file = |name: &OsStr, path: &Path| examine(path, known.get(name).copied().unwrap_or_default(), decode);
    let found = match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => names(&path, all_names).map(|names| {
            names.into_iter().filter_map(|name| file(&name, &path.join(&name)).map(|found| (name, found))).collect()
        }),
        Ok(meta) if !meta.is_file() => Err(io::Error::other("it is neither a directory nor a file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // One file is taken by any name. Not there: an empty set.
        Ok(_) | Err(_) => {
            let name = path.file_name().unwrap_or_default();
            Ok(file(name, &path).map(|found| (name.to_owned(), found)).into_iter().collect())
        }
    };
    Look { inner, outer, found }
}

/// A file of this name in a directory of manifests counts. `all`: whatever it ends in.
pub fn is_manifest(name: &OsStr, all: bool) -> bool {
    let bytes = name.as_bytes();
    let known = [&b".yaml"[..], b".yml", b".json"].iter().any(|end| bytes.ends_with(end));
    !bytes.starts_with(b".") && (all || known)
}

/// Watch the directory, and its parent: the directory itself may come, go, or be a link that is swapped.
fn watch(watches: &mut Watches, path: &Path) -> (Option<WatchDescriptor>, Option<WatchDescriptor>) {
    let moves =
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVED_TO | WatchMask::ONLYDIR;
    let writes = WatchMask::MODIFY | WatchMask::CLOSE_WRITE;
    let inner = watches.add(path, moves | writes | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF).ok();
    // For a single file the parent tells of its writers too.
    // It may be the same directory, reached through a link: its mask is not to be taken away.
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
        return Err(io::Error::other(format!("{} manifests, more than the {FILES_MAX} an agent takes", names.len())));
    }
    Ok(names)
}

/// What this file is, if it is one at all.
fn examine(path: &Path, known: Known, decode: &Decode) -> Option<Found> {
    let origin = path.to_string_lossy().into_owned();
    let broken = |error: String| Found::Read { stamp: None, hash: None, origin: origin.clone(), outcome: Err(error) };
    let own = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(broken(error.to_string())),
    };
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        // The name is there: a link to nothing, to itself, or to a place that can't be seen.
        Err(error) if own.is_symlink() => return Some(broken(format!("the link can't be followed: {error}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(broken(error.to_string())),
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
    if !complete || (!known.closed && known.stamp == Some(Stamp::of(&meta))) {
        return Some(Found::Same);
    }
    Some(match read(path) {
        Ok(None) => return None,
        Ok(Some((Content::Whole(bytes), stamp))) => {
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let hash = hasher.finish();
            if known.hash == Some(hash) {
                return Some(Found::Touched(stamp));
            }
            let outcome = pods(&bytes, &origin, decode);
            Found::Read { stamp: Some(stamp), hash: Some(hash), origin, outcome }
        }
        Ok(Some((Content::TooLarge(size), stamp))) => {
            let error = format!("{size} bytes, a manifest may have {MANIFEST_MAX}");
            Found::Read { stamp: Some(stamp), hash: None, origin, outcome: Err(error) }
        }
        // It changes under our eyes: its writer will close it, or the next look finds it at rest.
        Ok(Some((Content::Moving, _))) => Found::Same,
        Err(error) => broken(error.to_string()),
    })
}

enum Content {
    Whole(Vec<u8>),
    TooLarge(u64),
    Moving,
}

/// Read a regular file; nothing if it isn't one. Opening must not wait for the other end of a pipe.
fn read(path: &Path) -> io::Result<Option<(Content, Stamp)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    let stamp = Stamp::of(&meta);
    if meta.len() > MANIFEST_MAX {
        return Ok(Some((Content::TooLarge(meta.len()), stamp)));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
    (&mut file).take(MANIFEST_MAX + 1).read_to_end(&mut bytes)?;
    if Stamp::of(&file.metadata()?) != stamp || bytes.len() as u64 != meta.len() {
        return Ok(Some((Content::Moving, stamp)));
    }
    Ok(Some((Content::Whole(bytes), stamp)))
}

impl Stamp {
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

/// Far above what a node can run; a directory of more is a mistake, and reading it all would starve the rest.
const FILES_MAX: usize = 5_000;
