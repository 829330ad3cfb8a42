//! Control groups, v1 and v2, through their file systems.
//!
//! ```text
//! v2      one tree:            /sys/fs/cgroup/kubepods/burstable/pod<uid>
//! v1      a tree per hierarchy: /sys/fs/cgroup/{cpu,memory,pids,…}/kubepods/burstable/pod<uid>
//! hybrid  v1, and a v2 tree without controllers: cgroups are created in v1 only, but listed and removed in both, because a
//!         runtime may have created them there
//! ```
//! A cgroup exists if it is in every hierarchy; removing and listing cover every hierarchy that has it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod devices;
mod kill;
mod layout;
mod limits;
#[cfg(test)]
mod tests;
mod usage;

pub use devices::{DeviceKind, DeviceRule};
pub use limits::{Bound, CgroupResources, CpuQuota, cpu_weight};
pub use usage::{
    CgroupUsage, CpuUsage, DeviceIo, IoUsage, MemoryUsage, PidUsage, Pressure, Stall, UsageDetail, parse_pressure,
};

use crate::mountinfo::MountInfoError;

/// The interface that controls resources on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A tree per hierarchy.
    V1,
    /// One tree.
    V2,
}

/// The path of a cgroup below the root. Its names are checked: none is `..` or contains a slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(Vec<String>);

/// All hierarchies of this host.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    version: CgroupVersion,
    hierarchies: Vec<Hierarchy>,
    /// A tree of plain files, for tests: its files are created by the first write and removed with their directory.
    plain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    version: CgroupVersion,
    /// v1: its controllers; v2: empty, each cgroup lists them in a file.
    controllers: BTreeSet<String>,
    /// The v2 tree of a hybrid layout: we create nothing in it.
    unmanaged: bool,
}

/// A failed operation on cgroups.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted")]
    NoHierarchy,
    /// The mounts can't be read.
    #[error("find the cgroup file systems")]
    Mounts(#[source] MountInfoError),
    /// Not a valid name of a cgroup.
    #[error("{0:?} cannot be the name of a cgroup")]
    BadName(String),
    /// A required controller is not available.
    #[error("the {controller} controller is not available in {}", path.display())]
    MissingController {
        /// The name of the controller.
        controller: String,
        /// The cgroup that needs it.
        path: PathBuf,
    },
    /// A cgroup can't be created.
    #[error("create cgroup {}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// The error of mkdir.
        #[source]
        source: io::Error,
    },
    /// A file can't be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of open or read.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses a value.
    #[error("write {value:?} to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The refused value.
        value: String,
        /// The error of open or write.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses the program with the device rules.
    #[error("set the device rules of cgroup {}", path.display())]
    Devices {
        /// The directory.
        path: PathBuf,
        /// The error of bpf.
        #[source]
        source: io::Error,
    },
    /// A cgroup can't be removed.
    #[error("remove cgroup {}", path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The error of rmdir.
        #[source]
        source: io::Error,
    },
    /// The cgroup still has processes after the time limit.
    #[error("cgroup {} still has processes {pids:?}", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// At most ten of them.
        pids: Vec<u32>,
    },
}

// === impl CgroupPath ===

impl CgroupPath {
    /// The root itself.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// Parses `/a/b`; leading, trailing and repeated slashes are ignored.
    pub fn parse(text: &str) -> Result<Self, CgroupError> {
        text.split('/').filter(|name| !name.is_empty()).try_fold(Self::root(), |path, name| path.join(name))
    }

    /// The child of this name.
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

