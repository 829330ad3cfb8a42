//! What the end of a call means for its pod.

use std::time::Duration;

use super::bring_up::Image;
use super::calls::{RETRY, Sent, is_start};
use super::{Ctx, Machine};
use crate::model::{Answer, Call, CallError, HookKind, HookState, ImageFacts, Name, Out};
use crate::mutate::{self, Mutant};

/// The first wait for a runtime that is still at an earlier call; it grows by as much each time, ten times at most.
const BUSY: Duration = Duration::from_secs(1);
/// So often it is asked before the name is given up.
const BUSY_MAX: u32 = 20;

/// The first wait for a runtime that is away for one call and answers others; it grows by as much each time, ten times at most.
const AWAY: Duration = Duration::from_secs(1);
/// So often it is asked before people hear of it.
const AWAY_TOLD: u32 = 3;

/// What can't be removed is tried again ever less often, up to this: it takes room, and harms nobody.
const REMOVE_MAX: Duration = Duration::from_secs(60);

/// The very same call succeeded so often in a row before people hear of it.
const ECHO_TOLD: u32 = 3;

impl Machine {
    pub(super) fn answered(&mut self, sent: Sent, result: Result<Answer, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        if let Call::StopContainer { id, .. } = &sent.call {
            self.killing.stop_returned(id);
        }
        if let Call::StartContainer { name, id } = &sent.call
            && (result.is_ok() || (is_definite(&result) && !self.bring_up.sent_again.contains(id)))
        {
            self.start_is_settled(name);
        }
        match result {
            Ok(answer) => {
                let times = self.calls.succeeded(&sent.call, ctx.now.boot, self.record.uid.as_str());
                if times == ECHO_TOLD {
                    let message =
                        format!("the runtime did this {times} times, and it did not last: {:?}", sent.call.key());
                    self.event(true, "FailedSync", None, message, out);
                }
                self.succeeded(sent, answer, ctx, out);
            }
            Err(error) if error.in_doubt && is_start(&sent.call) && mutate::made(Mutant::DoubtIsFailure) => {}
            Err(error) if error.in_doubt && is_start(&sent.call) => {
                self.history.record(
                    ctx.now,
                    "a call is in doubt",
                    &format!("{:?}: {}", sent.call.key(), error.message),
                );
                if error.unavailable {
                    self.away(&sent.call, &error, ctx, out);
                }
                self.calls.doubt(sent, ctx.now.boot, error.unavailable);
            }
            Err(error) if error.unavailable && (sent.call.is_runtime() || sent.call.is_image()) => {
                self.away(&sent.call, &error, ctx, out)
            }
            Err(error) => self.failed(sent, error, ctx, out),
        }
    }

    fn succeeded(&mut self, sent: Sent, answer: Answer, ctx: &mut Ctx<'_>, out: &mut Out) {
        match (sent.call, answer) {
            // The pod has come to want another image since.
            (Call::ImageStatus { name, image } | Call::PullImage { name, image }, _)
                if !self.is_image_of(&name, &image) => {}
            (Call::MakeCgroup, answer) => self.cgroup_is_there(answer == Answer::Cgroup { made: true }, ctx),
            (Call::MakeDirs, _) => self.setup.dirs = true,
            (Call::MountVolume { volume }, _) => self.volume_is_set_up(volume),
            (Call::PrepareContainer { name, attempt, .. }, _) => {
                self.bring_up.prepared.insert(name, attempt);
            }
            (Call::ImageStatus { name, image }, Answer::Image(found)) => {
                self.image_status(name, &image, found, ctx, out)
            }
            (Call::PullImage { name, image }, Answer::Image(found)) => {
                self.bring_up.pulls.remove(&name);
                let took = ctx.now.boot.saturating_sub(sent.at);
                let message = format!("Successfully pulled image {image:?} in {}ms", took.as_millis());
                self.event(false, "Pulled", Some(&name), message, out);
                self.bring_up.images.insert(name, found.map_or(Image::Absent, Image::Present));
            }
            (Call::CreateContainer { name, .. }, _) => {
                self.bring_up.images.remove(&name);
                self.event(false, "Created", Some(&name), "Container created".into(), out);
            }
            (Call::StartContainer { name, .. }, _) => {
                self.bring_up.waiting.remove(&name);
                self.history.record(ctx.now, &format!("{name} started"), "it was its turn");
                self.event(false, "Started", Some(&name), "Container started".into(), out);
            }
            (Call::StopSandbox { id }, _) => {
                self.killing.stopped_sandboxes.insert(id);
                // Nothing holds the cgroup any more, and someone may have removed it: the next sandbox is made in a whole one.
                self.setup.cgroup = false;
            }
            (Call::RunSandbox { attempt }, Answer::Sandbox(id)) => {
                self.history.record(ctx.now, "sandbox made", &format!("{id}, attempt {attempt}"));
            }
            (Call::Hook { kind, name, id, .. }, _) => self.hooked(kind, &name, &id, HookState::Done),
            (Call::Probe { kind, name, id, .. }, Answer::Probe(verdict)) => {
                self.probed(kind, &name, &id, verdict, ctx, out)
            }
            (Call::RemoveVolumes, _) => self.cleaned.volumes = true,
            (Call::RemoveCgroup, _) => self.cleaned.cgroup = true,
            (Call::RemoveDirs, _) => self.cleaned.dirs = true,
            (Call::RemoveLogs, _) => self.cleaned.logs = true,
            _ => {}
        }
    }

