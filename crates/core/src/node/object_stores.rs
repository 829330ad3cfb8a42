//! Requests to the stores of pod objects and their responses: statuses, final deletes, mirror pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pods::Pods;
use crate::mirror::{DesiredMirror, Mirrors, NodeOwner, annotation, is_mirror};
use crate::model::{
    Effect, FullName, KubeEvent, Manifest, Now, ObjectResult, Out, Pod, PodUid, RequestId, Source, SourceChange, Time,
    full_name,
};
use crate::pod::{PodFacts, State};
use crate::sources::uid_of;
use crate::static_pod::CONFIG_SOURCE;
use crate::status_sync::{LocalStatus, REQUEST_LIMIT, StatusSync};
use crate::workers::Workers;

/// The objects of our pods, in the API server and in the local store.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct ObjectStores {
    status_sync: StatusSync,
    mirrors: Mirrors,
    /// UID of the Node object that owns mirror pods; `None` while it is unknown or being deleted.
    node_uid: Option<String>,
    last_request: u64,
}

impl ObjectStores {
    /// The name of the static pod whose mirror has this UID.
    pub(super) fn static_pod_name(&self, mirror: &PodUid) -> Option<&FullName> {
        self.mirrors.static_pod_name(mirror)
    }

    /// The mirror pod of this static pod.
    pub(super) fn mirror_of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        self.mirrors.mirror_of(pod)
    }

    /// Records the objects of a store's change and returns the part that concerns the workers: mirror pods and pods of other nodes
    /// are taken out. `None`: nothing is left.
    pub(super) fn on_source_change(
        &mut self,
        source: Source,
        change: SourceChange,
        node: &str,
        out: &mut Out,
    ) -> Option<SourceChange> {
        if source.is_static() {
            return Some(change);
        }
        match change {
            SourceChange::Set { pods, broken } => {
                let (mirrors, pods): (Vec<_>, Vec<_>) = pods.into_iter().partition(|m| is_mirror(&m.pod));
                if source == Source::Api {
                    self.mirrors.set(mirrors.into_iter().map(|m| m.pod).collect());
                }
                let pods: Vec<Manifest> = pods.into_iter().filter(|m| is_of_node(source, m, node, out)).collect();
                let uids: BTreeSet<PodUid> = pods.iter().filter_map(uid_of).collect();
                self.status_sync.retain(source, &uids);
                pods.iter().for_each(|m| self.observe(source, m));
                Some(SourceChange::Set { pods, broken })
            }
            SourceChange::Put(manifest) if is_mirror(&manifest.pod) => {
                if source == Source::Api {
                    self.mirrors.observe(manifest.pod);
                }
                None
            }
            SourceChange::Put(manifest) => {
                if !is_of_node(source, &manifest, node, out) {
                    return uid_of(&manifest).map(SourceChange::Remove);
                }
                self.observe(source, &manifest);
                Some(SourceChange::Put(manifest))
            }
            SourceChange::Remove(uid) => {
                if source != Source::Api || !self.mirrors.remove(&uid) {
                    self.status_sync.forget(&uid);
                }
                Some(SourceChange::Remove(uid))
            }
            SourceChange::HistoryReset => {
                self.status_sync.history_reset(source);
                if source == Source::Api {
                    self.mirrors.history_reset();
                }
                Some(SourceChange::HistoryReset)
            }
            SourceChange::Reconnected => Some(SourceChange::Reconnected),
        }
    }

    fn observe(&mut self, source: Source, manifest: &Manifest) {
        if let Some(uid) = uid_of(manifest) {
            self.status_sync.observe(&uid, source, &manifest.pod, false);
        }
    }

    /// A store that was unavailable is back: failed requests are retried.
    pub(super) fn on_reconnected(&mut self, store: Source, now: Now) {
        self.status_sync.store_reconnected(store, now.boot);
        if store == Source::Api {
            self.mirrors.store_reconnected(now.boot);
        }
    }

    /// Sends the request that this pod's object needs, if it has an object.
    pub(super) fn report(&mut self, uid: &PodUid, pods: &Pods, now: Now, out: &mut Out) {
        let Some(machine) = pods.workers.get(uid) else { return };
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
        if let Some((store, id, request)) = self.status_sync.next_request(uid, local, now.boot, &mut self.last_request)
        {
            out.effects.push(Effect::RequestObject { id, store, request, limit: REQUEST_LIMIT });
        }
    }

    /// A store responds.
    pub(super) fn on_response(&mut self, id: RequestId, result: &ObjectResult, pods: &Pods, now: Now, out: &mut Out) {
        let outcome = self.status_sync.on_response(id, result, now.boot);
        if let Ok(Some(object)) = result {
            self.mirrors.update_from_response(object, outcome.as_ref().is_some_and(|outcome| outcome.is_newest));
        }
        if let Some(outcome) = outcome {
            if let Some((message, machine)) = outcome.warning.zip(pods.workers.get(&outcome.uid)) {
                let (uid, name) = (outcome.uid.clone(), machine.full_name().clone());
                out.effects.push(warning(Some(uid), name, "FailedSync", message));
            }
            self.report(&outcome.uid, pods, now, out);
        } else if let Some((name, Some(message))) = self.mirrors.on_response(id, result, now.boot) {
            let uid = pods.workers.of_name(&name).first().cloned();
            out.effects.push(warning(uid, name, "FailedSync", message));
        }
    }

    /// Compares the objects that are due, and retries.
    pub(super) fn compare(&mut self, pods: &Pods, now: Now, out: &mut Out) {
        self.mirrors.due(now.boot);
        for uid in self.status_sync.due(now.boot) {
            self.report(&uid, pods, now, out);
        }
    }

    /// The Node object has this UID, or is being deleted.
    pub(super) fn set_node_uid(&mut self, uid: Option<String>, workers: &Workers) {
        self.node_uid = uid;
        self.mirrors_are_dirty(workers);
    }

    /// The mirror pod of this name has to be compared.
    pub(super) fn mirror_is_dirty(&mut self, name: &FullName) {
        self.mirrors.mark_dirty(name);
    }

    /// Every static pod and every mirror pod has to be compared.
    pub(super) fn mirrors_are_dirty(&mut self, workers: &Workers) {
        let names = workers.iter().filter(|(_, m)| m.is_static()).map(|(_, m)| m.full_name());
        names.for_each(|name| self.mirrors.mark_dirty(name));
        self.mirrors.mark_all_dirty();
    }

    /// Creates, replaces and deletes mirror pods where something changed, and sends their statuses.
    pub(super) fn sync_mirrors(&mut self, pods: &Pods, now: Now, out: &mut Out) {
        let dirty = self.mirrors.take_dirty();
        if !pods.config.sources.contains(&Source::Api) {
            return;
        }
        for name in dirty {
            // Before the first list, an existing mirror pod is unknown.
            if pods.sources.is_ready(Source::Api) {
                let desired = self.desired_mirror(&name, pods);
                let uid = self.node_uid.as_deref();
                let owner = uid.map(|uid| NodeOwner { name: &pods.config.node_name, uid });
                if let Some((id, request)) =
                    self.mirrors.next_request(&name, &desired, owner, now.boot, &mut self.last_request)
                {
                    out.effects.push(Effect::RequestObject { id, store: Source::Api, request, limit: REQUEST_LIMIT });
                }
            }
            for uid in pods.workers.of_name(&name) {
                self.report(uid, pods, now, out);
            }
        }
    }

    /// The mirror pod that should exist under a name: that of the admitted pod, as long as a source wants it.
    fn desired_mirror(&self, name: &FullName, pods: &Pods) -> DesiredMirror {
        // Before the first list of the runtime, the UID of a pod that another agent runs is not known.
        let is_unlisted = pods.runtime.pleg.as_of.is_none() && self.mirrors.get(name).is_some();
        if is_unlisted || pods.workers.is_static_terminating(name) {
            return DesiredMirror::Unchanged;
        }
        let machines = pods.workers.of_name(name).iter().filter_map(|uid| pods.workers.get(uid));
        let desired: Vec<&PodFacts> = machines.filter(|m| m.is_static() && m.has_config()).collect();
        let running = desired.iter().find(|m| m.state() < State::Terminating);
        if let Some(shown) = running.or_else(|| desired.first()) {
            return DesiredMirror::Present(Arc::clone(&shown.record().pod));
        }
        match self.mirrors.get(name).is_none_or(|mirror| is_source_synced(mirror, pods)) {
            true => DesiredMirror::Absent,
            false => DesiredMirror::Unchanged,
        }
    }

    /// The pod of this UID; the UID of a mirror pod stands for its static pod.
    pub(super) fn translate(&self, uid: &PodUid, workers: &Workers) -> Option<PodUid> {
        if workers.get(uid).is_some() {
            return Some(uid.clone());
        }
        let shown = workers.of_name(self.mirrors.static_pod_name(uid)?).iter();
        let pod = |uid: &&PodUid| workers.get(uid).is_some_and(|m| self.mirrors.mirror_of(&m.record().pod).is_some());
        shown.clone().find(pod).or_else(|| shown.clone().next()).cloned()
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.status_sync.forget(uid);
    }

    /// Every status was sent.
    pub(super) fn is_reported(&self) -> bool {
        self.status_sync.is_idle()
    }

    pub(super) fn wake(&self) -> Option<Time> {
        self.status_sync.wake().into_iter().chain(self.mirrors.wake()).min()
    }
}

/// The pod is assigned to this node. Others are ignored with a warning.
fn is_of_node(source: Source, manifest: &Manifest, this: &str, out: &mut Out) -> bool {
    let node = manifest.pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
    if source != Source::Api || node == this {
        return true;
    }
    let message = format!("it is for node {node:?}, this is {this:?}");
    out.effects.push(warning(uid_of(manifest), full_name(&manifest.pod), "FailedValidation", message));
    false
}

/// The source of this mirror pod's static pod has synced; without a known source, all have.
fn is_source_synced(mirror: &Pod, pods: &Pods) -> bool {
    let source = annotation(mirror, CONFIG_SOURCE).and_then(Source::parse);
    source.map_or_else(|| pods.all_synced(), |source| pods.is_synced(source))
}

/// `uid`: `None` if the pod has no UID or is unknown.
pub(super) fn warning(uid: Option<PodUid>, pod: FullName, reason: &'static str, message: String) -> Effect {
    Effect::Event(KubeEvent { uid, pod, container: None, warning: true, reason, message, annotations: vec![] })
}
