//! A keeper of pod objects in the world: it answers core's asks, and is a source.
//!
//! Either an API server, with a watch that is late, repeats old versions and breaks off; its rules are the real one's: versions
//! grow, a UID is a precondition, a patch changes what is in it. Or the store behind the local API (`local`), which lives and
//! dies with the agent.

mod apply;
mod local;
mod people;
#[cfg(test)]
mod scenarios;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{
    Event, FullName, Manifest, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodStatus, PodUid, RequestId,
    Source, SourceChange, full_name,
};
use podwright_core::static_pod::CONFIG_MIRROR;
use podwright_core::status_sync::patch;

use crate::check::taken_back;
use crate::world::{Item, World, trace};

/// The API server, or the store behind the local API.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// Which of the two.
    pub source: Source,
    /// What the store has on disk.
    disk: BTreeMap<FullName, Arc<Pod>>,
    /// What it has.
    pub objects: BTreeMap<FullName, Arc<Pod>>,
    /// It can't be reached.
    pub away: bool,
    version: u64,
    made: u32,
    /// Versions that objects had before, for a watch that repeats them.
    old: Vec<Arc<Pod>>,
    /// A list begins a new stream; what an older one still had to say is dropped.
    stream: u32,
    /// When the newest of the stream is delivered: a stream keeps its order.
    last: Duration,
}

/// What reaches the API server, or comes from it.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    /// An ask of this agent arrives.
    ObjectRequest { epoch: u32, id: RequestId, request: ObjectRequest },
    /// A watch delivers.
    Watch { stream: u32, change: SourceChange },
    /// It can't be reached.
    Down,
    /// It is back.
    Up,
    /// A readiness gate is opened, or closed.
    Gate { uid: PodUid, open: bool },
}

/// What becomes of an ask.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Fine,
    /// Not done, and said so.
    Busy,
    /// Not done, and the connection broke.
    Lost,
    /// Done, and the answer was lost.
    Unheard,
    /// It won't.
    Refused,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            source: Source::Api,
            disk: BTreeMap::new(),
            objects: BTreeMap::new(),
            away: false,
            version: 0,
            made: 0,
            old: vec![],
            stream: 0,
            last: Duration::ZERO,
        }
    }
}

impl Keeper {
    /// The object of this UID.
    pub fn get(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.objects.values().find(|pod| uid_of(pod) == *uid)
    }

    /// All objects that are no mirrors.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.objects.values().filter(|pod| !is_mirror(pod))
    }

    /// All mirrors.
    pub fn mirrors(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.objects.values().filter(|pod| is_mirror(pod))
    }

    /// A new version of an object.
    fn store(&mut self, mut pod: Pod) -> Arc<Pod> {
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

    fn find(&self, object: &ObjectRef) -> Result<Arc<Pod>, ObjectError> {
        let pod = self.objects.get(&object.full_name).ok_or(ObjectError::NotFound)?;
        if uid_of(pod) == object.uid { Ok(Arc::clone(pod)) } else { Err(ObjectError::OtherUid) }
    }
}

impl World {
    /// This world has an API server.
    pub fn join(&mut self) {
        self.config.sources.insert(Source::Api);
        self.sources.entry(Source::Api).or_default();
    }

    pub(crate) fn has_api(&self) -> bool {
        self.sources.contains_key(&Source::Api)
    }

    pub(crate) fn has_keeper(&self) -> bool {
        self.sources.contains_key(&self.keeper.source)
    }

    pub(crate) fn wire(&mut self, wire: Wire) {
        match wire {
            Wire::ObjectRequest { epoch, id, request } => {
                if epoch == self.epoch {
                    self.ask_arrives(id, request);
                }
            }
            Wire::Watch { stream, change } => self.deliver(stream, change),
            Wire::Down => {
                trace!(self, "== API server goes away");
                self.keeper.away = true;
                let delay = self.rng.millis(100, 40_000);
                self.after(delay, Item::Wire(Wire::Up));
            }
            Wire::Up => self.keeper_up(),
            Wire::Gate { uid, open } => self.set_gate(&uid, open),
        }
    }

    pub(crate) fn keeper_up(&mut self) {
        if std::mem::take(&mut self.keeper.away) {
            trace!(self, "== API server is back");
            let delay = self.rng.millis(0, 2000);
            self.announce(self.keeper.source, delay);
        }
    }

    /// An ask goes out.
    pub(crate) fn request(&mut self, id: RequestId, request: ObjectRequest) {
        let (delay, epoch) = (self.rng.millis(0, 10), self.epoch);
        self.after(delay, Item::Wire(Wire::ObjectRequest { epoch, id, request }));
    }

    fn ask_arrives(&mut self, id: RequestId, request: ObjectRequest) {
        let fate = self.ask_fate();
        let unavailable = |message: &str, after| Err(ObjectError::Unavailable { message: message.into(), after });
        let result = match fate {
            Fate::Fine => self.serve(request),
            Fate::Busy => unavailable("429", Some(Duration::from_secs(1))),
            Fate::Lost => unavailable("connection refused", None),
            Fate::Refused => Err(ObjectError::Refused("422".into())),
            Fate::Unheard => {
                let _ = self.serve(request);
                unavailable("connection reset", None)
            }
        };
        let delay =
            if self.rng.chance(self.faults.watch_late) { self.rng.millis(0, 3000) } else { self.rng.millis(0, 5) };
        self.send(delay, Event::ObjectAnswered { id, result });
    }

