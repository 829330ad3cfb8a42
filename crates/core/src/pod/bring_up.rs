//! The way of one container: image, preparation, creation, start, postStart hook.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::sync::SETUP_LIMIT;
use super::{Ctx, Machine};
use crate::actions::{Start, Waiting};
use crate::backoff::ImageBackoff;
use crate::model::{
    Call, CallKey, Container, ContainerId, HookKind, HookState, HostCall, ImageFacts, Name, Out, Pod, RunState,
    RuntimeCall, SandboxId, Time, find_container, spec_of,
};
use crate::mutate::{self, Mutant};

/// A pull may take long; the runtime itself ends one that makes no progress.
const PULL_LIMIT: Duration = Duration::from_secs(3600);
/// Kubernetes puts no limit on postStart; ours only keeps a lost hook from being waited for until the end of days.
const POST_START_LIMIT: Duration = Duration::from_secs(3600);

/// What this process knows of containers on their way.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct BringUp {
    /// The image of a container that is to be created next.
    pub(super) images: BTreeMap<Name, Image>,
    /// Pulls that failed, with the last error.
    pub(super) pulls: BTreeMap<Name, (ImageBackoff, String)>,
    /// The attempt for which the host side is ready.
    pub(super) prepared: BTreeMap<Name, u32>,
    /// Why a container does not run: what `state.waiting` shows.
    pub(super) waiting: BTreeMap<Name, Waiting>,
    /// Instances whose start was sent more than once.
    pub(super) sent_again: BTreeSet<ContainerId>,
    /// Restarts a person asked for.
    pub(super) restart_now: BTreeSet<Name>,
    /// The earliest end of a backoff.
    pub(super) wake_at: Option<Time>,
}

/// Whether an image is here.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Image {
    Present(ImageFacts),
    Absent,
}

impl BringUp {
    pub(super) fn wake(&self, now: Time) -> Option<Time> {
        let pulls = self.pulls.values().filter_map(|(b, _)| b.until(now).map(|until| [b.error_shown_until(), until]));
        pulls.flatten().chain(self.wake_at).filter(|at| *at > now).min()
    }

    /// What is known of an image is only good for the start it was asked for.
    pub(super) fn forget_unwanted(&mut self, wanted: &[Start]) {
        self.images.retain(|name, _| wanted.iter().any(|s| s.name == *name));
    }
}

