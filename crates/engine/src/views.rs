//! Objects as the CRI shows them.

use podwright_cri::v1;

use crate::context::now;
use crate::machine::{ContainerId, Lifecycle, SandboxId, ShownContainer};
use crate::objects::{ContainerEntry, Objects, SandboxEntry};
use crate::{pod_network, signals};

/// A sandbox in the list; `None`: it is not shown.
pub(crate) fn listed_sandbox(objects: &Objects, id: &SandboxId) -> Option<v1::PodSandbox> {
    let entry = objects.sandboxes.get(id)?;
    let machine = objects.machines.sandbox(id).filter(|machine| machine.is_shown())?;
    let config = &entry.record.config;
    Some(v1::PodSandbox {
        id: id.0.clone(),
        metadata: config.metadata.clone(),
        state: sandbox_state(machine.is_ready()).into(),
        created_at: entry.record.created_at_ns,
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: entry.record.handler.clone(),
    })
}

/// The status of a sandbox; `None`: it is unknown.
pub(crate) fn sandbox_status(objects: &Objects, id: &SandboxId) -> Option<v1::PodSandboxStatus> {
    let entry = objects.sandboxes.get(id)?;
    // One that is being created or was just removed has a status in events only.
    let is_ready = objects.machines.sandbox(id).is_some_and(|machine| machine.is_ready());
    let config = &entry.record.config;
    let options = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let options = options.and_then(|s| s.namespace_options.clone()).unwrap_or_default();
    Some(v1::PodSandboxStatus {
        id: id.0.clone(),
        metadata: config.metadata.clone(),
        state: sandbox_state(is_ready).into(),
        created_at: entry.record.created_at_ns,
        network: network_status(entry, is_ready),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options: Some(options) }) }),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: entry.record.handler.clone(),
    })
}

fn sandbox_state(is_ready: bool) -> v1::PodSandboxState {
    if is_ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready }
}

/// Absent on the host's network; without addresses once they are released.
fn network_status(entry: &SandboxEntry, is_ready: bool) -> Option<v1::PodSandboxNetworkStatus> {
    if !pod_network::has_own(&entry.record.config) {
        return None;
    }
    let mut addresses = entry.record.addresses.iter().filter(|_| is_ready).cloned();
    let ip = addresses.next().unwrap_or_default();
    Some(v1::PodSandboxNetworkStatus { ip, additional_ips: addresses.map(|ip| v1::PodIp { ip }).collect() })
}

/// A container in the list; `None`: it is not shown.
pub(crate) fn listed_container(objects: &Objects, id: &ContainerId) -> Option<v1::Container> {
    let entry = objects.containers.get(id)?;
    let shown = objects.machines.container(id)?.shown()?;
    let config = &entry.record.config;
    Some(v1::Container {
        id: id.0.clone(),
        pod_sandbox_id: entry.record.sandbox_id.clone(),
        metadata: config.metadata.clone(),
        image: config.image.clone(),
        image_ref: entry.record.image_id.clone(),
        state: container_state(shown).into(),
        created_at: entry.record.created_at_ns,
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        image_id: entry.record.image_id.clone(),
    })
}

/// The status of a container; `None`: it is unknown or being created.
pub(crate) fn container_status(objects: &Objects, id: &ContainerId) -> Option<v1::ContainerStatus> {
    let entry = objects.containers.get(id)?;
    let machine = objects.machines.container(id)?;
    let shown = machine.shown()?;
    let (config, record) = (&entry.record.config, &entry.record);
    let exit = machine.exit();
    let image = config.image.clone().unwrap_or_default();
    // A container that runs under `Starting` is shown as created: its start is not complete.
    let started_at = if shown == ShownContainer::Created { 0 } else { record.started_at_ns };
    Some(v1::ContainerStatus {
        id: id.0.clone(),
        metadata: config.metadata.clone(),
        state: container_state(shown).into(),
        created_at: record.created_at_ns,
        started_at,
        finished_at: exit.map_or(0, |exit| exit.finished_at_ns),
        exit_code: exit.map_or(0, |exit| exit.code),
        image: Some(v1::ImageSpec { image: record.image_name.clone(), ..image }),
        image_ref: record.image_ref.clone(),
        reason: exit.map(|exit| exit.reason.to_string()).unwrap_or_default(),
        message: exit.map(|exit| exit.message.clone()).unwrap_or_default(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        mounts: config.mounts.clone(),
        log_path: log_path(objects, entry),
        resources: Some(v1::ContainerResources { linux: config.linux.as_ref().and_then(|l| l.resources.clone()) }),
        image_id: record.image_id.clone(),
        user: entry.user().map(|user| v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: user.uid.into(),
                gid: user.gid.into(),
                supplemental_groups: user.groups.iter().copied().map(i64::from).collect(),
            }),
        }),
        stop_signal: signals::api_name(record.stop_signal).into(),
    })
}

/// The absolute path of the log; empty: there is none.
pub(crate) fn log_path(objects: &Objects, entry: &ContainerEntry) -> String {
    let sandbox = objects.sandboxes.get(&SandboxId(entry.record.sandbox_id.clone()));
    let dir = sandbox.map_or("", |sandbox| sandbox.record.config.log_directory.as_str());
    match (dir, entry.record.config.log_path.as_str()) {
        ("", _) | (_, "") => String::new(),
        (dir, path) => format!("{}/{path}", dir.trim_end_matches('/')),
    }
}

/// An event with the states of the whole pod. The sandbox of a container may be known by its id only.
pub(crate) fn event(
    objects: &Objects,
    sandbox: &SandboxId,
    container_id: &str,
    kind: Lifecycle,
) -> v1::ContainerEventResponse {
    let kind = match kind {
        Lifecycle::Created => v1::ContainerEventType::ContainerCreatedEvent,
        Lifecycle::Started => v1::ContainerEventType::ContainerStartedEvent,
        Lifecycle::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
        Lifecycle::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
    };
    let containers = objects.containers_of(sandbox);
    v1::ContainerEventResponse {
        container_id: container_id.to_owned(),
        container_event_type: kind.into(),
        created_at: now().wall_ns,
        pod_sandbox_status: sandbox_status(objects, sandbox),
        containers_statuses: containers.iter().filter_map(|id| container_status(objects, id)).collect(),
    }
}

fn container_state(shown: ShownContainer) -> v1::ContainerState {
    match shown {
        ShownContainer::Created => v1::ContainerState::ContainerCreated,
        ShownContainer::Running => v1::ContainerState::ContainerRunning,
        ShownContainer::Exited => v1::ContainerState::ContainerExited,
        ShownContainer::Unknown => v1::ContainerState::ContainerUnknown,
    }
}
