//! The run directory of an engine, and what ties it to a boot of the host and to a root.
//!
//! ```text
//!  <root>/engine/boot  the boot id and the run directory of the last engine with this root
//!  <run>/boot-id       the boot id of the last engine with this run directory
//!  <run>/root          see the module `root_id`
//! ```
//! The note in the run directory alone is not enough: an engine with another run directory, or with one that was emptied while pods run,
//! would take the pods of its root for those of an earlier boot and kill their processes. It does not start: without the files of its
//! run directory no running pod can be found, and a kill can not be undone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use podwright_linux::beneath::remove_path;

use super::record::StoredRecord;
use super::{ContainerRecord, EngineStore, EngineStoreError, SandboxRecord};
use super::{failed, make_dir, read_bounded, replace, take_lock};

/// The run directory of one engine, locked.
#[derive(Debug)]
pub(crate) struct EngineRunDir {
    /// The host has booted since the last start, or there was none.
    pub rebooted: bool,
    /// The lock is held as long as the file is open.
    _lock: File,
}

/// Locks and prepares the run directory. What an engine of another boot left is removed before anything is read: pids, sockets and
/// mounts in it mean nothing any more, also where the directory is no tmpfs. Only the engine's own names are removed: an operator who names
/// a directory of another program loses nothing in it. It is refused if pods of this boot belong to another root or run directory.
pub(super) fn open(store: &EngineStore, run: &Path, boot_id: &str) -> Result<EngineRunDir, EngineStoreError> {
    make_dir(run)?;
    let lock = take_lock(&run.join("lock"))?;
    let this = BootNote { boot_id: boot_id.to_owned(), run: path_text(run)? };
    let last = BootNote::read(&store.root)?;
    let in_run_dir = read_note(&run.join(BOOT_ID))?;
    let is_of_boot = in_run_dir.as_deref() == Some(boot_id);
    let of_boot = last.as_ref().filter(|last| last.boot_id == boot_id);
    if let Some(last) = of_boot.filter(|last| !is_of_boot || last.run != this.run)
        && may_run(&store.root)?
    {
        let (root, recorded) = (store.root.clone(), PathBuf::from(&last.run));
        return Err(EngineStoreError::OtherRunDir { root, recorded, run: run.to_owned() });
    }
    if is_of_boot {
        store.root_id().claim(run)?;
    } else {
        // Without a note, whatever is here was not made by an engine.
        let of_engine = if in_run_dir.is_some() { RUN_DIRS } else { &[] };
        for name in of_engine {
            let removed = remove_path(&run.join(name));
            removed.map_err(|source| EngineStoreError::EarlierBoot { path: run.to_owned(), source })?;
        }
        store.root_id().write_note(run)?;
        // Written last: a crash before it repeats the removal.
        replace(&run.join(BOOT_ID), boot_id.as_bytes())?;
    }
    let rebooted = !is_of_boot && of_boot.is_none();
    if last.as_ref() != Some(&this) {
        // On a full disk the pods of this root must come back all the same.
        this.write(&store.root).unwrap_or_else(|error| {
            tracing::warn!(%error, "boot of the host not noted: until then another run directory would end the pods");
        });
    }
    Ok(EngineRunDir { rebooted, _lock: lock })
}

/// The last engine with a root.
#[derive(Debug, PartialEq, Eq)]
struct BootNote {
    boot_id: String,
    /// Without links.
    run: String,
}

impl BootNote {
    /// `None`: none was written, or a loss of power left it without content.
    fn read(root: &Path) -> Result<Option<Self>, EngineStoreError> {
        let note = read_note(&root.join(BOOT))?;
        Ok(note
            .as_deref()
            .and_then(|note| note.split_once('\n'))
            .map(|(boot_id, run)| Self { boot_id: boot_id.to_owned(), run: run.to_owned() }))
    }

    fn write(&self, root: &Path) -> Result<(), EngineStoreError> {
        replace(&root.join(BOOT), format!("{}\n{}\n", self.boot_id, self.run).as_bytes())
    }
}

fn path_text(run: &Path) -> Result<String, EngineStoreError> {
    let path = fs::canonicalize(run).map_err(failed("resolve", run))?;
    Ok(path.to_string_lossy().trim().to_owned())
}

fn read_note(path: &Path) -> Result<Option<String>, EngineStoreError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(Some(String::new())),
        Err(e) => Err(failed("read", path)(e)),
    }
}

/// A record says that something of its pod may run. One that can not be read may say so.
fn may_run(root: &Path) -> Result<bool, EngineStoreError> {
    let sandboxes = any(&root.join("sandboxes"), |record: &SandboxRecord| record.state.may_run())?;
    Ok(sandboxes || any(&root.join("containers"), |record: &ContainerRecord| record.state.may_run())?)
}

fn any<R: StoredRecord>(dir: &Path, may_run: impl Fn(&R) -> bool) -> Result<bool, EngineStoreError> {
    let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(failed("read", dir))?;
    let mut records = entries.iter().map(|entry| read_bounded(&entry.path().join("record")));
    Ok(records.any(|record| match record {
        Ok(bytes) => R::decode(&bytes).map_or(true, |record| may_run(&record)),
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    }))
}

const BOOT_ID: &str = "boot-id";
const BOOT: &str = "boot";
/// What an engine makes in its run directory, besides the lock and the note of the boot.
const RUN_DIRS: &[&str] = &["pods", "netns", "runtimes"];