    fn image_status(&mut self, name: Name, image: &str, found: Option<ImageFacts>, ctx: &Ctx<'_>, out: &mut Out) {
        if found.is_some() {
            let message = format!("Container image {image:?} already present on machine");
            self.event(false, "Pulled", Some(&name), message, out);
        } else {
            self.history.record(ctx.now, &format!("image of {name} is not here"), image);
        }
        self.bring_up.images.insert(name, found.map_or(Image::Absent, Image::Present));
    }

    fn hooked(&mut self, kind: HookKind, name: &Name, id: &crate::model::ContainerId, state: HookState) {
        let memory = self.record.containers.entry(name.clone()).or_default();
        let hook = match kind {
            HookKind::PostStart => &mut memory.post_start,
            HookKind::PreStop => &mut memory.pre_stop,
        };
        // The hook of an instance that has been replaced since says nothing about the next one's.
        if hook.as_ref().is_some_and(|(hooked, _)| hooked == id) {
            *hook = Some((id.clone(), state));
            self.unsaved = true;
        }
    }

    fn failed(&mut self, sent: Sent, error: CallError, ctx: &mut Ctx<'_>, out: &mut Out) {
        let key = sent.call.key();
        if error.busy {
            return self.runtime_is_busy(sent.call, &error, ctx, out);
        }
        if !error.cancelled {
            self.history.record(ctx.now, &format!("failed: {key:?}"), &error.message);
        }
        let mut delay = RETRY;
        match &sent.call {
            // Hooks and probes are not tried again: a failed hook has its own consequence.
            Call::Hook { kind, name, id, .. } => {
                return self.hook_failed(*kind, name, id, &error, out);
            }
            Call::Probe { kind, name, id, .. } => {
                let verdict = crate::model::ProbeVerdict::Unknown(error.message);
                return self.probed(*kind, name, id, verdict, ctx, out);
            }
            _ if error.cancelled => return,
            Call::ImageStatus { name, image } | Call::PullImage { name, image } if !self.is_image_of(name, image) => {
                return;
            }
            Call::RunSandbox { .. } => {
                let message = format!("Failed to create pod sandbox: {}", error.message);
                self.event(true, "FailedCreatePodSandBox", None, message, out);
            }
            Call::StopSandbox { .. } => {
                self.event(
                    true,
                    "FailedKillPod",
                    None,
                    format!("error killing pod: stopping its sandbox: {}", error.message),
                    out,
                );
            }
            Call::StopContainer { name, .. } => {
                let times = self.calls.failures(&key) + 1;
                let message = format!("error killing pod: stopping container {name} ({times}×): {}", error.message);
                self.event(true, "FailedKillPod", Some(name), message, out);
            }
            Call::PullImage { name, image } => return self.pull_failed(name, image, &error, ctx, out),
            Call::ImageStatus { name, image } => {
                let reason = if error.reason.is_empty() { "ImageInspectError" } else { error.reason.as_str() };
                let told = ("InspectFailed", format!("Failed to inspect image {image:?}: {}", error.message));
                return self.note_image_failure(name, reason, &error.message, told, ctx, out);
            }
            Call::PrepareContainer { name, .. } | Call::CreateContainer { name, .. } => {
                let reason = if error.reason.is_empty() { "CreateContainerError" } else { error.reason.as_str() };
                self.bring_up.images.remove(name);
                return self.note_failure(name, reason, &error.message, ctx, out);
            }
            Call::StartContainer { name, .. } => {
                self.bring_up.images.remove(name);
                self.note_failure(name, "RunContainerError", &error.message, ctx, out);
            }
            Call::MountVolume { volume } => {
                delay = self.mount_delay(volume);
                let message = format!("MountVolume.SetUp failed for volume {:?} : {}", volume.as_str(), error.message);
                self.event(true, "FailedMount", None, message, out);
            }
            Call::MakeCgroup => {
                self.event(
                    true,
                    "FailedCreatePodContainer",
                    None,
                    format!("unable to ensure pod container exists: {}", error.message),
                    out,
                );
            }
            Call::RemoveContainer { .. } | Call::RemoveSandbox { .. } => {
                delay = (RETRY * 2u32.pow(self.calls.failures(&key).min(8))).min(REMOVE_MAX);
                self.event(true, "FailedSync", None, format!("{key:?}: {}", error.message), out);
            }
            _ => self.event(true, "FailedSync", None, format!("{key:?}: {}", error.message), out),
        }
        self.calls.failed(key, ctx.now.boot, delay, self.record.uid.as_str());
    }

