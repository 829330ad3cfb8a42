//! The state of the manifest files between scans: the last result of each, files being written, files just removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use inotify::EventMask;
use podwright_core::model::Manifest;
use tokio::time::Instant;

use super::scan::{FileStamp, KnownFile, ManifestResult, ScannedFile, Writer};

/// The pods in the order of their files, and the broken files with their errors.
pub(super) type Set = (Vec<Manifest>, Vec<(String, String)>);

/// The known files, and the differences since the last SET.
#[derive(Default)]
pub(super) struct FileTracker {
    files: BTreeMap<OsString, TrackedFile>,
    /// Files that a process was writing at the first scan, and their origins. The pods that they had may run: the files count as broken
    /// until they can be read.
    unread: BTreeMap<OsString, String>,
    writers: BTreeMap<OsString, Writing>,
    /// Closed or renamed into place since the last scan.
    closed: BTreeSet<OsString>,
    /// The names that were closed when the current scan began.
    closed_at_scan: BTreeSet<OsString>,
    /// The writers when the current scan began.
    writers_at_scan: BTreeMap<OsString, Writer>,
    /// A scan has succeeded.
    scanned: bool,
    /// The state differs from the last SET.
    changed: bool,
}

struct TrackedFile {
    stamp: Option<FileStamp>,
    hash: Option<u64>,
    origin: String,
    outcome: ManifestResult,
    /// Missing since then.
    gone: Option<Instant>,
}

struct Writing {
    since: Instant,
    /// It was written to, not only created.
    writes: bool,
}

impl FileTracker {
    /// Records an event on a name. True if it requires a scan.
    pub(super) fn on_event(&mut self, name: OsString, mask: EventMask, now: Instant) -> bool {
        if mask.contains(EventMask::MODIFY) {
            self.writers.entry(name).or_insert(Writing { since: now, writes: true }).writes = true;
            return false;
        }
        if mask.contains(EventMask::CREATE) {
            self.writers.insert(name, Writing { since: now, writes: false });
            return true;
        }
        self.writers.remove(&name);
        if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
            self.closed.insert(name);
        }
        true
    }

    /// Events were lost, so the writers are unknown.
    pub(super) fn forget_writers(&mut self) {
        self.writers.clear();
    }

    /// The known state of all files, for the next scan.
    pub(super) fn known(&mut self, now: Instant) -> BTreeMap<OsString, KnownFile> {
        let mut known: BTreeMap<OsString, KnownFile> = BTreeMap::new();
        for (name, file) in &self.files {
            known.insert(name.clone(), KnownFile { stamp: file.stamp, hash: file.hash, ..KnownFile::default() });
        }
        let writer = |writing: &Writing| match writing.writes {
            true => Writer::Writes,
            false if now >= writing.since + SETTLE => Writer::Quiet,
            false => Writer::Appeared,
        };
        self.writers_at_scan = self.writers.iter().map(|(name, writing)| (name.clone(), writer(writing))).collect();
        for (name, writer) in &self.writers_at_scan {
            known.entry(name.clone()).or_default().writer = Some(*writer);
        }
        self.closed_at_scan = std::mem::take(&mut self.closed);
        for name in &self.closed_at_scan {
            known.entry(name.clone()).or_default().closed = true;
        }
        known
    }

    /// The scan failed: the closed files are still to be read.
    pub(super) fn on_scan_failed(&mut self) {
        self.closed.append(&mut self.closed_at_scan);
    }

    /// Records the result of a scan.
    pub(super) fn on_scan(&mut self, found: BTreeMap<OsString, ScannedFile>, now: Instant) {
        let is_first = !self.scanned;
        self.changed |= is_first;
        self.scanned = true;
        let unread_before = self.unread.len();
        self.unread.retain(|name, _| found.contains_key(name));
        // A file that reappears within SETTLE counts as never removed.
        for (name, file) in &mut self.files {
            file.gone = if found.contains_key(name) { None } else { file.gone.or(Some(now)) };
        }
        let before = self.files.len();
        self.files.retain(|_, file| file.gone.is_none_or(|since| now < since + SETTLE));
        self.changed |= self.files.len() != before;
        // A removed file has no writer, and a quiet one has been read now.
        self.writers.retain(|name, _| match self.writers_at_scan.get(name) {
            Some(Writer::Quiet) => false,
            Some(_) => found.contains_key(name),
            None => true,
        });
        for (name, found) in found {
            // A write that began after the scan began may have made it read a partial file.
            let partial =
                self.writers.get(&name).is_some_and(|w| w.writes || !self.writers_at_scan.contains_key(&name));
            match found {
                ScannedFile::Written { origin } | ScannedFile::Read { origin, .. } if is_first && partial => {
                    self.unread.insert(name, origin);
                }
                ScannedFile::Written { origin } if is_first => _ = self.unread.insert(name, origin),
                found if !partial => self.update(name, found),
                _ => {}
            }
        }
        self.unread.retain(|name, _| !self.files.contains_key(name));
        self.changed |= self.unread.len() != unread_before;
        self.closed_at_scan.clear();
    }

    /// When to scan next, even without an event.
    pub(super) fn wake(&self) -> Option<Instant> {
        let gone = self.files.values().filter_map(|file| file.gone);
        let appeared = self.writers.values().filter(|w| !w.writes).map(|w| w.since);
        gone.chain(appeared).min().map(|since| since + SETTLE)
    }

    /// The whole set, if it differs from the last one.
    pub(super) fn take_changed(&mut self) -> Option<Set> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut set = Set::default();
        for file in self.files.values() {
            match &file.outcome {
                Ok(pods) => set.0.extend(pods.iter().cloned()),
                Err(error) => set.1.push((file.origin.clone(), error.to_string())),
            }
        }
        set.1.extend(self.unread.values().map(|origin| (origin.clone(), BEING_WRITTEN.to_owned())));
        Some(set)
    }

    fn update(&mut self, name: OsString, found: ScannedFile) {
        match found {
            ScannedFile::Same | ScannedFile::Written { .. } => {}
            ScannedFile::Touched(stamp) => {
                if let Some(file) = self.files.get_mut(&name) {
                    file.stamp = Some(stamp);
                }
            }
            ScannedFile::Read { stamp, hash, origin, outcome } => {
                let old = self.files.get(&name).map(|file| &file.outcome);
                if old != Some(&outcome) {
                    match (&outcome, old) {
                        (Err(error), _) => {
                            tracing::warn!(path = origin, %error, "manifest is invalid, its pods stay as they are")
                        }
                        (Ok(_), Some(Err(_))) => tracing::info!(path = origin, "manifest is valid again"),
                        (Ok(_), _) => tracing::debug!(path = origin, "manifest read"),
                    }
                    self.changed = true;
                }
                self.files.insert(name, TrackedFile { stamp, hash, origin, outcome, gone: None });
            }
        }
    }
}

const BEING_WRITTEN: &str = "a process is writing it; it is read when it is closed";
/// Editors remove a file and create it again within this time. For as long, a new file counts as being written.
const SETTLE: Duration = Duration::from_millis(200);
