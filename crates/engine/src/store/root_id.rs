//! Which root a run directory belongs to. Without it an engine with another root, as one that is not mounted yet, would take every running
//! pod for a leftover: no record of its own names it.
//!
//! ```text
//!  <root>/engine/id  64 hexadecimal digits, drawn once
//!  <run>/root        the same id, and the path of the root for people
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use super::{EngineStoreError, failed, replace};

/// The identity of a root directory. It moves with the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootId {
    id: String,
    /// Where it is now.
    root: PathBuf,
}

impl RootId {
    /// The id of `<root>/engine`, drawn if there is none. One that a loss of power left without content is drawn again: after it nothing runs.
    pub(super) fn open(root: &Path) -> Result<Self, EngineStoreError> {
        let path = root.join("id");
        let written = match fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => String::new(),
            Err(e) => return Err(failed("read", &path)(e)),
        };
        let root = root.to_owned();
        if written.len() == 2 * ID_BYTES && written.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Self { id: written, root });
        }
        let id = draw().map_err(|e| failed("draw a random id for", &path)(e.into()))?;
        replace(&path, format!("{id}\n").as_bytes())?;
        Ok(Self { id, root })
    }

    /// Ties the run directory of this boot to this root, unless it has pods of another one.
    pub(super) fn claim(&self, run: &Path) -> Result<(), EngineStoreError> {
        let path = run.join(NOTE);
        let note = match fs::read_to_string(&path) {
            Ok(note) => note,
            // Of an engine that wrote none.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return self.write_note(run),
            Err(e) => return Err(failed("read", &path)(e)),
        };
        let (id, root) = note.split_once('\n').unwrap_or((&note, ""));
        if id == self.id {
            return Ok(());
        }
        if has_pods(run)? {
            let recorded = PathBuf::from(root.trim_end_matches('\n'));
            return Err(EngineStoreError::OtherRoot { run: run.to_owned(), recorded, root: self.root.clone() });
        }
        self.write_note(run)
    }

    pub(super) fn write_note(&self, run: &Path) -> Result<(), EngineStoreError> {
        replace(&run.join(NOTE), format!("{}\n{}\n", self.id, self.root.display()).as_bytes())
    }
}

fn has_pods(run: &Path) -> Result<bool, EngineStoreError> {
    let pods = run.join("pods");
    match fs::read_dir(&pods) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("read", &pods)(e)),
    }
}

fn draw() -> rustix::io::Result<String> {
    let mut bytes = [0; ID_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

const NOTE: &str = "root";
const ID_BYTES: usize = 32;
