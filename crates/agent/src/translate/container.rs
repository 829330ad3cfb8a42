//! The configuration of one container.

use podwright_core::model::{ContainerId, ImageFacts, Pod, find_container};
use podwright_cri::v1::{ContainerConfig, ContainerMetadata, ImageSpec, LinuxContainerConfig, NamespaceMode, Signal};

use super::env::Environment;
use super::{HostView, NodeSettings, References, Situation, TranslateError};
use super::{annotations, mounts, resources, security};
use crate::pod_spec::container_log_path;

/// The parameters of a container besides its pod.
#[derive(Clone, Debug)]
pub struct ContainerRequest<'a> {
    /// The container's name.
    pub name: &'a str,
    /// The number of earlier starts.
    pub attempt: u32,
    /// The resolved image and its user.
    pub image: &'a ImageFacts,
    /// The pod's addresses.
    pub ips: &'a [String],
    /// For an ephemeral container with a target: the container whose process namespace it joins.
    pub target: Option<&'a ContainerId>,
    /// The objects that its environment refers to.
    pub references: &'a References,
}

/// The configuration of one container.
pub fn container_config(
    pod: &Pod,
    request: &ContainerRequest<'_>,
    settings: &NodeSettings,
    situation: &Situation,
    host: &dyn HostView,
) -> Result<ContainerConfig, TranslateError> {
    let found = find_container(pod, request.name).ok_or_else(|| TranslateError::NoContainer(request.name.into()))?;
    let container = &*found.container;
    let env = Environment::of(pod, container, request.ips, request.references, host)?;
    let mut security_context = security::container_context(pod, container, request.image, settings, situation)?;
    if let (Some(target), Some(namespaces)) = (request.target, &mut security_context.namespace_options)
        && namespaces.pid() == NamespaceMode::Container
    {
        namespaces.set_pid(NamespaceMode::Target);
        namespaces.target_id = target.as_str().to_owned();
    }
    let mut mounts = mounts::mounts(pod, container, request.attempt, request.ips, &env, host, situation)?;
    // Without SELinux there are no labels.
    mounts.iter_mut().for_each(|mount| mount.selinux_relabel &= settings.selinux);
    let (command, args) = env.expand_command(container)?;
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: request.attempt }),
        image: Some(ImageSpec {
            image: request.image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts,
        labels: annotations::container_labels(pod, container),
        annotations: annotations::container_annotations(pod, container, request.attempt),
        log_path: container_log_path(&container.name, request.attempt),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources::container_resources(pod, container, settings)),
            security_context: Some(security_context),
        }),
        stop_signal: stop_signal(container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()))?.into(),
        envs: env.into_key_values(),
        ..Default::default()
    })
}

/// `SIGUSR1` is `SIGNAL_SIGUSR1` in the CRI, `SIGRTMIN+3` is `SIGNAL_SIGRTMINPLUS3`.
fn stop_signal(name: Option<&str>) -> Result<Signal, TranslateError> {
    let Some(name) = name else { return Ok(Signal::RuntimeDefault) };
    let spelled = format!("SIGNAL_{}", name.replace('+', "PLUS").replace('-', "MINUS"));
    Signal::from_str_name(&spelled).ok_or_else(|| TranslateError::UnknownStopSignal(name.into()))
}
