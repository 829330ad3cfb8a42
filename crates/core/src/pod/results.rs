//! Applies the result of a call to its pod.

use std::time::Duration;

use super::calls::{RETRY, Sent};
use super::progress::Progress;
use super::step::PodStep;
use super::{hooks, record_update, resizing, setup};
use crate::model::{
    Answer, Call, CallError, CallKey, HookState, HostCall, ProbeVerdict, Retry, RuntimeCall, Time, history_text,
};
use crate::mutate::{self, Mutant};

/// The first delay if the runtime still works on an earlier call for that name; it grows by as much each time, up to ten times.
const BUSY_DELAY: Duration = Duration::from_secs(1);
/// Tries before the name is given up.
const BUSY_MAX: u32 = 20;

/// The first delay if the runtime is unavailable for one call and answers others; it grows by as much each time, ten times at most.
const UNAVAILABLE_DELAY: Duration = Duration::from_secs(1);
/// Tries before an event reports it.
const UNAVAILABLE_REPORTED: u32 = 3;

/// The longest delay before a removal is retried: what is left only takes disk space.
const REMOVE_MAX: Duration = Duration::from_secs(60);

/// Successes of the same call in a row before an event reports it.
const REPEATED_SUCCESS_REPORTED: u32 = 3;

impl Progress {
    pub(super) fn returned(&mut self, sent: Sent, result: Result<Answer, CallError>, step: &mut PodStep<'_, '_>) {
        if let Call::Runtime(RuntimeCall::StopContainer { id, .. }) = &sent.call {
            self.stops.returned(id);
        }
        if let Call::Runtime(RuntimeCall::StartContainer { name, id }) = &sent.call
            && match &result {
                Ok(_) => true,
                Err(error) => error.is_definite() && !self.bring_up.was_sent_again(id),
            }
        {
            record_update::clear_starting(step.facts, name);
        }
        match result {
            Ok(answer) => {
                let uid = step.facts.record.uid.clone();
                let times = step.facts.calls.succeeded(&sent.call, step.ctx.now.boot, uid.as_str());
                if times == REPEATED_SUCCESS_REPORTED {
                    let message = format!(
                        "the runtime reported success {times} times without a lasting effect: {}",
                        sent.call.key()
                    );
                    step.warn("FailedSync", None, message);
                }
                self.succeeded(sent, answer, step);
            }
            Err(error) if error.in_doubt() && sent.call.is_start() && mutate::is_active(Mutant::DoubtIsFailure) => {}
            Err(error) if error.in_doubt() && sent.call.is_start() => {
                step.history(&format!("result of the {} is unknown", sent.call.key()), error.message());
                if error.is_unavailable() {
                    runtime_unavailable(&sent.call, &error, step);
                }
                let now = step.now().boot;
                step.facts.calls.doubt(sent, now, error.is_unavailable());
            }
            Err(error) if error.is_unavailable() && (sent.call.changes_runtime() || sent.call.is_image()) => {
                runtime_unavailable(&sent.call, &error, step)
            }
            Err(error) => self.failed(sent, &error, step),
        }
    }

    fn succeeded(&mut self, sent: Sent, answer: Answer, step: &mut PodStep<'_, '_>) {
        match sent.call {
            Call::Runtime(call) => self.runtime_call_succeeded(call, answer, sent.at, step),
            Call::Host(call) => self.host_call_succeeded(call, &answer, step),
        }
    }

