//! Control groups, v1 and v2, by their files.
//!
//! ```text
//! v2      one tree:            /sys/fs/cgroup/kubepods/burstable/pod<uid>
//! v1      a tree a hierarchy:  /sys/fs/cgroup/{cpu,memory,pids,…}/kubepods/burstable/pod<uid>
//! hybrid  v1, and a v2 tree without controllers beside it: groups are made in v1 only, but looked for and removed in both,
//!         because a runtime may have made them there
//! ```
//! A group "exists" when it is there in every hierarchy; removing and listing take any hierarchy in which it is.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod kill;
mod layout;
mod limits;
#[cfg(test)]
mod tests;

pub use limits::{Bound, CpuQuota, Limits, cpu_weight};

use crate::mountinfo::MountInfoError;

/// Which interface the kernel offers for resources here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A tree per hierarchy.
    V1,
    /// One tree.
    V2,
}

/// The place of a group: names from the root down, none of which can leave it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(Vec<String>);

/// All hierarchies of this machine.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    /// A tree of plain files, for tests: its files are made at the first write and go with their directory.
    plain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    version: Version,
    /// v1: what it controls; v2: empty, each group has a file that says so.
    controllers: BTreeSet<String>,
    /// The v2 tree of a hybrid layout: nothing is made in it.
    bystander: bool,
}

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted")]
    NoHierarchy,
    /// The mounts can't be read.
    #[error("find the cgroup file systems")]
    Mounts(#[source] MountInfoError),
    /// A name that is no name of a group.
    #[error("{0:?} cannot be the name of a cgroup")]
    BadName(String),
    /// The kernel does not offer a controller that is needed.
    #[error("the {controller} controller is not available in {}", path.display())]
    MissingController {
        /// Which.
        controller: String,
        /// Where.
        path: PathBuf,
    },
    /// A group can't be made.
    #[error("make cgroup {}", path.display())]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file can't be read.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A value is refused.
    #[error("write {value:?} to {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// What.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A group can't be removed.
    #[error("remove cgroup {}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Processes are still in it after the time given.
    #[error("cgroup {} still has processes {pids:?}", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
        /// Some of them.
        pids: Vec<u32>,
    },
}

// === impl CgroupPath ===

impl CgroupPath {
    /// The root itself.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// Reads `/a/b`; slashes at the ends and in rows count for nothing.
    pub fn parse(text: &str) -> Result<Self, CgroupError> {
        text.split('/').filter(|name| !name.is_empty()).try_fold(Self::root(), |path, name| path.join(name))
    }

    /// One level down.
    pub fn join(&self, name: &str) -> Result<Self, CgroupError> {
        let bad =
            name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0', '\n']) || name.len() > 255;
        if bad {
            return Err(CgroupError::BadName(name.into()));
        }
        let mut names = self.0.clone();
        names.push(name.into());
        Ok(Self(names))
    }