    /// The runtime is away: nothing about this pod, and the plan asks again when it is back. If only this call finds it away,
    /// as when a pod's shim is gone, it is asked again calmly.
    fn away(&mut self, call: &Call, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let key = call.key();
        let times = self.calls.failures(&key) + 1;
        if times.is_multiple_of(AWAY_TOLD) {
            let message = format!("the runtime is not available for this pod: {}", error.message);
            self.event(true, "FailedSync", None, message, out);
        }
        self.calls.failed(key, ctx.now.boot, AWAY * times.min(10), self.record.uid.as_str());
    }

    /// The runtime has not let go of the name yet. It guards us from doing a thing twice, so asking again is safe; a name that
    /// never comes free is left behind.
    fn runtime_is_busy(&mut self, call: Call, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let key = call.key();
        let times = self.calls.failures(&key) + 1;
        self.calls.failed(key.clone(), ctx.now.boot, BUSY * times.min(10), self.record.uid.as_str());
        if !times.is_multiple_of(BUSY_MAX) {
            return;
        }
        self.history.record(ctx.now, &format!("failed: {key:?}"), &error.message);
        self.event(
            true,
            "FailedSync",
            None,
            format!("the runtime does not let go of an earlier call: {}", error.message),
            out,
        );
        self.leave_behind(call);
    }

    fn hook_failed(
        &mut self,
        kind: HookKind,
        name: &Name,
        id: &crate::model::ContainerId,
        error: &CallError,
        out: &mut Out,
    ) {
        // A preStop that was cut short has had its time; a postStart that was interrupted has no container to answer for. If the
        // runtime went away under a hook nobody knows how it ended, and a container is not killed for that.
        let state = if error.cancelled || error.unavailable { HookState::Done } else { HookState::Failed };
        self.hooked(kind, name, id, state);
        if !error.cancelled {
            let (reason, hook) = match kind {
                HookKind::PostStart => ("FailedPostStartHook", "PostStartHook"),
                HookKind::PreStop => ("FailedPreStopHook", "PreStopHook"),
            };
            self.event(true, reason, Some(name), format!("{hook} failed: {}", error.message), out);
        }
    }

    fn pull_failed(&mut self, name: &Name, image: &str, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let reason = if error.reason.is_empty() { "ErrImagePull" } else { error.reason.as_str() };
        let message = format!("Failed to pull image {image:?}: {}", error.message);
        self.event(true, "Failed", Some(name), message, out);
        self.event(true, "Failed", Some(name), format!("Error: {reason}"), out);
        let waiting = crate::actions::Waiting { reason: reason.to_owned(), message: error.message.clone() };
        self.bring_up.waiting.insert(name.clone(), waiting);
        let (backoff, last) = self.bring_up.pulls.entry(name.clone()).or_default();
        backoff.failed(ctx.now.boot);
        *last = format!("{reason}: {}", error.message);
    }
}

/// The call has failed for good: it will not have an effect later.
fn is_definite(result: &Result<Answer, CallError>) -> bool {
    result.as_ref().is_err_and(|error| !error.in_doubt && !error.busy && !error.unavailable)
}