    /// The last name; `None` for the root.
    pub fn name(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The cgroups on the path, from the child of the root down to this one.
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
    /// The interface that controls resources on this host.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Creates the cgroup and its parents, and sets these limits. Existing cgroups stay, and get the limits.
    pub fn create(&self, path: &CgroupPath, limits: &CgroupResources) -> Result<(), CgroupError> {
        for hierarchy in self.managed() {
            for step in path.steps() {
                self.create_one(hierarchy, &step)?;
            }
        }
        self.apply(path, limits)
    }

    /// Sets limits of an existing cgroup. Limits that are `None` stay unchanged.
    pub fn apply(&self, path: &CgroupPath, limits: &CgroupResources) -> Result<(), CgroupError> {
        limits::apply(self, path, limits)
    }

    /// Whether swap can be limited on this host. The root of v2 has no limit files, so its children are checked.
    pub fn limits_swap(&self) -> bool {
        self.managed().any(|hierarchy| match hierarchy.version {
            CgroupVersion::V1 => hierarchy.root.join("memory.memsw.limit_in_bytes").exists(),
            CgroupVersion::V2 => {
                let groups = subdirs(&hierarchy.root).unwrap_or_default();
                groups.iter().any(|group| group.join("memory.swap.max").exists())
            }
        })
    }

    /// The CPUs of the node, as the kernel lists them: `0-3,8`. `None` without the cpuset controller.
    pub fn cpus(&self) -> Option<String> {
        let file = |hierarchy: &Hierarchy| match hierarchy.version {
            CgroupVersion::V1 => hierarchy.root.join("cpuset.cpus"),
            CgroupVersion::V2 => hierarchy.root.join("cpuset.cpus.effective"),
        };
        let lists = self.managed().filter_map(|hierarchy| read(&file(hierarchy)).ok());
        lists.map(|list| list.trim().to_owned()).find(|list| !list.is_empty())
    }

    /// Whether the cgroup exists in every managed hierarchy.
    pub fn exists(&self, path: &CgroupPath) -> bool {
        self.managed().all(|h| path.under(&h.root).is_dir())
    }

    /// Whether the cgroup exists in at least one managed hierarchy.
    pub fn exists_in_one(&self, path: &CgroupPath) -> bool {
        self.managed().any(|h| path.under(&h.root).is_dir())
    }

    /// The directory of the cgroup in each managed hierarchy, with the name of the hierarchy as `cpu,cpuacct`; that of v2 is empty.
    pub fn directories(&self, path: &CgroupPath) -> Vec<(String, PathBuf)> {
        let name = |hierarchy: &Hierarchy| match hierarchy.version {
            CgroupVersion::V1 => hierarchy.root.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            CgroupVersion::V2 => String::new(),
        };
        self.managed().map(|hierarchy| (name(hierarchy), path.under(&hierarchy.root))).collect()
    }

    /// The directory of the cgroup in the hierarchy with this controller; `None`: no hierarchy has it.
    pub fn directory_of(&self, controller: &str, path: &CgroupPath) -> Option<PathBuf> {
        let has = |h: &&Hierarchy| h.version == CgroupVersion::V2 || h.controllers.contains(controller);
        self.managed().find(has).map(|hierarchy| path.under(&hierarchy.root))
    }

    /// The names of the direct children in any hierarchy.
    pub fn children(&self, path: &CgroupPath) -> Result<BTreeSet<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for child in subdirs(&path.under(&hierarchy.root))? {
                names.extend(child.file_name().and_then(|n| n.to_str()).map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// The processes in the cgroup and its descendants.
    pub fn procs(&self, path: &CgroupPath) -> Result<BTreeSet<u32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for dir in descend(&path.under(&hierarchy.root))? {
                pids.extend(read_pids(&dir.join("cgroup.procs"))?);
            }
        }
        Ok(pids)
    }

    /// Kills every process in the cgroup and its descendants, and waits until they have exited.
    pub fn kill_all(&self, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
        kill::kill_all(self, path, limit)
    }

    /// Thaws the cgroup and its descendants where SIGKILL has no effect on frozen processes: on v1.
    pub fn thaw(&self, path: &CgroupPath) {
        kill::thaw(self, path);
    }

    /// Removes the cgroup and its descendants in every hierarchy. A missing cgroup is success; one with processes is not removed.
    pub fn remove(&self, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + limit;
        if path.is_root() {
            return Err(CgroupError::BadName("/".into()));
        }
        // Continues with the other hierarchies after a failure, so that less is left behind.
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

    /// The hierarchies in which we create cgroups.
    fn managed(&self) -> impl Iterator<Item = &Hierarchy> {
        self.hierarchies.iter().filter(|h| !h.unmanaged)
    }

    fn create_one(&self, hierarchy: &Hierarchy, path: &CgroupPath) -> Result<(), CgroupError> {
        let dir = path.under(&hierarchy.root);
        let parent = dir.parent().expect("a step lies below the root");
        if hierarchy.version == CgroupVersion::V2 {
            limits::enable_controllers(self, parent)?;
        }
        match std::fs::create_dir(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(CgroupError::Create { path: dir, source }),
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
                // The kernel may need a moment to release a process that has already exited.
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    if Instant::now() >= deadline {
                        let pids = read_pids(&dir.join("cgroup.procs")).unwrap_or_default();
                        let pids = pids.into_iter().take(PIDS_SHOWN_MAX).collect();
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

/// A cgroup that was removed meanwhile has no processes.
fn read_pids(path: &Path) -> Result<Vec<u32>, CgroupError> {
    match std::fs::read_to_string(path) {
        // Zero is a process outside of our pid namespace.
        Ok(text) => Ok(text.lines().filter_map(|l| l.parse().ok()).filter(|&pid| pid != 0).collect()),
        Err(e) if gone(&e) => Ok(Vec::new()),
        Err(source) => Err(CgroupError::Read { path: path.into(), source }),
    }
}

/// The cgroup and its descendants, parents before children.
fn descend(top: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    let mut todo = VecDeque::from([top.to_owned()]);
    // Breadth first, without recursion: containers choose the depth.
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

/// ENOENT, or ENODEV: the error of an open file of a removed cgroup.
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

/// The kernel releases a cgroup within microseconds after its last process, so the first pause is short.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Pids in an error message.
const PIDS_SHOWN_MAX: usize = 10;
