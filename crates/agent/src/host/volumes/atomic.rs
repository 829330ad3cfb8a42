//! Atomic updates of a volume's files, in the layout of the Go kubelet (`AtomicWriter`):
//!
//! ```text
//! volume/
//! ├─ ..2026_01_31_12_00_00.123456789/   the files
//! ├─ ..data → ..2026_01_31_12_00_00.123456789
//! └─ labels → ..data/labels             a link for each top-level name
//! ```
//! A new set of files is written to a new directory; a rename of `..data` makes it the current one. Containers may have
//! written to the volume, so links found there are not followed and names are not trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use podwright_linux::beneath::{ConfinedDir, remove_tree};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Uid, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::VolumeError;

/// A file to write. `Debug` omits its content, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct VolumeFile {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    /// The owner's UID; `None`: root.
    pub(super) owner: Option<u32>,
}

impl fmt::Debug for VolumeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeFile({} bytes, {:o})", self.content.len(), self.mode)
    }
}

/// All files, by their path inside the volume.
pub(super) type Payload = BTreeMap<PathBuf, VolumeFile>;

/// Replaces the content of the volume with this payload. `finish` runs after the files are written and before they are
/// visible.
pub(super) fn write(
    dir: &Path,
    payload: &Payload,
    finish: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let failed = VolumeError::io("write", dir);
    let root = ConfinedDir::open(dir).map_err(&failed)?;
    let mut current = current(&root);
    if !current.as_ref().is_some_and(|name| is_same(&root, name, payload)) {
        let fresh = new_directory(&root).map_err(&failed)?;
        write_files(&root, &fresh, payload).map_err(&failed)?;
        finish()?;
        swap(&root, &fresh).map_err(|e| failed(e.into()))?;
        current = Some(fresh);
    }
    link_names(&root, payload).map_err(|e| failed(e.into()))?;
    clean_up(&root, dir, payload, current.as_deref())
}

/// The current directory, if `..data` is a link of the form that the agent creates.
fn current(root: &ConfinedDir) -> Option<String> {
    let target = readlinkat(root, DATA, Vec::new()).ok()?.into_string().ok()?;
    is_version(&target).then_some(target)
}

fn is_version(name: &str) -> bool {
    name.starts_with("..") && name.as_bytes().get(2).is_some_and(u8::is_ascii_digit) && !name.contains('/')
}

fn is_same(root: &ConfinedDir, version: &str, payload: &Payload) -> bool {
    let Ok(fd) = root.open_beneath(Path::new(version), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) else {
        return false;
    };
    let version = ConfinedDir::from_fd(fd);
    let mut found = BTreeSet::new();
    let same = |(path, file): (&PathBuf, &VolumeFile)| {
        let max = u64::try_from(file.content.len()).unwrap_or(u64::MAX);
        version.read_file(path, max).is_ok_and(|content| content == file.content)
    };
    list(&version, Path::new(""), &mut found, 0).is_ok() && found.iter().eq(payload.keys()) && payload.iter().all(same)
}

