//! The pods' records on disk: written before the effects that depend on them, read once at the start.
//!
//! ```text
//! <root-dir>/
//! ├─ agent.lock          the pid of the agent that owns this directory, under flock
//! ├─ journal             header · frames: whole records, newest per pod wins
//! ├─ journal.new         a compaction under way, renamed over `journal` when it is complete
//! └─ journal.corrupt-<n> a journal that was damaged
//! ```
//!
//! An append-only log of whole records, because the state is small and a commit is then one write and one sync. The log is
//! compacted when most of it is superseded. Damage loses only the records it lies in: the others are kept, and the file is
//! written again.
//! Why not a database: `docs/decisions/001-journal.md`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_core::model::{PodRecord, PodUid, Record};

mod frame;
mod lock;
mod replay;
mod warning;

pub use lock::{AgentLock, LockError};
pub use warning::{Damage, JournalWarning};

use frame::{Frame, Head, Header, Op};
use replay::{JournalReplay, ReadBack, Slot};

/// A record was not written, or the journal can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The root directory can't be created or locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file operation failed; none of the records of this commit is written.
    #[error("{step} {path}: {source}")]
    Io {
        /// The failed operation.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// One record is too big for the format.
    #[error("the record of pod {uid} has {size} bytes, more than the journal takes")]
    TooLarge {
        /// The pod's UID.
        uid: PodUid,
        /// In bytes.
        size: usize,
    },
    /// A record can't be serialised.
    #[error("encode the record of pod {uid}")]
    Encode {
        /// The pod's UID.
        uid: PodUid,
        /// The encoder's error.
        #[source]
        source: serde_json::Error,
    },
}

impl JournalError {
    /// The pod whose record can't be written even by a retry.
    pub(crate) fn unwritable(&self) -> Option<&PodUid> {
        match self {
            Self::TooLarge { uid, .. } | Self::Encode { uid, .. } => Some(uid),
            Self::Lock(_) | Self::Io { .. } => None,
        }
    }

    /// The disk is full: a later commit may succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// The open journal. Its calls block, so it has a thread of its own.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// `None` until a file could be created: each commit tries again.
    log: Option<Log>,
    /// Held until the agent exits.
    _lock: AgentLock,
}

/// The file and its current records.
#[derive(Debug)]
struct Log {
    dir: PathBuf,
    file: File,
    /// The directory entry is not synced yet, which must happen before a commit is complete.
    unsynced_name: bool,
    /// The end of the last commit that was synced.
    end: u64,
    /// There may be bytes beyond `end` from a failed commit, which the next one truncates.
    ragged: bool,
    /// The number of the last commit.
    commit: u64,
    live: BTreeMap<PodUid, Slot>,
    /// Bytes of `live`'s frames.
    live_size: u64,
    /// The size at which to check again whether a compaction is worthwhile.
    compact_at: u64,
}

impl Journal {
    /// Locks the root directory for this process and reads the records of the last one. Also returns what was lost.
    ///
    /// Only a directory that can't be locked is an error. A file that can't be read is renamed; one that can't be created
    /// (on a full disk) is created by a later commit.
    pub fn open(root_dir: &Path) -> Result<(Self, Vec<PodRecord>, Vec<JournalWarning>), JournalError> {
        let lock = AgentLock::take(root_dir)?;
        let mut warnings = Vec::new();
        // Left by a crash during a compaction; the journal itself is complete.
        let _ = fs::remove_file(root_dir.join(NEW));
        let mut journal = Self { dir: root_dir.to_owned(), log: None, _lock: lock };
        let records = match replay::read(&journal.path()) {
            Ok(JournalReplay::Absent) => Vec::new(),
            Ok(JournalReplay::Read(read)) => journal.resume(read, &mut warnings),
            Ok(JournalReplay::Unusable(why)) => {
                warnings.push(journal.rename_corrupt(why));
                Vec::new()
            }
            Err(error) => {
                warnings.push(journal.rename_corrupt(error.to_string()));
                Vec::new()
            }
        };
        if journal.log.is_none()
            && let Err(source) = journal.log()
        {
            warnings.push(JournalWarning::NotCreated { source });
        }
        Ok((journal, records, warnings))
    }

