//! emptyDir: a directory that belongs to the pod, on disk or in memory.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use podwright_core::model::Pod;
use podwright_core::qos;
use podwright_core::quantity::Amount;
use podwright_linux::{mount, mountinfo};

use super::{VolumeError, fs_group, ownership};
use crate::host::{HostConfig, dirs, unmount};
use crate::pod_spec::pod_uid;

/// Creates the directory once. Later changes by containers, its mode included, are kept.
pub(super) fn set_up(
    config: &HostConfig,
    pod: &Pod,
    volume: &str,
    dir: &Path,
    source: &EmptyDirVolumeSource,
) -> Result<(), VolumeError> {
    let ready = config.paths.ready_file(pod_uid(pod), volume);
    let in_memory = match source.medium.as_deref().unwrap_or_default() {
        "" => false,
        "Memory" => true,
        other => return Err(VolumeError::UnsupportedMedium(other.into())),
    };
    // The marker survives a reboot and a tmpfs does not, so for a tmpfs the mount is checked too.
    if ready.exists() && if in_memory { is_mounted(dir)? } else { dir.is_dir() } {
        return Ok(());
    }
    dirs::create_dir_exact(dir, MODE).map_err(VolumeError::io("create", dir))?;
    if in_memory {
        mount_tmpfs(config, pod, dir, Some(source))?;
    }
    if let Some(group) = fs_group(pod)? {
        ownership::apply(dir, group, false)?;
    }
    let create = VolumeError::io("create", &ready);
    dirs::create_dir_all(ready.parent().unwrap_or(&ready), 0o750).map_err(&create)?;
    fs::write(&ready, "").map_err(create)
}

/// Mounts a tmpfs on the directory, unless something is mounted there.
pub(super) fn mount_tmpfs(
    config: &HostConfig,
    pod: &Pod,
    dir: &Path,
    source: Option<&EmptyDirVolumeSource>,
) -> Result<(), VolumeError> {
    if is_mounted(dir)? {
        return Ok(());
    }
    let tmpfs = mount::Tmpfs { size: size(config, pod, source)?, mode: MODE };
    mount::tmpfs(dir, &tmpfs).map_err(VolumeError::io("mount tmpfs on", dir))
}

/// The smallest of the node's allocatable memory, the pod's memory limit and the volume's `sizeLimit`, in bytes (Go kubelet:
/// `calculateEmptyDirMemorySize`).
fn size(config: &HostConfig, pod: &Pod, source: Option<&EmptyDirVolumeSource>) -> Result<Option<u64>, VolumeError> {
    let size_limit = source.and_then(|source| source.size_limit.as_ref()).map(Amount::try_from).transpose();
    let size_limit = size_limit.map_err(VolumeError::SizeLimit)?.map(Amount::value);
    let bounds = [Some(config.allocatable.memory), qos::pod_cgroup(pod, None).memory_limit, size_limit];
    let smallest = bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min();
    // Without a size the kernel uses half of the memory.
    Ok(smallest.filter(|bytes| *bytes < i64::MAX).and_then(|bytes| u64::try_from(bytes).ok()))
}

pub(super) fn is_mounted(dir: &Path) -> Result<bool, VolumeError> {
    let Some(dir) = unmount::real_path(dir) else { return Ok(false) };
    let mounts = mountinfo::read()?;
    Ok(mounts.iter().any(|m| m.point == dir))
}

/// Writable by every user of every container.
const MODE: u32 = 0o777;
