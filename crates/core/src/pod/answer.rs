//! What the end of a call means for its pod.

use std::time::Duration;

use super::bring_up::Image;
use super::calls::{RETRY, Sent};
use super::{Ctx, Machine};
use crate::model::{
    Answer, Call, CallError, CallKey, ContainerId, HookKind, HookState, HostCall, ImageFacts, Name, Out, ProbeVerdict,
    Retry, RuntimeCall, Time,
};
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
        if let Call::Runtime(RuntimeCall::StopContainer { id, .. }) = &sent.call {
            self.killing.stop_returned(id);
        }
        if let Call::Runtime(RuntimeCall::StartContainer { name, id }) = &sent.call
            && match &result {
                Ok(_) => true,
                Err(error) => error.is_definite() && !self.bring_up.sent_again.contains(id),
            }
        {
            self.start_is_settled(name);
        }
        match result {
            Ok(answer) => {
                let times = self.calls.succeeded(&sent.call, ctx.now.boot, self.record.uid.as_str());
                if times == ECHO_TOLD {
                    let message = format!(
                        "the runtime reported success {times} times without a lasting effect: {}",
                        sent.call.key()
                    );
                    self.event(true, "FailedSync", None, message, out);
                }
                self.succeeded(sent, answer, ctx, out);
            }
            Err(error) if error.in_doubt() && sent.call.is_start() && mutate::made(Mutant::DoubtIsFailure) => {}
            Err(error) if error.in_doubt() && sent.call.is_start() => {
                self.history.record(ctx.now, &format!("result of the {} is unknown", sent.call.key()), error.message());
                if error.is_unavailable() {
                    self.away(&sent.call, &error, ctx, out);
                }
                self.calls.doubt(sent, ctx.now.boot, error.is_unavailable());
            }
            Err(error) if error.is_unavailable() && (sent.call.changes_runtime() || sent.call.is_image()) => {
                self.away(&sent.call, &error, ctx, out)
            }
            Err(error) => self.failed(sent, error, ctx, out),
        }
    }

    fn succeeded(&mut self, sent: Sent, answer: Answer, ctx: &mut Ctx<'_>, out: &mut Out) {
        match sent.call {
            Call::Runtime(call) => self.runtime_call_succeeded(call, answer, sent.at, ctx, out),
            Call::Host(call) => self.host_call_succeeded(call, &answer, ctx),
        }
    }

    fn runtime_call_succeeded(
        &mut self,
        call: RuntimeCall,
        answer: Answer,
        sent_at: Time,
        ctx: &mut Ctx<'_>,
        out: &mut Out,
    ) {
        match (call, answer) {
            // The pod has come to want another image since.
            (RuntimeCall::ImageStatus { name, image } | RuntimeCall::PullImage { name, image }, _)
                if !self.is_image_of(&name, &image) => {}
            (RuntimeCall::ImageStatus { name, image }, Answer::Image(found)) => {
                self.image_status(name, &image, found, ctx, out)
            }
            (RuntimeCall::PullImage { name, image }, Answer::Image(found)) => {
                self.bring_up.pulls.remove(&name);
                let took = ctx.now.boot.saturating_sub(sent_at);
                let message = format!("Successfully pulled image {image:?} in {}ms", took.as_millis());
                self.event(false, "Pulled", Some(&name), message, out);
                self.bring_up.images.insert(name, found.map_or(Image::Absent, Image::Present));
            }
            (RuntimeCall::CreateContainer { name, .. }, _) => {
                self.bring_up.images.remove(&name);
                self.event(false, "Created", Some(&name), "Container created".into(), out);
            }
            (RuntimeCall::StartContainer { name, id }, _) => {
                self.bring_up.waiting.remove(&name);
                let what = self.describe_start(&name, &id);
                self.history.record(ctx.now, &what, "");
                self.event(false, "Started", Some(&name), "Container started".into(), out);
            }
            (RuntimeCall::StopSandbox { id }, _) => {
                self.killing.stopped_sandboxes.insert(id);
                // Nothing holds the cgroup any more, and someone may have removed it: the next sandbox is made in a whole one.
                self.setup.cgroup = false;
            }
            (RuntimeCall::RunSandbox { attempt }, Answer::Sandbox(id)) => {
                self.history.record(ctx.now, "sandbox created", &format!("{id}, attempt {attempt}"));
            }
            (RuntimeCall::Hook { kind, name, id, .. }, _) => self.hooked(kind, &name, &id, HookState::Done),
            (RuntimeCall::Probe { kind, name, id, .. }, Answer::Probe(verdict)) => {
                self.probed(kind, &name, &id, verdict, ctx, out)
            }
            _ => {}
        }
    }

    fn host_call_succeeded(&mut self, call: HostCall, answer: &Answer, ctx: &Ctx<'_>) {
        match call {
            HostCall::MakeCgroup => self.cgroup_is_there(*answer == Answer::Cgroup { made: true }, ctx),
            HostCall::MakeDirs => self.setup.dirs = true,
            HostCall::MountVolume { volume } => self.volume_is_set_up(volume),
            HostCall::PrepareContainer { name, attempt, .. } => {
                self.bring_up.prepared.insert(name, attempt);
            }
            HostCall::RemoveVolumes => self.cleaned.volumes = true,
            HostCall::RemoveCgroup => self.cleaned.cgroup = true,
            HostCall::RemoveDirs => self.cleaned.dirs = true,
            HostCall::RemoveLogs => self.cleaned.logs = true,
        }
    }

    /// "container c started (first start)", "container c restarted after exit code 3, attempt 4".
    fn describe_start(&self, name: &Name, id: &ContainerId) -> String {
        let attempt = self.observed.seen.container(id).map_or(0, |c| c.attempt);
        if attempt == 0 {
            return format!("container {name} started (first start)");
        }
        let memory = self.record.containers.get(name);
        let exits = memory.into_iter().flat_map(|m| [&m.exit, &m.previous_exit]).flatten();
        match exits.into_iter().find(|exit| exit.id != *id) {
            Some(exit) => format!("container {name} restarted after exit code {}, attempt {attempt}", exit.code),
            None => format!("container {name} restarted, attempt {attempt}"),
        }
    }

    fn image_status(&mut self, name: Name, image: &str, found: Option<ImageFacts>, ctx: &Ctx<'_>, out: &mut Out) {
        if found.is_some() {
            let message = format!("Container image {image:?} already present on machine");
            self.event(false, "Pulled", Some(&name), message, out);
        } else {
            self.history.record(ctx.now, &format!("image of container {name} is not present"), image);
        }
        self.bring_up.images.insert(name, found.map_or(Image::Absent, Image::Present));
    }

    fn hooked(&mut self, kind: HookKind, name: &Name, id: &ContainerId, state: HookState) {
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
        if error.retry() == Retry::Soon {
            return self.runtime_is_busy(sent.call, &error, ctx, out);
        }
        if !error.is_cancelled() {
            self.history.record(ctx.now, &format!("{key} failed"), error.message());
        }
        let retry = match &sent.call {
            Call::Runtime(call) => self.runtime_call_failed(call, &key, &error, ctx, out),
            Call::Host(call) => self.host_call_failed(call, &key, &error, ctx, out),
        };
        if let Some(delay) = retry {
            self.calls.failed(key, ctx.now.boot, delay, Some(error.message()), self.record.uid.as_str());
        }
    }

    /// Reports the failure. Returns the delay before the next try; `None` if it is not sent again, or has a backoff of its own.
    fn runtime_call_failed(
        &mut self,
        call: &RuntimeCall,
        key: &CallKey,
        error: &CallError,
        ctx: &Ctx<'_>,
        out: &mut Out,
    ) -> Option<Duration> {
        match call {
            // Hooks and probes are not tried again: a failed hook has its own consequence.
            RuntimeCall::Hook { kind, name, id, .. } => {
                self.hook_failed(*kind, name, id, error, out);
                return None;
            }
            RuntimeCall::Probe { kind, name, id, .. } => {
                let verdict = ProbeVerdict::Unknown(error.message().to_owned());
                self.probed(*kind, name, id, verdict, ctx, out);
                return None;
            }
            _ if error.is_cancelled() => return None,
            RuntimeCall::ImageStatus { name, image } | RuntimeCall::PullImage { name, image } => {
                self.image_failed(call, name, image, error, ctx, out);
                return None;
            }
            RuntimeCall::CreateContainer { name, .. } => {
                self.creation_failed(name, error, ctx, out);
                return None;
            }
            RuntimeCall::StartContainer { name, .. } => {
                self.bring_up.images.remove(name);
                self.note_failure(name, "RunContainerError", error.message(), ctx, out);
            }
            RuntimeCall::RunSandbox { .. } => {
                let message = format!("Failed to create pod sandbox: {}", error.message());
                self.event(true, "FailedCreatePodSandBox", None, message, out);
            }
            RuntimeCall::StopSandbox { .. } => {
                let message = format!("error killing pod: stopping its sandbox: {}", error.message());
                self.event(true, "FailedKillPod", None, message, out);
            }
            RuntimeCall::StopContainer { name, .. } => {
                let times = self.calls.failures(key) + 1;
                let message = format!("error killing pod: stopping container {name} ({times}×): {}", error.message());
                self.event(true, "FailedKillPod", Some(name), message, out);
            }
            RuntimeCall::RemoveContainer { .. } | RuntimeCall::RemoveSandbox { .. } => {
                let delay = (RETRY * 2u32.pow(self.calls.failures(key).min(8))).min(REMOVE_MAX);
                self.event(true, "FailedSync", None, format!("{key} failed: {}", error.message()), out);
                return Some(delay);
            }
        }
        Some(RETRY)
    }

    fn host_call_failed(
        &mut self,
        call: &HostCall,
        key: &CallKey,
        error: &CallError,
        ctx: &Ctx<'_>,
        out: &mut Out,
    ) -> Option<Duration> {
        match call {
            _ if error.is_cancelled() => return None,
            HostCall::PrepareContainer { name, .. } => {
                self.creation_failed(name, error, ctx, out);
                return None;
            }
            HostCall::MountVolume { volume } => {
                let message =
                    format!("MountVolume.SetUp failed for volume {:?} : {}", volume.as_str(), error.message());
                self.event(true, "FailedMount", None, message, out);
                return Some(self.mount_delay(volume));
            }
            HostCall::MakeCgroup => {
                let message = format!("unable to ensure pod container exists: {}", error.message());
                self.event(true, "FailedCreatePodContainer", None, message, out);
            }
            _ => self.event(true, "FailedSync", None, format!("{key} failed: {}", error.message()), out),
        }
        Some(RETRY)
    }

    /// A container could not be prepared or created: everything up to its creation is done again.
    fn creation_failed(&mut self, name: &Name, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        self.bring_up.images.remove(name);
        self.note_failure(name, error.reason().unwrap_or("CreateContainerError"), error.message(), ctx, out);
    }

    fn image_failed(
        &mut self,
        call: &RuntimeCall,
        name: &Name,
        image: &str,
        error: &CallError,
        ctx: &Ctx<'_>,
        out: &mut Out,
    ) {
        if !self.is_image_of(name, image) {
            return;
        }
        if matches!(call, RuntimeCall::PullImage { .. }) {
            return self.pull_failed(name, image, error, ctx, out);
        }
        let reason = error.reason().unwrap_or("ImageInspectError");
        let told = ("InspectFailed", format!("Failed to inspect image {image:?}: {}", error.message()));
        self.note_image_failure(name, reason, error.message(), told, ctx, out);
    }

    /// The runtime is away: nothing about this pod, and the plan asks again when it is back. If only this call finds it away,
    /// as when a pod's shim is gone, it is asked again calmly.
    fn away(&mut self, call: &Call, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let key = call.key();
        let times = self.calls.failures(&key) + 1;
        if times.is_multiple_of(AWAY_TOLD) {
            let message = format!("the runtime is not available for this pod: {}", error.message());
            self.event(true, "FailedSync", None, message, out);
        }
        self.calls.failed(key, ctx.now.boot, AWAY * times.min(10), None, self.record.uid.as_str());
    }

    /// The runtime has not let go of the name yet. It guards us from doing a thing twice, so asking again is safe; a name that
    /// never comes free is left behind.
    fn runtime_is_busy(&mut self, call: Call, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let key = call.key();
        let times = self.calls.failures(&key) + 1;
        let given_up = times.is_multiple_of(BUSY_MAX);
        let message = given_up.then(|| error.message());
        self.calls.failed(key.clone(), ctx.now.boot, BUSY * times.min(10), message, self.record.uid.as_str());
        if !given_up {
            return;
        }
        self.history.record(ctx.now, &format!("{key} failed"), error.message());
        self.event(
            true,
            "FailedSync",
            None,
            format!("the runtime does not let go of an earlier call: {}", error.message()),
            out,
        );
        self.leave_behind(call);
    }

    fn hook_failed(&mut self, kind: HookKind, name: &Name, id: &ContainerId, error: &CallError, out: &mut Out) {
        // A preStop that was cut short has had its time; a postStart that was interrupted has no container to answer for. If the
        // runtime went away under a hook nobody knows how it ended, and a container is not killed for that.
        let state = if error.is_cancelled() || error.is_unavailable() { HookState::Done } else { HookState::Failed };
        self.hooked(kind, name, id, state);
        if !error.is_cancelled() {
            let (reason, hook) = match kind {
                HookKind::PostStart => ("FailedPostStartHook", "PostStartHook"),
                HookKind::PreStop => ("FailedPreStopHook", "PreStopHook"),
            };
            self.event(true, reason, Some(name), format!("{hook} failed: {}", error.message()), out);
        }
    }

    fn pull_failed(&mut self, name: &Name, image: &str, error: &CallError, ctx: &Ctx<'_>, out: &mut Out) {
        let reason = error.reason().unwrap_or("ErrImagePull");
        let message = format!("Failed to pull image {image:?}: {}", error.message());
        self.event(true, "Failed", Some(name), message, out);
        self.event(true, "Failed", Some(name), format!("Error: {reason}"), out);
        let waiting = crate::actions::Waiting { reason: reason.to_owned(), message: error.message().to_owned() };
        self.bring_up.waiting.insert(name.clone(), waiting);
        let (backoff, last) = self.bring_up.pulls.entry(name.clone()).or_default();
        backoff.failed(ctx.now.boot);
        *last = format!("{reason}: {}", error.message());
    }
}
