//! What calls change in the runtime and on the host when they take effect.

use std::time::Duration;

use podwright_core::model::{Answer, Call, ContainerId, HostCall, ImageFacts, Name, RuntimeCall, SandboxId, full_name};

use super::{CallContext, CallStep, Calls, PendingCall, Stage};
use crate::check;
use crate::container_script::Run;
use crate::env::{Scheduled, trace};
use crate::manifest::{find, script_of, source_of};
use crate::runtime::{NewContainer, Sandbox, image_id};

impl Calls {
    pub(super) fn apply(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let Some(f) = self.pending.get(&n).filter(|f| f.stage == Stage::Sent).cloned() else { return };
        if f.answered {
            trace!(cx.env, "   {} {:?} takes effect late", f.uid, f.call.key());
        }
        if cx.runtime.down && f.needs_runtime() {
            // A call of a dead agent, in a runtime that went down since.
            return self.discard(cx.runtime, n);
        }
        match &f.call {
            Call::Runtime(RuntimeCall::RunSandbox { attempt }) => self.run_sandbox(cx, n, &f, *attempt),
            Call::Runtime(RuntimeCall::CreateContainer { sandbox, name, attempt, .. }) => {
                self.create_container(cx, n, &f, sandbox, name, *attempt);
            }
            Call::Runtime(RuntimeCall::StartContainer { id, .. }) => self.start_container(cx, n, &f, id),
            Call::Runtime(RuntimeCall::StopContainer { id, timeout, .. }) => {
                self.stop_container(cx, n, &f.uid, id, *timeout)
            }
            Call::Runtime(RuntimeCall::StopSandbox { id }) => self.stop_sandbox(cx, n, &f.uid, id),
            Call::Runtime(RuntimeCall::RemoveContainer { id, .. }) => {
                cx.runtime.remove(id);
                self.finish(cx.env, n, Ok(Answer::Done));
            }
            Call::Runtime(RuntimeCall::RemoveSandbox { id }) => {
                if cx.runtime.sandboxes.get(id).is_some_and(|s| s.ready) {
                    return self.refuse(cx, n, "sandbox is not stopped");
                }
                cx.runtime.remove_sandbox(id);
                self.finish(cx.env, n, Ok(Answer::Done));
            }
            Call::Runtime(RuntimeCall::ImageStatus { image, .. }) => {
                let present = cx.runtime.images.contains(image).then(|| facts(image));
                self.finish(cx.env, n, Ok(Answer::Image(present)));
            }
            Call::Runtime(RuntimeCall::PullImage { image, .. }) => {
                cx.runtime.images.insert(image.clone());
                self.finish(cx.env, n, Ok(Answer::Image(Some(facts(image)))));
            }
            Call::Host(call) => {
                let made = cx.host.get(&f.uid).is_none_or(|h| !h.cgroup);
                cx.host.apply(&f.uid, call);
                let cgroup = *call == HostCall::MakeCgroup;
                self.finish(cx.env, n, Ok(if cgroup { Answer::Cgroup { made } } else { Answer::Done }));
            }
            // Hooks and probes do not take effect by this step.
            Call::Runtime(_) => self.finish(cx.env, n, Ok(Answer::Done)),
        }
    }

    fn run_sandbox(&mut self, cx: &mut CallContext<'_>, n: u64, f: &PendingCall, attempt: u32) {
        let (checks, view) = cx.check_parts();
        check::check_sandbox_made(checks, &view, &f.uid);
        let id = cx.runtime.run_sandbox(Sandbox {
            uid: f.uid.clone(),
            full_name: full_name(&f.pod),
            source: source_of(&f.pod),
            labelled: true,
            attempt,
            ready: true,
            created_at: cx.env.clock.wall(),
        });
        trace!(cx.env, "   {} sandbox {id} attempt {attempt} created", f.uid);
        cx.host.change(&f.uid, |h| h.logs = true);
        self.finish(cx.env, n, Ok(Answer::Sandbox(id)));
        cx.env.hint(&f.uid);
    }

    fn create_container(
        &mut self,
        cx: &mut CallContext<'_>,
        n: u64,
        f: &PendingCall,
        sandbox: &SandboxId,
        name: &Name,
        attempt: u32,
    ) {
        let id = match cx.runtime.create(new_container(f, sandbox, name, attempt), cx.env.clock.wall()) {
            Ok(id) => id,
            Err(message) => return self.refuse(cx, n, message),
        };
        trace!(cx.env, "   {} container {id} = {name} attempt {attempt} created", f.uid);
        cx.host.change(&f.uid, |h| h.logs = true);
        self.finish(cx.env, n, Ok(Answer::Container(id)));
        cx.env.hint(&f.uid);
    }

    fn start_container(&mut self, cx: &mut CallContext<'_>, n: u64, f: &PendingCall, id: &ContainerId) {
        if self.pending.values().any(|other| other.stage == Stage::CutOff && other.started() == Some(id)) {
            // The runtime refuses a second start at once, or lets it wait for the first.
            if cx.env.rng.chance(500) {
                return self.refuse(cx, n, format!("container {id} is already in starting state"));
            }
            let delay = cx.env.rng.millis(50, 1000);
            return cx.env.after(delay, Scheduled::Call(n, CallStep::Apply));
        }
        let nth = match cx.runtime.start(id, cx.env.clock.now, cx.env.clock.wall()) {
            Ok(nth) => nth,
            Err(message) => return self.refuse(cx, n, message),
        };
        trace!(cx.env, "   {} {id} runs (start {nth})", f.uid);
        if let Some(Run::Exits { after, code }) = cx.runtime.script(id).map(|s| s.run(nth)) {
            cx.env.after(after, Scheduled::Exit { id: id.clone(), code, unprompted: true });
        }
        let (checks, view) = cx.check_parts();
        check::note_start(checks, &view, &f.uid, id);
        self.finish(cx.env, n, Ok(Answer::Done));
        cx.env.hint(&f.uid);
    }
}

impl Calls {
    pub(super) fn give_up_start(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let Some(f) = self.pending.get(&n).cloned() else { return };
        if let Some(id) = f.started().filter(|_| !cx.runtime.down) {
            trace!(cx.env, "   {} {id} is given up: its start was cut off", f.uid);
            cx.runtime.cut_off_start(id, cx.env.clock.wall());
            cx.env.hint(&f.uid);
        }
        self.discard(cx.runtime, n);
    }
}

fn new_container(f: &PendingCall, sandbox: &SandboxId, name: &Name, attempt: u32) -> NewContainer {
    let spec = find(&f.pod, name.as_str()).map(|(c, _)| c);
    let spec = spec.as_deref();
    let grace = f.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let hook = spec.and_then(|c| c.lifecycle.as_ref()).and_then(|l| l.pre_stop.as_ref());
    NewContainer {
        uid: f.uid.clone(),
        name: name.clone(),
        attempt,
        sandbox: sandbox.clone(),
        hash: spec.map(podwright_core::hash::container_hash),
        script: spec.map_or(0, script_of),
        grace: grace.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs),
        pre_stop: hook.map(|_| "{\"exec\":{}}".into()),
        incarnation: f.incarnation,
    }
}

fn facts(image: &str) -> ImageFacts {
    ImageFacts { id: image_id(image), uid: Some(1000), username: String::new() }
}
