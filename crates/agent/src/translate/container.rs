//! One container of a pod.

use podwright_core::model::{ContainerId, ImageFacts, Pod, find_container};
use podwright_cri::v1::{ContainerConfig, ContainerMetadata, ImageSpec, LinuxContainerConfig, NamespaceMode, Signal};

use super::env::Environment;
use super::{HostView, NodeFacts, References, Situation, TranslateError};
use super::{annotations, container_log_path, mounts, resources, security};

/// What is asked for beside the pod itself.
#[derive(Clone, Debug)]
pub struct ContainerAsk<'a> {
    /// Which container.
    pub name: &'a str,
    /// How often it was started before.
    pub attempt: u32,
    /// The image it was resolved to, and whom it runs as.
    pub image: &'a ImageFacts,
    /// The pod's addresses.
    pub ips: &'a [String],
    /// Ephemeral with a target: the instance whose processes it sees.
    pub target: Option<&'a ContainerId>,
    /// The objects its environment refers to.
    pub references: &'a References,
}

/// The configuration of one container.
pub fn container_config(
    pod: &Pod,
    ask: &ContainerAsk<'_>,
    facts: &NodeFacts,
    situation: &Situation,
    host: &dyn HostView,
) -> Result<ContainerConfig, TranslateError> {
    let found = find_container(pod, ask.name)
        .ok_or_else(|| TranslateError::container(format!("the pod has no container {:?}", ask.name)))?;
    let container = &*found.container;
    let env = Environment::of(pod, container, ask.ips, ask.references, host)?;
    let mut security_context = security::container_context(pod, container, ask.image, facts, situation)?;
    if let (Some(target), Some(namespaces)) = (ask.target, &mut security_context.namespace_options)
        && namespaces.pid() == NamespaceMode::Container
    {
        namespaces.set_pid(NamespaceMode::Target);
        namespaces.target_id = target.as_str().to_owned();
    }
    let mut mounts = mounts::mounts(pod, container, ask.attempt, ask.ips, &env, host, situation)?;
    // Without SELinux there is nothing to be labelled with.
    mounts.iter_mut().for_each(|mount| mount.selinux_relabel &= facts.selinux);
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: ask.attempt }),
        image: Some(ImageSpec {
            image: ask.image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: env.expand_all(container.command.as_ref()),
        args: env.expand_all(container.args.as_ref()),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts,
        labels: annotations::container_labels(pod, container),
        annotations: annotations::container_annotations(pod, container, ask.attempt),
        log_path: container_log_path(&container.name, ask.attempt),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources::container_resources(pod, container, facts)),
            security_context: Some(security_context),
        }),
        stop_signal: stop_signal(container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()))?.into(),
        envs: env.into_key_values(),
        ..Default::default()
    })
}

/// `SIGUSR1` is `SIGNAL_SIGUSR1` in the protocol, `SIGRTMIN+3` is `SIGNAL_SIGRTMINPLUS3`.
fn stop_signal(name: Option<&str>) -> Result<Signal, TranslateError> {
    let Some(name) = name else { return Ok(Signal::RuntimeDefault) };
    let spelled = format!("SIGNAL_{}", name.replace('+', "PLUS").replace('-', "MINUS"));
    Signal::from_str_name(&spelled).ok_or_else(|| TranslateError::container(format!("unknown stopSignal {name:?}")))
}
