//! A walk through a tree of any depth, with few descriptors and little memory. The tree may be hostile: no link is followed and no
//! mount is entered.
//!
//! ```text
//!  top ─▶ d ─▶ d ─▶ … ─▶ d ─▶ d ─▶ d        levels: device, inode and position, 24 bytes each
//!                        └── open ──┘        the last few are open
//! ```
//! A directory that was closed is opened again as `..` of its child. If that is another inode, the child was moved: the walk ends
//! there and says so. So it never reads a directory that it has not reached from the top.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::io::Errno;

/// What is done on a walk.
pub trait TreeVisitor {
    /// Why it ends early.
    type End;
    /// An entry of a directory, without `.` and `..`. `true`: a directory, to be entered.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> ControlFlow<Self::End, bool>;
    /// A directory that was entered. The top is not reported.
    fn entered(&mut self, dir: &Stat);
    /// A directory whose entries were all visited, those below it included; the top is the last.
    fn left(&mut self, dir: BorrowedFd<'_>) -> ControlFlow<Self::End>;
    /// Something was not visited.
    fn missed(&mut self, miss: WalkMiss) -> ControlFlow<Self::End>;
}

/// Why a walk has left something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkMiss {
    /// A directory was moved while the walk was below it. The walk has ended.
    Moved,
    /// More than `LEVELS_MAX` directories inside of each other.
    TooDeep,
    /// A directory cannot be opened or read to its end.
    Unreadable(Errno),
}

impl WalkMiss {
    /// The error to report.
    pub fn errno(self) -> Errno {
        match self {
            Self::Moved => Errno::STALE,
            Self::TooDeep => Errno::NAMETOOLONG,
            Self::Unreadable(errno) => errno,
        }
    }
}

/// Visits everything below a directory, parents before their content. At most `open_max` directories are open at a time.
pub fn walk<V: TreeVisitor>(top: OwnedFd, open_max: usize, visitor: &mut V) -> ControlFlow<V::End> {
    let mut walk = TreeWalk { levels: Vec::new(), open: VecDeque::new(), open_max: open_max.max(1) };
    let begun = fstat(&top).and_then(|stat| walk.open_level(top, &stat));
    if let Err(errno) = begun {
        return visitor.missed(WalkMiss::Unreadable(errno));
    }
    walk.run(visitor)
}

/// A directory on the path from the top to the one that is read.
#[derive(Clone, Copy, Debug)]
struct WalkLevel {
    device: u64,
    inode: u64,
    /// Behind the last entry that was read.
    position: i64,
}

struct TreeWalk {
    levels: Vec<WalkLevel>,
    /// The last levels. Empty only at the end.
    open: VecDeque<Dir>,
    open_max: usize,
}

impl TreeWalk {
    fn run<V: TreeVisitor>(&mut self, visitor: &mut V) -> ControlFlow<V::End> {
        while let (Some(dir), Some(level)) = (self.open.back_mut(), self.levels.last_mut()) {
            match dir.read() {
                Some(Ok(entry)) => {
                    level.position = entry.offset();
                    let name = entry.file_name();
                    if name == c"." || name == c".." {
                        continue;
                    }
                    let opened = match dir.fd() {
                        Ok(dir) if visitor.entry(dir, name)? => open_child(dir, name),
                        _ => continue,
                    };
                    self.go_down(opened, visitor)?;
                }
                Some(Err(errno)) => {
                    visitor.missed(WalkMiss::Unreadable(errno))?;
                    self.go_up(visitor)?;
                }
                None => {
                    if let Ok(dir) = dir.fd() {
                        visitor.left(dir)?;
                    }
                    self.go_up(visitor)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn go_down<V: TreeVisitor>(&mut self, opened: rustix::io::Result<OwnedFd>, visitor: &mut V) -> ControlFlow<V::End> {
        if self.levels.len() >= LEVELS_MAX {
            return visitor.missed(WalkMiss::TooDeep);
        }
        let entered = opened.and_then(|fd| {
            let stat = fstat(&fd)?;
            self.open_level(fd, &stat)?;
            Ok(stat)
        });
        match entered {
            Ok(stat) => visitor.entered(&stat),
            // It was removed, or is a mount point.
            Err(Errno::NOENT | Errno::XDEV) => {}
            Err(errno) => return visitor.missed(WalkMiss::Unreadable(errno)),
        }
        ControlFlow::Continue(())
    }

    fn open_level(&mut self, fd: OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
        let dir = Dir::new(fd)?;
        if self.open.len() >= self.open_max {
            self.open.pop_front();
        }
        self.open.push_back(dir);
        self.levels.push(WalkLevel { device: stat.st_dev, inode: stat.st_ino, position: 0 });
        Ok(())
    }

    fn go_up<V: TreeVisitor>(&mut self, visitor: &mut V) -> ControlFlow<V::End> {
        self.levels.pop();
        let (Some(child), true) = (self.open.pop_back(), self.open.is_empty()) else {
            return ControlFlow::Continue(());
        };
        let Some(parent) = self.levels.last() else { return ControlFlow::Continue(()) };
        match child.fd().and_then(|child| open_parent(child, parent)) {
            Ok(dir) => self.open.push_back(dir),
            Err(Errno::STALE | Errno::XDEV) => return visitor.missed(WalkMiss::Moved),
            Err(errno) => return visitor.missed(WalkMiss::Unreadable(errno)),
        }
        ControlFlow::Continue(())
    }
}

fn open_child(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    openat2(dir, name, FLAGS, Mode::empty(), HOW | ResolveFlags::BENEATH)
}

/// Opens `..` and continues where its reading has stopped; ESTALE if that is not the directory from which the child was reached.
fn open_parent(child: BorrowedFd<'_>, parent: &WalkLevel) -> rustix::io::Result<Dir> {
    let fd = openat2(child, c"..", FLAGS, Mode::empty(), HOW)?;
    let stat = fstat(fd.as_fd())?;
    if (stat.st_dev, stat.st_ino) != (parent.device, parent.inode) {
        return Err(Errno::STALE);
    }
    let mut dir = Dir::new(fd)?;
    dir.seek(parent.position)?;
    Ok(dir)
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const HOW: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// 6 MiB of levels.
pub(crate) const LEVELS_MAX: usize = 262_144;
