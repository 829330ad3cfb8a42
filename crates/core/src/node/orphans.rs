//! Orphans: pods that no source wants any more, known from a record or only from the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::pods::Pods;
use super::quarantine;
use crate::model::{Cause, FullName, Now, Out, Pod, PodSpec, PodUid, Source};
use crate::mutate::{self, Mutant};
use crate::pod::{GRACE_OF_LABELS, KillOptions, Machine, PodFacts};

impl Pods {
    /// Terminates pods with a record that their source, once synced, no longer has.
    pub(super) fn remove_undesired(&mut self, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let gate = !mutate::is_active(Mutant::GateOverAllSources) || self.all_synced();
        let orphan =
            |m: &PodFacts| gate && self.is_synced(m.record().source) && self.sources.get(&m.record().uid).is_none();
        let orphans = self.workers.iter().filter(|(_, m)| m.has_config() && orphan(m));
        let orphans: BTreeSet<PodUid> = orphans.map(|(uid, _)| uid.clone()).collect();
        for uid in &orphans {
            self.with(uid, now, out, |machine, ctx, _| machine.removed(Cause::Removed, KillOptions::default(), ctx));
        }
        if self.all_synced() {
            self.workers.mark_synced();
        }
        orphans
    }

    /// Pods that only the runtime has get a machine that terminates them, once their source has synced.
    pub(super) fn adopt_orphans(&mut self, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let unknown = self.runtime.pleg.listing.pods.iter().filter(|(uid, _)| self.workers.get(uid).is_none());
        let adoptable = unknown.filter(|(_, listed)| {
            // Without a known source it yields to a desired pod of its name; else a source that has not synced may want it.
            let without_source = || self.is_desired(&listed.full_name) || self.all_synced();
            listed.source.map_or_else(without_source, |s| self.is_synced(s))
        });
        let orphans: Vec<_> = adoptable.map(|(uid, l)| (uid.clone(), l.full_name.clone(), l.source)).collect();
        let mut touched = BTreeSet::new();
        for (uid, name, source) in orphans {
            let pod = Arc::new(skeleton(&uid, &name));
            let mut machine = Machine::new(uid.clone(), source.unwrap_or(Source::File), pod, None, now);
            machine.mark_outdated();
            self.workers.insert(uid.clone(), machine);
            // An orphan that blocks a pod of its name is terminated with its own grace period, as that pod would be.
            let grace = if self.is_desired(&name) { GRACE_OF_LABELS } else { Duration::from_secs(1) };
            let options = KillOptions { grace: Some(grace), ..KillOptions::default() };
            self.with(&uid, now, out, |machine, ctx, _| machine.removed(Cause::Orphan, options, ctx));
            quarantine::apply(self, &uid, now, out);
            touched.insert(uid);
        }
        // A pod that waits for an orphan of its name is checked again.
        touched.extend(self.held());
        touched
    }

    /// A source wants a static pod of this name.
    fn is_desired(&self, name: &FullName) -> bool {
        let desired =
            |uid: &PodUid| self.sources.get(uid).is_some() && self.workers.get(uid).is_some_and(PodFacts::is_static);
        self.workers.of_name(name).iter().any(desired)
    }
}

/// A pod without a spec, from the labels in the runtime.
fn skeleton(uid: &PodUid, name: &FullName) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.name.to_string()),
            namespace: Some(name.namespace.to_string()),
            uid: Some(uid.to_string()),
            annotations: Some(BTreeMap::new()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}
