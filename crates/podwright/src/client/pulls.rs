//! How far the pulls are that pods wait for: asked for when it is shown, and part of no object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use podwright_server::local::PodPulls;

use super::Client;

/// Gives containers that wait for their image the message `Pulling 34 of 120 MB`. An agent that can't say it changes nothing.
pub(super) async fn add_to(client: &Client, pods: &mut [Pod]) {
    if !pods.iter_mut().flat_map(statuses).any(|status| waiting_message(status).is_some()) {
        return;
    }
    let Ok(PodPulls { pulls }) = client.get("/podwright/v1/pulls").await else { return };
    for pull in pulls {
        let is_pod = |pod: &&mut Pod| {
            let metadata = &pod.metadata;
            metadata.namespace.as_ref() == Some(&pull.namespace) && metadata.name.as_ref() == Some(&pull.pod)
        };
        let waiting = pods.iter_mut().filter(is_pod).flat_map(statuses).filter(|status| status.name == pull.container);
        for message in waiting.filter_map(waiting_message) {
            *message = Some(pull.amount.to_string());
        }
    }
}

/// The pods of a watch that wait for images, as they were shown last.
#[derive(Default)]
pub(super) struct WatchedPulls {
    /// By UID.
    shown: BTreeMap<String, Pod>,
}

impl WatchedPulls {
    /// Takes note of pods that have changed, and adds how far their pulls are.
    pub(super) async fn update(&mut self, client: &Client, pods: &mut [Pod]) {
        add_to(client, pods).await;
        for pod in pods {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            match may_pull(pod) {
                true => self.shown.insert(uid, pod.clone()),
                false => self.shown.remove(&uid),
            };
        }
    }

    /// No pod waits for an image: there is nothing to ask for.
    pub(super) fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// The pods whose pulls got further.
    pub(super) async fn progress(&mut self, client: &Client) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.shown.values().cloned().collect();
        pods.iter_mut().flat_map(statuses).filter_map(pull_message).for_each(|message| *message = None);
        add_to(client, &mut pods).await;
        pods.retain(|pod| pod.metadata.uid.as_ref().is_none_or(|uid| self.shown.get(uid) != Some(pod)));
        for pod in &pods {
            self.shown.insert(pod.metadata.uid.clone().unwrap_or_default(), pod.clone());
        }
        pods
    }
}

/// A container waits, and not because something failed.
fn may_pull(pod: &mut Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && statuses(pod).any(|status| pull_message(status).is_some())
}

/// The message of a container that waits without one, or for its image.
fn pull_message(status: &mut ContainerStatus) -> Option<&mut Option<String>> {
    let message = &mut status.state.as_mut()?.waiting.as_mut()?.message;
    message.as_deref().is_none_or(|text| text.is_empty() || text.starts_with("Pulling")).then_some(message)
}

fn statuses(pod: &mut Pod) -> impl Iterator<Item = &mut ContainerStatus> {
    let status = pod.status.iter_mut();
    status.flat_map(|s| s.init_container_statuses.iter_mut().flatten().chain(s.container_statuses.iter_mut().flatten()))
}

/// The message of a container that waits without one.
fn waiting_message(status: &mut ContainerStatus) -> Option<&mut Option<String>> {
    let message = &mut status.state.as_mut()?.waiting.as_mut()?.message;
    message.as_ref().is_none_or(String::is_empty).then_some(message)
}
