//! Who is concerned by what happened.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;

use super::Node;
use super::object_stores::warning;
use crate::actions::Waiting;
use crate::admission;
use crate::model::{
    CallError, Cause, Effect, Event, Listing, Manifest, Now, Out, PodRecord, PodSeen, PodUid, RuntimeReady, Seq,
    Source, SourceChange, full_name,
};
use crate::pleg;
use crate::pod::{KillOptions, Machine, State};
use crate::sources::{PodChanges, requires_recreation, uid_of};

/// The labels of the node's object are known so late, at most.
const LABELS_LATE: SignedDuration = SignedDuration::from_secs(9);

impl Node {
    /// Tell the pods; returns those that have to be stepped.
    pub(super) fn route(&mut self, event: Event, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        match event {
            Event::Source { source, change } => self.on_source_change(source, change, now, out),
            Event::Listed { seq, result } => self.listed(seq, result, now),
            Event::Observed { uid, seq, result, covered } => self.on_observed(uid, seq, result, covered, now, out),
            Event::Hint { uid } => {
                match self.workers.get_mut(&uid) {
                    Some(machine) => machine.hint(now.boot),
                    // A pod nobody knows: the list tells what it is.
                    None => self.pleg.request(),
                }
                BTreeSet::from([uid])
            }
            Event::EventStream { up } => self.on_event_stream(up, now),
            Event::Runtime { result } => self.runtime(result, now, out),
            Event::Done { id, result } => {
                let Some(uid) = self.sequences.owners.remove(&id) else { return BTreeSet::new() };
                if result.as_ref().is_err_and(CallError::is_unavailable) {
                    self.health.suspect(now.boot);
                }
                self.with(&uid, now, out, |machine, ctx, out| machine.done(id, result, ctx, out));
                BTreeSet::from([uid])
            }
            Event::Kill { uid, grace, evicted, waiter } => {
                let cause = if evicted.is_some() { Cause::Evicted } else { Cause::Stopped };
                let options = KillOptions { grace, evicted, waiter };
                if !self.with(&uid, now, out, |machine, ctx, out| machine.end_by_others(cause, options, ctx, out)) {
                    out.effects.extend(waiter.map(|waiter| Effect::Released { waiter }));
                }
                BTreeSet::from([uid])
            }
            Event::Restart { uid, container } => {
                self.with(&uid, now, out, |machine, ctx, _| machine.restart_containers(container, ctx));
                BTreeSet::from([uid])
            }
            Event::Leftovers { seq, found } => {
                self.sweep(seq, found, out);
                BTreeSet::new()
            }
            Event::ObjectAnswered { id, result } => {
                self.answered(id, &result, now, out);
                BTreeSet::new()
            }
            Event::NodeKnown { uid, labels } => self.node_known(uid, labels),
            Event::Journal { .. } => BTreeSet::new(),
            Event::ObjectsChanged { uid } => {
                self.with(&uid, now, out, |machine, _, _| machine.objects_changed());
                BTreeSet::from([uid])
            }
            Event::Wake => {
                let mut due = self.wakes.due(now.boot);
                self.compare(now, out);
                if self.housekeeping.held_due(now.boot) {
                    due.extend(self.held());
                }
                due
            }
        }
    }

    fn on_observed(
        &mut self,
        uid: PodUid,
        seq: Seq,
        result: Result<PodSeen, CallError>,
        covered: bool,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        // The pod may have been removed since the query: nothing is recorded then.
        let Some(machine) = self.workers.get(&uid) else { return BTreeSet::new() };
        let (first, name) = (machine.sight_at().is_none(), machine.full_name().clone());
        self.pleg.covered(&uid, covered);
        if result.as_ref().is_err_and(CallError::is_unavailable) {
            self.health.suspect(now.boot);
        }
        self.with(&uid, now, out, |machine, ctx, out| machine.observed(seq, result, ctx, out));
        // Other pods of this name may wait until it is known whether this one runs.
        let named = if first { self.workers.of_name(&name).to_vec() } else { vec![] };
        named.into_iter().chain([uid]).collect()
    }

    fn on_event_stream(&mut self, up: bool, now: Now) -> BTreeSet<PodUid> {
        // A stream that reconnects shows that the runtime is up: the periodic check is not waited for.
        if !up || !self.health.up {
            self.health.check_now(now.boot);
        }
        if !self.pleg.stream(up, now.boot) {
            return BTreeSet::new();
        }
        // The runtime restarted too quickly for any check to notice: calls that failed meanwhile are retried at once.
        self.health.outages += 1;
        self.workers.iter().map(|(uid, _)| uid.clone()).collect()
    }

