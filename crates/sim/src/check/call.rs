//! Every call core asks for, judged by what the world knows.

use std::time::Duration;

use podwright_core::backoff;
use podwright_core::model::{
    Call, CallId, ContainerId, HookKind, HostCall, PodRecord, PodUid, RunState, RuntimeCall, SandboxId, full_name,
    is_sidecar,
};

use crate::manifest::find;
use crate::runtime::image_id;
use crate::world::World;

impl World {
    pub(super) fn check_call(&mut self, uid: &PodUid, call: &Call) {
        let Some(record) = self.checks.latest.get(uid).cloned() else {
            return self.broken("no call without a record", format!("{uid} {call:?}"));
        };
        let doubled = self.checks.calls.values().any(|(u, c)| u == uid && c.key() == call.key());
        if doubled && !matches!(call, Call::Runtime(RuntimeCall::StopContainer { .. })) {
            self.broken("5 one call of a kind at a time", format!("{uid} {call:?}"));
        }
        if call.changes_runtime() && !call.is_stop() {
            self.check_sight(uid, call);
        }
        if is_setting_up(call) {
            self.check_begun_for_object(uid, &format!("{call:?}"));
        }
        if is_setting_up(call) && record.ending.is_some() {
            self.broken("1 nothing is started after the end was asked for", format!("{uid} {call:?}"));
        }
        match call {
            Call::Runtime(RuntimeCall::RunSandbox { .. } | RuntimeCall::StartContainer { .. }) => {
                self.check_begin(uid, call, &record)
            }
            Call::Runtime(RuntimeCall::CreateContainer { name, sandbox, image_id, .. }) => {
                self.check_begin(uid, call, &record);
                self.check_rerun(uid, name.as_str(), sandbox, &record);
                self.check_image(uid, name.as_str(), image_id, &record);
            }
            Call::Runtime(RuntimeCall::StopContainer { id, .. }) => self.check_stop(uid, id, &record),
            Call::Runtime(RuntimeCall::StopSandbox { id }) => self.check_sandbox_stop(uid, id, &record),
            Call::Runtime(RuntimeCall::RemoveContainer { id, .. }) => self.check_removal(uid, id),
            Call::Runtime(RuntimeCall::RemoveSandbox { id }) => {
                let inside: Vec<_> = self.runtime.inside(id).map(|(c, _)| c.clone()).collect();
                inside.iter().for_each(|c| self.check_removal(uid, c));
            }
            Call::Runtime(RuntimeCall::Hook { kind, id, name, .. }) => {
                self.check_hook(uid, *kind, id, name.as_str(), &record)
            }
            Call::Host(HostCall::RemoveCgroup | HostCall::RemoveVolumes)
                if !record.terminated || self.runtime.alive(uid).next().is_some() =>
            {
                self.broken("7 nothing is taken from under a container", format!("{uid} {call:?}"));
            }
            Call::Host(HostCall::RemoveDirs | HostCall::RemoveLogs) if !record.finished => {
                self.broken("7 nothing is taken from under a container", format!("{uid} {call:?}"));
            }
            _ => {}
        }
    }

    /// What is to be removed is removed.
    pub(super) fn check_cancel(&mut self, id: &CallId) {
        let call = self.checks.calls.get(id).map(|(_, call)| call);
        let removal = |c: &&Call| {
            matches!(
                c,
                Call::Host(
                    HostCall::RemoveVolumes | HostCall::RemoveCgroup | HostCall::RemoveDirs | HostCall::RemoveLogs
                )
            )
        };
        if let Some(call) = call.filter(removal) {
            let text = format!("{call:?} is cancelled");
            self.broken("7 clean-up is not interrupted", text);
        }
    }

    /// No call on sight older than the pod's last call, and none beside a start in doubt.
    fn check_sight(&mut self, uid: &PodUid, call: &Call) {
        let now = self.clock.now;
        let doubt = self.checks.doubts.iter().find(|(of, _, until)| of == uid && now < *until);
        if let Some((_, doubted, _)) = doubt {
            let text = format!("{uid} {call:?} while {:?} is in doubt", doubted.key());
            self.broken("16 a start in doubt is waited for", text);
        }
        let returned = self.checks.returned.get(uid).copied();
        let absent = self.checks.listed.as_ref().filter(|(_, pods)| !pods.contains(uid)).map(|(turn, _)| *turn);
        let sight = self.checks.sight.get(uid).copied().max(absent);
        if sight.is_none() || sight < returned {
            let text = format!("{uid} {call:?}: seen in turn {sight:?}, last call came back in {returned:?}");
            self.broken("16 no call on old sight", text);
        }
    }

