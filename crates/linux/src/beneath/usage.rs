//! The disk usage of a tree of any depth. The tree may be hostile: no link is followed, no mount is entered, and counting is bounded.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat};
use rustix::io::Errno;

use super::walk::{TreeVisitor, WalkMiss, walk};

/// Counting stops after this many entries.
const ENTRIES_MAX: u64 = 10_000_000;
/// Inodes with several hard links that are remembered, some megabytes.
const LINKED_MAX: usize = 200_000;
/// Descriptors for each attempt. Directories that are moved disturb a walk only above those that are open, so a walk that was
/// disturbed is repeated with more of them.
const OPEN_DIRS: [usize; 3] = [16, 16, 256];

/// What a directory and its content use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Bytes of allocated blocks.
    pub bytes: u64,
    /// Files, directories and other entries, the directory itself included.
    pub inodes: u64,
    /// False if counting stopped early: both numbers are then lower bounds.
    pub complete: bool,
}

impl TreeUsage {
    /// The better one of an incomplete count and the last complete one, so that a tree does not get smaller by being hard to count.
    #[must_use]
    pub fn or_last(self, complete: Option<TreeUsage>) -> TreeUsage {
        match complete {
            Some(last) if !self.complete => {
                Self { bytes: self.bytes.max(last.bytes), inodes: self.inodes.max(last.inodes), complete: false }
            }
            _ => self,
        }
    }
}

/// What a directory and its content use on its own file system; files with several hard links count once. Stops above `enough`
/// bytes or at the deadline, and returns the sum so far. Entries that are removed meanwhile are skipped.
pub fn tree_usage(dir: &Path, enough: u64, deadline: Instant) -> io::Result<TreeUsage> {
    let top = open_dir(CWD, dir)?;
    let mut best = TreeUsage::default();
    for open_max in OPEN_DIRS {
        let mut count = Count::new(enough, deadline);
        count.add(fstat(&top)?.st_blocks);
        let ended = walk(open_again(top.as_fd())?, open_max, &mut count);
        let complete = ended.is_continue() && count.missed.is_none();
        let usage = TreeUsage { bytes: count.bytes, inodes: count.inodes, complete };
        best = if complete { usage } else { usage.or_last(Some(best)) };
        if count.missed != Some(WalkMiss::Moved) || ended.is_break() {
            break;
        }
    }
    Ok(best)
}

struct Count {
    bytes: u64,
    inodes: u64,
    entries: u64,
    /// Entries, and directories that were left.
    steps: u64,
    /// Why something was left out; that a directory was moved counts most.
    missed: Option<WalkMiss>,
    /// Device and number of inodes with several hard links that were counted. Subvolumes have devices of their own.
    linked: BTreeSet<(u64, u64)>,
    enough: u64,
    deadline: Instant,
}

impl Count {
    fn new(enough: u64, deadline: Instant) -> Self {
        Self { bytes: 0, inodes: 0, entries: 0, steps: 0, missed: None, linked: BTreeSet::new(), enough, deadline }
    }

    /// Each inode counts once. Those above the bound count a share for each link, so that nothing can be hidden among them.
    fn add_linked(&mut self, stat: &Stat) {
        let inode = (stat.st_dev, stat.st_ino);
        if self.linked.contains(&inode) {
            return;
        }
        if self.linked.len() < LINKED_MAX {
            self.linked.insert(inode);
            self.add(stat.st_blocks);
        } else {
            self.missed.get_or_insert(WalkMiss::Unreadable(Errno::MLINK));
            self.add(stat.st_blocks / i64::try_from(stat.st_nlink).unwrap_or(i64::MAX));
        }
    }

    fn add(&mut self, blocks: i64) {
        // `st_blocks` is in units of 512 bytes, whatever the file system's block size is.
        self.bytes += u64::try_from(blocks).unwrap_or(0) * 512;
        self.inodes += 1;
    }

    /// The way up takes time too. The end: the deadline has passed.
    fn step(&mut self) -> ControlFlow<()> {
        self.steps += 1;
        let late = self.steps.is_multiple_of(256) && Instant::now() >= self.deadline;
        if late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl TreeVisitor for Count {
    type End = ();

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> ControlFlow<(), bool> {
        self.entries += 1;
        if self.bytes > self.enough || self.entries > ENTRIES_MAX {
            return ControlFlow::Break(());
        }
        self.step()?;
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return ControlFlow::Continue(false),
            Err(errno) => return self.missed(WalkMiss::Unreadable(errno)).map_continue(|()| false),
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_dir && stat.st_nlink > 1 {
            self.add_linked(&stat);
        } else if !is_dir {
            self.add(stat.st_blocks);
        }
        ControlFlow::Continue(is_dir)
    }

    fn entered(&mut self, dir: &Stat) {
        self.add(dir.st_blocks);
    }

    fn left(&mut self, _dir: BorrowedFd<'_>) -> ControlFlow<()> {
        self.step()
    }

    fn missed(&mut self, miss: WalkMiss) -> ControlFlow<()> {
        if self.missed.is_none() || miss == WalkMiss::Moved {
            self.missed = Some(miss);
        }
        ControlFlow::Continue(())
    }
}

fn open_dir(parent: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(parent, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// A descriptor of its own: the position of reading belongs to it.
fn open_again(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    open_dir(dir, Path::new("."))
}

#[cfg(test)]
mod tests;
