//! Merging what the sources say into changes: every source has its own set of pods, by UID.
//!
//! Pods go out as REMOVE, ADD, UPDATE, DELETE, RECONCILE, in this order. A broken file keeps its pods; of two pods of one
//! source with the same full name the one we have wins, else the first; nothing is dropped in silence.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    FullName, Manifest, Pod, PodUid, Source, SourceChange, clear_resource_version, full_name, is_older_version,
};
use crate::static_pod::CONFIG_HASH;
use crate::validate::validate_change;

/// Annotations the agent itself writes; a difference in them alone is none.
const LOCAL_ANNOTATIONS: [&str; 4] = [
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.seen",
    "kubernetes.io/config.source",
];

/// All sources together: the desired pods.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Sources {
    sets: BTreeMap<Source, Set>,
}

/// One source's pods.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Set {
    pods: BTreeMap<PodUid, Manifest>,
    /// Files that are broken now, with the reason.
    broken: BTreeMap<String, String>,
    /// Files with pods that others have already, with the reason.
    #[serde(default)]
    doubles: BTreeMap<String, String>,
    /// Its first SET was handled.
    ready: bool,
}

/// What a change of a source amounts to.
#[derive(Debug, Default, PartialEq)]
pub struct Batches {
    /// Gone from the source.
    pub remove: Vec<PodUid>,
    /// New.
    pub add: Vec<Manifest>,
    /// Changed.
    pub update: Vec<Manifest>,
    /// Changed, and now with a deletionTimestamp.
    pub delete: Vec<Manifest>,
    /// Only the status differs.
    pub reconcile: Vec<Manifest>,
    /// Dropped, with the reason: a second pod of the same full name or UID.
    pub dropped: Vec<(Manifest, String)>,
}

impl Sources {
    /// Take a change in. `remembered` are pods of this source the journal knows, for files that are broken now.
    pub fn merge(&mut self, source: Source, change: SourceChange, remembered: &[Manifest]) -> Batches {
        let set = self.sets.entry(source).or_default();
        let mut out = Batches::default();
        match change {
            SourceChange::Set { pods, broken } => {
                let pods = set.with_broken(pods, broken, remembered);
                let pods = set.without_doubles(pods, remembered, &mut out);
                set.note_doubles(&out.dropped);
                let wanted: BTreeSet<PodUid> = pods.iter().filter_map(uid_of).collect();
                let gone: Vec<PodUid> = set.pods.keys().filter(|uid| !wanted.contains(*uid)).cloned().collect();
                for uid in gone {
                    set.pods.remove(&uid);
                    out.remove.push(uid);
                }
                for manifest in pods {
                    set.compare(source, manifest, &mut out);
                }
            }
            SourceChange::Put(manifest) => set.compare(source, manifest, &mut out),
            SourceChange::Remove(uid) => {
                if set.pods.remove(&uid).is_some() {
                    out.remove.push(uid);
                }
            }
            SourceChange::Reconnected => {}
            SourceChange::HistoryReset => set.pods.values_mut().for_each(|m| clear_resource_version(&mut m.pod)),
        }
        out
    }

    /// The batches of the first SET were handled.
    pub fn mark_ready(&mut self, source: Source) {
        self.sets.entry(source).or_default().ready = true;
    }

    /// This source has reported.
    pub fn is_ready(&self, source: Source) -> bool {
        self.sets.get(&source).is_some_and(|s| s.ready)
    }

    /// A desired pod.
    pub fn get(&self, uid: &PodUid) -> Option<(Source, &Manifest)> {
        self.sets.iter().find_map(|(source, set)| set.pods.get(uid).map(|m| (*source, m)))
    }

    /// All desired pods.
    pub fn pods(&self) -> impl Iterator<Item = (Source, &PodUid, &Manifest)> {
        self.sets.iter().flat_map(|(source, set)| set.pods.iter().map(|(uid, m)| (*source, uid, m)))
    }

    /// Files that can't be used now, or not all of them, with the reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        let unused = self.sets.values().flat_map(|s| s.broken.iter().chain(&s.doubles));
        unused.map(|(file, why)| (file.as_str(), why.as_str()))
    }
}

impl Set {
    /// A broken file's pods stay as they last were: all documents of a file or none.
    fn with_broken(
        &mut self,
        mut pods: Vec<Manifest>,
        broken: Vec<(String, String)>,
        remembered: &[Manifest],
    ) -> Vec<Manifest> {
        self.broken = broken.into_iter().collect();
        let named: BTreeSet<PodUid> = pods.iter().filter_map(uid_of).collect();
        let known = self.pods.values().chain(remembered.iter().filter(|_| !self.ready));
        let kept = known.filter(|m| self.broken.contains_key(&m.origin));
        let kept: BTreeMap<PodUid, Manifest> = kept.filter_map(|m| Some((uid_of(m)?, m.clone()))).collect();
        pods.extend(kept.into_iter().filter(|(uid, _)| !named.contains(uid)).map(|(_, m)| m));
        pods
    }