    fn check_begin(&mut self, uid: &PodUid, call: &Call, record: &PodRecord) {
        if !record.admitted {
            self.broken("10 admitted is journaled before anything begins", format!("{uid} {call:?}"));
        }
        let name = full_name(&record.pod);
        let mut others = self.runtime.containers.values().filter(|c| c.uid != *uid && c.state.may_run());
        let same = |sandbox: &SandboxId| {
            self.runtime.sandboxes.get(sandbox).is_some_and(|s| s.full_name == name && s.labelled)
        };
        if let Some(other) = others.find(|c| same(&c.sandbox)) {
            let text = format!("{uid} {call:?} while {} of {} runs", other.name, other.uid);
            self.broken("4 one static pod per full name", text);
        }
    }

    /// A container is made of the image that is wanted now, whatever was asked for before.
    fn check_image(&mut self, uid: &PodUid, name: &str, id: &str, record: &PodRecord) {
        let wanted = find(&record.pod, name).and_then(|(container, _)| container.image.clone()).unwrap_or_default();
        if id != image_id(&wanted) {
            self.broken("6 the newest image is used", format!("{uid} {name} of {id} instead of {wanted}"));
        }
    }

    /// What ended for good is not started again, in whichever agent's life.
    fn check_rerun(&mut self, uid: &PodUid, name: &str, sandbox: &SandboxId, record: &PodRecord) {
        let Some((container, init)) = find(&record.pod, name) else {
            return self.broken("only the pod's containers are made", format!("{uid} {name}"));
        };
        let life = self.checks.life(uid);
        let ran =
            self.runtime.ever(uid).filter(|(_, c)| c.name.as_str() == name && c.life == life && c.began.is_some());
        let Some((id, newest)) = ran.max_by_key(|(_, c)| (c.began, c.made)) else { return };
        if newest.state.may_run() {
            let text = format!("{uid} {name}: {id} runs");
            return self.broken("one container per name", text);
        }
        let Some(spec) = &record.pod.spec else { return };
        let again = is_sidecar(container) && init || backoff::should_restart(container, spec, newest.exit_code);
        let elsewhere = init && newest.sandbox != *sandbox && spec.restart_policy.as_deref() != Some("Never");
        // Also when it is a later instance that never ran: that one was rightly made.
        let void = record.containers.get(name).and_then(|m| m.voided.as_ref());
        let voided = self.runtime.ever(uid).any(|(other, c)| Some(other) == void && c.made >= newest.made);
        if !again && !elsewhere && !voided && !self.checks.tainted.contains(uid) {
            let text = format!("{uid} {name}: {id} ended for good with {}", newest.exit_code);
            self.broken("10 what ended for good never runs again", text);
        }
    }

    /// A running container is stopped only for a reason.
    fn check_stop(&mut self, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
        let Some(c) = self.runtime.containers.get(id).filter(|c| c.state.may_run()) else { return };
        if c.uid != *uid {
            return self.broken("11 hands off other pods", format!("{uid} stops {id} of {}", c.uid));
        }
        if let Some(deadline) = self.deadline(record) {
            let stops = |call: &Call| matches!(call, Call::Runtime(RuntimeCall::StopContainer { id: stopped, .. }) if stopped == id);
            let under_way = self.checks.calls.values().any(|(_, call)| stops(call));
            let before = self.checks.stopped_by.insert(id.clone(), deadline);
            if under_way && before.is_some_and(|before| deadline >= before) {
                self.broken("14 a stop is sent again only for an earlier deadline", format!("{uid} {id}"));
            }
            return self.check_hook_first(uid, id, record);
        }
        let spec = find(&record.pod, c.name.as_str()).map(|(spec, _)| podwright_core::hash::container_hash(spec));
        let memory = record.containers.get(&c.name);
        let sandbox = self.runtime.sandboxes.get(&c.sandbox);
        let other_sandbox = self.runtime.sandboxes_of(uid).any(|(other, s)| *other != c.sandbox && s.ready);
        let reason = memory.is_some_and(|m| m.voided.as_ref() == Some(id))
            || self.checks.unwell.contains(id)
            || spec.is_none()
            || spec != c.hash
            || !sandbox.is_some_and(|s| s.ready)
            || other_sandbox
            || self.is_uprooted(&c.sandbox)
            || c.state == RunState::Unknown
            || self.checks.restarts.contains(uid)
            || self.runtime.alive(uid).any(|(other, o)| other != id && o.name == c.name);
        if !reason {
            self.broken("10 nothing that runs is stopped without a reason", format!("{uid} {id} = {}", c.name));
        }
    }

