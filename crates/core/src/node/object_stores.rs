//! Requests to the stores of pod objects and what their answers mean: statuses, final deletes, mirrors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Node;
use crate::mirror::{DesiredMirror, NodeOwner, annotation, is_mirror};
use crate::model::{
    Effect, FullName, KubeEvent, Manifest, Now, ObjectResult, Out, Pod, PodUid, RequestId, Source, SourceChange,
    full_name,
};
use crate::pod::{Machine, State};
use crate::sources::uid_of;
use crate::static_pod::CONFIG_SOURCE;
use crate::status_sync::{LocalStatus, REQUEST_LIMIT};

impl Node {
    /// What a store says, before the pods hear of it: mirrors are taken out, other nodes' pods are refused, and the objects
    /// are noted.
    pub(super) fn keep(&mut self, source: Source, change: SourceChange, out: &mut Out) -> SourceChange {
        if source.is_static() {
            return change;
        }
        match change {
            SourceChange::Set { pods, broken } => {
                let (mirrors, pods): (Vec<_>, Vec<_>) = pods.into_iter().partition(|m| is_mirror(&m.pod));
                if source == Source::Api {
                    self.mirrors.set(mirrors.into_iter().map(|m| m.pod).collect());
                }
                let pods: Vec<Manifest> = pods.into_iter().filter(|m| self.is_here(source, m, out)).collect();
                let uids: BTreeSet<PodUid> = pods.iter().filter_map(uid_of).collect();
                self.status_sync.retain(source, &uids);
                pods.iter().for_each(|m| self.note_object(source, m));
                SourceChange::Set { pods, broken }
            }
            SourceChange::Put(manifest) if is_mirror(&manifest.pod) => {
                if source == Source::Api {
                    self.mirrors.observe(manifest.pod);
                }
                // No worker hears of it: as if nothing had been said.
                SourceChange::Remove(PodUid::from(""))
            }
            SourceChange::Put(manifest) => {
                if !self.is_here(source, &manifest, out) {
                    return SourceChange::Remove(uid_of(&manifest).unwrap_or_else(|| PodUid::from("")));
                }
                self.note_object(source, &manifest);
                SourceChange::Put(manifest)
            }
            SourceChange::Remove(uid) => {
                if source != Source::Api || !self.mirrors.remove(&uid) {
                    self.status_sync.forget(&uid);
                }
                SourceChange::Remove(uid)
            }
            SourceChange::HistoryReset => {
                self.status_sync.history_reset(source);
                if source == Source::Api {
                    self.mirrors.history_reset();
                }
                SourceChange::HistoryReset
            }
            SourceChange::Reconnected => SourceChange::Reconnected,
        }
    }

    /// A store that was away, and may have been asked in vain, is there.
    pub(super) fn store_reconnected(&mut self, store: Source, now: Now) {
        self.status_sync.store_reconnected(store, now.boot);
        if store == Source::Api {
            self.mirrors.store_reconnected(now.boot);
        }
    }

    /// It is meant for this node. What is not, is ignored and told.
    fn is_here(&self, source: Source, manifest: &Manifest, out: &mut Out) -> bool {
        let node = manifest.pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        if source != Source::Api || node == self.config.node_name {
            return true;
        }
        let message = format!("it is for node {node:?}, this is {:?}", self.config.node_name);
        let uid = uid_of(manifest).unwrap_or_else(|| PodUid::from(""));
        out.effects.push(warning(uid, full_name(&manifest.pod), "FailedValidation", message));
        false
    }

    fn note_object(&mut self, source: Source, manifest: &Manifest) {
        if let Some(uid) = uid_of(manifest) {
            self.status_sync.observe(&uid, source, &manifest.pod, false);
        }
    }

    /// Ask for what is missing from this pod's object, if it has one.
    pub(super) fn report(&mut self, uid: &PodUid, now: Now, out: &mut Out) {
        let Some(machine) = self.workers.get(uid) else { return };
        let record = machine.record();
        if machine.is_static() {
            match self.mirrors.mirror_of(&record.pod) {
                Some(mirror) => self.status_sync.observe(uid, Source::Api, mirror, true),
                None => return self.status_sync.forget(uid),
            }
        }
        let Some(status) = &record.status else { return };
        let spec = record.pod.spec.as_ref();
        let local = LocalStatus { full_name: machine.full_name(), spec, status, finished: record.is_finished() };
        if let Some((store, id, request)) =
            self.status_sync.next_request(uid, local, now.boot, &mut self.sequences.request)
        {
            out.effects.push(Effect::RequestObject { id, store, request, limit: REQUEST_LIMIT });
        }
    }

