//! The records of sandboxes and containers, and the directories of the engine.
//!
//! ```text
//!  <root>/engine/  lock · id · boot · damaged/ · sandboxes/<id>/record · containers/<id>/record  survives reboots
//!  <run>/          lock · boot-id · root · pods/, netns/ are removed when the host has booted since  does not
//! ```
//! A record is replaced as a whole (temporary file and rename) and carries a version and a checksum. Nothing is synced: a crash of the
//! agent loses nothing, and a power loss ends what the last records describe (docs/decisions/018-engine-records.md). A record with a
//! wrong content is moved to `damaged`, and what belonged to it is left to the sweep; exit codes and restart counts are in the agent's
//! journal, so no pod runs twice because of it. One that the disk does not give back is left where it is, with all that belongs to it
//! (see the module `unreadable`); one that can not be written shows in the status of the runtime (`unwritten`).

mod record;
mod root_id;
mod run_dir;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_linux::beneath::{RemoveError, remove_path};
use podwright_linux::lock_file::{self, LockFileError};

pub use record::{ContainerRecord, RecordError, RecordedNamespace, SandboxRecord};
pub use root_id::RootId;
pub(crate) use run_dir::EngineRunDir;

use crate::machine::{ContainerId, SandboxId};
use record::StoredRecord;

/// A failed operation on the directories of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineStoreError {
    /// The kernel refused an operation.
    #[error("{action} {}", path.display())]
    File {
        /// A verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another engine uses the root or run directory.
    #[error("{} is in use by process {pid}", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The other engine, or `unknown`.
        pid: String,
    },
    /// A newer version wrote the record; it is left as it is.
    #[error("{} was written by a newer version (format {version})", path.display())]
    NewerVersion {
        /// The record.
        path: PathBuf,
        /// Its format.
        version: u8,
    },
    /// The content of an earlier boot could not be removed.
    #[error("remove what an earlier boot left in {}", path.display())]
    EarlierBoot {
        /// The run directory.
        path: PathBuf,
        /// What could not be removed.
        #[source]
        source: RemoveError,
    },
    /// The run directory has pods of this boot whose records are in another root. They may run: this engine would end them.
    #[error(
        "{} has running pods whose records are in {}, not in {}. Start with the root directory that they belong to (is it mounted?) or with \
         another run directory; if it is lost, reboot the host, or end the processes of these pods and remove {}/pods",
        run.display(), recorded.display(), root.display(), run.display()
    )]
    OtherRoot {
        /// The run directory.
        run: PathBuf,
        /// The root of the engine that ran these pods.
        recorded: PathBuf,
        /// The root of this engine.
        root: PathBuf,
    },
    /// Pods of this boot may run whose files are in another run directory, or were deleted with it. This engine would end them.
    #[error(
        "pods of {} may run since this boot with the run directory {}, and {} has no files of them. Start with the former run directory; if \
         its files are lost, drain and reboot the host, or end the processes of these pods and remove {}/boot",
        root.display(), recorded.display(), run.display(), root.display()
    )]
    OtherRunDir {
        /// The root of this engine.
        root: PathBuf,
        /// The run directory of the last engine with this root.
        recorded: PathBuf,
        /// The run directory of this engine.
        run: PathBuf,
    },
    /// Not an id of this engine: it would lead to another directory.
    #[error("{0:?} is not a valid id")]
    Id(String),
}

/// The directories of one engine, locked.
#[derive(Debug)]
pub struct EngineStore {
    root: PathBuf,
    root_id: RootId,
    /// The lock is held as long as the file is open.
    _lock: File,
}

/// All records, in the order of their ids.
#[derive(Debug, Default)]
pub struct StoredRecords {
    /// Sandboxes.
    pub sandboxes: Vec<(SandboxId, SandboxRecord)>,
    /// Containers.
    pub containers: Vec<(ContainerId, ContainerRecord)>,
    /// Records with a wrong content, where they were moved to.
    pub damaged: Vec<PathBuf>,
    /// Records that the disk does not give back.
    pub unreadable: Vec<UnreadableRecord>,
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A sandbox.
    Sandbox,
    /// A container.
    Container,
}

/// A record that exists and can not be read: an error of the disk, not of its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of {} {id} cannot be read: {}: {error}", .kind.name(), .path.display())]
pub struct UnreadableRecord {
    /// What it is of.
    pub kind: RecordKind,
    /// The id of the object.
    pub id: String,
    /// The file.
    pub path: PathBuf,
    /// The kernel's answer.
    pub error: String,
}

