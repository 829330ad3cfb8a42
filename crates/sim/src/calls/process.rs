//! The processes of containers: they are stopped, killed, probed, run hooks, and exit.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, ContainerId, HookKind, Name, PodUid, ProbeKind, ProbeVerdict, RuntimeCall, SandboxId,
};

use super::{CallContext, CallStep, Calls, PendingCall, Stage};
use crate::check;
use crate::container_script::{HookScript, OnTerm};
use crate::env::{Scheduled, trace};
use crate::manifest::{find, script_of};
use crate::runtime::Runtime;

impl Calls {
    pub(super) fn stop_container(
        &mut self,
        cx: &mut CallContext<'_>,
        n: u64,
        uid: &PodUid,
        id: &ContainerId,
        timeout: Duration,
    ) {
        let Some(c) = cx.runtime.containers.get_mut(id).filter(|c| c.state.may_run()) else {
            return self.finish(cx.env, n, Ok(Answer::Done));
        };
        if let Some(f) = self.pending.get_mut(&n) {
            f.stage = Stage::Stopping;
        }
        if timeout.is_zero() {
            return self.kill_timer(cx, n);
        }
        let first = !std::mem::replace(&mut c.term_sent, true);
        if first {
            trace!(cx.env, "   {uid} {id} TERM, KILL in {timeout:?}");
            let (checks, view) = cx.check_parts();
            check::check_term(checks, &view, uid, id);
            if let Some(OnTerm::Exits { after, code }) = cx.runtime.script(id).map(|s| s.on_term) {
                cx.env.after(after, Scheduled::Exit { id: id.clone(), code, unprompted: false });
            }
        }
        cx.env.after(timeout, Scheduled::Call(n, CallStep::KillTimer));
    }

    pub(super) fn kill_timer(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let stopping = self.pending.get(&n).filter(|f| f.stage == Stage::Stopping && !f.answered);
        if let Some(PendingCall { uid, call: Call::Runtime(RuntimeCall::StopContainer { id, .. }), .. }) = stopping {
            kill(cx, uid, id);
        }
    }

    /// A process exits. Stops and hooks that wait for it end.
    pub(crate) fn exit(&mut self, cx: &mut CallContext<'_>, id: &ContainerId, code: i32, unprompted: bool) {
        let Some(uid) = cx.runtime.containers.get(id).map(|c| c.uid.clone()) else { return };
        if !cx.runtime.exit(id, code, cx.env.clock.wall()) {
            return;
        }
        trace!(cx.env, "   {uid} {id} exits {code}{}", if unprompted { " unprompted" } else { "" });
        for n in self.numbers(|f| f.waits_for(id)) {
            let hook = self.pending.get(&n).is_some_and(|f| f.stage == Stage::RunningHook);
            let gone = CallError::failed("the container is gone");
            self.finish(cx.env, n, if hook { Err(gone) } else { Ok(Answer::Done) });
        }
        cx.env.hint(&uid);
    }

    pub(super) fn stop_sandbox(&mut self, cx: &mut CallContext<'_>, n: u64, uid: &PodUid, id: &SandboxId) {
        let inside = cx.runtime.inside(id).filter(|(_, c)| c.state.may_run());
        let inside: Vec<_> = inside.map(|(id, _)| id.clone()).collect();
        for container in inside {
            let (checks, view) = cx.check_parts();
            check::check_kill(checks, &view, uid, &container);
            self.exit(cx, &container, 137, false);
        }
        if let Some(sandbox) = cx.runtime.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        trace!(cx.env, "   {uid} sandbox {id} stopped");
        self.finish(cx.env, n, Ok(Answer::Done));
        cx.env.hint(uid);
    }

    pub(super) fn begin_hook(
        &mut self,
        cx: &mut CallContext<'_>,
        n: u64,
        kind: HookKind,
        name: &Name,
        limit: Duration,
    ) {
        let Some(f) = self.pending.get_mut(&n) else { return };
        f.stage = Stage::RunningHook;
        let ends = Scheduled::Call(n, CallStep::HookEnds);
        match hook_script(cx.runtime, f, kind, name) {
            HookScript::Completes { after, .. } => cx.env.after(after, ends),
            HookScript::Hangs if cx.env.calm && kind == HookKind::PostStart => {
                cx.env.after(Duration::from_secs(1), ends);
            }
            HookScript::Hangs => {}
        }
        cx.env.after(limit, Scheduled::Call(n, CallStep::Timeout));
    }

    pub(super) fn hook_ends(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let Some(f) = self.pending.get(&n) else { return };
        let Call::Runtime(RuntimeCall::Hook { kind, name, id, .. }) = &f.call else { return };
        let hook = hook_script(cx.runtime, f, *kind, name);
        let runs = cx.runtime.containers.get(id).is_some_and(|c| c.state.may_run());
        let succeeds = runs && (cx.env.calm || !matches!(hook, HookScript::Completes { succeeds: false, .. }));
        let result = if succeeds { Ok(Answer::Done) } else { Err(CallError::failed("the hook failed")) };
        self.finish(cx.env, n, result);
    }

    pub(super) fn probe(&mut self, cx: &mut CallContext<'_>, n: u64, kind: ProbeKind, id: &ContainerId) {
        let delay = cx.env.rng.millis(0, 10);
        let began = cx.runtime.containers.get(id).filter(|c| c.state.may_run()).and_then(|c| c.began);
        let age = began.map(|began| cx.env.clock.now - began);
        let health = cx.runtime.script(id).map(|s| match kind {
            ProbeKind::Startup => s.startup,
            ProbeKind::Readiness => s.readiness,
            ProbeKind::Liveness => s.liveness,
        });
        let healthy = cx.env.calm || age.zip(health).is_some_and(|(age, health)| health.is_healthy(age));
        let verdict = if healthy { ProbeVerdict::Success } else { ProbeVerdict::Failure("unhealthy".into()) };
        self.answer(cx.env, n, delay, Ok(Answer::Probe(verdict)));
        self.pending.remove(&n);
    }
}

impl PendingCall {
    fn waits_for(&self, container: &ContainerId) -> bool {
        match &self.call {
            Call::Runtime(RuntimeCall::StopContainer { id, .. }) => self.stage == Stage::Stopping && id == container,
            Call::Runtime(RuntimeCall::Hook { id, .. }) => self.stage == Stage::RunningHook && id == container,
            _ => false,
        }
    }
}

fn kill(cx: &mut CallContext<'_>, uid: &PodUid, id: &ContainerId) {
    let Some(c) = cx.runtime.containers.get_mut(id).filter(|c| c.state.may_run() && !c.kill_sent) else { return };
    c.kill_sent = true;
    trace!(cx.env, "   {uid} {id} KILL");
    let (checks, view) = cx.check_parts();
    check::check_kill(checks, &view, uid, id);
    let delay = cx.env.rng.millis(1, 20);
    cx.env.after(delay, Scheduled::Exit { id: id.clone(), code: 137, unprompted: false });
}

fn hook_script(runtime: &Runtime, f: &PendingCall, kind: HookKind, container: &Name) -> HookScript {
    let script = find(&f.pod, container.as_str()).map(|(c, _)| script_of(&c));
    let script = script.and_then(|n| runtime.scripts.get(n)).cloned().unwrap_or_default();
    if kind == HookKind::PreStop { script.pre_stop } else { script.post_start }
}
