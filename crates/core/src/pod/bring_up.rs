//! The start of containers: image, preparation on the host, creation, start.

mod images;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use super::PodFacts;
use super::setup::SETUP_LIMIT;
use super::step::PodStep;
use crate::actions::Start;
use crate::model::history_text::{RESTARTED, STARTED, container_text};
use crate::model::{
    Call, CallError, CallKey, Container, ContainerId, HostCall, ImageFacts, Name, Pod, RunState, RuntimeCall,
    SandboxId, Time, find_container, spec_of,
};

use images::ContainerImages;
use waiting::WaitingContainers;

/// State of the containers that this process is starting. Not journaled.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct BringUp {
    pub(super) images: ContainerImages,
    /// The attempt for which the host side is ready.
    prepared: BTreeMap<Name, u32>,
    pub(super) waiting: WaitingContainers,
    /// Instances whose start was sent more than once.
    sent_again: BTreeSet<ContainerId>,
    /// Restarts requested by a user.
    restart_now: BTreeSet<Name>,
    /// The earliest end of a backoff.
    wake_at: Option<Time>,
}

impl BringUp {
    pub(super) fn restart_now(&self) -> &BTreeSet<Name> {
        &self.restart_now
    }

    pub(super) fn request_restart(&mut self, name: Name) {
        self.restart_now.insert(name);
    }

    /// The restart that was requested is under way.
    pub(super) fn restart_begun(&mut self, name: &Name) {
        self.restart_now.remove(name);
    }

    pub(super) fn wake(&self, now: Time) -> Option<Time> {
        self.images.wake(now).into_iter().chain(self.wake_at).filter(|at| *at > now).min()
    }

    /// Takes the next step of every container that is to start.
    pub(super) fn plan(
        &mut self,
        starts: &[Start],
        sandbox: Option<&SandboxId>,
        wake_at: Option<Time>,
        step: &mut PodStep<'_, '_>,
    ) {
        for start in starts {
            if let Some(sandbox) = sandbox {
                self.start(start, sandbox, step);
            }
        }
        remove_unstarted(starts, step);
        self.wake_at = wake_at;
        self.images.retain(|name| starts.iter().any(|s| s.name == *name));
    }

    /// Requests the next call for one container.
    fn start(&mut self, start: &Start, sandbox: &SandboxId, step: &mut PodStep<'_, '_>) {
        let name = &start.name;
        // An instance whose start is in flight may run at any moment, even if it is not wanted any more: its result is awaited.
        let starting = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::StartContainer { name: n, .. }) if n == name);
        if step.facts.calls.any(starting) || may_start_late(step.facts, name, start.existing.as_ref()) {
            return;
        }
        if let Some(id) = start.existing.clone() {
            return self.start_created(name, id, step);
        }
        let Some(found) = find_container(&step.facts.record.pod, name.as_str()) else { return };
        let container = found.container.into_owned();
        if !step.facts.calls.may_send(&CallKey::Container(name.clone()), step.now().boot) {
            return;
        }
        let Some(facts) = self.images.present(name, &container, &mut self.waiting, step) else { return };
        if let Err(error) = check_non_root(&step.facts.record.pod, &container, &facts) {
            return self.waiting.start_failed(name, "CreateContainerConfigError", &error.to_string(), step);
        }
        let ips = step.facts.ips();
        if self.prepared.get(name) != Some(&start.attempt) {
            let prepare = HostCall::PrepareContainer { name: name.clone(), attempt: start.attempt, ips };
            step.request(prepare, SETUP_LIMIT);
            return;
        }
        let mut sandboxes = step.facts.observed.seen.sandboxes.iter();
        let sandbox_attempt = sandboxes.find(|s| s.id == *sandbox).map_or(0, |s| s.attempt);
        let call = Call::Runtime(RuntimeCall::CreateContainer {
            sandbox: sandbox.clone(),
            sandbox_attempt,
            name: name.clone(),
            attempt: start.attempt,
            image_id: facts.id,
            ips,
        });
        if step.request(call, step.ctx.config.runtime_request_timeout) {
            self.restart_now.remove(name);
            if start.backoff.is_some() {
                step.facts.record.edit_container(name, |memory| memory.backoff = start.backoff.clone());
            }
        }
    }

    /// Starts an instance that is created.
    fn start_created(&mut self, name: &Name, id: ContainerId, step: &mut PodStep<'_, '_>) {
        let call = RuntimeCall::StartContainer { name: name.clone(), id: id.clone() };
        if step.request(call, step.ctx.config.runtime_request_timeout) {
            let earlier = step.facts.record.containers.get(name).and_then(|memory| memory.starting.as_ref());
            if earlier == Some(&id) {
                // An earlier start has no definite result: a failure now may be the failure of that one.
                self.sent_again.insert(id);
            } else {
                step.facts.record.edit_container(name, |memory| memory.starting = Some(id));
            }
        }
    }

    // --- results ---

    pub(super) fn prepared(&mut self, name: Name, attempt: u32) {
        self.prepared.insert(name, attempt);
    }

    pub(super) fn created(&mut self, name: &Name, step: &mut PodStep<'_, '_>) {
        self.images.forget(name);
        step.notify("Created", Some(name), "Container created".into());
    }

    pub(super) fn started(&mut self, name: &Name, id: &ContainerId, step: &mut PodStep<'_, '_>) {
        self.waiting.remove(name.as_str());
        let what = describe_start(step.facts, name, id);
        step.history(&what, "");
        step.notify("Started", Some(name), "Container started".into());
    }

    /// The start was sent more than once: a failure may be that of the earlier call.
    pub(super) fn was_sent_again(&self, id: &ContainerId) -> bool {
        self.sent_again.contains(id)
    }

    pub(super) fn start_settled(&mut self, id: &ContainerId) {
        self.sent_again.remove(id);
    }

    /// A container could not be prepared or created: everything up to its creation is done again.
    pub(super) fn creation_failed(&mut self, name: &Name, error: &CallError, step: &mut PodStep<'_, '_>) {
        self.images.forget(name);
        self.waiting.start_failed(name, error.reason().unwrap_or("CreateContainerError"), error.message(), step);
    }

    pub(super) fn start_failed(&mut self, name: &Name, error: &CallError, step: &mut PodStep<'_, '_>) {
        self.images.forget(name);
        self.waiting.start_failed(name, "RunContainerError", error.message(), step);
    }
}

