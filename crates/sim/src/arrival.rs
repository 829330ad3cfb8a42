//! Calls that arrive: what they change in the runtime and on the machine.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, ContainerId, HostCall, ImageFacts, Name, Pod, PodUid, RuntimeCall, SandboxId, Source,
    full_name,
};

use crate::behaviour::Run;
use crate::flight::{Flight, Stage};
use crate::manifest::{behaviour_of, find};
use crate::runtime::{NewContainer, Sandbox, image_id};
use crate::world::{Item, World, trace};

impl World {
    /// A call arrives and has its effect.
    pub(crate) fn apply(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight).filter(|f| f.stage == Stage::Under).cloned() else { return };
        if f.answered {
            trace!(self, "   {} late effect of {:?}", f.uid, f.call.key());
        }
        if self.runtime.down && f.needs_runtime() {
            // A call of an agent that is gone, in a runtime that is gone too.
            return self.drop_flight(flight);
        }
        let wall = self.clock.wall();
        match &f.call {
            Call::Runtime(RuntimeCall::RunSandbox { attempt }) => {
                self.check_sandbox_made(&f.uid);
                let id = self.runtime.run_sandbox(Sandbox {
                    uid: f.uid.clone(),
                    full_name: full_name(&f.pod),
                    source: source_of(&f.pod),
                    labelled: true,
                    attempt: *attempt,
                    ready: true,
                    created_at: wall,
                });
                trace!(self, "   {} sandbox {id} attempt {attempt} is there", f.uid);
                self.host.change(&f.uid, |h| h.logs = true);
                self.land(flight, Ok(Answer::Sandbox(id)));
                self.hint(&f.uid);
            }
            Call::Runtime(RuntimeCall::CreateContainer { sandbox, name, attempt, .. }) => {
                let new = new_container(&f, sandbox, name, *attempt);
                match self.runtime.create(new, wall) {
                    Ok(id) => {
                        trace!(self, "   {} container {id} = {name} attempt {attempt} is there", f.uid);
                        self.host.change(&f.uid, |h| h.logs = true);
                        self.land(flight, Ok(Answer::Container(id)));
                        self.hint(&f.uid);
                    }
                    Err(message) => {
                        self.answer(flight, Duration::ZERO, Err(CallError::failed(message)));
                        self.drop_flight(flight);
                    }
                }
            }
            Call::Runtime(RuntimeCall::StartContainer { id, .. }) => self.start(flight, &f.uid, id),
            Call::Runtime(RuntimeCall::StopContainer { id, timeout, .. }) => self.stop(flight, &f.uid, id, *timeout),
            Call::Runtime(RuntimeCall::StopSandbox { id }) => self.stop_sandbox(flight, &f.uid, id),
            Call::Runtime(RuntimeCall::RemoveContainer { id, .. }) => {
                self.runtime.remove(id);
                self.land(flight, Ok(Answer::Done));
            }
            Call::Runtime(RuntimeCall::RemoveSandbox { id }) => {
                let ready = self.runtime.sandboxes.get(id).is_some_and(|s| s.ready);
                if ready {
                    self.answer(flight, Duration::ZERO, Err(CallError::failed("sandbox is not stopped")));
                    self.drop_flight(flight);
                } else {
                    self.runtime.remove_sandbox(id);
                    self.land(flight, Ok(Answer::Done));
                }
            }
            Call::Runtime(RuntimeCall::ImageStatus { image, .. }) => {
                let here = self.runtime.images.contains(image).then(|| facts(image));
                self.land(flight, Ok(Answer::Image(here)));
            }
            Call::Runtime(RuntimeCall::PullImage { image, .. }) => {
                self.runtime.images.insert(image.clone());
                self.land(flight, Ok(Answer::Image(Some(facts(image)))));
            }
            Call::Host(HostCall::MakeCgroup) => {
                let made = self.host.get(&f.uid).is_none_or(|h| !h.cgroup);
                self.apply_host(flight);
                self.land(flight, Ok(Answer::Cgroup { made }));
            }
            _ => {
                self.apply_host(flight);
                self.land(flight, Ok(Answer::Done));
            }
        }
    }

    pub(crate) fn apply_host(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight).cloned() else { return };
        let uid = &f.uid;
        match &f.call {
            Call::Host(HostCall::MakeCgroup) => self.host.change(uid, |h| h.cgroup = true),
            Call::Host(HostCall::MakeDirs) => self.host.change(uid, |h| h.dirs = true),
            Call::Host(HostCall::PrepareContainer { .. }) => self.host.change(uid, |h| h.logs = true),
            Call::Host(HostCall::MountVolume { volume }) => self.host.change(uid, |h| {
                h.volumes.insert(volume.clone());
            }),
            Call::Host(HostCall::RemoveCgroup) => self.host.change(uid, |h| h.cgroup = false),
            Call::Host(HostCall::RemoveVolumes) => self.host.change(uid, |h| h.volumes.clear()),
            Call::Host(HostCall::RemoveDirs) => self.host.change(uid, |h| h.dirs = false),
            Call::Host(HostCall::RemoveLogs) => self.host.change(uid, |h| h.logs = false),
            _ => {}
        }
    }

    fn start(&mut self, flight: u64, uid: &PodUid, id: &ContainerId) {
        match self.runtime.start(id, self.clock.now, self.clock.wall()) {
            Err(message) => {
                self.answer(flight, Duration::ZERO, Err(CallError::failed(message)));
                self.drop_flight(flight);
            }
            Ok(nth) => {
                trace!(self, "   {uid} {id} runs (start {nth})");
                if let Some(Run::Exits { after, code }) = self.behaviour(id).map(|b| b.run(nth)) {
                    self.after(after, Item::Exit { id: id.clone(), code, by_itself: true });
                }
                self.check_started(uid, id);
                self.land(flight, Ok(Answer::Done));
                self.hint(uid);
            }
        }
    }
}

fn new_container(f: &Flight, sandbox: &SandboxId, name: &Name, attempt: u32) -> NewContainer {
    let spec = find(&f.pod, name.as_str()).map(|(c, _)| c);
    let grace = f.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let hook = spec.and_then(|c| c.lifecycle.as_ref()).and_then(|l| l.pre_stop.as_ref());
    NewContainer {
        uid: f.uid.clone(),
        name: name.clone(),
        attempt,
        sandbox: sandbox.clone(),
        hash: spec.map(podwright_core::hash::container_hash),
        behaviour: spec.map_or(0, behaviour_of),
        grace: grace.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs),
        pre_stop: hook.map(|_| "{\"exec\":{}}".into()),
        life: f.life,
    }
}

fn source_of(pod: &Pod) -> Option<Source> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get("kubernetes.io/config.source").and_then(|text| Source::parse(text))
}

fn facts(image: &str) -> ImageFacts {
    ImageFacts { id: image_id(image), uid: Some(1000), username: String::new() }
}