    /// Its last name.
    pub fn name(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The groups from below the root down to this one.
    fn steps(&self) -> impl Iterator<Item = CgroupPath> {
        (1..=self.0.len()).map(|n| Self(self.0[..n].to_vec()))
    }

    fn under(&self, root: &Path) -> PathBuf {
        self.0.iter().fold(root.to_owned(), |path, name| path.join(name))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl CgroupTree ===

impl CgroupTree {
    /// How resources are controlled here.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Makes the group, its parents included, and gives it these limits. What is there already stays, with its limits renewed.
    pub fn create(&self, path: &CgroupPath, limits: &Limits) -> Result<(), CgroupError> {
        for hierarchy in self.made() {
            for step in path.steps() {
                self.make_one(hierarchy, &step)?;
            }
        }
        self.apply(path, limits)
    }

    /// Sets limits of a group that exists. What `limits` leaves open stays as it is.
    pub fn apply(&self, path: &CgroupPath, limits: &Limits) -> Result<(), CgroupError> {
        limits::apply(self, path, limits)
    }

    /// Swap can be limited here. The root of v2 has no limits at all: its children tell.
    pub fn limits_swap(&self) -> bool {
        self.made().any(|hierarchy| match hierarchy.version {
            Version::V1 => hierarchy.root.join("memory.memsw.limit_in_bytes").exists(),
            Version::V2 => {
                let groups = subdirs(&hierarchy.root).unwrap_or_default();
                groups.iter().any(|group| group.join("memory.swap.max").exists())
            }
        })
    }

    /// It is there, in every hierarchy.
    pub fn exists(&self, path: &CgroupPath) -> bool {
        self.made().all(|h| path.under(&h.root).is_dir())
    }

    /// The groups directly below, in whichever hierarchy.
    pub fn children(&self, path: &CgroupPath) -> Result<BTreeSet<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for child in subdirs(&path.under(&hierarchy.root))? {
                names.extend(child.file_name().and_then(|n| n.to_str()).map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// The processes in the group and below it.
    pub fn procs(&self, path: &CgroupPath) -> Result<BTreeSet<u32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for dir in descend(&path.under(&hierarchy.root))? {
                pids.extend(read_pids(&dir.join("cgroup.procs"))?);
            }
        }
        Ok(pids)
    }

    /// Kills every process in the group and below it, and waits for them to be gone.
    pub fn kill_all(&self, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
        kill::kill_all(self, path, limit)
    }

    /// Removes the group and all below it, in every hierarchy. Not there is success; a group with processes is not removed.
    pub fn remove(&self, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + limit;
        if path.is_root() {
            return Err(CgroupError::BadName("/".into()));
        }
        // Every hierarchy is tried, also when another fails: less is left.
        let mut failure = None;
        for hierarchy in &self.hierarchies {
            for dir in descend(&path.under(&hierarchy.root))?.iter().rev() {
                if let Err(e) = self.remove_one(dir, deadline) {
                    failure.get_or_insert(e);
                    break;
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The hierarchies in which groups are made.
    fn made(&self) -> impl Iterator<Item = &Hierarchy> {
        self.hierarchies.iter().filter(|h| !h.bystander)
    }

    fn make_one(&self, hierarchy: &Hierarchy, path: &CgroupPath) -> Result<(), CgroupError> {
        let dir = path.under(&hierarchy.root);
        let parent = dir.parent().expect("a step lies below the root");
        if hierarchy.version == Version::V2 {
            limits::enable_controllers(self, parent)?;
        }
        match std::fs::create_dir(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(CgroupError::Make { path: dir, source }),
        }
        if hierarchy.controllers.contains("cpuset") {
            limits::inherit_cpuset(self, parent, &dir)?;
        }
        Ok(())
    }

    fn remove_one(&self, dir: &Path, deadline: Instant) -> Result<(), CgroupError> {
        let mut pause = PAUSE_MIN;
        loop {
            if self.plain {
                remove_plain_files(dir);
            }
            match std::fs::remove_dir(dir) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                // The kernel may need a moment to let go of a process that has already exited.
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    if Instant::now() >= deadline {
                        let pids = read_pids(&dir.join("cgroup.procs")).unwrap_or_default();
                        let pids = pids.into_iter().take(PIDS_TOLD_MAX).collect();
                        return Err(CgroupError::Busy { path: dir.into(), pids });
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted && Instant::now() < deadline => {}
                Err(source) => return Err(CgroupError::Remove { path: dir.into(), source }),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), CgroupError> {
        let failed = |source| CgroupError::Write { path: path.into(), value: value.into(), source };
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(self.plain)
            .truncate(self.plain)
            .open(path)
            .map_err(failed)?;
        io::Write::write_all(&mut file, value.as_bytes()).map_err(failed)
    }
}

// === files ===

fn read(path: &Path) -> Result<String, CgroupError> {
    std::fs::read_to_string(path).map_err(|source| CgroupError::Read { path: path.into(), source })
}

/// A group that went away meanwhile has no processes.
fn read_pids(path: &Path) -> Result<Vec<u32>, CgroupError> {
    match std::fs::read_to_string(path) {
        // Zero stands for a process outside of our pid namespace.
        Ok(text) => Ok(text.lines().filter_map(|l| l.parse().ok()).filter(|&pid| pid != 0).collect()),
        Err(e) if gone(&e) => Ok(Vec::new()),
        Err(source) => Err(CgroupError::Read { path: path.into(), source }),
    }
}

/// The group and all below it, parents before children; nothing if it is not there.
fn descend(top: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    let mut todo = VecDeque::from([top.to_owned()]);
    // Breadth first, without recursion: how deep it goes is the containers' choice.
    while let Some(dir) = todo.pop_front() {
        todo.extend(subdirs(&dir)?);
        found.push(dir);
    }
    Ok(found)
}

fn subdirs(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |source| CgroupError::Read { path: dir.into(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// ENOENT, or what an open file of a removed group answers (ENODEV).
fn gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn remove_plain_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_file()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The kernel frees a group within microseconds of its last process; so begin short.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// An error names no more pids than a person reads.
const PIDS_TOLD_MAX: usize = 10;