/// Another instance was sent a start and its result is unknown: nothing replaces it before it is removed. A runtime does not
/// remove what it is starting, nor start what it has removed.
fn may_start_late(facts: &PodFacts, name: &Name, instead: Option<&ContainerId>) -> bool {
    let starting = facts.record.containers.get(name).and_then(|m| m.starting.as_ref());
    let there = |id: &ContainerId| facts.observed.seen.container(id).is_some_and(|c| c.state == RunState::Created);
    starting.is_some_and(|id| Some(id) != instead && there(id))
}

/// An instance that was created and that the plan does not start surfaced late from a call in doubt: it is removed.
fn remove_unstarted(starts: &[Start], step: &mut PodStep<'_, '_>) {
    let started = |id: &ContainerId| starts.iter().any(|start| start.existing.as_ref() == Some(id));
    let seen = step.facts.observed.seen.containers.iter();
    let strays = seen.filter(|c| c.state == RunState::Created && !started(&c.id));
    let strays: Vec<_> = strays.map(|c| (c.name.clone(), c.id.clone())).collect();
    for (name, id) in strays {
        step.request(RuntimeCall::RemoveContainer { name, id }, step.ctx.config.runtime_request_timeout);
    }
}

/// "container c started (first start)", "container c restarted after exit code 3, attempt 4".
fn describe_start(facts: &PodFacts, name: &Name, id: &ContainerId) -> String {
    let attempt = facts.observed.seen.container(id).map_or(0, |c| c.attempt);
    if attempt == 0 {
        return container_text(name, format_args!("{STARTED} (first start)"));
    }
    let memory = facts.record.containers.get(name);
    let exits = memory.into_iter().flat_map(|m| [&m.exit, &m.previous_exit]).flatten();
    match exits.into_iter().find(|exit| exit.id != *id) {
        Some(exit) => {
            container_text(name, format_args!("{RESTARTED} after exit code {}, attempt {attempt}", exit.code))
        }
        None => container_text(name, format_args!("{RESTARTED}, attempt {attempt}")),
    }
}

/// `runAsNonRoot` cannot be guaranteed. The texts are those of the kubelet.
#[derive(Debug, thiserror::Error)]
#[error("{failure} (pod: {pod:?}, container: {container})")]
struct NonRootError {
    failure: NonRootFailure,
    /// Name, namespace and UID.
    pod: String,
    container: String,
}

#[derive(Debug, thiserror::Error)]
enum NonRootFailure {
    #[error("container's runAsUser breaks non-root policy")]
    RunAsUser,
    #[error("container has runAsNonRoot and image will run as root")]
    RootImage,
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    NamedUser(String),
}

/// Kubernetes: verifyRunAsNonRoot.
fn check_non_root(pod: &Pod, container: &Container, image: &ImageFacts) -> Result<(), NonRootError> {
    let of_pod = spec_of(pod).security_context.as_ref();
    let own = container.security_context.as_ref();
    let required = own.and_then(|c| c.run_as_non_root).or(of_pod.and_then(|p| p.run_as_non_root)) == Some(true);
    if !required {
        return Ok(());
    }
    let user = own.and_then(|c| c.run_as_user).or(of_pod.and_then(|p| p.run_as_user));
    let failure = match (user, image.uid, image.username.as_str()) {
        (Some(0), ..) => NonRootFailure::RunAsUser,
        (Some(_), ..) => return Ok(()),
        (None, Some(0), _) | (None, None, "") => NonRootFailure::RootImage,
        (None, None, user) => NonRootFailure::NamedUser(user.to_owned()),
        (None, Some(_), _) => return Ok(()),
    };
    Err(NonRootError { failure, pod: crate::actions::format_pod(pod), container: container.name.clone() })
}
