//! Volumes whose content is written here: downwardAPI, configMap, secret, projected.

use std::path::{Component, Path, PathBuf};

use podwright_core::model::{Container, Pod};
use podwright_linux::beneath::Root;

use super::atomic::{self, Payload};
use super::{empty_dir, failed, fs_group, ownership};
use crate::host::{HostConfig, HostError, dirs};

/// Writes the files into the volume; what holds secrets is never on a disk.
pub(super) fn set_up(
    config: &HostConfig,
    pod: &Pod,
    volume: &str,
    dir: &Path,
    payload: &Payload,
    in_memory: bool,
) -> Result<(), HostError> {
    dirs::make_all(dir, 0o755).map_err(|(path, e)| failed(format!("make {path}: {e}")))?;
    if in_memory {
        empty_dir::mount_memory(config, pod, dir, None)?;
    }
    let group = fs_group(pod)?;
    // The first set-up opens the directory itself; later ones leave what fsGroup did to it.
    if std::fs::symlink_metadata(dir.join(atomic::DATA)).is_err() {
        dirs::make_exactly(dir, DIR_MODE).map_err(|(path, e)| failed(format!("make {path}: {e}")))?;
    }
    nested_mount_points(pod, volume, dir)?;
    atomic::write(dir, payload, || match group {
        // New files are outside of the top directory's word: always all of it.
        Some(group) => ownership::apply(dir, ownership::FsGroup { only_on_mismatch: false, ..group }, true),
        None => Ok(()),
    })
}

/// Makes the places where other volumes are mounted inside of this one: it is read-only to the runtime.
fn nested_mount_points(pod: &Pod, volume: &str, dir: &Path) -> Result<(), HostError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let root = Root::open(dir).map_err(|e| failed(format!("{}: {e}", dir.display())))?;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        for inside in nested(container, volume) {
            root.make_dirs(&inside, 0o755)
                .map_err(|e| failed(format!("make mount point {} in volume {volume:?}: {e}", inside.display())))?;
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

/// A path inside of the volume, in its shortest form. Names that begin with two dots are the writer's own.
pub(super) fn clean(path: &str) -> Result<PathBuf, String> {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return Err("the path must be relative and must not contain '..'".into()),
        }
    }
    if clean.as_os_str().is_empty() || path.len() > PATH_LEN_MAX {
        return Err("the path must have between 1 and 4096 characters".into());
    }
    if clean.to_string_lossy().starts_with("..") {
        return Err("the path must not begin with '..'".into());
    }
    Ok(clean)
}

/// A file's mode: its own, else the volume's, else the API's default.
pub(super) fn mode(own: Option<i32>, default: Option<i32>) -> Result<u32, String> {
    let mode = own.or(default).map_or(Ok(DEFAULT_MODE), u32::try_from);
    mode.ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "mode must lie between 0 and 0777".into())
}

/// The API's default.
const DEFAULT_MODE: u32 = 0o644;
/// The Go kubelet wraps an emptyDir, whose directory is open to all.
const DIR_MODE: u32 = 0o777;
const PATH_LEN_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(clean("a/./b//c").unwrap(), Path::new("a/b/c"));
        for bad in ["", ".", "..", "../a", "a/../b", "/a", "..data", "..2024/x", &"x".repeat(5000)] {
            assert!(clean(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mounts_inside_of_a_volume() {
        let container: Container = serde_json::from_value(serde_json::json!({"name": "c", "volumeMounts": [
            {"name": "info", "mountPath": "/etc/info"},
            {"name": "data", "mountPath": "/etc/info/a/b"},
            {"name": "data", "mountPath": "/etc/information"},
        ]}))
        .unwrap();
        assert_eq!(nested(&container, "info"), [Path::new("a/b")]);
    }
}
