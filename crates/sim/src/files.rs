//! The manifests of a source: files that people write, break and remove, and the SET that tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_core::model::{Event, Manifest, PodUid, Source, SourceChange};

use crate::world::{Item, World};

/// The files of one source.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// By path.
    pub files: BTreeMap<String, File>,
    /// What the agent was told in the last SET: by UID.
    pub told: BTreeMap<PodUid, Manifest>,
    /// The files that could not be parsed in the last SET.
    pub unread: BTreeSet<String>,
    /// The agent that runs now has heard from it.
    pub reported: bool,
}

/// One file.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Its pods.
    pub pods: Vec<Manifest>,
    /// It can't be parsed now.
    pub broken: bool,
}

impl World {
    /// Change a source's files; the agent hears of it after a while.
    pub fn write(&mut self, source: Source, change: impl FnOnce(&mut BTreeMap<String, File>)) {
        change(&mut self.sources.entry(source).or_default().files);
        let delay = if self.calm { Duration::from_millis(1) } else { self.rng.millis(0, 300) };
        self.announce(source, delay);
    }

    /// A source speaks after this time, unless it is about to.
    pub(crate) fn announce(&mut self, source: Source, delay: Duration) {
        if self.pending_sets.insert(source) {
            self.after(delay, Item::Set(source));
        }
    }

    /// Put one pod into its file, alone.
    pub fn put(&mut self, source: Source, manifest: Manifest) {
        let origin = manifest.origin.clone();
        self.write(source, |files| {
            files.insert(origin, File { pods: vec![manifest], broken: false });
        });
    }

    /// Remove a file.
    pub fn remove(&mut self, source: Source, origin: &str) {
        let origin = origin.to_owned();
        self.write(source, |files| {
            files.remove(&origin);
        });
    }

    /// A source says everything it has.
    pub(crate) fn say_set(&mut self, source: Source) {
        self.pending_sets.remove(&source);
        if self.node.is_none() {
            return;
        }
        if source == self.keeper.source {
            return self.say_objects();
        }
        let files = self.sources.entry(source).or_default();
        let pods: Vec<Manifest> = files.files.values().filter(|f| !f.broken).flat_map(|f| f.pods.clone()).collect();
        let broken: Vec<(String, String)> = files
            .files
            .iter()
            .filter(|(_, f)| f.broken)
            .map(|(path, _)| (path.clone(), "did not parse".to_owned()))
            .collect();
        self.turn(Event::Source { source, change: SourceChange::Set { pods, broken } });
    }
}