    /// A store answers.
    pub(super) fn answered(&mut self, id: RequestId, result: &ObjectResult, now: Now, out: &mut Out) {
        let answered = self.status_sync.on_response(id, result, now.boot);
        if let Ok(Some(object)) = result {
            self.mirrors.update_from_response(object, answered.as_ref().is_some_and(|answered| answered.is_newest));
        }
        if let Some(answered) = answered {
            if let Some((message, machine)) = answered.warning.zip(self.workers.get(&answered.uid)) {
                out.effects.push(warning(answered.uid.clone(), machine.full_name().clone(), "FailedSync", message));
            }
            self.report(&answered.uid, now, out);
        } else if let Some((name, Some(message))) = self.mirrors.on_response(id, result, now.boot) {
            let shown = self.workers.of_name(&name).first().cloned().unwrap_or_else(|| PodUid::from(""));
            out.effects.push(warning(shown, name, "FailedSync", message));
        }
    }

    /// The time has come to compare, or to try again.
    pub(super) fn compare(&mut self, now: Now, out: &mut Out) {
        self.mirrors.due(now.boot);
        for uid in self.status_sync.due(now.boot) {
            self.report(&uid, now, out);
        }
    }

    /// The Node object is there, or is going. With other labels, other pods may run here.
    pub(super) fn node_known(
        &mut self,
        uid: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    ) -> BTreeSet<PodUid> {
        self.node_uid = uid;
        self.look_at_mirrors();
        match labels.filter(|labels| *labels != self.config.labels) {
            Some(labels) => {
                self.config.labels = labels;
                self.held()
            }
            None => BTreeSet::new(),
        }
    }

    /// Every static pod and every mirror is to be compared.
    pub(super) fn look_at_mirrors(&mut self) {
        let names = self.workers.iter().filter(|(_, m)| m.is_static()).map(|(_, m)| m.full_name());
        names.for_each(|name| self.mirrors.mark_dirty(name));
        self.mirrors.mark_all_dirty();
    }

    /// Make, replace and remove mirrors where something happened, and tell those there are how their pods are.
    pub(super) fn mirror(&mut self, now: Now, out: &mut Out) {
        let touched = self.mirrors.take_dirty();
        if !self.config.sources.contains(&Source::Api) {
            return;
        }
        for name in touched {
            // One may be there that the first list will show.
            if self.sources.is_ready(Source::Api) {
                let wanted = self.wanted_mirror(&name);
                let uid = self.node_uid.as_deref();
                let owner = uid.map(|uid| NodeOwner { name: &self.config.node_name, uid });
                if let Some((id, request)) =
                    self.mirrors.next_request(&name, &wanted, owner, now.boot, &mut self.sequences.request)
                {
                    out.effects.push(Effect::RequestObject { id, store: Source::Api, request, limit: REQUEST_LIMIT });
                }
            }
            for uid in self.workers.of_name(&name).to_vec() {
                self.report(&uid, now, out);
            }
        }
    }

    /// What should be shown under a name: the pod whose turn it is, as long as it is wanted.
    fn wanted_mirror(&self, name: &FullName) -> DesiredMirror {
        if self.workers.is_static_terminating(name) {
            return DesiredMirror::Unchanged;
        }
        let machines = self.workers.of_name(name).iter().filter_map(|uid| self.workers.get(uid));
        let wanted: Vec<&Machine> = machines.filter(|m| m.is_static() && m.has_config()).collect();
        let living = wanted.iter().find(|m| m.state() < State::Terminating);
        if let Some(shown) = living.or_else(|| wanted.first()) {
            return DesiredMirror::Present(Arc::clone(&shown.record().pod));
        }
        let heard = self.mirrors.get(name).is_none_or(|mirror| self.source_of_mirror_spoke(mirror));
        if heard { DesiredMirror::Absent } else { DesiredMirror::Unchanged }
    }

    /// The source whose pod this mirror shows has reported; where none is named, all have.
    fn source_of_mirror_spoke(&self, mirror: &Pod) -> bool {
        let source = annotation(mirror, CONFIG_SOURCE).and_then(Source::parse);
        source.map_or_else(|| self.all_ready(), |source| self.source_synced(source))
    }

    /// The pod that this UID means: a mirror's is that of its static pod.
    pub fn translate(&self, uid: &PodUid) -> Option<PodUid> {
        if self.workers.get(uid).is_some() {
            return Some(uid.clone());
        }
        let shown = self.workers.of_name(self.mirrors.static_pod_name(uid)?).iter();
        let pod =
            |uid: &&PodUid| self.workers.get(uid).is_some_and(|m| self.mirrors.mirror_of(&m.record().pod).is_some());
        shown.clone().find(pod).or_else(|| shown.clone().next()).cloned()
    }
}

pub(super) fn warning(uid: PodUid, pod: FullName, reason: &'static str, message: String) -> Effect {
    Effect::Event(KubeEvent { uid, pod, container: None, warning: true, reason, message })
}
