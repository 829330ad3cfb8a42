//! What core asks of the keeper of its objects, judged by the truth: what is in an object, when it goes, and what is left in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_core::backoff;
use podwright_core::model::{
    Event, FullName, Manifest, ObjectRequest, Pod, PodSpec, PodStatus, PodUid, Source, SourceChange, full_name,
    is_terminal,
};
use podwright_core::static_pod::CONFIG_MIRROR;
use podwright_core::status_sync::{keep_final_terminations, merge, patch};

use super::record::missing_end;
use crate::keeper::{is_mirror, uid_of, version};
use crate::world::World;

/// What core was told of each object: the newest version, and its status.
pub(super) type Explanation = BTreeMap<PodUid, (u64, PodStatus)>;

impl World {
    /// Core hears of objects.
    pub(super) fn note_objects(&mut self, event: &Event) {
        let pods: Vec<Arc<Pod>> = match event {
            Event::Source { source, change: SourceChange::Set { pods, .. } } if !source.is_static() => {
                pods.iter().map(|m| Arc::clone(&m.pod)).collect()
            }
            Event::Source { source, change: SourceChange::Put(manifest) } => {
                self.note_wanted(*source, manifest);
                vec![Arc::clone(&manifest.pod)]
            }
            Event::Source { source, change: SourceChange::Remove(uid) } => {
                self.sources.entry(*source).or_default().told.remove(uid);
                return;
            }
            Event::ObjectAnswered { result: Ok(Some(pod)), .. } => vec![Arc::clone(pod)],
            _ => return,
        };
        for pod in pods {
            let (uid, version) = (uid_of(&pod), version(&pod));
            let told = self.checks.objects.entry(uid).or_default();
            if version >= told.0 {
                *told = (version, pod.status.clone().unwrap_or_default());
            }
        }
    }

    /// A pod is wanted as its newest version says.
    fn note_wanted(&mut self, source: Source, manifest: &Manifest) {
        let told = &mut self.sources.entry(source).or_default().told;
        let uid = uid_of(&manifest.pod);
        let newer = told.get(&uid).is_none_or(|had| version(&had.pod) <= version(&manifest.pod));
        if newer && !is_mirror(&manifest.pod) {
            told.insert(uid, manifest.clone());
        }
    }

    /// A patch is made from the newest that core knows of the object, and is not one that an API server refuses.
    pub(super) fn check_ask(&mut self, ask: &ObjectRequest) {
        let ObjectRequest::PatchStatus { object, base, status, .. } = ask else { return };
        if let Some((version, newest)) = self.checks.objects.get(&object.uid)
            && newest != &**base
        {
            let text = format!("{}: version {version} has {newest:?}, the patch begins at {base:?}", object.uid);
            self.broken("9 a patch begins at the newest known", text);
        }
        let pod = self.keeper.get(&object.uid).filter(|_| self.has_api());
        if let Some(name) = pod.and_then(|pod| taken_back(pod.spec.as_ref()?, base, status)) {
            self.broken("9 an end that was told and is final stays", format!("{}: {name}", object.uid));
        }
    }

    /// A status arrives: an end is an end.
    pub(crate) fn check_patched(&mut self, pod: &Pod, before: &PodStatus, after: &PodStatus) {
        let uid = uid_of(pod);
        if is_terminal(before.phase.as_deref()) && before.phase != after.phase && !is_mirror(pod) {
            let text = format!("{uid}: the API had {:?}, gets {:?}", before.phase, after.phase);
            self.broken("9 a terminal phase never changes", text);
        }
        let ends = is_terminal(after.phase.as_deref()) && !is_terminal(before.phase.as_deref());
        if ends && !is_mirror(pod) && self.runtime.alive(&uid).next().is_some() && !self.checks.tainted.contains(&uid) {
            self.broken("8 an end is told when nothing runs", uid.to_string());
        }
    }

    /// The object of a deleted pod goes: nothing runs, and it has every exit code.
    pub(crate) fn check_final_delete(&mut self, pod: &Pod) {
        let uid = uid_of(pod);
        let status = pod.status.clone().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_none() || is_mirror(pod) {
            self.broken("8 only what was deleted goes", uid.to_string());
        }
        let alive = self.runtime.alive(&uid).next().map(|(id, _)| format!("{uid}: {id} runs"));
        if let Some(text) = alive {
            self.broken("8 the object goes after its containers", text);
        }
        if !is_terminal(status.phase.as_deref()) {
            self.broken("8 the object goes after its end is known", format!("{uid}: {:?}", status.phase));
        }
        let tainted = self.checks.tainted.contains(&uid);
        if let Some(text) = missing_end(self, &uid, pod.spec.as_ref(), &status).filter(|_| !tainted) {
            self.broken("8 the last status has every exit code", text);
        }
        let now = self.clock.now;
        self.checks.marks.deleted.insert(uid, now);
    }

    /// A mirror goes because of its static pod, or its own deletion.
    pub(crate) fn check_mirror_delete(&mut self, pod: &Pod) {
        if !is_mirror(pod) {
            self.broken("8 only mirrors go as mirrors", uid_of(pod).to_string());
        }
    }

