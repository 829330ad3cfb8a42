//! Images of containers that are to start: presence, pulls, and the backoff of failed pulls.

use std::collections::BTreeMap;
use std::time::Duration;

use super::waiting::WaitingContainers;
use crate::actions::Waiting;
use crate::backoff::ImageBackoff;
use crate::model::{Call, CallError, Container, ImageFacts, Name, Pod, RuntimeCall, Time, spec_of};
use crate::mutate::{self, Mutant};
use crate::pod::step::PodStep;

/// A pull may take long; the runtime itself ends one that makes no progress.
const PULL_LIMIT: Duration = Duration::from_secs(3600);

/// State of the images of containers that are to start.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(in crate::pod) struct ContainerImages {
    known: BTreeMap<Name, Image>,
    /// Pulls that failed, with the last error.
    pulls: BTreeMap<Name, (ImageBackoff, String)>,
}

/// Whether an image is present.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Image {
    Present(ImageFacts),
    Absent,
}

impl ContainerImages {
    pub(super) fn wake(&self, now: Time) -> Option<Time> {
        let pulls = self.pulls.values().filter_map(|(b, _)| b.until(now).map(|until| [b.error_shown_until(), until]));
        pulls.flatten().filter(|at| *at > now).min()
    }

    /// When the next pull of this container's image may begin, if the last one failed.
    pub(in crate::pod) fn next_pull(&self, name: &Name, now: Time) -> Option<Time> {
        self.pulls.get(name).and_then(|(backoff, _)| backoff.until(now))
    }