impl RecordKind {
    fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Container => "container",
        }
    }

    fn directory(self) -> &'static str {
        match self {
            Self::Sandbox => "sandboxes",
            Self::Container => "containers",
        }
    }
}

impl EngineStore {
    /// Locks `<root>/engine` and makes its directories. One engine per root: the lock names the process that has it.
    pub fn open(root: &Path) -> Result<Self, EngineStoreError> {
        let root = root.join("engine");
        make_dir(&root)?;
        let lock = take_lock(&root.join("lock"))?;
        for name in ["sandboxes", "containers", "damaged"] {
            make_dir(&root.join(name))?;
        }
        let root_id = RootId::open(&root)?;
        Ok(Self { root, root_id, _lock: lock })
    }

    /// What ties a run directory to this root.
    pub(crate) fn root_id(&self) -> &RootId {
        &self.root_id
    }

    /// Locks and prepares the run directory.
    pub(crate) fn open_run_dir(&self, run: &Path, boot_id: &str) -> Result<EngineRunDir, EngineStoreError> {
        run_dir::open(self, run, boot_id)
    }

    /// Replaces the record of a sandbox, and makes its directory.
    pub fn write_sandbox(&self, id: &SandboxId, record: &SandboxRecord) -> Result<(), EngineStoreError> {
        self.write("sandboxes", &id.0, record)
    }

    /// Replaces the record of a container, and makes its directory.
    pub fn write_container(&self, id: &ContainerId, record: &ContainerRecord) -> Result<(), EngineStoreError> {
        self.write("containers", &id.0, record)
    }

    /// Replaces the record of a sandbox that has one. One that is removed stays removed.
    pub(crate) fn update_sandbox(&self, id: &SandboxId, record: &SandboxRecord) -> Result<(), EngineStoreError> {
        self.update("sandboxes", &id.0, record)
    }

    /// Replaces the record of a container that has one. One that is removed stays removed.
    pub(crate) fn update_container(&self, id: &ContainerId, record: &ContainerRecord) -> Result<(), EngineStoreError> {
        self.update("containers", &id.0, record)
    }

    /// Removes the directory of a sandbox. A missing one is success.
    pub fn remove_sandbox(&self, id: &SandboxId) -> Result<(), EngineStoreError> {
        self.remove("sandboxes", &id.0)
    }

    /// Removes the directory of a container, its writable layer included. A missing one is success.
    pub fn remove_container(&self, id: &ContainerId) -> Result<(), EngineStoreError> {
        self.remove("containers", &id.0)
    }

    /// The directory of a sandbox: `hosts`, `hostname`, `resolv.conf`, `cni.json`.
    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> Result<PathBuf, EngineStoreError> {
        self.dir("sandboxes", &id.0)
    }

    /// The directory of a container: `config.json`, `upper`, `work`.
    pub fn container_dir(&self, id: &ContainerId) -> Result<PathBuf, EngineStoreError> {
        self.dir("containers", &id.0)
    }

    /// Reads every record. Directories without one are leftovers of a crash and belong to the sweep.
    pub fn read_all(&self) -> Result<StoredRecords, EngineStoreError> {
        let mut all = StoredRecords::default();
        for (id, record) in self.read_kind(RecordKind::Sandbox, &mut all)? {
            all.sandboxes.push((SandboxId(id), record));
        }
        for (id, record) in self.read_kind(RecordKind::Container, &mut all)? {
            all.containers.push((ContainerId(id), record));
        }
        Ok(all)
    }

