//! The desired and the known pods, with everything that a step of one pod reads.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::current::CurrentPod;
use super::guard::{Caught, panic_message};
use super::object_stores::warning;
use super::quarantine::{self, Suspects};
use super::runtime::RuntimeState;
use crate::NodeConfig;
use crate::health::RuntimeHealth;
use crate::model::{
    CallId, Cause, Effect, FullName, Manifest, NodePressure, Now, Out, PodRecord, PodUid, Record, Seq, Source,
    full_name,
};
use crate::mutate::{self, Mutant};
use crate::pleg::{self, Pleg};
use crate::pod::{Ctx, KillOptions, Machine, Quarantine, State, meet_object};
use crate::sources::{PodChanges, Sources, requires_recreation, uid_of};
use crate::workers::Workers;

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Pods {
    pub(super) config: NodeConfig,
    /// Pressure conditions that hold: they refuse pods.
    #[serde(default)]
    pub(super) pressures: BTreeSet<NodePressure>,
    pub(super) sources: Sources,
    pub(super) workers: Workers,
    pub(super) runtime: RuntimeState,
    pub(super) sequences: Sequences,
    /// The pod whose event is being handled.
    pub(super) current: CurrentPod,
    #[serde(default)]
    pub(super) suspects: Suspects,
    /// Panics since the last event.
    #[serde(skip)]
    pub(super) caught: Vec<Caught>,
}

/// Numbers that were drawn for observations and calls.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Sequences {
    pub(super) seq: Seq,
    call: u64,
    /// The pods of calls in flight.
    pub(super) owners: BTreeMap<CallId, PodUid>,
}

impl Pods {
    pub(super) fn new(config: NodeConfig) -> Self {
        let pleg = Pleg::new(config.sync_frequency);
        let health = RuntimeHealth::new(config.sources.contains(&Source::Api));
        Self {
            config,
            pressures: BTreeSet::new(),
            sources: Sources::default(),
            workers: Workers::default(),
            runtime: RuntimeState { health, pleg },
            sequences: Sequences::default(),
            current: CurrentPod::default(),
            suspects: Suspects::default(),
            caught: vec![],
        }
    }