/// Adds everything that is not a directory.
fn list(root: &ConfinedDir, below: &Path, found: &mut BTreeSet<PathBuf>, depth: usize) -> io::Result<()> {
    let dir = if depth == 0 { Path::new(".") } else { below };
    let fd = root.open_beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
    for name in names(fd.as_fd())? {
        if found.len() > FILES_MAX || depth > DEPTH_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let path = below.join(&name.0);
        if name.1 {
            list(root, &path, found, depth + 1)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

/// The names in a directory, and whether each is a directory itself.
fn names(fd: impl AsFd) -> io::Result<Vec<(PathBuf, bool)>> {
    let readable = openat(fd, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push((PathBuf::from(name), entry.file_type().is_dir()));
        }
    }
    Ok(names)
}

fn new_directory(root: &ConfinedDir) -> io::Result<String> {
    for attempt in 0..ATTEMPTS_MAX {
        let now = Timestamp::now();
        let unique = now.subsec_nanosecond().unsigned_abs().wrapping_add(attempt);
        let name = format!("{}{unique:09}", now.strftime("..%Y_%m_%d_%H_%M_%S."));
        match mkdirat(root, &name, Mode::from_raw_mode(0o700)) {
            Err(Errno::EXIST) => {}
            result => return result.map(|()| name).map_err(Into::into),
        }
    }
    Err(Errno::EXIST.into())
}

fn write_files(root: &ConfinedDir, version: &str, payload: &Payload) -> io::Result<()> {
    let fd = root.open_beneath(Path::new(version), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
    let version = ConfinedDir::from_fd(fd);
    for (path, file) in payload {
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            version.make_dirs(parent, 0o755)?;
        }
        let mut made = version.create_file(path, file.mode)?;
        made.write_all(&file.content)?;
        if let Some(owner) = file.owner {
            rustix::fs::fchown(&made, Some(Uid::from_raw(owner)), None)?;
        }
    }
    Ok(())
}

fn swap(root: &ConfinedDir, version: &str) -> rustix::io::Result<()> {
    match unlinkat(root, DATA_NEW, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    symlinkat(version, root, DATA_NEW)?;
    renameat(root, DATA_NEW, root, DATA)
}

fn top_level_names(payload: &Payload) -> BTreeSet<&Path> {
    payload.keys().filter_map(|p| p.iter().next().map(Path::new)).collect()
}

fn link_names(root: &ConfinedDir, payload: &Payload) -> rustix::io::Result<()> {
    for name in top_level_names(payload) {
        let target = Path::new(DATA).join(name);
        match symlinkat(&target, root, name) {
            Err(Errno::EXIST) => {}
            result => {
                result?;
                continue;
            }
        }
        match readlinkat(root, name, Vec::new()) {
            Ok(old) if old.to_bytes() == target.as_os_str().as_bytes() => {}
            Ok(_) => {
                unlinkat(root, name, AtFlags::empty())?;
                symlinkat(&target, root, name)?;
            }
            // Not a link: a mount point of another volume, whose mount hides this file anyway.
            Err(Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes links to names that are gone, and every version but the current one.
fn clean_up(root: &ConfinedDir, dir: &Path, payload: &Payload, current: Option<&str>) -> Result<(), VolumeError> {
    let current_names = top_level_names(payload);
    let failed = VolumeError::io("clean up", dir);
    for (name, is_dir) in names(root).map_err(&failed)? {
        let text = name.to_string_lossy();
        if is_dir && is_version(&text) && Some(&*text) != current {
            remove_tree(root.as_fd(), name.as_os_str(), &dir.join(&name))?;
        } else if !is_dir && !current_names.contains(&*name) && text != DATA {
            let is_own_link = readlinkat(root, &*name, Vec::new()).is_ok_and(|t| t.to_bytes().starts_with(b"..data/"));
            if is_own_link {
                unlinkat(root, &*name, AtFlags::empty()).map_err(|e| failed(e.into()))?;
            }
        }
    }
    Ok(())
}

/// The link to the current version.
pub(super) const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";
const ATTEMPTS_MAX: u32 = 16;
/// Limits for reading back the current version; a larger volume is written again.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |text: &str| VolumeFile { content: text.into(), mode: 0o640, owner: None };
        files.iter().map(|(path, text)| (path.into(), file(text))).collect()
    }

    fn put(dir: &Path, files: &[(&str, &str)]) -> bool {
        let mut finished = false;
        write(dir, &payload(files), || {
            finished = true;
            Ok(())
        })
        .unwrap();
        finished
    }

    fn versions(dir: &Path) -> usize {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| is_version(n)).count()
    }

    #[test]
    fn changed_files_are_written_and_old_versions_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(put(dir, &[("labels", "a=1"), ("deep/er/file", "x")]));
        assert_eq!(fs::read_to_string(dir.join("labels")).unwrap(), "a=1");
        assert_eq!(fs::read_to_string(dir.join("deep/er/file")).unwrap(), "x");
        assert_eq!(fs::read_link(dir.join("labels")).unwrap(), Path::new("..data/labels"));
        assert_eq!(fs::metadata(dir.join("labels")).unwrap().permissions().mode() & 0o7777, 0o640);
        let first = fs::read_link(dir.join(DATA)).unwrap();

        assert!(!put(dir, &[("labels", "a=1"), ("deep/er/file", "x")]), "unchanged content is not written again");
        assert_eq!(fs::read_link(dir.join(DATA)).unwrap(), first);

        assert!(put(dir, &[("labels", "a=2"), ("new", "y")]));
        assert_eq!(fs::read_to_string(dir.join("labels")).unwrap(), "a=2");
        assert_eq!(fs::read_to_string(dir.join("new")).unwrap(), "y");
        assert!(fs::symlink_metadata(dir.join("deep")).is_err());
        assert_eq!(versions(dir), 1);

        assert!(put(dir, &[("labels", "a=2")]), "a removed file is a change too");
        assert!(fs::symlink_metadata(dir.join("new")).is_err());
        fs::remove_file(dir.join("labels")).unwrap();
        put(dir, &[("labels", "a=2")]);
        assert_eq!(fs::read_to_string(dir.join("labels")).unwrap(), "a=2", "a removed link is restored");
    }

    #[test]
    fn a_reader_never_sees_files_of_two_versions() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, &[("a", "0"), ("b", "0")]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..200 {
                    let n = n.to_string();
                    put(dir, &[("a", &n), ("b", &n)]);
                }
                stop.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                // Open the version first, then read from it.
                let Ok(version) = ConfinedDir::open(&dir.join(DATA)) else { continue };
                let (a, b) = (version.read_file(Path::new("a"), 9), version.read_file(Path::new("b"), 9));
                if let (Ok(a), Ok(b)) = (a, b) {
                    assert_eq!(a, b);
                }
            }
        });
    }

    #[test]
    fn links_that_a_container_created_are_not_followed() {
        let all = tempfile::tempdir().unwrap();
        let (dir, outside) = (all.path().join("volume"), all.path().join("outside"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("outside-file"), "x").unwrap();
        symlink("../outside", dir.join(DATA)).unwrap();
        symlink("../outside", dir.join("..2024_fake")).unwrap();
        symlink("../outside/outside-file", dir.join("labels")).unwrap();
        symlink("../outside", dir.join(DATA_NEW)).unwrap();
        put(&dir, &[("labels", "a=1")]);
        assert_eq!(fs::read_to_string(dir.join("labels")).unwrap(), "a=1");
        assert_eq!(fs::read_to_string(outside.join("outside-file")).unwrap(), "x");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn new_files_are_not_visible_if_the_last_step_fails() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &[("a", "old")]);
        let result = write(dir.path(), &payload(&[("a", "new")]), || Err(VolumeError::InvalidFsGroup));
        assert!(matches!(result, Err(VolumeError::InvalidFsGroup)));
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "old");
        put(dir.path(), &[("a", "new")]);
        assert_eq!(versions(dir.path()), 1, "the incomplete version is removed");
    }
}
