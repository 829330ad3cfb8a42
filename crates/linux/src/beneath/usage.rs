//! The disk usage of a tree. The tree may be hostile: no link is followed, no mount is entered, and counting is bounded.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;

/// One descriptor and one stack frame per level. Deeper entries are not counted.
const DEPTH_MAX: usize = 128;
/// Counting stops after this many entries.
const ENTRIES_MAX: u64 = 2_000_000;

/// The bytes that a directory and its content use on its own file system; files with several hard links count once. Stops above
/// `enough` bytes or at the deadline, and returns the sum so far. Entries that are removed meanwhile are skipped.
pub fn usage(dir: &Path, enough: u64, deadline: Instant) -> io::Result<u64> {
    let top = open_dir(CWD, dir.as_os_str(), ResolveFlags::empty())?;
    let mut count = Count { bytes: 0, entries: 0, linked: BTreeSet::new(), enough, deadline };
    count.add(statat(&top, c"", AtFlags::EMPTY_PATH)?.st_blocks);
    count.walk(top.as_fd(), 0)?;
    Ok(count.bytes)
}

struct Count {
    bytes: u64,
    entries: u64,
    /// Inodes with several hard links that were counted.
    linked: BTreeSet<u64>,
    enough: u64,
    deadline: Instant,
}

impl Count {
    fn walk(&mut self, dir: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            self.entries += 1;
            if self.is_done() {
                return Ok(());
            }
            let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if !is_dir && stat.st_nlink > 1 && !self.linked.insert(stat.st_ino) {
                continue;
            }
            if !is_dir {
                self.add(stat.st_blocks);
            } else if depth < DEPTH_MAX {
                match open_dir(dir, name, ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS) {
                    Ok(fd) => {
                        self.add(stat.st_blocks);
                        self.walk(fd.as_fd(), depth + 1)?;
                    }
                    // It was removed or replaced, or is a mount point.
                    Err(Errno::NOENT | Errno::XDEV | Errno::LOOP | Errno::NOTDIR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, blocks: i64) {
        // `st_blocks` is in units of 512 bytes, whatever the file system's block size is.
        self.bytes += u64::try_from(blocks).unwrap_or(0) * 512;
    }

    fn is_done(&self) -> bool {
        let late = self.entries.is_multiple_of(256) && Instant::now() >= self.deadline;
        self.bytes > self.enough || self.entries > ENTRIES_MAX || late
    }
}

fn open_dir(parent: impl AsFd, name: &OsStr, how: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(parent, name, flags, Mode::empty(), how | ResolveFlags::NO_MAGICLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn of(dir: &Path, enough: u64) -> u64 {
        usage(dir, enough, Instant::now() + Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn counts_every_inode_once_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (dir.path().join("here"), dir.path().join("elsewhere"));
        fs::create_dir_all(here.join("a/b")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("large"), vec![1; 1 << 20]).unwrap();
        let empty = of(&here, u64::MAX);
        symlink(&elsewhere, here.join("a/link")).unwrap();
        fs::write(here.join("a/b/file"), vec![1; 64 << 10]).unwrap();
        fs::hard_link(here.join("a/b/file"), here.join("again")).unwrap();
        let full = of(&here, u64::MAX);
        assert!((64 << 10..80 << 10).contains(&(full - empty)), "{empty} {full}");
        let hole = fs::File::create(here.join("hole")).unwrap();
        hole.set_len(1 << 30).unwrap();
        assert!(of(&here, u64::MAX) < full + (64 << 10), "a hole uses no blocks");
    }

    #[test]
    fn stops_above_the_limit_and_at_the_maximum_depth() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            fs::write(dir.path().join(n.to_string()), vec![1; 16 << 10]).unwrap();
        }
        let all = of(dir.path(), u64::MAX);
        let some = of(dir.path(), 32 << 10);
        assert!(some > 32 << 10 && some < all, "{some} of {all}");
        let mut deep = dir.path().to_owned();
        for _ in 0..300 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        assert!(of(dir.path(), u64::MAX) >= all);
        assert!(usage(&dir.path().join("none"), 0, Instant::now()).is_err());
    }
}