    /// The one we have wins, also if only the journal remembers that; else the first.
    fn without_doubles(&self, pods: Vec<Manifest>, remembered: &[Manifest], out: &mut Batches) -> Vec<Manifest> {
        let known = self.pods.values().chain(remembered.iter().filter(|_| !self.ready));
        let ours: BTreeSet<(PodUid, FullName)> = known.filter_map(|m| Some((uid_of(m)?, full_name(&m.pod)))).collect();
        let named = |m: &Manifest| (uid_of(m).unwrap_or_else(|| "".into()), full_name(&m.pod));
        let mut order: Vec<usize> = (0..pods.len()).collect();
        order.sort_by_key(|i| !ours.contains(&named(&pods[*i])));
        let (mut names, mut uids) = (BTreeMap::new(), BTreeMap::new());
        let mut lost = BTreeMap::new();
        for i in order {
            let (uid, name) = named(&pods[i]);
            let origin = &pods[i].origin;
            if let Some(first) = names.get(&name) {
                lost.insert(i, format!("{name} is already defined in {first}"));
            } else if let Some(first) = uids.get(&uid) {
                lost.insert(i, format!("{name} has the UID {uid} of a pod in {first}"));
            } else {
                names.insert(name, origin.clone());
                uids.insert(uid, origin.clone());
            }
        }
        let mut kept = vec![];
        for (i, manifest) in pods.into_iter().enumerate() {
            match lost.remove(&i) {
                Some(why) => out.dropped.push((manifest, why)),
                None => kept.push(manifest),
            }
        }
        kept
    }

    /// What was dropped stays in sight for as long as it is there.
    fn note_doubles(&mut self, dropped: &[(Manifest, String)]) {
        self.doubles.clear();
        for (manifest, why) in dropped {
            let all = self.doubles.entry(manifest.origin.clone()).or_default();
            let separator = if all.is_empty() { "" } else { "; " };
            all.push_str(separator);
            all.push_str(why);
        }
    }

    fn compare(&mut self, source: Source, manifest: Manifest, out: &mut Batches) {
        let Some(uid) = uid_of(&manifest) else { return };
        let Some(had) = self.pods.get(&uid) else {
            self.pods.insert(uid, manifest.clone());
            out.add.push(manifest);
            return;
        };
        // What was said before and heard after it is no news.
        if is_older_version(version(&manifest.pod), version(&had.pod)) {
            return;
        }
        if !differs(&had.pod, &manifest.pod) {
            let status_only = had.pod.status != manifest.pod.status;
            if status_only || had.origin != manifest.origin {
                self.pods.insert(uid, manifest.clone());
                out.reconcile.push(manifest);
            }
            return;
        }
        let anew = source.is_static() && !may_change_alive(&had.pod, &manifest.pod);
        self.pods.insert(uid.clone(), manifest.clone());
        if anew {
            // A change an API server would refuse: the old life ends, a new one begins under the same UID.
            out.remove.push(uid);
            out.add.push(manifest);
        } else if manifest.pod.metadata.deletion_timestamp.is_some() {
            out.delete.push(manifest);
        } else {
            out.update.push(manifest);
        }
    }
}

/// The UID of a manifest's pod.
pub fn uid_of(manifest: &Manifest) -> Option<PodUid> {
    manifest.pod.metadata.uid.as_deref().map(PodUid::from)
}

fn version(pod: &Pod) -> Option<&str> {
    pod.metadata.resource_version.as_deref()
}

/// Something differs that a worker must see.
fn differs(a: &Pod, b: &Pod) -> bool {
    let (m, n) = (&a.metadata, &b.metadata);
    a.spec != b.spec
        || full_name(a) != full_name(b)
        || m.labels != n.labels
        || m.deletion_timestamp != n.deletion_timestamp
        || m.deletion_grace_period_seconds != n.deletion_grace_period_seconds
        || foreign_annotations(a) != foreign_annotations(b)
}

fn foreign_annotations(pod: &Pod) -> BTreeMap<&str, &str> {
    let all = pod.metadata.annotations.iter().flatten();
    all.filter(|(k, _)| !LOCAL_ANNOTATIONS.contains(&k.as_str())).map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

/// The manifest of a static pod was changed in a way that ends the pod and begins a new life under its UID. The same content is
/// the same pod, whatever another release fills in.
pub(crate) fn is_another_life(had: &Pod, new: &Pod) -> bool {
    let hash = |pod: &Pod| pod.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_HASH)).cloned();
    hash(had) != hash(new) && !may_change_alive(had, new)
}

/// An API server would take this change of a living pod: images, a shorter active deadline, more tolerations, metadata but for
/// its name.
fn may_change_alive(had: &Pod, new: &Pod) -> bool {
    full_name(had) == full_name(new) && validate_change(new, had).is_empty()
}

#[cfg(test)]
mod tests;