    fn read_kind<R: StoredRecord>(
        &self,
        kind: RecordKind,
        all: &mut StoredRecords,
    ) -> Result<Vec<(String, R)>, EngineStoreError> {
        let dir = self.root.join(kind.directory());
        let entries = fs::read_dir(&dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let names = entries.map_err(failed("read", &dir))?.into_iter().filter_map(|e| e.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| check_id(name).is_ok()).collect();
        names.sort();
        let mut records = vec![];
        for id in names {
            let path = dir.join(&id).join("record");
            let bytes = match read_bounded(&path) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) if is_exhausted(&e) => return Err(failed("read", &path)(e)),
                Err(e) => {
                    let unreadable = UnreadableRecord { kind, id, path, error: e.to_string() };
                    tracing::error!(error = %unreadable, "record cannot be read, its object is left alone");
                    all.unreadable.push(unreadable);
                    continue;
                }
            };
            match R::decode(&bytes) {
                Ok(record) => records.push((id, record)),
                Err(RecordError::NewerVersion(version)) => {
                    return Err(EngineStoreError::NewerVersion { path, version });
                }
                Err(error) => {
                    let aside = self.move_aside(kind.directory(), &id, &path)?;
                    tracing::warn!(path = %path.display(), moved_to = %aside.display(), %error, "damaged record moved aside");
                    all.damaged.push(aside);
                }
            }
        }
        Ok(records)
    }

    /// An earlier damaged record of the same id is replaced.
    fn move_aside(&self, kind: &str, id: &str, path: &Path) -> Result<PathBuf, EngineStoreError> {
        let aside = self.root.join("damaged").join(format!("{kind}-{id}"));
        fs::rename(path, &aside).map_err(failed("rename", path))?;
        Ok(aside)
    }

    fn write<R: StoredRecord>(&self, kind: &str, id: &str, record: &R) -> Result<(), EngineStoreError> {
        let dir = self.dir(kind, id)?;
        let temporary = dir.join("record.new");
        let bytes = record.encode();
        let result = match write_new(&temporary, &bytes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_dir(&dir)?;
                write_new(&temporary, &bytes)
            }
            other => other,
        };
        result.map_err(failed("write", &temporary))?;
        fs::rename(&temporary, dir.join("record")).map_err(failed("rename", &temporary))
    }

    fn update<R: StoredRecord>(&self, kind: &str, id: &str, record: &R) -> Result<(), EngineStoreError> {
        let dir = self.dir(kind, id)?;
        let temporary = dir.join("record.new");
        let replaced =
            write_new(&temporary, &record.encode()).and_then(|()| fs::rename(&temporary, dir.join("record")));
        match replaced {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(failed("write", &temporary)),
        }
    }

    fn remove(&self, kind: &str, id: &str) -> Result<(), EngineStoreError> {
        let dir = self.dir(kind, id)?;
        // The record goes first: without it the rest is a leftover that the sweep may remove.
        match fs::remove_file(dir.join("record")) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("remove", &dir)(e)),
        }
        remove_path(&dir).map_err(|e| failed("remove", &dir)(io::Error::other(e)))
    }

    fn dir(&self, kind: &str, id: &str) -> Result<PathBuf, EngineStoreError> {
        check_id(id)?;
        Ok(self.root.join(kind).join(id))
    }
}

/// Reads the records below `root` as they are, without a lock: of an engine that does not run. What can not be read is left out and
/// left as it is.
pub(crate) fn peek_records(root: &Path) -> StoredRecords {
    let root = root.join("engine");
    let sandboxes = peek_kind(&root.join("sandboxes")).into_iter().map(|(id, record)| (SandboxId(id), record));
    let containers = peek_kind(&root.join("containers")).into_iter().map(|(id, record)| (ContainerId(id), record));
    StoredRecords { sandboxes: sandboxes.collect(), containers: containers.collect(), ..StoredRecords::default() }
}

fn peek_kind<R: StoredRecord>(dir: &Path) -> Vec<(String, R)> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| check_id(name).is_ok()).collect();
    names.sort();
    let record = |id: String| {
        let bytes = read_bounded(&dir.join(&id).join("record")).ok()?;
        Some((id, R::decode(&bytes).ok()?))
    };
    names.into_iter().filter_map(record).collect()
}

/// Letters, digits, `-` and `_`, at most 128: no id leads out of its directory.
fn check_id(id: &str) -> Result<(), EngineStoreError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if id.is_empty() || id.len() > 128 || !id.chars().all(fine) {
        return Err(EngineStoreError::Id(id.chars().take(140).collect()));
    }
    Ok(())
}

fn take_lock(path: &Path) -> Result<File, EngineStoreError> {
    lock_file::take(path).map_err(|error| match error {
        LockFileError::Held { pid } => EngineStoreError::Locked { path: path.to_owned(), pid },
        LockFileError::File { action, source } => failed(action, path)(source),
    })
}

fn make_dir(path: &Path) -> Result<(), EngineStoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create", path))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Replaces a file as a whole.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), EngineStoreError> {
    let temporary = path.with_extension("new");
    write_new(&temporary, bytes).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", &temporary))
}

/// A record is far smaller; what is larger was not written by us.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    File::open(path)?.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// It says nothing about the file: the same may hold for all others.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EngineStoreError {
    let path = path.to_owned();
    move |source| EngineStoreError::File { action, path, source }
}

/// The CRI takes requests of up to 16 MiB, and a record holds one.
const RECORD_BYTES_MAX: u64 = 17 << 20;