    /// TERM waits for the hook until the deadline.
    fn check_hook_first(&mut self, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
        let hooks = |call: &Call| matches!(call, Call::Runtime(RuntimeCall::Hook { kind: HookKind::PreStop, id: hooked, .. }) if hooked == id);
        // A container that was being ended before its pod was has a deadline of its own.
        let accepted = self.checks.marks.accepted.get(uid);
        let of_pod = self.checks.hooked.get(id).zip(accepted).is_some_and(|(hooked, accepted)| hooked >= accepted);
        let early = self.deadline(record).is_some_and(|d| self.clock.now < d);
        if early && of_pod && self.checks.calls.values().any(|(_, call)| hooks(call)) {
            self.broken("8 the stop waits for its hook", format!("{uid} {id}"));
        }
    }

    /// A sandbox is stopped when nothing lives in it, or when its time is over.
    fn check_sandbox_stop(&mut self, uid: &PodUid, id: &SandboxId, record: &PodRecord) {
        let alive = self.runtime.inside(id).any(|(_, c)| c.state.may_run());
        let other_ready = self.runtime.sandboxes_of(uid).any(|(other, s)| other != id && s.ready);
        let ready = self.runtime.sandboxes.get(id).is_some_and(|s| s.ready);
        let overdue = self.deadline(record).is_some_and(|d| self.clock.now >= d);
        if alive && !overdue && !self.checks.disturbed.contains(uid) {
            self.broken("8 StopPodSandbox waits for the containers", format!("{uid} {id}"));
        }
        let ours = alive || record.cursor.as_ref().is_some_and(|c| c.sandbox == *id);
        if ready && ours && record.ending.is_none() && !other_ready && !self.is_uprooted(id) {
            self.broken("10 nothing that runs is stopped without a reason", format!("{uid} sandbox {id}"));
        }
    }

    /// An end is written down before its container goes.
    fn check_removal(&mut self, uid: &PodUid, id: &ContainerId) {
        let Some(c) = self.runtime.containers.get(id) else { return };
        if c.state.may_run() {
            return self.broken("10 nothing that runs is removed", format!("{uid} {id} = {}", c.name));
        }
        if c.state == RunState::Exited
            && c.began.is_some()
            && !self.checks.exits.contains(id)
            && !self.checks.tainted.contains(uid)
        {
            self.broken("10 an exit is journaled before its container goes", format!("{uid} {id} = {}", c.name));
        }
    }

    fn check_hook(&mut self, uid: &PodUid, kind: HookKind, id: &ContainerId, name: &str, record: &PodRecord) {
        if kind == HookKind::PreStop {
            self.checks.hooked.insert(id.clone(), self.clock.now);
        }
        let memory = record.containers.get(name);
        let written =
            memory.and_then(|m| if kind == HookKind::PreStop { m.pre_stop.as_ref() } else { m.post_start.as_ref() });
        if written.is_none_or(|(hooked, _)| hooked != id) {
            self.broken("14 a hook is journaled before it runs", format!("{uid} {kind:?} of {id} = {name}"));
        }
    }

    /// A hook is run, now and for the first time.
    pub(crate) fn check_hook_run(&mut self, uid: &PodUid, kind: HookKind, id: &ContainerId) {
        let times = self.checks.hooks.entry((id.clone(), kind == HookKind::PreStop)).or_default();
        *times += 1;
        if *times > 1 && !self.checks.tainted.contains(uid) {
            self.broken("14 a hook runs once", format!("{uid} {kind:?} of {id}"));
        }
    }

    /// When the last KILL of an ending pod is due, in the world's time.
    pub(crate) fn deadline(&self, record: &PodRecord) -> Option<Duration> {
        let ending = record.ending.as_ref()?;
        Some(self.clock.at_boot_time(ending.deadline.resume(&self.clock.boot_id())))
    }
}

/// It makes something for the pod.
fn is_setting_up(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::RunSandbox { .. }
                | RuntimeCall::CreateContainer { .. }
                | RuntimeCall::StartContainer { .. }
                | RuntimeCall::ImageStatus { .. }
                | RuntimeCall::PullImage { .. }
        ) | Call::Host(
            HostCall::PrepareContainer { .. }
                | HostCall::MakeCgroup
                | HostCall::MakeDirs
                | HostCall::MountVolume { .. }
        )
    )
}
