//! UIDs of static pods that another agent started.
//!
//! Each agent makes the UID of a static pod from its manifest in its own way. A pod that runs keeps the UID under which it runs: the
//! manifest takes it, so that nothing restarts when a node changes hands. What another agent runs is known from the first list of
//! the runtime. Until then the sets of static sources wait; if the runtime is down they are handled, so that users see their pods, and
//! once more with that list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Node;
use super::pods::Pods;
use crate::mirror::annotation;
use crate::model::{Manifest, Now, Out, PodListed, PodUid, Source, SourceChange, full_name};
use crate::pod::PodFacts;
use crate::static_pod::{MANIFEST_HASH, generated_uid, runs_manifest, take_running_uid};

/// The newest sets of static sources, until the first list of the runtime.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct WaitingSets(BTreeMap<Source, SourceChange>);

impl WaitingSets {
    /// Keeps the change for the first list. It is returned if it can be handled now.
    pub(super) fn pass(&mut self, source: Source, change: SourceChange, pods: &Pods) -> Option<SourceChange> {
        if !source.is_static() || pods.runtime.pleg.as_of.is_some() {
            return Some(change);
        }
        self.0.remove(&source);
        let has_generated = |pods: &[Manifest]| pods.iter().any(|m| generated_uid(&m.pod).is_some());
        if !matches!(&change, SourceChange::Set { pods: set, .. } if has_generated(set)) {
            return Some(change);
        }
        let is_down = !pods.runtime.is_up() && !pods.runtime.is_pending();
        let now = (is_down || pods.sources.is_ready(source)).then(|| change.clone());
        self.0.insert(source, change);
        now
    }
}

/// The runtime is down: the sets that wait for its first list are handled, and again after it.
pub(super) fn handle_unlisted_sets(node: &mut Node, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
    let waiting = node.waiting_sets.0.clone().into_iter().filter(|(source, _)| !node.pods.sources.is_ready(*source));
    let waiting: Vec<(Source, SourceChange)> = waiting.collect();
    waiting.into_iter().flat_map(|(source, change)| node.on_source_change(source, change, now, out)).collect()
}

/// The runtime was listed for the first time: the sets are handled with the UIDs of the pods that run.
pub(super) fn handle_waiting_sets(node: &mut Node, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
    let waiting = std::mem::take(&mut node.waiting_sets.0);
    let mut touched = BTreeSet::new();
    for (source, change) in waiting {
        let change = with_uids(&node.pods, source, change, true);
        touched.extend(node.on_source_change(source, change, now, out));
    }
    touched
}

/// The change, with the UIDs of pods that other agents run.
pub(super) fn with_running_uids(known: &Pods, source: Source, change: SourceChange) -> SourceChange {
    let is_first = !known.sources.is_ready(source);
    with_uids(known, source, change, is_first)
}

fn with_uids(known: &Pods, source: Source, change: SourceChange, is_first: bool) -> SourceChange {
    let of = |mut manifest: Manifest| {
        if let Some(uid) = running_uid(known, source, &manifest, is_first) {
            take_running_uid(Arc::make_mut(&mut manifest.pod), uid.as_str());
        }
        manifest
    };
    match change {
        SourceChange::Set { pods, broken } if source.is_static() => {
            SourceChange::Set { pods: pods.into_iter().map(of).collect(), broken }
        }
        other => other,
    }
}

/// The UID under which another agent runs, or ran, this manifest.
fn running_uid(known: &Pods, source: Source, manifest: &Manifest, is_first: bool) -> Option<PodUid> {
    let own = generated_uid(&manifest.pod)?;
    let name = full_name(&manifest.pod);
    let took = known.workers.of_name(&name).iter().find(|uid| {
        let is_same = |m: &PodFacts| annotation(&m.record().pod, MANIFEST_HASH) == Some(own) && !m.left_config();
        uid.as_str() != own && known.workers.get(uid).is_some_and(|m| m.is_static() && is_same(m))
    });
    if let Some(uid) = took {
        return Some(uid.clone());
    }
    // Later, pods of the runtime that are not known are orphans.
    let listed = &known.runtime.pleg.listing.pods;
    if !is_first || listed.get(own).is_some_and(PodListed::is_active) {
        return None;
    }
    let mut others = listed.iter().filter(|(uid, pod)| {
        pod.full_name == name && pod.source == Some(source) && pod.is_active() && known.workers.get(uid).is_none()
    });
    others.find(|(_, pod)| runs_manifest(pod, &manifest.pod)).map(|(uid, _)| uid.clone())
}