    /// The result of an image check is used only for the start that requested it.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Name) -> bool) {
        self.known.retain(|name, _| wanted(name));
    }

    pub(super) fn forget(&mut self, name: &Name) {
        self.known.remove(name);
    }

    /// The image to create the container from. `None`: it is being checked or pulled, or is not available now.
    pub(super) fn present(
        &mut self,
        name: &Name,
        container: &Container,
        waiting: &mut WaitingContainers,
        step: &mut PodStep<'_, '_>,
    ) -> Option<ImageFacts> {
        let (image, policy) = (container.image.clone().unwrap_or_default(), container.image_pull_policy.as_deref());
        match (self.known.get(name), policy) {
            (Some(Image::Present(facts)), _) => return Some(facts.clone()),
            (None, Some("Always")) => self.pull(name, image, waiting, step),
            (None, _) => {
                let limit = step.ctx.config.runtime_request_timeout;
                step.request(RuntimeCall::ImageStatus { name: name.clone(), image }, limit);
            }
            (Some(Image::Absent), Some("Never")) => {
                let message = format!("Container image {image:?} is not present with pull policy of Never");
                self.forget(name);
                image_failed(name, "ErrImageNeverPull", &message, ("ErrImageNeverPull", &message), waiting, step);
            }
            (Some(Image::Absent), _) => self.pull(name, image, waiting, step),
        }
        None
    }

    fn pull(&self, name: &Name, image: String, waiting: &mut WaitingContainers, step: &mut PodStep<'_, '_>) {
        let now = step.now().boot;
        if let Some((backoff, error)) = self.pulls.get(name)
            && backoff.until(now).is_some()
        {
            if now < backoff.error_shown_until() {
                return;
            }
            let message = format!("Back-off pulling image {image:?}");
            let backing_off = Waiting { reason: "ImagePullBackOff".into(), message: format!("{message}: {error}") };
            if waiting.get(name).is_none_or(|w| w.reason != backing_off.reason) {
                step.notify("BackOff", Some(name), message);
                step.warn("Failed", Some(name), format!("Error: {}", backing_off.reason));
            }
            waiting.insert(name.clone(), backing_off);
            return;
        }
        if step.request(RuntimeCall::PullImage { name: name.clone(), image: image.clone() }, PULL_LIMIT) {
            step.notify("Pulling", Some(name), format!("Pulling image {image:?}"));
        }
    }

    /// The runtime reported whether an image is present.
    pub(in crate::pod) fn found(
        &mut self,
        name: Name,
        image: &str,
        found: Option<ImageFacts>,
        step: &mut PodStep<'_, '_>,
    ) {
        if !wants_image(&step.facts.record.pod, name.as_str(), image) {
            return;
        }
        if found.is_some() {
            let message =
                format!("Container image {image:?} already present on machine and can be accessed by the pod");
            step.notify("Pulled", Some(&name), message);
        } else {
            step.history(&format!("image of container {name} is not present"), image);
        }
        self.known.insert(name, found.map_or(Image::Absent, Image::Present));
    }

    /// A pull succeeded.
    pub(in crate::pod) fn pulled(
        &mut self,
        name: Name,
        image: &str,
        found: Option<ImageFacts>,
        sent_at: Time,
        step: &mut PodStep<'_, '_>,
    ) {
        if !wants_image(&step.facts.record.pod, name.as_str(), image) {
            return;
        }
        self.pulls.remove(&name);
        let took = step.now().boot.saturating_sub(sent_at);
        let message = format!("Successfully pulled image {image:?} in {}ms", took.as_millis());
        step.notify("Pulled", Some(&name), message);
        self.known.insert(name, found.map_or(Image::Absent, Image::Present));
    }

    /// The runtime could not say whether an image is present.
    pub(in crate::pod) fn inspection_failed(
        &mut self,
        name: &Name,
        image: &str,
        error: &CallError,
        waiting: &mut WaitingContainers,
        step: &mut PodStep<'_, '_>,
    ) {
        if wants_image(&step.facts.record.pod, name.as_str(), image) {
            let reason = error.reason().unwrap_or("ImageInspectError");
            let message = format!("Failed to inspect image {image:?}: {}", error.message());
            image_failed(name, reason, error.message(), ("InspectFailed", &message), waiting, step);
        }
    }

    pub(in crate::pod) fn pull_failed(
        &mut self,
        name: &Name,
        image: &str,
        error: &CallError,
        waiting: &mut WaitingContainers,
        step: &mut PodStep<'_, '_>,
    ) {
        if !wants_image(&step.facts.record.pod, name.as_str(), image) {
            return;
        }
        let reason = error.reason().unwrap_or("ErrImagePull");
        step.warn("Failed", Some(name), format!("Failed to pull image {image:?}: {}", error.message()));
        step.warn("Failed", Some(name), format!("Error: {reason}"));
        waiting.insert(name.clone(), Waiting { reason: reason.to_owned(), message: error.message().to_owned() });
        let (backoff, last) = self.pulls.entry(name.clone()).or_default();
        backoff.failed(step.ctx.now.boot);
        *last = format!("{reason}: {}", error.message());
    }

    /// The spec changed: what is known of images that the pod no longer wants, and their pulls, are dropped.
    pub(in crate::pod) fn pod_changed(
        &mut self,
        before: &Pod,
        waiting: &mut WaitingContainers,
        step: &mut PodStep<'_, '_>,
    ) {
        let now = step.facts.record.pod.clone();
        for (name, image) in images(before).filter(|(name, image)| !wants_image(&now, name, image)) {
            self.known.remove(name);
            if self.pulls.remove(name).is_some() {
                waiting.remove(name);
            }
            step.cancel(
                |c| matches!(c, Call::Runtime(RuntimeCall::PullImage { name: n, image: i }) if n.as_str() == name && i == image),
            );
        }
    }
}

/// An image is not available: reported by its own event before the Failed event of the container.
fn image_failed(
    name: &Name,
    reason: &str,
    message: &str,
    first: (&'static str, &str),
    waiting: &mut WaitingContainers,
    step: &mut PodStep<'_, '_>,
) {
    if waiting.retry_later(name, reason, message, step) {
        step.warn(first.0, Some(name), first.1.to_owned());
        step.warn("Failed", Some(name), format!("Error: {reason}"));
    }
}

/// The containers of a pod that is wanted, and their images. Ephemeral ones never change.
fn images(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let spec = spec_of(pod);
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.map(|c| (c.name.as_str(), c.image.as_deref().unwrap_or_default()))
}

/// This image is still the one to create the container from.
fn wants_image(pod: &Pod, name: &str, image: &str) -> bool {
    let wanted = images(pod).find(|(known, _)| *known == name);
    wanted.is_none_or(|(_, wanted)| wanted == image || mutate::is_active(Mutant::StaleImageStatus))
}
