//! Merges the pods of all sources into changes; every source has its own set of pods by UID.
//!
//! Changes are REMOVE, ADD, UPDATE, DELETE, RECONCILE, in this order (the kubelet's `PodConfig`). A broken file keeps its pods. Of
//! two pods of one source with the same full name the known one wins, else the first; dropped pods are reported.

mod stamp;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{
    FullName, Manifest, Pod, PodSpec, PodUid, Source, SourceChange, clear_resource_version, full_name, is_older_version,
};
use crate::static_pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, MANIFEST_HASH};
use crate::validate::validate_change;

/// Annotations that the agent writes itself; they are ignored in comparisons.
const LOCAL_ANNOTATIONS: [&str; 5] = [CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, MANIFEST_HASH];

/// All sources together: the desired pods.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Sources {
    sets: BTreeMap<Source, Set>,
}

/// One source's pods.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Set {
    pods: BTreeMap<PodUid, Manifest>,
    /// Broken files with the reason.
    broken: BTreeMap<String, String>,
    /// Files with duplicate pods, with the reason.
    #[serde(default)]
    duplicates: BTreeMap<String, String>,
    /// Its first SET has been handled.
    ready: bool,
}

/// The result of one change of a source.
#[derive(Debug, Default, PartialEq)]
pub struct PodChanges {
    /// No longer in the source.
    pub remove: Vec<PodUid>,
    /// New, or recreated under the same UID: that is then in `remove` too.
    pub add: Vec<Manifest>,
    /// The spec, labels or annotations differ.
    pub update: Vec<Manifest>,
    /// Changed, with a new deletionTimestamp.
    pub delete: Vec<Manifest>,
    /// Only the status differs.
    pub reconcile: Vec<Manifest>,
    /// Dropped, with the reason: a second pod of the same full name or UID.
    pub dropped: Vec<(Manifest, String)>,
}

impl Sources {
    /// Merges a change. `remembered` are journaled pods of this source, for files that are broken now.
    pub fn merge(&mut self, source: Source, change: SourceChange, remembered: &[Manifest]) -> PodChanges {
        let set = self.sets.entry(source).or_default();
        let mut out = PodChanges::default();
        match change {
            SourceChange::Set { pods, broken } => {
                let pods = set.with_broken(pods, broken, remembered);
                let pods = set.without_duplicates(pods, remembered, &mut out);
                set.record_duplicates(&out.dropped);
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

    /// Gives pods without a spec the last known one: theirs can't be decoded, and they are only sent because they are deleted. They are
    /// terminated with the hooks and grace periods that they were started with. Unknown ones have nothing to terminate.
    pub(crate) fn with_known_specs(
        &self,
        source: Source,
        mut change: SourceChange,
        remembered: &[Manifest],
        node: &str,
    ) -> SourceChange {
        let manifests = match &mut change {
            SourceChange::Set { pods, .. } => pods.as_mut_slice(),
            SourceChange::Put(manifest) => std::slice::from_mut(manifest),
            SourceChange::Remove(_) | SourceChange::Reconnected | SourceChange::HistoryReset => &mut [],
        };
        let is_deleted = |pod: &Pod| pod.spec.is_none() && pod.metadata.deletion_timestamp.is_some();
        for manifest in manifests.iter_mut().filter(|manifest| is_deleted(&manifest.pod)) {
            let uid = uid_of(manifest);
            let known = uid.as_ref().and_then(|uid| self.sets.get(&source)?.pods.get(uid));
            let known = known.or_else(|| remembered.iter().find(|known| uid_of(known) == uid));
            let unknown = || PodSpec { node_name: Some(node.into()), ..PodSpec::default() };
            let spec = known.and_then(|known| known.pod.spec.clone()).unwrap_or_else(unknown);
            Arc::make_mut(&mut manifest.pod).spec = Some(spec);
        }
        change
    }

    /// The changes of the first SET have been handled.
    pub(crate) fn mark_ready(&mut self, source: Source) {
        self.sets.entry(source).or_default().ready = true;
    }

    /// The source is synced.
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

    /// Files that are broken or have duplicate pods, with the reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        let unused = self.sets.values().flat_map(|s| s.broken.iter().chain(&s.duplicates));
        unused.map(|(file, why)| (file.as_str(), why.as_str()))
    }
}

impl Set {
    /// The pods of a broken file stay unchanged: all documents of a file or none.
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

    /// Of duplicates the known pod wins, also if only the journal has it; else the first.
    fn without_duplicates(&self, pods: Vec<Manifest>, remembered: &[Manifest], out: &mut PodChanges) -> Vec<Manifest> {
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

    /// Dropped pods are reported as long as they exist.
    fn record_duplicates(&mut self, dropped: &[(Manifest, String)]) {
        self.duplicates.clear();
        for (manifest, why) in dropped {
            let all = self.duplicates.entry(manifest.origin.clone()).or_default();
            let separator = if all.is_empty() { "" } else { "; " };
            all.push_str(separator);
            all.push_str(why);
        }
    }

    fn compare(&mut self, source: Source, manifest: Manifest, out: &mut PodChanges) {
        let Some(uid) = uid_of(&manifest) else { return };
        let Some(had) = self.pods.get(&uid) else {
            self.pods.insert(uid, manifest.clone());
            out.add.push(manifest);
            return;
        };
        // An older resource version that arrives late is ignored.
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
        let recreate = source.is_static() && !may_update_in_place(&had.pod, &manifest.pod);
        self.pods.insert(uid.clone(), manifest.clone());
        if recreate {
            // A change that an API server would reject: the pod is terminated and recreated under the same UID.
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

/// A difference that the pod's worker must handle.
fn differs(a: &Pod, b: &Pod) -> bool {
    let (m, n) = (&a.metadata, &b.metadata);
    a.spec != b.spec
        || full_name(a) != full_name(b)
        || m.labels != n.labels
        || m.deletion_timestamp != n.deletion_timestamp
        || m.deletion_grace_period_seconds != n.deletion_grace_period_seconds
        || compared_annotations(a) != compared_annotations(b)
}

fn compared_annotations(pod: &Pod) -> BTreeMap<&str, &str> {
    let all = pod.metadata.annotations.iter().flatten();
    all.filter(|(k, _)| !LOCAL_ANNOTATIONS.contains(&k.as_str())).map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

/// The change of a static pod's manifest requires that the pod is recreated under its UID. Equal content is the same pod, even if
/// another release sets other defaults.
pub(crate) fn requires_recreation(had: &Pod, new: &Pod) -> bool {
    let hash = |pod: &Pod| pod.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_HASH)).cloned();
    hash(had) != hash(new) && !may_update_in_place(had, new)
}

/// An API server would accept this update: images, a shorter active deadline, more tolerations, metadata except the name.
fn may_update_in_place(had: &Pod, new: &Pod) -> bool {
    full_name(had) == full_name(new) && validate_change(new, had).is_empty()
}

#[cfg(test)]
mod tests;
