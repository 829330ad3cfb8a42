//! The source of a pod and the time at which it was first seen, as annotations (Go kubelet: `PodStorage.merge`, `recordFirstSeenTime`).
//!
//! Sandboxes carry them too: an agent that lost its journal learns from them which source has to sync before the pod is an orphan. So
//! they are written here, whatever the object says: its user must not select the source.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Sources, uid_of};
use crate::model::{Manifest, Source, SourceChange};
use crate::mutate::{self, Mutant};
use crate::static_pod::{CONFIG_SEEN, CONFIG_SOURCE};

impl Sources {
    /// Stamps the pods of a change. `remembered` are journaled pods of this source: they were first seen by a former agent.
    pub(crate) fn stamp(
        &self,
        source: Source,
        change: SourceChange,
        remembered: &[Manifest],
        now: Timestamp,
    ) -> SourceChange {
        // The decoder of static pods stamps them.
        if source.is_static() {
            return change;
        }
        let stamped = |manifest| self.stamped(source, manifest, remembered, now);
        match change {
            SourceChange::Set { pods, broken } => {
                SourceChange::Set { pods: pods.into_iter().map(stamped).collect(), broken }
            }
            SourceChange::Put(manifest) => SourceChange::Put(stamped(manifest)),
            other => other,
        }
    }

    fn stamped(&self, source: Source, mut manifest: Manifest, remembered: &[Manifest], now: Timestamp) -> Manifest {
        let uid = uid_of(&manifest);
        let known = uid.as_ref().and_then(|uid| self.sets.get(&source)?.pods.get(uid));
        let known = known.or_else(|| remembered.iter().find(|m| uid.is_some() && uid_of(m) == uid));
        let seen = known.and_then(|m| m.pod.metadata.annotations.as_ref()?.get(CONFIG_SEEN).cloned());
        let annotations = Arc::make_mut(&mut manifest.pod).metadata.annotations.get_or_insert_default();
        if !mutate::is_active(Mutant::SourceByUser) {
            annotations.insert(CONFIG_SOURCE.into(), source.as_str().into());
        }
        annotations.insert(CONFIG_SEEN.into(), seen.unwrap_or_else(|| now.to_string()));
        manifest
    }
}