impl Machine {
    /// One step of one container's way.
    pub(super) fn bring_up(&mut self, start: &Start, sandbox: &SandboxId, ctx: &mut Ctx<'_>, out: &mut Out) {
        let limit = ctx.config.runtime_request_timeout;
        let name = start.name.clone();
        // An instance whose start is under way may run any moment, wanted or not: it is waited for.
        if self
            .calls
            .any(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { name: started, .. }) if *started == name))
        {
            return;
        }
        if self.may_start_late(&name, start.existing.as_ref()) {
            return;
        }
        if let Some(id) = start.existing.clone() {
            return self.start_created(name, id, ctx, out);
        }
        let Some(found) = find_container(&self.record.pod, name.as_str()) else { return };
        let container = found.container.into_owned();
        let (image, policy) = (container.image.clone().unwrap_or_default(), container.image_pull_policy.clone());
        if !self.calls.may_send(&CallKey::Container(name.clone()), ctx.now.boot) {
            return;
        }
        let facts = match (self.bring_up.images.get(&name), policy.as_deref()) {
            (None, Some("Always")) => return self.pull(name, image, ctx, out),
            (None, _) => {
                self.ask(RuntimeCall::ImageStatus { name, image }, limit, ctx, out);
                return;
            }
            (Some(Image::Absent), Some("Never")) => {
                let message = format!("Container image {image:?} is not present with pull policy of Never");
                self.bring_up.images.remove(&name);
                let told = ("ErrImageNeverPull", message.clone());
                return self.note_image_failure(&name, "ErrImageNeverPull", &message, told, ctx, out);
            }
            (Some(Image::Absent), _) => return self.pull(name, image, ctx, out),
            (Some(Image::Present(facts)), _) => facts.clone(),
        };
        if let Err(message) = check_non_root(&self.record.pod, &container, &facts) {
            return self.note_failure(&name, "CreateContainerConfigError", &message, ctx, out);
        }
        let ips = self.ips();
        if self.bring_up.prepared.get(&name) != Some(&start.attempt) {
            self.ask(HostCall::PrepareContainer { name, attempt: start.attempt, ips }, SETUP_LIMIT, ctx, out);
            return;
        }
        let sandbox_attempt = self.observed.seen.sandboxes.iter().find(|s| s.id == *sandbox).map_or(0, |s| s.attempt);
        let call = Call::Runtime(RuntimeCall::CreateContainer {
            sandbox: sandbox.clone(),
            sandbox_attempt,
            name,
            attempt: start.attempt,
            image_id: facts.id,
            ips,
        });
        let name = start.name.clone();
        if self.ask(call, limit, ctx, out) {
            self.bring_up.restart_now.remove(&name);
            if start.backoff.is_some() {
                self.record.containers.entry(name).or_default().backoff = start.backoff.clone();
                self.unsaved = true;
            }
        }
    }

    /// Starts an instance that is created.
    fn start_created(&mut self, name: Name, id: ContainerId, ctx: &mut Ctx<'_>, out: &mut Out) {
        let call = RuntimeCall::StartContainer { name: name.clone(), id: id.clone() };
        if self.ask(call, ctx.config.runtime_request_timeout, ctx, out) {
            let memory = self.record.containers.entry(name).or_default();
            if memory.starting.as_ref() == Some(&id) {
                // An earlier start has no definite result: a failure now may be the failure of that one.
                self.bring_up.sent_again.insert(id);
            } else {
                memory.starting = Some(id);
                self.unsaved = true;
            }
        }
    }

    /// Another instance was told to start and nobody knows whether it will: nothing takes its place before it is removed. A
    /// runtime does not remove what it is starting, nor start what it has removed.
    fn may_start_late(&self, name: &Name, instead: Option<&ContainerId>) -> bool {
        let told = self.record.containers.get(name).and_then(|m| m.starting.as_ref());
        let there = |id: &ContainerId| self.observed.seen.container(id).is_some_and(|c| c.state == RunState::Created);
        told.is_some_and(|id| Some(id) != instead && there(id))
    }

    fn pull(&mut self, name: Name, image: String, ctx: &mut Ctx<'_>, out: &mut Out) {
        if let Some((backoff, error)) = self.bring_up.pulls.get(&name)
            && backoff.until(ctx.now.boot).is_some()
        {
            if ctx.now.boot < backoff.error_shown_until() {
                return;
            }
            let message = format!("Back-off pulling image {image:?}");
            let waiting = Waiting { reason: "ImagePullBackOff".into(), message: format!("{message}: {error}") };
            if self.bring_up.waiting.get(&name).is_none_or(|w| w.reason != waiting.reason) {
                self.event(false, "BackOff", Some(&name), message, out);
                self.event(true, "Failed", Some(&name), format!("Error: {}", waiting.reason), out);
            }
            self.bring_up.waiting.insert(name, waiting);
            return;
        }
        if self.ask(RuntimeCall::PullImage { name: name.clone(), image: image.clone() }, PULL_LIMIT, ctx, out) {
            self.event(false, "Pulling", Some(&name), format!("Pulling image {image:?}"), out);
        }
    }

    /// What is known of images that the pod wants no more, and the pulls of them, say nothing about those it wants now.
    pub(super) fn forget_images(&mut self, before: &Pod, out: &mut Out) {
        let now = Arc::clone(&self.record.pod);
        for (name, image) in images(before).filter(|(name, image)| !wants_image(&now, name, image)) {
            self.bring_up.images.remove(name);
            if self.bring_up.pulls.remove(name).is_some() {
                self.bring_up.waiting.remove(name);
            }
            self.cancel(
                |c| matches!(c, Call::Runtime(RuntimeCall::PullImage { name: n, image: i }) if n.as_str() == name && i == image),
                out,
            );
        }
    }

    /// This image is still the one to make the container of.
    pub(super) fn is_image_of(&self, name: &Name, image: &str) -> bool {
        wants_image(&self.record.pod, name.as_str(), image)
    }

    /// A container cannot be brought up now: say why, and wait.
    pub(super) fn note_failure(&mut self, name: &Name, reason: &str, message: &str, ctx: &Ctx<'_>, out: &mut Out) {
        if self.now_waits(name, reason, message, ctx) {
            self.event(true, "Failed", Some(name), format!("Error: {message}"), out);
        }
    }

    /// As `note_failure`, for want of an image: what is wrong with it is told first, by an event of its own.
    pub(super) fn note_image_failure(
        &mut self,
        name: &Name,
        reason: &str,
        message: &str,
        told: (&'static str, String),
        ctx: &Ctx<'_>,
        out: &mut Out,
    ) {
        if self.now_waits(name, reason, message, ctx) {
            self.event(true, told.0, Some(name), told.1, out);
            self.event(true, "Failed", Some(name), format!("Error: {reason}"), out);
        }
    }

    /// It is tried again later. True if the reason is news.
    fn now_waits(&mut self, name: &Name, reason: &str, message: &str, ctx: &Ctx<'_>) -> bool {
        let waiting = Waiting { reason: reason.to_owned(), message: message.to_owned() };
        let is_news = self.bring_up.waiting.get(name) != Some(&waiting);
        if is_news {
            self.history.record(ctx.now, &format!("container {name} is waiting: {reason}"), message);
            self.bring_up.waiting.insert(name.clone(), waiting);
        }
        let key = CallKey::Container(name.clone());
        self.calls.failed(key, ctx.now.boot, super::calls::RETRY, Some(message), self.record.uid.as_str());
        is_news
    }

    /// The plan says why containers wait; what runs waits for nothing.
    pub(super) fn note_waiting(&mut self, planned: &BTreeMap<Name, Waiting>, ctx: &Ctx<'_>, out: &mut Out) {
        let seen = &self.observed.seen;
        let runs = |name: &Name| seen.containers.iter().any(|c| c.name == *name && c.state == RunState::Running);
        self.bring_up
            .waiting
            .retain(|name, w| !runs(name) && (w.reason != "CrashLoopBackOff" || planned.contains_key(name)));
        for (name, waiting) in planned {
            // The next instance is being made: the backoff that was written down with it is for the one after.
            let coming = self.calls.busy(&CallKey::Container(name.clone()));
            if !coming && self.bring_up.waiting.get(name) != Some(waiting) {
                if waiting.reason == "CrashLoopBackOff" {
                    self.history.record(
                        ctx.now,
                        &format!("container {name} is waiting: {}", waiting.reason),
                        &waiting.message,
                    );
                    let pod = crate::actions::format_pod(&self.record.pod);
                    let message = format!("Back-off restarting failed container {name} in pod {pod}");
                    self.event(true, "BackOff", Some(name), message, out);
                }
                self.bring_up.waiting.insert(name.clone(), waiting.clone());
            }
        }
    }

    /// postStart runs once for each instance that runs.
    pub(super) fn plan_hooks(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        let running = self.observed.seen.containers.iter().filter(|c| c.state == RunState::Running);
        let running: Vec<_> = running.map(|c| (c.name.clone(), c.id.clone())).collect();
        for (name, id) in running {
            let Some(found) = find_container(&self.record.pod, name.as_str()) else { continue };
            if found.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()).is_none() {
                continue;
            }
            let lost = !self.calls.busy(&CallKey::Hook(id.clone(), HookKind::PostStart));
            let memory = self.record.containers.entry(name.clone()).or_default();
            if lost && memory.post_start == Some((id.clone(), HookState::Begun)) {
                // A former agent began it and did not see its end: it is never begun twice, and nobody may wait for it.
                memory.post_start = Some((id.clone(), HookState::Done));
                self.unsaved = true;
            } else if ctx.runtime_up && memory.post_start.as_ref().is_none_or(|(hooked, _)| *hooked != id) {
                memory.post_start = Some((id.clone(), HookState::Begun));
                self.unsaved = true;
                let ips = self.ips();
                let call = Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, name, id, handler: None, ips });
                self.ask(call, POST_START_LIMIT, ctx, out);
            }
        }
    }
}