    /// Nothing is begun for a pod that its object says is deleted, or before the API server was heard.
    pub(super) fn check_begun_for_object(&mut self, uid: &PodUid, what: &str) {
        let Some(files) = self.sources.get(&self.keeper.source) else { return };
        let ours = self.checks.latest.get(uid).is_some_and(|r| r.source == Source::Api);
        // What the store behind the local API told an agent that died is not waited for.
        let deleted =
            files.reported && files.told.get(uid).is_some_and(|m| m.pod.metadata.deletion_timestamp.is_some());
        let unheard = !files.reported && self.has_api();
        if ours && unheard {
            self.broken("10 nothing is begun before the source was heard", format!("{uid} {what}"));
        } else if deleted {
            self.broken("1 nothing is started after the end was asked for", format!("{uid} {what}"));
        }
    }

    /// At rest: every object is as its pod is, mirrors and static pods are one to one, and nothing waits to go.
    pub(super) fn objects_settled(&self) -> Result<(), String> {
        if !self.has_keeper() {
            return Ok(());
        }
        for pod in self.keeper.pods() {
            let uid = uid_of(pod);
            if pod.metadata.deletion_timestamp.is_some() {
                return Err(format!("the object of {uid} was deleted and is still there"));
            }
            self.shows(&uid, pod)?;
        }
        if !self.has_api() {
            return Ok(());
        }
        let statics: BTreeMap<FullName, _> =
            self.static_pods().into_iter().map(|(name, uid, pod)| (name, (uid, pod))).collect();
        for mirror in self.keeper.mirrors() {
            let name = full_name(mirror);
            let Some((_, pod)) = statics.get(&name) else { return Err(format!("{name}: a mirror of nothing")) };
            let hash = |pod: &Pod, key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key).cloned());
            if hash(mirror, CONFIG_MIRROR) != hash(pod, "kubernetes.io/config.hash") || mirror.spec != pod.spec {
                return Err(format!("{name}: its mirror shows something else"));
            }
        }
        for (name, (uid, _)) in &statics {
            let Some(mirror) = self.keeper.objects.get(name) else { return Err(format!("{name} has no mirror")) };
            self.shows(uid, mirror)?;
        }
        Ok(())
    }

    /// The object's status is the pod's.
    fn shows(&self, uid: &PodUid, object: &Pod) -> Result<(), String> {
        let machine = self.node.as_ref().and_then(|n| n.workers().get(uid));
        let Some(status) = machine.and_then(|m| m.record().status.as_ref()) else {
            return Err(format!("{uid} has an object and no status"));
        };
        let kept = object.status.clone().unwrap_or_default();
        let mut wanted = merge(status, &kept);
        if let Some(spec) = object.spec.as_ref().filter(|_| self.has_api()) {
            keep_final_terminations(spec, &kept, &mut wanted);
        }
        match patch(uid, &kept, &wanted) {
            Some(patch) => Err(format!("the object of {uid} differs from its pod: {patch}")),
            None => Ok(()),
        }
    }

    /// The static pod that is to be shown under each name.
    fn static_pods(&self) -> Vec<(FullName, PodUid, Arc<Pod>)> {
        let Some(node) = &self.node else { return vec![] };
        let mut all: BTreeMap<FullName, (PodUid, Arc<Pod>, bool)> = BTreeMap::new();
        for (uid, machine) in node.workers().iter() {
            let record = machine.record();
            if !record.source.is_static() || !machine.has_config() {
                continue;
            }
            // Where several are wanted, the one that lives is shown; of more, any.
            let lives = record.ending.is_none();
            let name = machine.full_name();
            let shown = self.keeper.objects.get(name).and_then(|m| m.metadata.annotations.as_ref()?.get(CONFIG_MIRROR));
            let hash = record.pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.hash"));
            let better =
                all.get(name).is_none_or(|(_, _, other)| (lives && !other) || (lives == *other && shown == hash));
            if better {
                all.insert(name.clone(), (uid.clone(), Arc::clone(&record.pod), lives));
            }
        }
        all.into_iter().map(|(name, (uid, pod, _))| (name, uid, pod)).collect()
    }
}

/// A container whose end the API server knows, that its policy does not start again, and that is said not to have ended: the
/// real server refuses such a status.
pub(crate) fn taken_back(spec: &PodSpec, before: &PodStatus, after: &PodStatus) -> Option<String> {
    if backoff::may_restart_all(spec) {
        return None;
    }
    let lists = |s: &PodStatus| {
        let lists = [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect::<Vec<ContainerStatus>>()
    };
    let code = |s: &ContainerStatus| Some(s.state.as_ref()?.terminated.as_ref()?.exit_code);
    let again = |name: &str, code| {
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        all.find(|c| c.name == name).is_some_and(|c| backoff::should_restart(c, spec, code))
    };
    let now = lists(after);
    let ended = lists(before).into_iter().filter(|s| code(s).is_some_and(|code| !again(&s.name, code)));
    ended.map(|s| s.name).find(|name| now.iter().any(|s| s.name == *name && code(s).is_none()))
}
