//! Checks of core's requests to the object store: what is in an object, when it is removed, and what is left at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_core::backoff;
use podwright_core::model::{
    Event, FullName, ObjectRequest, Pod, PodSpec, PodStatus, PodUid, Source, SourceChange, full_name, is_terminal,
};
use podwright_core::static_pod::CONFIG_MIRROR;
use podwright_core::status_sync::{keep_final_terminations, merge, patch};

use super::record::missing_exit;
use super::{Checks, Truth};
use crate::object_store::{is_mirror, uid_of, version};
use crate::runtime::Runtime;

/// The newest version of each object that core was sent, and its status.
pub(super) type DeliveredObjects = BTreeMap<PodUid, (u64, PodStatus)>;

/// Records the objects in an event.
pub(super) fn note_objects(checks: &mut Checks, event: &Event) {
    let pods: Vec<&Arc<Pod>> = match event {
        Event::Source { source, change: SourceChange::Set { pods, .. } } if !source.is_static() => {
            pods.iter().map(|m| &m.pod).collect()
        }
        Event::Source { change: SourceChange::Put(manifest), .. } => vec![&manifest.pod],
        Event::ObjectAnswered { result: Ok(Some(pod)), .. } => vec![pod],
        _ => return,
    };
    for pod in pods {
        let newest = checks.objects.entry(uid_of(pod)).or_default();
        if version(pod) >= newest.0 {
            *newest = (version(pod), pod.status.clone().unwrap_or_default());
        }
    }
}

/// A patch starts from the newest version of the object that core was sent, and is not one that an API server refuses.
pub(super) fn check_request(checks: &mut Checks, truth: &Truth<'_>, request: &ObjectRequest) {
    let ObjectRequest::PatchStatus { object, base, status, .. } = request else { return };
    if let Some((version, newest)) = checks.objects.get(&object.uid)
        && newest != &**base
    {
        let text = format!("{}: version {version} has {newest:?}, the patch starts from {base:?}", object.uid);
        checks.violate("9 a patch starts from the newest version", text);
    }
    let pod = truth.store.get(&object.uid).filter(|_| truth.store.is_api_server());
    if let Some(name) = pod.and_then(|pod| reverted_termination(pod.spec.as_ref()?, base, status)) {
        checks.violate("9 a final exit stays in the status", format!("{}: {name}", object.uid));
    }
}

/// A status arrives at the object store.
pub(crate) fn check_patched(checks: &mut Checks, runtime: &Runtime, pod: &Pod, before: &PodStatus, after: &PodStatus) {
    let uid = uid_of(pod);
    if is_terminal(before.phase.as_deref()) && before.phase != after.phase && !is_mirror(pod) {
        let text = format!("{uid}: the object had {:?}, gets {:?}", before.phase, after.phase);
        checks.violate("9 a terminal phase never changes", text);
    }
    let ends = is_terminal(after.phase.as_deref()) && !is_terminal(before.phase.as_deref());
    if ends && !is_mirror(pod) && runtime.alive(&uid).next().is_some() && !checks.record_lost.contains(&uid) {
        checks.violate("8 a terminal phase is sent when nothing runs", uid.to_string());
    }
}

/// Core removes the object of a deleted pod: nothing runs, and the status has every exit code.
pub(crate) fn check_final_delete(checks: &mut Checks, runtime: &Runtime, now: Duration, pod: &Pod) {
    let uid = uid_of(pod);
    let status = pod.status.clone().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_none() || is_mirror(pod) {
        checks.violate("8 only objects of deleted pods are removed", uid.to_string());
    }
    let alive = runtime.alive(&uid).next().map(|(id, _)| format!("{uid}: {id} runs"));
    if let Some(text) = alive {
        checks.violate("8 the object is removed after its containers stopped", text);
    }
    if !is_terminal(status.phase.as_deref()) {
        checks
            .violate("8 the object is removed after its terminal phase is known", format!("{uid}: {:?}", status.phase));
    }
    let lost = checks.record_lost.contains(&uid);
    if let Some(text) = missing_exit(checks, runtime, &uid, pod.spec.as_ref(), &status).filter(|_| !lost) {
        checks.violate("8 the last status has every exit code", text);
    }
    checks.history.deleted.insert(uid, now);
}

pub(crate) fn check_mirror_delete(checks: &mut Checks, pod: &Pod) {
    if !is_mirror(pod) {
        checks.violate("8 only mirror pods are removed as mirror pods", uid_of(pod).to_string());
    }
}