    /// Calls a method of one pod's machine with its context. False if the pod is unknown.
    pub(super) fn with(
        &mut self,
        uid: &PodUid,
        now: Now,
        out: &mut Out,
        f: impl FnOnce(&mut Machine, &mut Ctx<'_>, &mut Out),
    ) -> bool {
        let api_synced = self.is_synced(Source::Api);
        let Some(machine) = self.workers.get_mut(uid) else { return false };
        let before = self.current.set(Some(uid.clone()));
        let mut ctx = Ctx {
            now,
            config: &self.config,
            runtime_up: self.runtime.is_listed(),
            no_network: self.runtime.health.no_network(),
            runtime: &self.runtime.health.name,
            seq: &mut self.sequences.seq,
            last_call: &mut self.sequences.call,
            owners: &mut self.sequences.owners,
            outages: self.runtime.health.outages,
            source_not_synced: machine.facts().record().source == Source::Api && !api_synced,
        };
        // A panic affects this pod only: the event is handled for the other pods it concerns.
        let result = catch_unwind(AssertUnwindSafe(|| f(machine, &mut ctx, out)));
        if let Err(panic) = result {
            let why = panic_message(&*panic);
            self.quarantine(uid, Quarantine { why: why.clone(), until: None, is_hold: false }, now, out);
            self.caught.push(Caught { uid: Some(uid.clone()), why });
        }
        self.current.set(before);
        true
    }

    /// Quarantines a pod after an internal error, or after deaths of the agent. Its records and effects of this event are not
    /// trusted and are removed from `out`, which also has those of other pods.
    pub(super) fn quarantine(&mut self, uid: &PodUid, quarantine: Quarantine, now: Now, out: &mut Out) {
        let owners = &self.sequences.owners;
        out.records.retain(|record| !matches!(record, Record::Put(put) if put.uid == *uid));
        out.effects.retain(|effect| match effect {
            Effect::Call { uid: of, .. } | Effect::Observe { uid: of, .. } => of != uid,
            Effect::StatusChanged(pod) => pod.uid != *uid,
            Effect::Cancel { id } => owners.get(id) != Some(uid),
            _ => true,
        });
        if let Some(machine) = self.workers.get_mut(uid) {
            machine.quarantine(quarantine, now, out);
        }
    }

    /// A panic is attributed to this pod until the next call.
    pub(super) fn set_current(&mut self, uid: Option<PodUid>) {
        self.current.set(uid);
    }

    pub(super) fn take_current(&mut self) -> Option<PodUid> {
        self.current.set(None)
    }

    /// The source has reported its pods. A source that is not configured never does: its pods belong to no source once all others
    /// have synced.
    pub(super) fn is_synced(&self, source: Source) -> bool {
        match self.config.sources.contains(&source) {
            true => self.sources.is_ready(source),
            false => self.all_synced() && !mutate::is_active(Mutant::OffSourceKept),
        }
    }

    pub(super) fn all_synced(&self) -> bool {
        self.config.sources.iter().all(|s| self.sources.is_ready(*s))
    }

    /// It has a record, a source or containers.
    pub(super) fn is_known(&self, uid: &PodUid) -> bool {
        self.workers.get(uid).is_some()
            || self.sources.get(uid).is_some()
            || self.runtime.pleg.listing.pods.contains_key(uid)
    }

    pub(super) fn uids(&self) -> BTreeSet<PodUid> {
        self.workers.iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// Pods that wait for admission or for another pod of their name.
    pub(super) fn held(&self) -> BTreeSet<PodUid> {
        let held = self.workers.iter().filter(|(_, m)| m.state() == State::Waiting || m.is_held());
        held.map(|(uid, _)| uid.clone()).collect()
    }

    /// Passes the changes of a source on to the machines.
    pub(super) fn apply(&mut self, source: Source, changes: PodChanges, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let PodChanges { remove, mut add, update, delete, reconcile, dropped } = changes;
        let mut touched = BTreeSet::new();
        for uid in remove {
            self.with(&uid, now, out, |machine, ctx, _| machine.removed(Cause::Removed, KillOptions::default(), ctx));
            touched.insert(uid);
        }
        add.sort_by_key(|m| m.pod.metadata.creation_timestamp.as_ref().map(|t| t.0));
        for manifest in add {
            touched.extend(self.add(source, manifest, now, out));
        }
        for manifest in update.into_iter().chain(delete) {
            touched.extend(self.update(manifest, now, out));
        }
        for manifest in reconcile {
            // A static pod has no status in its source: its file was renamed.
            if source.is_static() {
                touched.extend(self.update(manifest, now, out));
            } else if let Some(uid) = uid_of(&manifest) {
                self.with(&uid, now, out, |machine, ctx, _| machine.reconcile(manifest.pod, ctx));
                touched.insert(uid);
            }
        }
        for (manifest, why) in dropped {
            let message = format!("{} is ignored: {why}", manifest.origin);
            out.effects.push(warning(uid_of(&manifest), full_name(&manifest.pod), "FailedValidation", message));
        }
        touched
    }

    /// The journaled pods of a source that has not reported yet.
    pub(super) fn remembered(&self, source: Source) -> Vec<Manifest> {
        if self.sources.is_ready(source) {
            return vec![];
        }
        let records = || self.workers.iter().map(|(_, m)| m.record()).filter(|r| r.source == source);
        // A pod that has terminated is still in its source unless it was removed: a file that is broken once must not restart it.
        let is_kept = |r: &PodRecord| r.termination().is_none_or(|e| !e.deleted);
        let kept: BTreeSet<FullName> = records().filter(|r| is_kept(r)).map(|r| full_name(&r.pod)).collect();
        // So is one that a new instance was to replace, unless the manifest has another UID now.
        let is_replaced = |r: &PodRecord| r.restart_requested() && !kept.contains(&full_name(&r.pod));
        let there = records().filter(|r| is_kept(r) || is_replaced(r));
        there.filter_map(|r| Some(Manifest { pod: Arc::clone(&r.pod), origin: r.origin.clone()? })).collect()
    }

    fn add(&mut self, source: Source, manifest: Manifest, now: Now, out: &mut Out) -> Option<PodUid> {
        let uid = uid_of(&manifest)?;
        match self.workers.get_mut(&uid) {
            // It was removed and is terminating: the new instance starts after it.
            Some(machine) if machine.facts().left_config() => machine.request_restart(),
            // It was changed while no agent ran, in a way that requires a new instance.
            Some(machine)
                if source.is_static() && requires_recreation(&machine.facts().record().pod, &manifest.pod) =>
            {
                self.with(&uid, now, out, |machine, ctx, _| {
                    machine.removed(Cause::Removed, KillOptions::default(), ctx);
                    machine.request_restart();
                });
            }
            Some(machine) => {
                if source == Source::Api {
                    meet_object(machine, manifest.pod.status.as_ref());
                }
                self.update(manifest, now, out);
            }
            None => {
                self.create(source, manifest.clone(), now);
                quarantine::apply(self, &uid, now, out);
                // It may be deleted or terminal already: then it never starts.
                self.update(manifest, now, out);
            }
        }
        Some(uid)
    }

    fn update(&mut self, manifest: Manifest, now: Now, out: &mut Out) -> Option<PodUid> {
        let uid = uid_of(&manifest)?;
        let Manifest { pod, origin } = manifest;
        self.with(&uid, now, out, |machine, ctx, out| machine.update(pod, Some(origin), ctx, out));
        Some(uid)
    }

    /// A new pod.
    pub(super) fn create(&mut self, source: Source, manifest: Manifest, now: Now) {
        let Some(uid) = uid_of(&manifest) else { return };
        let mut machine = Machine::new(uid.clone(), source, manifest.pod, Some(manifest.origin), now);
        // A complete list without the pod is as good as an observation of it.
        match self.runtime.pleg.as_of {
            Some(as_of) if !self.runtime.pleg.listing.pods.contains_key(&uid) => machine.absent_from_list(as_of),
            _ => machine.mark_outdated(),
        }
        self.workers.insert(uid, machine);
    }

    pub(super) fn remove(&mut self, uid: &PodUid) -> Option<Machine> {
        let machine = self.workers.remove(uid)?;
        self.runtime.pleg.forget(uid);
        Some(machine)
    }

    /// A complete list arrived: pods that differ from it are observed, unknown ones are adopted.
    pub(super) fn compare_with_list(&mut self, seq: Seq, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let mut touched = self.uids();
        for uid in &touched {
            let Some(machine) = self.workers.get_mut(uid) else { continue };
            match self.runtime.pleg.listing.pods.get(uid) {
                None => machine.absent_from_list(seq),
                Some(listed) => {
                    let older = machine.facts().observed_at().is_none_or(|at| at < seq);
                    if older
                        && (machine.facts().observed_at().is_none() || pleg::differs(listed, machine.facts().seen()))
                    {
                        machine.mark_outdated();
                    }
                }
            }
        }
        touched.extend(self.adopt_orphans(now, out));
        touched
    }
}