    fn on_source_change(&mut self, source: Source, change: SourceChange, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let is_set = matches!(change, SourceChange::Set { .. });
        if is_set || matches!(change, SourceChange::Reconnected) {
            self.store_reconnected(source, now);
        }
        let remembered = self.remembered(source);
        let change = self.keep(source, change, out);
        let PodChanges { remove, mut add, update, delete, reconcile, dropped } =
            self.sources.merge(source, change, &remembered);
        let mut touched = BTreeSet::new();
        for uid in remove {
            self.with(&uid, now, out, |machine, ctx, _| machine.removed(Cause::Removed, ctx));
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
            // A static pod has no status of its own: its file has another name now.
            if source.is_static() {
                touched.extend(self.update(manifest, now, out));
            } else if let Some(uid) = uid_of(&manifest) {
                self.with(&uid, now, out, |machine, ctx, out| machine.reconcile(manifest.pod, ctx, out));
                touched.insert(uid);
            }
        }
        for (manifest, why) in dropped {
            let uid = uid_of(&manifest).unwrap_or_else(|| PodUid::from(""));
            let message = format!("{} is ignored: {why}", manifest.origin);
            out.effects.push(warning(uid, full_name(&manifest.pod), "FailedValidation", message));
        }
        if is_set && !self.sources.is_ready(source) {
            self.sources.mark_ready(source);
            self.look_at_mirrors();
            self.pleg.request();
        }
        touched.extend(self.sync_known(now, out));
        touched
    }

    /// What the journal knows of a source that has not reported yet.
    fn remembered(&self, source: Source) -> Vec<Manifest> {
        if self.sources.is_ready(source) {
            return vec![];
        }
        // One that has ended is in config still, unless it left: it must not begin again because its file was broken once.
        let there = |r: &&PodRecord| r.source == source && r.termination().is_none_or(|e| !e.deleted);
        let records = self.workers.iter().map(|(_, m)| m.record()).filter(there);
        records.filter_map(|r| Some(Manifest { pod: Arc::clone(&r.pod), origin: r.origin.clone()? })).collect()
    }