    fn runtime_call_succeeded(&mut self, call: RuntimeCall, answer: Answer, sent_at: Time, step: &mut PodStep<'_, '_>) {
        match (call, answer) {
            (RuntimeCall::ImageStatus { name, image }, Answer::Image(found)) => {
                self.bring_up.images.found(name, &image, found, step)
            }
            (RuntimeCall::PullImage { name, image }, Answer::Image(found)) => {
                self.bring_up.images.pulled(name, &image, found, sent_at, step)
            }
            (RuntimeCall::CreateContainer { name, .. }, _) => self.bring_up.created(&name, step),
            (RuntimeCall::StartContainer { name, id }, _) => self.bring_up.started(&name, &id, step),
            (RuntimeCall::StopSandbox { id }, _) => {
                self.stops.sandbox_stopped(id);
                self.setup.sandbox_stopped();
            }
            (RuntimeCall::RunSandbox { attempt }, Answer::Sandbox(id)) => {
                step.history(history_text::SANDBOX_CREATED, &format!("{id}, attempt {attempt}"));
            }
            (call @ RuntimeCall::UpdateContainer { .. }, _) => resizing::updated(step.facts, &call),
            (RuntimeCall::UpdateSandbox { cpu_shares, cpu_quota_us, memory, .. }, _) => {
                self.resizing.accepted(cpu_shares, cpu_quota_us, memory)
            }
            (RuntimeCall::Hook { kind, name, id, .. }, _) => {
                hooks::hook_ended(step.facts, kind, &name, &id, HookState::Done)
            }
            (RuntimeCall::Probe { kind, name, id, .. }, Answer::Probe(verdict)) => {
                self.probing.ended(kind, &name, &id, verdict, step)
            }
            _ => {}
        }
    }