/// Nothing is started for a pod whose object is deleted, or before the API server has reported.
pub(super) fn check_start_allowed_by_object(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, what: &str) {
    let Some(source) = truth.sources.get(truth.store.source()) else { return };
    let ours = checks.latest.get(uid).is_some_and(|r| r.source == Source::Api);
    // What the local store sent to an agent that died does not count.
    let deleted =
        source.reported && source.delivered.get(uid).is_some_and(|m| m.pod.metadata.deletion_timestamp.is_some());
    let unreported = !source.reported && truth.store.is_api_server();
    if ours && unreported {
        checks.violate("10 nothing is started before the source has reported", format!("{uid} {what}"));
    } else if deleted {
        checks.violate("1 nothing is started in a terminating pod", format!("{uid} {what}"));
    }
}

/// At rest: every object has its pod's status, each static pod has one mirror pod, and no deleted object is left.
pub(super) fn objects_settled(truth: &Truth<'_>) -> Result<(), String> {
    if !truth.store.is_enabled() {
        return Ok(());
    }
    for pod in truth.store.pods() {
        let uid = uid_of(pod);
        if pod.metadata.deletion_timestamp.is_some() {
            return Err(format!("the object of {uid} is deleted and not removed"));
        }
        has_status_of(truth, &uid, pod)?;
    }
    if !truth.store.is_api_server() {
        return Ok(());
    }
    let statics: BTreeMap<FullName, _> =
        static_pods(truth).into_iter().map(|(name, uid, pod)| (name, (uid, pod))).collect();
    for mirror in truth.store.mirrors() {
        let name = full_name(mirror);
        let Some((_, pod)) = statics.get(&name) else { return Err(format!("{name}: a mirror without a static pod")) };
        let hash = |pod: &Pod, key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key).cloned());
        if hash(mirror, CONFIG_MIRROR) != hash(pod, "kubernetes.io/config.hash") || mirror.spec != pod.spec {
            return Err(format!("{name}: its mirror differs"));
        }
    }
    for (name, (uid, _)) in &statics {
        let Some(mirror) = truth.store.objects.get(name) else { return Err(format!("{name} has no mirror")) };
        has_status_of(truth, uid, mirror)?;
    }
    Ok(())
}

/// The object has the pod's status.
fn has_status_of(truth: &Truth<'_>, uid: &PodUid, object: &Pod) -> Result<(), String> {
    let machine = truth.agent.node().and_then(|n| n.workers().get(uid));
    let Some(status) = machine.and_then(|m| m.record().status.as_ref()) else {
        return Err(format!("{uid} has an object and no status"));
    };
    let current = object.status.clone().unwrap_or_default();
    let mut wanted = merge(status, &current);
    if let Some(spec) = object.spec.as_ref().filter(|_| truth.store.is_api_server()) {
        keep_final_terminations(spec, &current, &mut wanted);
    }
    match patch(uid, &current, &wanted) {
        Some(patch) => Err(format!("the object of {uid} differs from its pod: {patch}")),
        None => Ok(()),
    }
}

/// The static pod that the mirror of each name has to show.
fn static_pods(truth: &Truth<'_>) -> Vec<(FullName, PodUid, Arc<Pod>)> {
    let Some(node) = truth.agent.node() else { return vec![] };
    let mut all: BTreeMap<FullName, (PodUid, Arc<Pod>, bool)> = BTreeMap::new();
    for (uid, machine) in node.workers().iter() {
        let record = machine.record();
        if !record.source.is_static() || !machine.has_config() {
            continue;
        }
        // Of several pods of one name the one that does not terminate is shown; of several of those, any.
        let alive = record.termination().is_none();
        let name = machine.full_name();
        let shown = truth.store.objects.get(name).and_then(|m| m.metadata.annotations.as_ref()?.get(CONFIG_MIRROR));
        let hash = record.pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.hash"));
        let better = all.get(name).is_none_or(|(_, _, other)| (alive && !other) || (alive == *other && shown == hash));
        if better {
            all.insert(name.clone(), (uid.clone(), Arc::clone(&record.pod), alive));
        }
    }
    all.into_iter().map(|(name, (uid, pod, _))| (name, uid, pod)).collect()
}

/// A container that had terminated for good in the status before and is not terminated in the status after: an API server refuses
/// such a status.
pub(crate) fn reverted_termination(spec: &PodSpec, before: &PodStatus, after: &PodStatus) -> Option<String> {
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
