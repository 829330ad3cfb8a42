//! Passes each event to the pods it concerns.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, quarantine, shutdown, static_uids};
use crate::model::{CallError, Event, Listing, Now, Out, PodUid, RuntimeReady, Seq, Source, SourceChange};
use crate::pod::KillOptions;

impl Node {
    /// Returns the pods that have to be stepped.
    pub(super) fn route(&mut self, event: Event, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        match event {
            Event::Source { source, change } => match self.waiting_sets.pass(source, change, &self.pods) {
                Some(change) => self.on_source_change(source, change, now, out),
                None => BTreeSet::new(),
            },
            Event::Listed { seq, result } => self.on_listed(seq, result, now, out),
            Event::Observed { uid, seq, result, covered } => self.pods.on_observed(uid, seq, result, covered, now, out),
            Event::Hint { uid } => self.pods.on_hint(uid, now),
            Event::EventStream { up } => match self.pods.runtime.on_event_stream(up, now.boot) {
                true => self.pods.uids(),
                false => BTreeSet::new(),
            },
            Event::Runtime { result } => self.on_runtime_checked(result, now, out),
            Event::Done { id, result } => self.pods.on_done(id, result, now, out),
            Event::Kill { uid, grace, evicted } => {
                self.pods.on_kill(uid, KillOptions { grace, evicted, ..KillOptions::default() }, now, out)
            }
            Event::Restart { uid, container } => {
                self.pods.touch(uid, now, out, |machine, ctx, _| machine.restart_containers(container, ctx))
            }
            Event::NodeRead { seq, reading } => self.eviction.on_read(seq, &reading, &mut self.pods, now, out),
            Event::MemoryShort => {
                self.eviction.hint(now.boot);
                BTreeSet::new()
            }
            Event::ImagesRemoved { seq } => {
                self.eviction.images_removed(seq, now.boot);
                BTreeSet::new()
            }
            Event::EmptyDirExceeded { uid, volume } => {
                self.eviction.on_empty_dir_exceeded(uid, &volume, &mut self.pods, now, out)
            }
            Event::Leftovers { seq, found } => {
                self.housekeeping.on_leftovers(seq, found, &self.pods, out);
                BTreeSet::new()
            }
            Event::ObjectAnswered { id, result } => {
                self.stores.on_response(id, &result, &self.pods, now, out);
                BTreeSet::new()
            }
            Event::NodeKnown { uid, labels } => self.on_node_object(uid, labels),
            Event::Shutdown { request } => shutdown::on_shutdown(self, request, now, out),
            Event::ShutdownAnnounced => {
                self.shutdown.announced();
                BTreeSet::new()
            }
            Event::Journal { .. } => BTreeSet::new(),
            Event::ObjectsChanged { uid } => self.pods.touch(uid, now, out, |machine, _, _| machine.objects_changed()),
            Event::Suspects { suspects } => quarantine::on_suspects(&mut self.pods, suspects, now, out),
            Event::Wake => self.on_wake(now, out),
        }
    }

    pub(super) fn on_source_change(
        &mut self,
        source: Source,
        change: SourceChange,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        let change = static_uids::with_running_uids(&self.pods, source, change);
        let is_set = matches!(change, SourceChange::Set { .. });
        if is_set || matches!(change, SourceChange::Reconnected) {
            self.stores.on_reconnected(source, now);
        }
        let remembered = self.pods.remembered(source);
        let change = self.pods.sources.with_known_specs(source, change, &remembered, &self.pods.config.node_name);
        let mut touched = BTreeSet::new();
        if let Some(change) = self.stores.on_source_change(source, change, &self.pods.config.node_name, out) {
            let change = self.pods.sources.stamp(source, change, &remembered, now.wall);
            let changes = self.pods.sources.merge(source, change, &remembered);
            touched = self.pods.apply(source, changes, now, out);
        }
        if is_set && !self.pods.sources.is_ready(source) {
            self.pods.sources.mark_ready(source);
            self.stores.mirrors_are_dirty(&self.pods.workers);
            self.pods.runtime.pleg.request();
            if source == Source::Api {
                // Static pods meet their mirror pods.
                touched.extend(self.pods.uids());
            }
        }
        touched.extend(self.pods.remove_undesired(now, out));
        touched
    }

    fn on_listed(&mut self, seq: Seq, result: Result<Listing, CallError>, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        match self.pods.runtime.on_listed(seq, result, now.boot) {
            true => {
                let mut touched = static_uids::handle_waiting_sets(self, now, out);
                touched.extend(self.pods.compare_with_list(seq, now, out));
                touched
            }
            false => BTreeSet::new(),
        }
    }

    fn on_runtime_checked(
        &mut self,
        result: Result<RuntimeReady, CallError>,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        if let Ok(ready) = &result {
            self.pods.config.supplemental_groups_policy = Some(ready.supplemental_groups_policy);
        }
        let is_down = result.is_err();
        let changed = self.pods.runtime.on_checked(result, now.boot, &mut out.effects);
        let mut touched = if changed { self.pods.uids() } else { BTreeSet::new() };
        if is_down {
            touched.extend(static_uids::handle_unlisted_sets(self, now, out));
        }
        touched
    }

    /// The Node object was read, or is being deleted (`None`). With other labels, other pods may be admitted.
    fn on_node_object(&mut self, uid: Option<String>, labels: Option<BTreeMap<String, String>>) -> BTreeSet<PodUid> {
        self.stores.set_node_uid(uid, &self.pods.workers);
        match labels.filter(|labels| *labels != self.pods.config.labels) {
            Some(labels) => {
                self.pods.config.labels = labels;
                self.pods.held()
            }
            None => BTreeSet::new(),
        }
    }

    fn on_wake(&mut self, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let mut due = self.wakes.due(now.boot);
        self.stores.compare(&self.pods, now, out);
        if self.admission.retry_due(now.boot) {
            due.extend(self.pods.held());
        }
        if self.admission.resizes_due(now.boot) {
            due.extend(self.admission.try_resizes(&mut self.pods, now, out));
        }
        due
    }
}
