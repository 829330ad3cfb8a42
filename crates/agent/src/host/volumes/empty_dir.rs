//! emptyDir: a directory of the pod's own, on disk or in memory.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use podwright_core::model::Pod;
use podwright_core::qos;
use podwright_core::quantity::Amount;
use podwright_linux::{mount, mountinfo};

use super::{failed, fs_group, ownership};
use crate::host::{HostConfig, HostError, chain, dirs, paths, unmount};

/// Makes it, once: what its containers did to it afterwards, its mode included, is theirs.
pub(super) fn set_up(
    config: &HostConfig,
    pod: &Pod,
    volume: &str,
    dir: &Path,
    source: &EmptyDirVolumeSource,
) -> Result<(), HostError> {
    let told = |(path, e): (String, std::io::Error)| failed(format!("make {path}: {e}"));
    let ready = config.paths.ready_file(paths::uid(pod), volume);
    let in_memory = match source.medium.as_deref().unwrap_or_default() {
        "" => false,
        "Memory" => true,
        other => return Err(failed(format!("emptyDir medium {other:?} is not supported"))),
    };
    // The marker of a tmpfs outlives it (a reboot), so for memory the mount itself is what counts.
    if ready.exists() && if in_memory { is_mounted(dir)? } else { dir.is_dir() } {
        return Ok(());
    }
    dirs::make_exactly(dir, MODE).map_err(told)?;
    if in_memory {
        mount_memory(config, pod, dir, Some(source))?;
    }
    if let Some(group) = fs_group(pod)? {
        ownership::apply(dir, group, false)?;
    }
    dirs::make_all(ready.parent().unwrap_or(&ready), 0o750).map_err(told)?;
    fs::write(&ready, "").map_err(|e| told((ready.display().to_string(), e)))
}

/// Mounts a file system in memory there, unless there is one.
pub(super) fn mount_memory(
    config: &HostConfig,
    pod: &Pod,
    dir: &Path,
    source: Option<&EmptyDirVolumeSource>,
) -> Result<(), HostError> {
    if is_mounted(dir)? {
        return Ok(());
    }
    let tmpfs = mount::Tmpfs { size: size(config, pod, source)?, mode: MODE };
    mount::tmpfs(dir, &tmpfs).map_err(|e| failed(format!("mount tmpfs on {}: {e}", dir.display())))
}

/// The smallest of what the node has, what the pod may use, and what the volume asks for (Go kubelet:
/// calculateEmptyDirMemorySize).
fn size(config: &HostConfig, pod: &Pod, source: Option<&EmptyDirVolumeSource>) -> Result<Option<u64>, HostError> {
    let asked = source.and_then(|source| source.size_limit.as_ref()).map(Amount::try_from).transpose();
    let asked = asked.map_err(|e| failed(format!("sizeLimit: {e}")))?.map(Amount::value);
    let bounds = [Some(config.allocatable.memory), qos::pod_cgroup(pod, None).memory_limit, asked];
    let smallest = bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min();
    // No bound known is the kernel's own: half of the memory.
    Ok(smallest.filter(|bytes| *bytes < i64::MAX).and_then(|bytes| u64::try_from(bytes).ok()))
}

pub(super) fn is_mounted(dir: &Path) -> Result<bool, HostError> {
    let Some(dir) = unmount::real_path(dir) else { return Ok(false) };
    let mounts = mountinfo::read().map_err(|e| failed(chain(&e)))?;
    Ok(mounts.iter().any(|m| m.point == dir))
}

/// Any user of any container may write there.
const MODE: u32 = 0o777;
