//! Volumes whose files the agent writes: downwardAPI, configMap, secret, projected.

use std::path::{Component, Path, PathBuf};

use podwright_core::model::{Container, Pod};
use podwright_linux::beneath::ConfinedDir;

use super::atomic::{self, Payload};
use super::{FileError, VolumeError, empty_dir, fs_group, ownership};
use crate::host::{HostConfig, dirs};

/// Writes the files into the volume; `in_memory` for secrets, which must not be written to a disk.
pub(super) fn set_up(
    config: &HostConfig,
    pod: &Pod,
    volume: &str,
    dir: &Path,
    payload: &Payload,
    in_memory: bool,
) -> Result<(), VolumeError> {
    dirs::create_dir_all(dir, 0o755).map_err(VolumeError::io("create", dir))?;
    if in_memory {
        empty_dir::mount_tmpfs(config, pod, dir, None)?;
    }
    let group = fs_group(pod)?;
    // Only the first time: later, the mode may have been changed for fsGroup.
    if std::fs::symlink_metadata(dir.join(atomic::DATA)).is_err() {
        dirs::create_dir_exact(dir, DIR_MODE).map_err(VolumeError::io("create", dir))?;
    }
    create_nested_mount_points(pod, volume, dir)?;
    atomic::write(dir, payload, || match group {
        // The top directory's group says nothing about new files, so `OnRootMismatch` does not apply.
        Some(group) => ownership::apply(dir, ownership::FsGroup { only_on_mismatch: false, ..group }, true),
        None => Ok(()),
    })
}

/// Creates the mount points of other volumes inside this one: the runtime can't, because this volume is read-only.
fn create_nested_mount_points(pod: &Pod, volume: &str, dir: &Path) -> Result<(), VolumeError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let root = ConfinedDir::open(dir).map_err(VolumeError::io("open", dir))?;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        for inside in nested(container, volume) {
            root.make_dirs(&inside, 0o755).map_err(VolumeError::io("create mount point", &dir.join(&inside)))?;
        }
    }
    Ok(())
}

fn nested(container: &Container, volume: &str) -> Vec<PathBuf> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let whole = |m: &&k8s_openapi::api::core::v1::VolumeMount| {
        m.name == volume && m.sub_path.is_none() && m.sub_path_expr.is_none()
    };
    let mut found = Vec::new();
    for outer in mounts.iter().filter(whole) {
        for inner in mounts.iter().filter(|m| m.name != volume) {
            if let Ok(inside) = Path::new(&inner.mount_path).strip_prefix(&outer.mount_path) {
                found.push(inside.to_owned());
            }
        }
    }
    found
}

/// A path inside the volume, normalised. Names with two leading dots are reserved for [`atomic`].
pub(super) fn clean(path: &str) -> Result<PathBuf, FileError> {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return Err(FileError::PathNotRelative),
        }
    }
    if clean.as_os_str().is_empty() || path.len() > PATH_LEN_MAX {
        return Err(FileError::PathLength);
    }
    if clean.to_string_lossy().starts_with("..") {
        return Err(FileError::PathReserved);
    }
    Ok(clean)
}

/// A file's mode: its own, else the volume's `defaultMode`, else the API's default.
pub(super) fn mode(own: Option<i32>, default: Option<i32>) -> Result<u32, FileError> {
    let mode = own.or(default).map_or(Ok(DEFAULT_MODE), u32::try_from);
    mode.ok().filter(|mode| *mode <= 0o777).ok_or(FileError::Mode)
}

/// The API's default.
const DEFAULT_MODE: u32 = 0o644;
/// As an emptyDir, which the Go kubelet uses for these volumes.
const DIR_MODE: u32 = 0o777;
const PATH_LEN_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_volume_are_rejected() {
        assert_eq!(clean("a/./b//c").unwrap(), Path::new("a/b/c"));
        for bad in ["", ".", "..", "../a", "a/../b", "/a", "..data", "..2024/x", &"x".repeat(5000)] {
            assert!(clean(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mount_points_inside_a_volume_are_found() {
        let container: Container = serde_json::from_value(serde_json::json!({"name": "c", "volumeMounts": [
            {"name": "info", "mountPath": "/etc/info"},
            {"name": "data", "mountPath": "/etc/info/a/b"},
            {"name": "data", "mountPath": "/etc/information"},
        ]}))
        .unwrap();
        assert_eq!(nested(&container, "info"), [Path::new("a/b")]);
    }
}
