//! A store of pod objects: it answers core's requests, and is a source of pods.
//!
//! Either an API server, whose watch is late, repeats old versions and breaks off; it follows the rules of the real one:
//! resource versions grow, a UID is a precondition, a patch changes only what it contains. Or the store behind the local API
//! (`local`), which is a part of the agent process.

mod local;
mod requests;
#[cfg(test)]
mod scenarios;
mod strategic_merge;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{
    Event, FullName, Manifest, ObjectError, ObjectRef, ObjectRequest, Pod, PodUid, RequestId, Source, SourceChange,
    full_name,
};
use podwright_core::static_pod::CONFIG_MIRROR;

pub(crate) use users::act_on_objects;

use crate::env::{Env, Scheduled, trace};

/// The API server, or the store behind the local API.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    /// What it holds now.
    pub objects: BTreeMap<FullName, Arc<Pod>>,
    /// Requests fail and nothing is watched.
    pub unreachable: bool,
    enabled: bool,
    source: Source,
    /// What the local store has written to disk; an API server does not use it.
    disk: BTreeMap<FullName, Arc<Pod>>,
    version: u64,
    mirrors_created: u32,
    /// Earlier versions of objects, for a watch that repeats them.
    old: Vec<Arc<Pod>>,
    /// Each list begins a new watch; what an earlier one did not deliver yet is dropped.
    watch: u32,
    /// When the newest change is delivered: a watch keeps its order.
    last_delivery: Duration,
}

/// Traffic to or from the object store, or a user's change of an object.
#[derive(Clone, Debug)]
pub(crate) enum StoreEvent {
    /// A request of the agent process of this epoch arrives.
    Request { epoch: u32, id: RequestId, request: ObjectRequest },
    /// A watch delivers a change.
    Watch { stream: u32, change: SourceChange },
    /// A controller sets the condition of a readiness gate.
    SetGate { uid: PodUid, open: bool },
}

impl Default for ObjectStore {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            unreachable: false,
            enabled: false,
            source: Source::Api,
            disk: BTreeMap::new(),
            version: 0,
            mirrors_created: 0,
            old: vec![],
            watch: 0,
            last_delivery: Duration::ZERO,
        }
    }
}

impl ObjectStore {
    pub(crate) fn enable(&mut self, source: Source) {
        (self.enabled, self.source) = (true, source);
    }

    /// `Api` or `Local`.
    pub fn source(&self) -> Source {
        self.source
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The node has joined an API server.
    pub(crate) fn is_api_server(&self) -> bool {
        self.enabled && self.source == Source::Api
    }

    /// The object of this UID.
    pub fn get(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.objects.values().find(|pod| uid_of(pod) == *uid)
    }

    /// All objects except mirror pods.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.objects.values().filter(|pod| !is_mirror(pod))
    }

    /// All mirror pods.
    pub fn mirrors(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.objects.values().filter(|pod| is_mirror(pod))
    }

    fn find(&self, object: &ObjectRef) -> Result<Arc<Pod>, ObjectError> {
        let pod = self.objects.get(&object.full_name).ok_or(ObjectError::NotFound)?;
        if uid_of(pod) == object.uid { Ok(Arc::clone(pod)) } else { Err(ObjectError::OtherUid) }
    }

    /// Stores a new version of an object, and the watch delivers it.
    fn store(&mut self, env: &mut Env, pod: Pod) -> Arc<Pod> {
        let pod = self.store_silently(pod);
        self.show(env, &pod);
        pod
    }

    fn store_silently(&mut self, mut pod: Pod) -> Arc<Pod> {
        if self.is_local() {
            return self.write(pod);
        }
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        let pod = Arc::new(pod);
        if let Some(before) = self.objects.insert(full_name(&pod), Arc::clone(&pod)) {
            self.old.push(before);
            if self.old.len() > 20 {
                self.old.remove(0);
            }
        }
        pod
    }

    /// The watch delivers a changed object, and by chance an old version of some object after it.
    fn show(&mut self, env: &mut Env, pod: &Arc<Pod>) {
        self.watch_delivers(env, SourceChange::Put(manifest(pod)));
        if env.rng.chance(env.faults.watch_old) && !self.old.is_empty() {
            let old = env.rng.pick(&self.old).clone();
            if self.get(&uid_of(&old)).is_some() {
                self.watch_delivers(env, SourceChange::Put(manifest(&old)));
            }
        }
    }

    fn remove(&mut self, env: &mut Env, pod: &Arc<Pod>) {
        trace!(env, "   API {} removed", uid_of(pod));
        self.objects.remove(&full_name(pod));
        self.disk.remove(&full_name(pod));
        // A watch keeps its order: no version of the object is repeated after its removal.
        self.old.retain(|old| uid_of(old) != uid_of(pod));
        self.watch_delivers(env, SourceChange::Remove(uid_of(pod)));
    }

    fn watch_delivers(&mut self, env: &mut Env, change: SourceChange) {
        let late = env.rng.chance(env.faults.watch_late);
        let delay = if late { env.rng.millis(0, 5000) } else { env.rng.millis(0, 5) };
        let at = (env.clock.now + delay).max(self.last_delivery);
        self.last_delivery = at;
        let stream = self.watch;
        env.after(at - env.clock.now, Scheduled::Store(StoreEvent::Watch { stream, change }));
    }

    pub(crate) fn begin_watch(&mut self) {
        self.watch += 1;
    }

    pub(crate) fn is_current_watch(&self, stream: u32) -> bool {
        stream == self.watch
    }

    /// All objects, some of them by chance in an old version.
    pub(crate) fn list(&mut self, env: &mut Env) -> Event {
        let mut pods: Vec<Manifest> = vec![];
        for pod in self.objects.values() {
            let before = self.old.iter().find(|old| uid_of(old) == uid_of(pod));
            let old = before.filter(|_| env.rng.chance(env.faults.watch_old));
            pods.push(manifest(old.unwrap_or(pod)));
        }
        Event::Source { source: self.source, change: SourceChange::Set { pods, broken: vec![] } }
    }
}

fn manifest(pod: &Arc<Pod>) -> Manifest {
    Manifest { pod: Arc::clone(pod), origin: "api".into() }
}

pub(crate) fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

pub(crate) fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CONFIG_MIRROR))
}

pub(crate) fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref().and_then(|s| s.phase.as_deref())
}

pub(crate) fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}