    fn host_call_succeeded(&mut self, call: HostCall, answer: &Answer, step: &mut PodStep<'_, '_>) {
        match call {
            HostCall::MakeCgroup => {
                self.setup.cgroup_made(*answer == Answer::Cgroup { made: true }, step.facts, step.ctx.now)
            }
            HostCall::MakeDirs => self.setup.dirs_made(),
            HostCall::MountVolume { volume } => self.setup.volume_mounted(volume),
            HostCall::PrepareContainer { name, attempt, .. } => self.bring_up.prepared(name, attempt),
            HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory } => {
                self.setup.cgroup_resized(cpu_shares, cpu_quota_us, memory)
            }
            call @ HostCall::ReadMemory { .. } => {
                if let Answer::Memory(used) = answer {
                    self.resizing.memory_read(&Call::Host(call), used, &self.setup, step);
                }
            }
            HostCall::RemoveVolumes => self.cleanup.volumes_removed(),
            HostCall::RemoveCgroup => self.cleanup.cgroup_removed(),
            HostCall::RemoveDirs => self.cleanup.dirs_removed(),
            HostCall::RemoveLogs => self.cleanup.logs_removed(),
        }
    }

    fn failed(&mut self, sent: Sent, error: &CallError, step: &mut PodStep<'_, '_>) {
        let key = sent.call.key();
        if error.retry() == Retry::Soon {
            return runtime_busy(sent.call, error, step);
        }
        if !error.is_cancelled() {
            step.history(&history_text::call_failed(&key), error.message());
        }
        let retry = match &sent.call {
            Call::Runtime(call) => self.runtime_call_failed(call, &key, error, step),
            Call::Host(call) => self.host_call_failed(call, &key, error, step),
        };
        if let Some(delay) = retry {
            step.facts.call_failed(&sent.call, step.ctx.now, delay, Some(error.message()));
        }
    }

    /// Reports the failure. Returns the delay before the next try; `None` if it is not sent again, or has a backoff of its own.
    fn runtime_call_failed(
        &mut self,
        call: &RuntimeCall,
        key: &CallKey,
        error: &CallError,
        step: &mut PodStep<'_, '_>,
    ) -> Option<Duration> {
        match call {
            // Hooks and probes are not tried again: a failed hook has its own consequence.
            RuntimeCall::Hook { kind, name, id, .. } => {
                hooks::hook_failed(step, *kind, name, id, error);
                return None;
            }
            RuntimeCall::Probe { kind, name, id, .. } => {
                let verdict = ProbeVerdict::Unknown(error.message().to_owned());
                self.probing.ended(*kind, name, id, verdict, step);
                return None;
            }
            _ if error.is_cancelled() => return None,
            RuntimeCall::ImageStatus { name, image } => {
                self.bring_up.images.inspection_failed(name, image, error, &mut self.bring_up.waiting, step);
                return None;
            }
            RuntimeCall::PullImage { name, image } => {
                self.bring_up.images.pull_failed(name, image, error, &mut self.bring_up.waiting, step);
                return None;
            }
            RuntimeCall::CreateContainer { name, .. } => {
                self.bring_up.creation_failed(name, error, step);
                return None;
            }
            RuntimeCall::StartContainer { name, .. } => self.bring_up.start_failed(name, error, step),
            RuntimeCall::UpdateContainer { .. } | RuntimeCall::UpdateSandbox { .. } => {
                self.resizing.failed(error.message(), step)
            }
            RuntimeCall::RunSandbox { .. } => {
                let message = format!("Failed to create pod sandbox: {}", error.message());
                step.warn("FailedCreatePodSandBox", None, message);
            }
            RuntimeCall::StopSandbox { .. } => {
                let message = format!("error killing pod: stopping its sandbox: {}", error.message());
                step.warn("FailedKillPod", None, message);
            }
            RuntimeCall::StopContainer { name, .. } => {
                let times = step.facts.calls.failures(key) + 1;
                let message = format!("error killing pod: stopping container {name} ({times}×): {}", error.message());
                step.warn("FailedKillPod", Some(name), message);
            }
            RuntimeCall::RemoveContainer { .. } | RuntimeCall::RemoveSandbox { .. } => {
                let delay = (RETRY * 2u32.pow(step.facts.calls.failures(key).min(8))).min(REMOVE_MAX);
                step.warn("FailedSync", None, format!("{key} failed: {}", error.message()));
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
        step: &mut PodStep<'_, '_>,
    ) -> Option<Duration> {
        match call {
            _ if error.is_cancelled() => return None,
            HostCall::PrepareContainer { name, .. } => {
                self.bring_up.creation_failed(name, error, step);
                return None;
            }
            HostCall::MountVolume { volume } => {
                let message =
                    format!("MountVolume.SetUp failed for volume {:?} : {}", volume.as_str(), error.message());
                step.warn("FailedMount", None, message);
                return Some(setup::mount_delay(step.facts, volume));
            }
            HostCall::ResizeCgroup { .. } | HostCall::ReadMemory { .. } => self.resizing.failed(error.message(), step),
            HostCall::MakeCgroup => {
                let message = format!("unable to ensure pod container exists: {}", error.message());
                step.warn("FailedCreatePodContainer", None, message);
            }
            _ => step.warn("FailedSync", None, format!("{key} failed: {}", error.message())),
        }
        Some(RETRY)
    }
}

/// The runtime is unavailable, which is not a failure of this pod: the plan requests the call again when it returns. If only this
/// call finds it unavailable, for example because the shim of the pod is gone, the delay grows.
fn runtime_unavailable(call: &Call, error: &CallError, step: &mut PodStep<'_, '_>) {
    let times = step.facts.calls.failures(&call.key()) + 1;
    if times.is_multiple_of(UNAVAILABLE_REPORTED) {
        let message = format!("the runtime is not available for this pod: {}", error.message());
        step.warn("FailedSync", None, message);
    }
    step.facts.call_failed(call, step.ctx.now, UNAVAILABLE_DELAY * times.min(10), None);
}

/// The runtime has not released the name yet. The reservation prevents duplicates, so the call can be repeated safely; a name
/// that is never released is given up.
fn runtime_busy(call: Call, error: &CallError, step: &mut PodStep<'_, '_>) {
    let key = call.key();
    let times = step.facts.calls.failures(&key) + 1;
    let given_up = times.is_multiple_of(BUSY_MAX);
    let message = given_up.then(|| error.message());
    step.facts.call_failed(&call, step.ctx.now, BUSY_DELAY * times.min(10), message);
    if !given_up {
        return;
    }
    step.history(&history_text::call_failed(&key), error.message());
    step.warn("FailedSync", None, format!("the runtime still holds the name of an earlier call: {}", error.message()));
    record_update::skip_attempt(step.facts, call);
}