    fn add(&mut self, source: Source, manifest: Manifest, now: Now, out: &mut Out) -> Option<PodUid> {
        let uid = uid_of(&manifest)?;
        match self.workers.get_mut(&uid) {
            // It left config and ends: the new life begins when the old one is over.
            Some(machine) if machine.left_config() => machine.request_restart(),
            // It was changed while no agent was there, in a way that no living pod takes.
            Some(machine) if source.is_static() && requires_recreation(&machine.record().pod, &manifest.pod) => {
                self.with(&uid, now, out, |machine, ctx, _| {
                    machine.removed(Cause::Removed, ctx);
                    machine.request_restart();
                });
            }
            Some(_) => {
                self.update(manifest, now, out);
            }
            None => {
                self.create(source, manifest.clone(), now);
                // It may be deleted already, or have ended: then it never begins.
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

    /// A pod seen for the first time.
    pub(super) fn create(&mut self, source: Source, manifest: Manifest, now: Now) {
        let Some(uid) = uid_of(&manifest) else { return };
        let mut machine = Machine::new(uid.clone(), source, manifest.pod, Some(manifest.origin), now);
        // A complete list that doesn't have it is as good as a look. What the list has is looked at.
        match self.pleg.as_of {
            Some(as_of) if !self.pleg.listing.pods.contains_key(&uid) => machine.absent_from_list(as_of),
            _ => machine.look_again(),
        }
        self.workers.insert(uid, machine);
    }

    /// Where several wait for their turn, what runs already comes first, then the oldest: there may not be room for all.
    pub(super) fn try_admit_waiting(&mut self, now: Now, out: &mut Out) {
        let waiting = self
            .touched
            .iter()
            .filter(|uid| self.workers.get(uid).is_some_and(|m| m.state() == State::Waiting && !m.is_quarantined()));
        let mut waiting: Vec<PodUid> = waiting.cloned().collect();
        if waiting.len() < 2 {
            return;
        }
        waiting.sort_by_cached_key(|uid| self.rank(uid));
        for uid in waiting {
            self.current = Some(uid.clone());
            self.give_turn(&uid, now, out);
            self.current = None;
        }
    }

    /// Files have no age that counts: static pods go by the names of their files.
    fn rank(&self, uid: &PodUid) -> impl Ord + use<> {
        let runs = self.pleg.listing.pods.get(uid).is_some_and(|listed| listed.is_active());
        let record = self.workers.get(uid).map(Machine::record);
        let age = record.map(|r| r.pod.metadata.creation_timestamp.as_ref().map_or(r.first_seen, |t| t.0));
        (!runs, age, record.map(|r| (r.origin.clone(), full_name(&r.pod))))
    }

    /// May it begin? Its name must be free, and there must be room.
    pub(super) fn give_turn(&mut self, uid: &PodUid, now: Now, out: &mut Out) {
        let Some(machine) = self.workers.get(uid) else { return };
        if machine.state() > State::Syncing {
            return;
        }
        // One that had its turn goes on, unless it has nothing running and a stranger of its name has: a record can be lost.
        if machine.record().was_admitted() {
            let idle = machine.sight_at().is_some() && machine.seen().is_stopped();
            let hold = if idle {
                self.workers.running_namesake(uid).or_else(|| self.conflicting_runtime_pod(uid))
            } else {
                None
            };
            self.with(uid, now, out, |machine, ctx, _| machine.hold(hold, ctx));
            return;
        }
        let hold = self
            .workers
            .predecessor(uid)
            .or_else(|| self.conflicting_runtime_pod(uid))
            .or_else(|| self.admit(uid, now, out));
        self.with(uid, now, out, |machine, ctx, _| machine.hold(hold, ctx));
    }

    fn admit(&mut self, uid: &PodUid, now: Now, out: &mut Out) -> Option<Waiting> {
        let record = self.workers.get(uid)?.record();
        if record.was_admitted() {
            return None;
        }
        let (pod, is_static, first_seen) = (Arc::clone(&record.pod), record.source.is_static(), record.first_seen);
        let Err(rejection) = admission::admit(&pod, &self.ledger, &self.config) else {
            self.ledger.reserve(uid.clone(), admission::Requests::of(&pod));
            self.workers.get_mut(uid)?.admitted();
            return None;
        };
        let (reason, message) = (rejection.reason.to_owned(), rejection.message);
        // The scheduler may know of a label that was given to the node a moment ago.
        let age = first_seen.duration_until(now.wall);
        if !is_static && rejection.reason == admission::NODE_AFFINITY && age.abs() < LABELS_LATE {
            self.housekeeping.retry_held(now.boot);
            return Some(Waiting { reason, message });
        }
        let (full_name, known) = (full_name(&pod), self.workers.get(uid)?.is_held_for(&reason));
        if !known || !is_static {
            out.effects.push(warning(uid.clone(), full_name, rejection.reason, message.clone()));
        }
        if is_static {
            self.housekeeping.retry_held(now.boot);
            return Some(Waiting { reason, message });
        }
        let refused = (reason, format!("Pod was rejected: {message}"));
        let options = KillOptions { evicted: Some(refused), ..KillOptions::default() };
        self.with(uid, now, out, |machine, ctx, _| machine.kill(Cause::Ended, options, ctx));
        None
    }

    /// Pods that wait for their turn.
    pub(super) fn held(&self) -> BTreeSet<PodUid> {
        self.workers
            .iter()
            .filter(|(_, m)| m.state() == State::Waiting || m.is_held())
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    fn listed(&mut self, seq: Seq, result: Result<Listing, CallError>, now: Now) -> BTreeSet<PodUid> {
        let listing = match result {
            Ok(listing) => Some(listing),
            Err(error) => {
                if error.is_unavailable() {
                    self.health.suspect(now.boot);
                }
                None
            }
        };
        let complete = listing.is_some();
        self.pleg.listed(seq, listing);
        if !complete {
            return BTreeSet::new();
        }
        let uids: BTreeSet<PodUid> = self.workers.iter().map(|(uid, _)| uid.clone()).collect();
        for uid in &uids {
            let Some(machine) = self.workers.get_mut(uid) else { continue };
            match self.pleg.listing.pods.get(uid) {
                None => machine.absent_from_list(seq),
                Some(listed) => {
                    let older = machine.sight_at().is_none_or(|at| at < seq);
                    if older && (machine.sight_at().is_none() || pleg::differs(listed, machine.seen())) {
                        machine.look_again();
                    }
                }
            }
        }
        let mut touched = uids;
        touched.extend(self.adopt_orphans(now));
        touched
    }

    fn runtime(&mut self, result: Result<RuntimeReady, CallError>, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let before = self.health.facts().clone();
        if let Ok(told) = &result {
            self.config.supplemental_groups_policy = Some(told.supplemental_groups_policy);
        }
        let back = self.health.checked(result, now.boot);
        if *self.health.facts() != before {
            out.effects.push(Effect::RuntimeChanged);
        }
        if !back {
            return BTreeSet::new();
        }
        // Back, or the network changed: what waited goes on, after one complete list.
        self.pleg.request();
        self.workers.iter().map(|(uid, _)| uid.clone()).collect()
    }
}