    /// Continues with the file that was read. A damaged one, and one of another version, is written again.
    fn resume(&mut self, read: ReadBack, warnings: &mut Vec<JournalWarning>) -> Vec<PodRecord> {
        let ReadBack { mut log, version, records, damage, warnings: others } = read;
        if let Some(damage) = damage {
            warnings.push(JournalWarning::Damaged { damage, copy: self.keep_corrupt() });
        }
        warnings.extend(others);
        if (version != VERSION || damage.is_some())
            && let Err(source) = log.compact()
        {
            warnings.push(JournalWarning::NotRewritten { source });
        }
        self.log = Some(log);
        records
    }

    /// Writes these records durably, all or none.
    ///
    /// After an error the caller may pass the newest record of each pod again: a record replaces all earlier ones.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        let log = self.log()?;
        log.append(records)?;
        if log.end >= log.compact_at && log.end > COMPACT_FACTOR * log.live_size {
            // The commit is complete; a failed compaction (no space for both files) is retried later.
            if let Err(error) = log.compact() {
                tracing::warn!(%error, "journal compaction failed");
                log.compact_at = log.end + COMPACT_SIZE;
            }
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn log(&mut self) -> Result<&mut Log, JournalError> {
        if self.log.is_none() {
            self.log = Some(Log::create(&self.dir, None)?);
        }
        Ok(self.log.as_mut().expect("made above"))
    }

    /// Renames the unreadable file; keeps only the last few of them.
    fn rename_corrupt(&self, why: String) -> JournalWarning {
        let to = self.next_corrupt_name();
        match fs::rename(self.path(), &to) {
            Ok(()) => JournalWarning::Unusable { why, to },
            Err(source) => JournalWarning::Unrenamed { why, source },
        }
    }

    /// Gives the damaged file a second name, under which it remains when a compaction replaces the first one.
    fn keep_corrupt(&self) -> Option<PathBuf> {
        let to = self.next_corrupt_name();
        fs::hard_link(self.path(), &to).ok().map(|()| to)
    }

    /// A free name for a damaged file. Removes the oldest ones.
    fn next_corrupt_name(&self) -> PathBuf {
        let kept = corrupt_files(&self.dir);
        for (_, old) in kept.iter().rev().skip(CORRUPT_MAX - 1) {
            let _ = fs::remove_file(old);
        }
        let next = kept.last().map_or(1, |(n, _)| n.saturating_add(1));
        self.dir.join(format!("{CORRUPT_PREFIX}{next}"))
    }
}

impl Log {
    fn empty(dir: &Path, file: File) -> Self {
        let (dir, live) = (dir.to_owned(), BTreeMap::new());
        let compact_at = COMPACT_SIZE;
        Self { dir, file, unsynced_name: true, end: 0, ragged: false, commit: 0, live, live_size: 0, compact_at }
    }

