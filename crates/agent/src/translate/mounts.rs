//! What a container sees of the host's files: its volumes, /etc/hosts, the file for its last words.

use k8s_openapi::api::core::v1::VolumeMount;
use podwright_core::model::{Container, Pod, find_container};
use podwright_cri::v1::{IdMapping, Mount, MountPropagation};

use super::env::Environment;
use super::names::is_host_network;
use super::{HostView, References, Situation, TranslateError, path_text};
use crate::host::{SubPath, is_read_only};

/// Some mount's subPath is made of variables.
pub fn needs_environment(pod: &Pod, container: &str) -> bool {
    let Some(found) = find_container(pod, container) else { return false };
    found.container.volume_mounts.iter().flatten().any(|mount| mount.sub_path_expr.is_some())
}

/// The container's mounts of parts of volumes, for whoever makes them ready.
pub fn sub_paths(
    pod: &Pod,
    container: &str,
    ips: &[String],
    references: &References,
    host: &dyn HostView,
) -> Result<Vec<SubPath>, TranslateError> {
    let Some(found) = find_container(pod, container) else {
        return Err(TranslateError::container(format!("the pod has no container {container:?}")));
    };
    let wanted = found.container.volume_mounts.as_deref().unwrap_or_default();
    let env = match needs_environment(pod, container) {
        true => Environment::of(pod, &found.container, ips, references, host)?,
        false => Environment::default(),
    };
    let mut all = Vec::new();
    for (index, mount) in wanted.iter().enumerate() {
        let told = |why: String| TranslateError::container(format!("volume {:?}: {why}", mount.name));
        let path = env.sub_path(mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()).map_err(told)?;
        if !path.is_empty() {
            check_sub_path(&path).map_err(told)?;
            all.push(SubPath { index, volume: mount.name.clone(), path: path.into_owned() });
        }
    }
    Ok(all)
}

/// All mounts of a container; those whose files are ours are marked for a label of SELinux.
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
        return Err(TranslateError::container(format!(
            "volumeDevice {:?}: block volumes are not supported",
            device.name
        )));
    }
    let wanted = container.volume_mounts.as_deref().unwrap_or_default();
    let mut all = Vec::with_capacity(wanted.len() + 2);
    for (index, mount) in wanted.iter().enumerate() {
        all.push(volume_mount(pod, container, index, mount, env, host, situation)?);
    }
    let has_own_hosts = wanted.iter().any(|mount| mount.mount_path == HOSTS);
    if !has_own_hosts && (!ips.is_empty() || is_host_network(pod)) {
        all.push(Mount {
            container_path: HOSTS.into(),
            host_path: path_text(&host.hosts_file(pod))?,
            selinux_relabel: true,
            ..Default::default()
        });
    }
    if let Some(path) = container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
        all.push(Mount {
            container_path: absolute(path),
            host_path: path_text(&host.termination_log(pod, &container.name, attempt))?,
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
    let told = |why: String| {
        TranslateError::container(format!("volume {:?} for container {:?}: {why}", mount.name, container.name))
    };
    let volume = host.volume(pod, &mount.name).map_err(told)?;
    let sub_path = env.sub_path(mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()).map_err(told)?;
    let host_path = if sub_path.is_empty() {
        volume
    } else {
        check_sub_path(&sub_path).map_err(told)?;
        host.sub_path(pod, &container.name, index, &mount.name, &sub_path)
    };
    Ok(Mount {
        container_path: absolute(&mount.mount_path),
        host_path: path_text(&host_path)?,
        readonly: mount.read_only.unwrap_or_default() || is_read_only(pod, &mount.name),
        propagation: propagation(mount).map_err(told)?.into(),
        selinux_relabel: is_ours(pod, &mount.name),
        recursive_read_only: recursive(mount, situation.features.recursive_read_only).map_err(told)?,
        ..Default::default()
    })
}

/// Files the agent makes itself: nobody else can have given them a label (Go kubelet: `Attributes.Managed`).
fn is_ours(pod: &Pod, volume: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|v| {
        let written = v.config_map.is_some() || v.secret.is_some() || v.downward_api.is_some() || v.projected.is_some();
        v.name == volume && (v.empty_dir.is_some() || written)
    })
}

fn check_sub_path(path: &str) -> Result<(), String> {
    if path.starts_with('/') {
        return Err(format!("subPath {path:?} must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("subPath {path:?} must not contain '..'"));
    }
    Ok(())
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

fn recursive(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return Err("requested recursive read-only mode, but it is not read-only".into());
    }
    if let Some(other) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return Err(format!("requested recursive read-only mode, but it is not compatible with propagation {other:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err("requested recursive read-only mode, but it is not supported by the runtime".into()),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

const HOSTS: &str = "/etc/hosts";
