//! The sources of pods: manifest files that users write, break and remove, and the reports that reach core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_core::model::{Event, Manifest, PodUid, Source, SourceChange};

use crate::env::{Env, Scheduled};
use crate::object_store::{is_mirror, uid_of, version};

/// All sources of the node. The pods of the API server and of the local API are in [`crate::object_store::ObjectStore`];
/// here is only what was delivered of them.
#[derive(Clone, Debug, Default)]
pub struct ManifestSources {
    all: BTreeMap<Source, ManifestSource>,
    /// Sources whose next report is scheduled.
    announced: BTreeSet<Source>,
    /// Sources that the agent is not configured with. They never report.
    off: BTreeSet<Source>,
}

/// One source.
#[derive(Clone, Debug, Default)]
pub struct ManifestSource {
    /// By path.
    pub files: BTreeMap<String, ManifestFile>,
    /// The pods that core was sent and that were not removed since.
    pub delivered: BTreeMap<PodUid, Manifest>,
    /// The files that could not be parsed in the last report.
    pub unparsed: BTreeSet<String>,
    /// It has reported to the agent process that runs now.
    pub reported: bool,
}

/// One manifest file.
#[derive(Clone, Debug, Default)]
pub struct ManifestFile {
    /// The pods in it.
    pub pods: Vec<Manifest>,
    /// It can't be parsed at present.
    pub broken: bool,
}

impl ManifestSources {
    /// These sources, without files.
    pub fn new(sources: &BTreeSet<Source>) -> Self {
        Self { all: sources.iter().map(|s| (*s, ManifestSource::default())).collect(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, source: Source) {
        self.all.entry(source).or_default();
    }

    pub(crate) fn all(&self) -> Vec<Source> {
        self.all.keys().copied().collect()
    }

    /// A source by its kind.
    pub fn get(&self, source: Source) -> Option<&ManifestSource> {
        self.all.get(&source)
    }

    /// It has reported to the agent process that runs now. For a source that is off: all others have.
    pub(crate) fn has_reported(&self, source: Source) -> bool {
        match self.off.contains(&source) {
            true => self.all.iter().all(|(other, s)| self.off.contains(other) || s.reported),
            false => self.all.get(&source).is_some_and(|s| s.reported),
        }
    }

    /// The next agent process has this source or does not have it.
    pub(crate) fn switch(&mut self, source: Source, on: bool) {
        if on {
            self.off.remove(&source);
            return;
        }
        self.off.insert(source);
        self.announced.remove(&source);
        if let Some(source) = self.all.get_mut(&source) {
            source.delivered.clear();
            source.unparsed.clear();
        }
    }

    pub(crate) fn is_off(&self, source: Source) -> bool {
        self.off.contains(&source)
    }

    /// The pods that core was sent by any source.
    pub(crate) fn delivered(&self) -> impl Iterator<Item = (&PodUid, &Manifest)> {
        self.all.values().flat_map(|s| &s.delivered)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &ManifestSource> {
        self.all.values()
    }

    /// The paths of all files.
    pub(crate) fn paths(&self) -> Vec<(Source, String)> {
        self.all.iter().flat_map(|(s, f)| f.files.keys().map(|path| (*s, path.clone()))).collect()
    }

    /// Changes the files of a source; core is sent the new state after a while.
    pub fn write(&mut self, env: &mut Env, source: Source, change: impl FnOnce(&mut BTreeMap<String, ManifestFile>)) {
        change(&mut self.all.entry(source).or_default().files);
        let delay = if env.calm { Duration::from_millis(1) } else { env.rng.millis(0, 300) };
        self.announce(env, source, delay);
    }

    /// Writes a file with this pod alone.
    pub fn put(&mut self, env: &mut Env, source: Source, manifest: Manifest) {
        let path = manifest.origin.clone();
        self.write(env, source, |files| {
            files.insert(path, ManifestFile { pods: vec![manifest], broken: false });
        });
    }

    /// Removes a file.
    pub fn remove(&mut self, env: &mut Env, source: Source, path: &str) {
        self.write(env, source, |files| {
            files.remove(path);
        });
    }

    /// Every file can be parsed again, and every source reports.
    pub(crate) fn repair(&mut self, env: &mut Env) {
        for source in self.all() {
            self.write(env, source, |files| files.values_mut().for_each(|f| f.broken = false));
        }
    }

    /// A source reports after this time, unless a report is scheduled already.
    pub(crate) fn announce(&mut self, env: &mut Env, source: Source, delay: Duration) {
        if !self.off.contains(&source) && self.announced.insert(source) {
            env.after(delay, Scheduled::SourceReports(source));
        }
    }

    pub(crate) fn take_announced(&mut self, source: Source) {
        self.announced.remove(&source);
    }

    /// All pods of a source of files.
    pub(crate) fn report(&mut self, source: Source) -> Event {
        let files = &self.all.entry(source).or_default().files;
        let pods: Vec<Manifest> = files.values().filter(|f| !f.broken).flat_map(|f| f.pods.clone()).collect();
        let broken = files.iter().filter(|(_, f)| f.broken);
        let broken = broken.map(|(path, _)| (path.clone(), "did not parse".to_owned())).collect();
        Event::Source { source, change: SourceChange::Set { pods, broken } }
    }

    /// Records what core is about to be sent.
    pub(crate) fn note_delivery(&mut self, event: &Event) {
        let Event::Source { source, change } = event else { return };
        let entry = self.all.entry(*source).or_default();
        match change {
            SourceChange::Set { pods, broken } => {
                let stays = |origin: &str| broken.iter().any(|(path, _)| path == origin);
                entry.delivered.retain(|_, m| stays(&m.origin));
                for manifest in pods.iter().filter(|m| !is_mirror(&m.pod)) {
                    if let Some(uid) = podwright_core::sources::uid_of(manifest) {
                        entry.delivered.insert(uid, manifest.clone());
                    }
                }
                entry.unparsed = broken.iter().map(|(path, _)| path.clone()).collect();
                entry.reported = true;
            }
            SourceChange::Put(manifest) => {
                // A watch may repeat old versions.
                let uid = uid_of(&manifest.pod);
                let old = entry.delivered.get(&uid).is_some_and(|had| version(&had.pod) > version(&manifest.pod));
                if !old && !is_mirror(&manifest.pod) {
                    entry.delivered.insert(uid, manifest.clone());
                }
            }
            SourceChange::Remove(uid) => {
                entry.delivered.remove(uid);
            }
            _ => {}
        }
    }

    pub(crate) fn agent_dies(&mut self) {
        self.all.values_mut().for_each(|s| s.reported = false);
    }
}