/// The containers of a pod that is wanted, and their images. Ephemeral ones never change.
fn images(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let spec = spec_of(pod);
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.map(|c| (c.name.as_str(), c.image.as_deref().unwrap_or_default()))
}

fn wants_image(pod: &Pod, name: &str, image: &str) -> bool {
    let wanted = images(pod).find(|(known, _)| *known == name);
    wanted.is_none_or(|(_, wanted)| wanted == image || mutate::made(Mutant::ImageOfBefore))
}

/// Kubernetes: verifyRunAsNonRoot.
fn check_non_root(pod: &Pod, container: &Container, image: &ImageFacts) -> Result<(), String> {
    let of_pod = spec_of(pod).security_context.as_ref();
    let own = container.security_context.as_ref();
    let required = own.and_then(|c| c.run_as_non_root).or(of_pod.and_then(|p| p.run_as_non_root)) == Some(true);
    if !required {
        return Ok(());
    }
    let whom = format!("(pod: {:?}, container: {})", crate::actions::format_pod(pod), container.name);
    let refuse = |why: &str| Err(format!("{why} {whom}"));
    match own.and_then(|c| c.run_as_user).or(of_pod.and_then(|p| p.run_as_user)) {
        Some(0) => return refuse("container's runAsUser breaks non-root policy"),
        Some(_) => return Ok(()),
        None => {}
    }
    match (image.uid, image.username.as_str()) {
        (Some(0), _) | (None, "") => refuse("container has runAsNonRoot and image will run as root"),
        (None, user) => refuse(&format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
        (Some(_), _) => Ok(()),
    }
}