    /// Creates a new file with the current records of the old one, and renames it over the old one.
    fn create(dir: &Path, old: Option<&Self>) -> Result<Self, JournalError> {
        let new = dir.join(NEW);
        let open = OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(&new);
        let mut log = Self::empty(dir, open.map_err(io_error("create", &new))?);
        let done = log.fill(&new, old).and_then(|()| {
            let path = dir.join(FILE);
            fs::rename(&new, &path).map_err(io_error("rename to", &path))
        });
        if let Err(error) = done {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        // The old file is replaced already; if the sync of the directory fails, the next commit repeats it.
        let _ = log.sync_name();
        Ok(log)
    }

    fn fill(&mut self, path: &Path, old: Option<&Self>) -> Result<(), JournalError> {
        self.end = Header::SIZE;
        let count = old.map_or(0, |old| old.live.len());
        for (i, (uid, slot)) in old.iter().flat_map(|old| &old.live).enumerate() {
            let body = old.expect("it has frames").read(uid, slot)?;
            let (index, last) = (u32::try_from(i).expect("pods fit in memory"), i + 1 == count);
            let frame = Frame { commit: 0, index, op: Op::Put, last, uid: uid.as_str(), body: &body };
            let mut copy = Vec::with_capacity(Head::SIZE + body.len());
            let crc = frame.write(&mut copy).expect("it fitted before");
            self.file.write_all_at(&copy, self.end).map_err(io_error("write", path))?;
            self.set_slot(uid.clone(), Some(Slot { at: self.end, size: copy.len() as u64, crc }));
            self.end += copy.len() as u64;
        }
        self.compact_at = (self.end * COMPACT_FACTOR).max(COMPACT_SIZE);
        Header { version: VERSION, base: self.end }.write(&self.file).map_err(io_error("write", path))?;
        self.file.sync_data().map_err(io_error("sync", path))
    }

    /// The body of this pod's record.
    fn read(&self, uid: &PodUid, slot: &Slot) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; usize::try_from(slot.size).expect("a frame fits in memory")];
        let body = self.file.read_exact_at(&mut bytes, slot.at).and_then(|()| {
            let head = Head::parse(&bytes).filter(|head| head.crc == slot.crc);
            let body = head.and_then(|head| head.split(&bytes[Head::SIZE..])).map(|(_, body)| body.to_vec());
            body.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the record of pod {uid} has changed"))
            })
        });
        body.map_err(io_error("read", &self.dir.join(FILE)))
    }

    /// Writes the current records to a new file.
    fn compact(&mut self) -> Result<(), JournalError> {
        *self = Self::create(&self.dir, Some(self))?;
        Ok(())
    }

    fn sync_name(&mut self) -> Result<(), JournalError> {
        if self.unsynced_name {
            File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", &self.dir))?;
            self.unsynced_name = false;
        }
        Ok(())
    }

    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let commit = self.commit + 1;
        let mut bytes = Vec::new();
        let mut slots = Vec::with_capacity(records.len());
        for (i, record) in records.iter().enumerate() {
            let (uid, op, body) = match record {
                Record::Put(record) => (&record.uid, Op::Put, encode(record)?),
                Record::Forget(uid) => (uid, Op::Forget, Vec::new()),
            };
            let start = bytes.len();
            let (index, last) = (u32::try_from(i).expect("records fit in memory"), i + 1 == records.len());
            let frame = Frame { commit, index, op, last, uid: uid.as_str(), body: &body };
            let crc =
                frame.write(&mut bytes).ok_or_else(|| JournalError::TooLarge { uid: uid.clone(), size: body.len() })?;
            let slot = Slot { at: self.end + start as u64, size: (bytes.len() - start) as u64, crc };
            slots.push((uid.clone(), (op == Op::Put).then_some(slot)));
        }
        self.write_tail(&bytes)?;
        self.end += bytes.len() as u64;
        self.commit = commit;
        for (uid, slot) in slots {
            self.set_slot(uid, slot);
        }
        Ok(())
    }

    /// Appends and syncs; after a failure the file is truncated to its former end.
    fn write_tail(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        let journal = &self.dir.join(FILE);
        if self.ragged {
            self.file.set_len(self.end).map_err(io_error("truncate", journal))?;
            self.ragged = false;
        }
        let done = self.file.write_all_at(bytes, self.end).map_err(io_error("write", journal));
        // A failed sync may have dropped the dirty pages, so the tail is discarded in that case too. Earlier commits lie before
        // it and were synced.
        let done = done.and_then(|()| self.file.sync_data().map_err(io_error("sync", journal)));
        let done = done.and_then(|()| self.sync_name());
        if done.is_err() {
            self.ragged = self.file.set_len(self.end).is_err();
        }
        done
    }

    /// Records the position of the pod's newest frame; `None`: it has none.
    fn set_slot(&mut self, uid: PodUid, slot: Option<Slot>) {
        let old = match slot {
            Some(slot) => {
                self.live_size += slot.size;
                self.live.insert(uid, slot)
            }
            None => self.live.remove(&uid),
        };
        self.live_size -= old.map_or(0, |old| old.size);
    }
}

fn encode(record: &PodRecord) -> Result<Vec<u8>, JournalError> {
    serde_json::to_vec(record).map_err(|source| JournalError::Encode { uid: record.uid.clone(), source })
}

/// The renamed corrupt files, oldest first.
fn corrupt_files(dir: &Path) -> Vec<(u64, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.strip_prefix(CORRUPT_PREFIX)?.parse::<u64>().ok()?, entry.path()))
        })
        .collect();
    found.sort();
    found
}

fn io_error(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::Io { step, path, source }
}

/// Creates the root directory with the mode of the Go kubelet.
fn create_root_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

/// The version this code writes. It reads the one before and the one after too: fields are only added, and optional. A change of
/// the frames needs a step of two.
const VERSION: u32 = 5;
const FILE: &str = "journal";
const NEW: &str = "journal.new";
const CORRUPT_PREFIX: &str = "journal.corrupt-";
/// Enough for debugging, too few to fill a disk.
const CORRUPT_MAX: usize = 3;
/// In bytes; a smaller journal is not compacted.
const COMPACT_SIZE: u64 = 1 << 20;
/// A log is compacted when it is this many times as large as its current records.
const COMPACT_FACTOR: u64 = 3;

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;
