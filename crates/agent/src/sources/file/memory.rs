//! What the file source remembers between looks: each file's last outcome, who is being written, who has just gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use inotify::EventMask;
use podwright_core::model::Manifest;
use tokio::time::Instant;

use super::look::{Found, Known, Stamp, Writer};

/// The pods in the order of their files, and the broken files with their errors.
pub(super) type Set = (Vec<Manifest>, Vec<(String, String)>);

/// See the module.
#[derive(Default)]
pub(super) struct Memory {
    files: BTreeMap<OsString, FileMemory>,
    writers: BTreeMap<OsString, Writing>,
    /// Closed or renamed into place since the last look.
    closed: BTreeSet<OsString>,
    /// The names the look under way was told were closed.
    asked: BTreeSet<OsString>,
    /// The writers the look under way was told of.
    told: BTreeMap<OsString, Writer>,
    /// Something has been seen at all.
    looked: bool,
    /// The last set told differs from what is known now.
    news: bool,
}

struct FileMemory {
    stamp: Option<Stamp>,
    hash: Option<u64>,
    origin: String,
    outcome: Result<Vec<Manifest>, String>,
    /// It was missed since then.
    gone: Option<Instant>,
}

struct Writing {
    since: Instant,
    /// Written to, not only made.
    writes: bool,
}

impl Memory {
    /// An event on a name. True if it is worth a look.
    pub(super) fn happened(&mut self, name: OsString, mask: EventMask, now: Instant) -> bool {
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

    /// Events were lost: nobody is known to write.
    pub(super) fn forget_writers(&mut self) {
        self.writers.clear();
    }

    /// What a look has to know.
    pub(super) fn known(&mut self, now: Instant) -> BTreeMap<OsString, Known> {
        let mut known: BTreeMap<OsString, Known> = BTreeMap::new();
        for (name, file) in &self.files {
            known.insert(name.clone(), Known { stamp: file.stamp, hash: file.hash, ..Known::default() });
        }
        let writer = |writing: &Writing| match writing.writes {
            true => Writer::Writes,
            false if now >= writing.since + SETTLE => Writer::Quiet,
            false => Writer::Appeared,
        };
        self.told = self.writers.iter().map(|(name, writing)| (name.clone(), writer(writing))).collect();
        for (name, writer) in &self.told {
            known.entry(name.clone()).or_default().writer = Some(*writer);
        }
        self.asked = std::mem::take(&mut self.closed);
        for name in &self.asked {
            known.entry(name.clone()).or_default().closed = true;
        }
        known
    }

    /// The look could not be made: what it was asked for is still to be done.
    pub(super) fn saw_nothing(&mut self) {
        self.closed.append(&mut self.asked);
    }

    /// A look found this.
    pub(super) fn seen(&mut self, found: BTreeMap<OsString, Found>, now: Instant) {
        self.news |= !self.looked;
        self.looked = true;
        // A file that is back within the time editors take was never gone.
        for (name, file) in &mut self.files {
            file.gone = if found.contains_key(name) { None } else { file.gone.or(Some(now)) };
        }
        let before = self.files.len();
        self.files.retain(|_, file| file.gone.is_none_or(|since| now < since + SETTLE));
        self.news |= self.files.len() != before;
        // What is no file any more has no writer, and what was quiet has been read by now.
        self.writers.retain(|name, _| match self.told.get(name) {
            Some(Writer::Quiet) => false,
            Some(_) => found.contains_key(name),
            None => true,
        });
        for (name, found) in found {
            // Whoever began to write since the look was asked for made it see half a file.
            let torn = self.writers.get(&name).is_some_and(|w| w.writes || !self.told.contains_key(&name));
            if !torn {
                self.take(name, found);
            }
        }
        self.asked.clear();
    }

    /// When to look again whatever happens.
    pub(super) fn wake(&self) -> Option<Instant> {
        let gone = self.files.values().filter_map(|file| file.gone);
        let appeared = self.writers.values().filter(|w| !w.writes).map(|w| w.since);
        gone.chain(appeared).min().map(|since| since + SETTLE)
    }

    /// The whole set, if it isn't what was told last.
    pub(super) fn news(&mut self) -> Option<Set> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        let mut set = Set::default();
        for file in self.files.values() {
            match &file.outcome {
                Ok(pods) => set.0.extend(pods.iter().cloned()),
                Err(error) => set.1.push((file.origin.clone(), error.clone())),
            }
        }
        Some(set)
    }

    fn take(&mut self, name: OsString, found: Found) {
        match found {
            Found::Same => {}
            Found::Touched(stamp) => {
                if let Some(file) = self.files.get_mut(&name) {
                    file.stamp = Some(stamp);
                }
            }
            Found::Read { stamp, hash, origin, outcome } => {
                let old = self.files.get(&name).map(|file| &file.outcome);
                if old != Some(&outcome) {
                    match (&outcome, old) {
                        (Err(error), _) => {
                            tracing::warn!(file = origin, error, "a manifest is broken: its pods stay as they were")
                        }
                        (Ok(_), Some(Err(_))) => tracing::info!(file = origin, "a manifest is good again"),
                        (Ok(_), _) => tracing::debug!(file = origin, "a manifest was read"),
                    }
                    self.news = true;
                }
                self.files.insert(name, FileMemory { stamp, hash, origin, outcome, gone: None });
            }
        }
    }
}

/// Editors take a file away and put it back within this time. As long, a new file without a writer counts as being written.
const SETTLE: Duration = Duration::from_millis(200);