    fn ask_fate(&mut self) -> Fate {
        if self.keeper.away {
            return Fate::Lost;
        }
        let (fails, lost) = (self.faults.api_fails, self.faults.api_lost);
        match () {
            () if self.rng.chance(lost) => Fate::Unheard,
            () if self.rng.chance(fails) => [Fate::Busy, Fate::Lost, Fate::Lost, Fate::Refused][self.rng.index(4)],
            () => Fate::Fine,
        }
    }

    fn serve(&mut self, request: ObjectRequest) -> ObjectResult {
        match request {
            ObjectRequest::PatchStatus { object, base, status, .. } => self.patch(&object, &base, &status),
            ObjectRequest::Delete { object } => {
                let pod = self.keeper.find(&object)?;
                self.check_final_delete(&pod);
                self.remove_object(&pod);
                Ok(None)
            }
            ObjectRequest::DeleteMirror { object } => {
                let pod = self.keeper.find(&object)?;
                self.check_mirror_delete(&pod);
                self.remove_object(&pod);
                Ok(None)
            }
            ObjectRequest::CreateMirror { .. } if self.keeper.is_local() => {
                self.broken("8 submitted pods have no mirrors", "one is to be made".into());
                Err(ObjectError::Refused("submitted pods have no mirrors".into()))
            }
            ObjectRequest::CreateMirror { pod } => self.create_mirror(&pod),
        }
    }

    fn patch(&mut self, object: &ObjectRef, base: &PodStatus, status: &PodStatus) -> ObjectResult {
        let pod = self.keeper.find(object)?;
        if self.keeper.is_local() {
            return Ok(Some(self.take_status(&pod, status)));
        }
        let Some(patch) = patch(&object.uid, base, status) else { return Ok(Some(pod)) };
        let before = pod.status.clone().unwrap_or_default();
        let after = apply::status(&before, &patch["status"]);
        if after == before {
            return Ok(Some(pod));
        }
        if let Some(name) = pod.spec.as_ref().and_then(|spec| taken_back(spec, &before, &after)) {
            return Err(ObjectError::Refused(format!("422 {name} may not be transitioned to non-terminated state")));
        }
        self.check_patched(&pod, &before, &after);
        let pod = self.keeper.store(Pod { status: Some(after), ..Pod::clone(&pod) });
        trace!(self, "   API {} is {:?} at {}", object.uid, phase(&pod), version(&pod));
        self.show(&pod);
        Ok(Some(pod))
    }

    fn create_mirror(&mut self, pod: &Pod) -> ObjectResult {
        if self.keeper.objects.contains_key(&full_name(pod)) {
            return Err(ObjectError::OtherUid);
        }
        self.keeper.made += 1;
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("mirror{}", self.keeper.made));
        pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        let pod = self.keeper.store(pod);
        trace!(self, "   API mirror {} of {}", uid_of(&pod), full_name(&pod));
        self.show(&pod);
        Ok(Some(pod))
    }

    /// An object is new or has changed: the watch tells.
    pub(crate) fn show(&mut self, pod: &Arc<Pod>) {
        self.watch(SourceChange::Put(manifest(pod)));
        if self.rng.chance(self.faults.watch_old) && !self.keeper.old.is_empty() {
            let old = self.rng.pick(&self.keeper.old).clone();
            if self.keeper.get(&uid_of(&old)).is_some() {
                self.watch(SourceChange::Put(manifest(&old)));
            }
        }
    }

    pub(crate) fn remove_object(&mut self, pod: &Arc<Pod>) {
        trace!(self, "   API {} is gone", uid_of(pod));
        self.keeper.objects.remove(&full_name(pod));
        self.keeper.disk.remove(&full_name(pod));
        // Nothing of it is repeated after its end: a stream keeps its order.
        self.keeper.old.retain(|old| uid_of(old) != uid_of(pod));
        self.watch(SourceChange::Remove(uid_of(pod)));
    }

    fn watch(&mut self, change: SourceChange) {
        let late = self.rng.chance(self.faults.watch_late);
        let delay = if late { self.rng.millis(0, 5000) } else { self.rng.millis(0, 5) };
        let at = (self.clock.now + delay).max(self.keeper.last);
        self.keeper.last = at;
        let stream = self.keeper.stream;
        self.after(at - self.clock.now, Item::Wire(Wire::Watch { stream, change }));
    }

    fn deliver(&mut self, stream: u32, change: SourceChange) {
        let source = self.keeper.source;
        let reported = self.sources.get(&source).is_some_and(|f| f.reported);
        if stream == self.keeper.stream && reported && self.node.is_some() {
            self.turn(Event::Source { source, change });
        }
    }

    /// The list: everything it has; by chance as it was a while ago.
    pub(crate) fn say_objects(&mut self) {
        if self.keeper.away || self.node.is_none() {
            // Whoever comes back announces it.
            return;
        }
        self.keeper.stream += 1;
        if self.sources.get(&Source::Api).is_some_and(|f| !f.reported) {
            self.turn(Event::NodeKnown { uid: Some("node-uid".into()), labels: None });
        }
        let mut pods: Vec<Manifest> = vec![];
        for pod in self.keeper.objects.values().cloned().collect::<Vec<_>>() {
            let before = self.keeper.old.iter().find(|old| uid_of(old) == uid_of(&pod)).cloned();
            let old = before.filter(|_| self.rng.chance(self.faults.watch_old));
            pods.push(manifest(&old.unwrap_or(pod)));
        }
        let source = self.keeper.source;
        self.turn(Event::Source { source, change: SourceChange::Set { pods, broken: vec![] } });
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
