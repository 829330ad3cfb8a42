//! Finding a container in its pod, in any of the three lists of the spec.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

/// A container of a pod's spec.
#[derive(Clone, Debug)]
pub struct FoundContainer<'a> {
    /// The container; an ephemeral one is converted.
    pub container: Cow<'a, Container>,
    /// `targetContainerName` of an ephemeral container, whose process namespace it joins.
    pub target: Option<&'a str>,
}

/// An app, init or ephemeral container by its name.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<FoundContainer<'a>> {
    let spec = pod.spec.as_ref()?;
    let ordinary = spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name);
    if let Some(container) = ordinary {
        return Some(FoundContainer { container: Cow::Borrowed(container), target: None });
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten().find(|c| c.name == name)?;
    let target = ephemeral.target_container_name.as_deref().filter(|name| !name.is_empty());
    Some(FoundContainer { container: Cow::Owned(as_container(ephemeral)), target })
}

/// Init, app and ephemeral containers, in this order.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = Cow<'_, Container>> {
    let spec = pod.spec.as_ref();
    let init = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten()).map(Cow::Borrowed);
    let app = spec.into_iter().flat_map(|s| &s.containers).map(Cow::Borrowed);
    let ephemeral = spec.into_iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
    init.chain(app).chain(ephemeral.map(|c| Cow::Owned(as_container(c))))
}

/// A restartable init container: it keeps running next to the app containers.
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// Ephemeral containers have the same fields under another type.
fn as_container(c: &EphemeralContainer) -> Container {
    Container {
        args: c.args.clone(),
        command: c.command.clone(),
        env: c.env.clone(),
        env_from: c.env_from.clone(),
        image: c.image.clone(),
        image_pull_policy: c.image_pull_policy.clone(),
        lifecycle: c.lifecycle.clone(),
        liveness_probe: c.liveness_probe.clone(),
        name: c.name.clone(),
        ports: c.ports.clone(),
        readiness_probe: c.readiness_probe.clone(),
        resize_policy: c.resize_policy.clone(),
        resources: c.resources.clone(),
        restart_policy: c.restart_policy.clone(),
        restart_policy_rules: c.restart_policy_rules.clone(),
        security_context: c.security_context.clone(),
        startup_probe: c.startup_probe.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path.clone(),
        termination_message_policy: c.termination_message_policy.clone(),
        tty: c.tty,
        volume_devices: c.volume_devices.clone(),
        volume_mounts: c.volume_mounts.clone(),
        working_dir: c.working_dir.clone(),
    }
}
