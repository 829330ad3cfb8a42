//! A container's mounts: its volumes, /etc/hosts and the termination message file.

use k8s_openapi::api::core::v1::VolumeMount;
use podwright_core::model::{Container, Pod, find_container};
use podwright_cri::v1::{IdMapping, Mount, MountPropagation};

use super::env::Environment;
use super::{HostView, MountError, References, Situation, TranslateError, utf8_path};
use crate::pod_spec::{SubPath, is_host_network, is_read_only};

/// Whether a volume mount of the container has a `subPathExpr`.
pub(crate) fn needs_environment(pod: &Pod, container: &str) -> bool {
    let Some(found) = find_container(pod, container) else { return false };
    found.container.volume_mounts.iter().flatten().any(|mount| mount.sub_path_expr.is_some())
}

/// The container's volume mounts with a subPath, which the host must bind before the container is created.
pub(crate) fn sub_paths(
    pod: &Pod,
    container: &str,
    ips: &[String],
    references: &References,
    host: &dyn HostView,
) -> Result<Vec<SubPath>, TranslateError> {
    let Some(found) = find_container(pod, container) else {
        return Err(TranslateError::NoContainer(container.into()));
    };
    let volume_mounts = found.container.volume_mounts.as_deref().unwrap_or_default();
    let env = match needs_environment(pod, container) {
        true => Environment::of(pod, &found.container, ips, references, host)?,
        false => Environment::default(),
    };
    let mut all = Vec::new();
    for (index, mount) in volume_mounts.iter().enumerate() {
        let failed = |source| TranslateError::SubPath { volume: mount.name.clone(), source };
        let path = env.sub_path(mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()).map_err(failed)?;
        if !path.is_empty() {
            check_sub_path(&path).map_err(failed)?;
            all.push(SubPath { index, volume: mount.name.clone(), path: path.into_owned() });
        }
    }
    Ok(all)
}

/// All mounts of a container. Files that the agent owns are marked for SELinux relabelling.
pub(super) fn mounts(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    ips: &[String],
    env: &Environment,
    host: &dyn HostView,
    situation: &Situation,
) -> Result<Vec<Mount>, TranslateError> {
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(TranslateError::VolumeDevice(device.name.clone()));
    }
    let volume_mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let mut all = Vec::with_capacity(volume_mounts.len() + 2);
    for (index, mount) in volume_mounts.iter().enumerate() {
        all.push(volume_mount(pod, container, index, mount, env, host, situation)?);
    }
    let has_own_hosts = volume_mounts.iter().any(|mount| mount.mount_path == HOSTS);
    if !has_own_hosts && (!ips.is_empty() || is_host_network(pod)) {
        all.push(Mount {
            container_path: HOSTS.into(),
            host_path: utf8_path(&host.hosts_file(pod))?,
            selinux_relabel: true,
            ..Default::default()
        });
    }
    if let Some(path) = container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
        all.push(Mount {
            container_path: absolute(path),
            host_path: utf8_path(&host.termination_log(pod, &container.name, attempt))?,
            selinux_relabel: true,
            ..Default::default()
        });
    }
    if let Some(range) = situation.userns {
        let mapping = IdMapping { host_id: range.host_id, container_id: 0, length: range.length };
        for mount in &mut all {
            mount.uid_mappings = vec![mapping];
            mount.gid_mappings = vec![mapping];
        }
    }
    Ok(all)
}

fn volume_mount(
    pod: &Pod,
    container: &Container,
    index: usize,
    mount: &VolumeMount,
    env: &Environment,
    host: &dyn HostView,
    situation: &Situation,
) -> Result<Mount, TranslateError> {
    let failed =
        |source| TranslateError::Mount { volume: mount.name.clone(), container: container.name.clone(), source };
    let volume = host.volume(pod, &mount.name).map_err(|error| failed(error.into()))?;
    let sub_path = env.sub_path(mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()).map_err(failed)?;
    let host_path = if sub_path.is_empty() {
        volume
    } else {
        check_sub_path(&sub_path).map_err(failed)?;
        host.sub_path(pod, &container.name, index, &mount.name, &sub_path)
    };
    Ok(Mount {
        container_path: absolute(&mount.mount_path),
        host_path: utf8_path(&host_path)?,
        readonly: mount.read_only.unwrap_or_default() || is_read_only(pod, &mount.name),
        propagation: propagation(mount).map_err(failed)?.into(),
        selinux_relabel: is_managed(pod, &mount.name),
        recursive_read_only: recursive(mount, situation.features.recursive_read_only).map_err(failed)?,
        ..Default::default()
    })
}

/// Whether the agent creates the volume's files, so that they have no label of their own (Go kubelet:
/// `Attributes.Managed`).
fn is_managed(pod: &Pod, volume: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|v| {
        let written = v.config_map.is_some() || v.secret.is_some() || v.downward_api.is_some() || v.projected.is_some();
        v.name == volume && (v.empty_dir.is_some() || written)
    })
}

fn check_sub_path(path: &str) -> Result<(), MountError> {
    if path.starts_with('/') {
        return Err(MountError::AbsoluteSubPath(path.into()));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(MountError::SubPathWithParent(path.into()));
    }
    Ok(())
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, MountError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(MountError::UnknownPropagation(other.into())),
    }
}

fn recursive(mount: &VolumeMount, supported: bool) -> Result<bool, MountError> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return Err(MountError::RecursiveNotReadOnly);
    }
    if let Some(other) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return Err(MountError::RecursiveWithPropagation(other.into()));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(MountError::RecursiveUnsupported),
        other => Err(MountError::UnknownRecursive(other.into())),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

const HOSTS: &str = "/etc/hosts";
