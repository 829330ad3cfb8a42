//! Mounts: those of every container, the files of the sandbox, and those of the request.

use std::path::PathBuf;

use oci_spec::runtime::{Mount, MountBuilder};
use podwright_cri::v1;

use super::{Security, SpecError, SpecInputs, check_text, id_maps, oci_id_maps};

/// Host paths of the files that the containers of a sandbox share. `None`: not mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SandboxFiles {
    /// `/etc/hosts`; the kubelet usually mounts its own.
    pub hosts: Option<PathBuf>,
    /// `/etc/hostname`.
    pub hostname: Option<PathBuf>,
    /// `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// `/dev/shm`: a mounted tmpfs, or the host's for hostIPC.
    pub shm: Option<PathBuf>,
}

/// The type of a mount of an image. Its source is the image, its first option `subPath=<path>` if only a part is mounted.
pub(crate) const IMAGE_MOUNT_TYPE: &str = "podwright-image";

/// All mounts, parents before what is mounted below them; otherwise in the order of the request.
pub(super) fn mounts(inputs: &SpecInputs<'_>, security: Security<'_>) -> Result<Vec<Mount>, SpecError> {
    let asked: Vec<Mount> = inputs.config.mounts.iter().map(requested).collect::<Result<_, _>>()?;
    let is_asked = |path: &str| asked.iter().any(|mount| mount.destination().as_os_str() == path);
    let mut all = every_container(security.context.privileged);
    let files = [
        ("/etc/hosts", &inputs.files.hosts),
        ("/etc/hostname", &inputs.files.hostname),
        ("/etc/resolv.conf", &inputs.files.resolv_conf),
    ];
    let (uids, gids) = id_maps(security.namespaces.userns_options.as_ref()).unwrap_or_default();
    for (path, source) in files {
        if let Some(source) = source.as_ref().filter(|_| !is_asked(path)) {
            let access = if security.context.readonly_rootfs { "ro" } else { "rw" };
            let mut file = mount(path, "bind", source, &["rbind", "rprivate", access]);
            // They belong to the root of the host; the pod sees its own root as their owner. As containerd, without /dev/shm.
            map_ids(&mut file, uids, gids);
            all.push(file);
        }
    }
    if let Some(shm) = inputs.files.shm.as_ref().filter(|_| !is_asked("/dev/shm")) {
        all.push(mount("/dev/shm", "bind", shm, &["rbind", "rprivate", "nosuid", "nodev", "noexec", "rw"]));
    }
    all.retain(|mount| !asked.iter().any(|a| a.destination() == mount.destination()));
    all.extend(asked);
    all.sort_by_key(|mount| mount.destination().components().count());
    Ok(all)
}

/// containerd's `defaultMounts` without `/run`, and a view of the cgroups.
fn every_container(privileged: bool) -> Vec<Mount> {
    let access = if privileged { "rw" } else { "ro" };
    let source = |name: &str| PathBuf::from(name);
    vec![
        mount("/proc", "proc", &source("proc"), &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &source("tmpfs"), &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            &source("devpts"),
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/mqueue", "mqueue", &source("mqueue"), &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &source("sysfs"), &["nosuid", "noexec", "nodev", access]),
        mount("/sys/fs/cgroup", "cgroup", &source("cgroup"), &["nosuid", "noexec", "nodev", "relatime", access]),
    ]
}

fn requested(asked: &v1::Mount) -> Result<Mount, SpecError> {
    let path = asked.container_path.as_str();
    let wrong = |problem| Err(SpecError::Mount { path: path.into(), problem });
    check_text("mount container_path", path)?;
    check_text("mount host_path", &asked.host_path)?;
    let normal = target(path)?;
    if let Some(option) = asked.mount_options.first() {
        return Err(SpecError::Unsupported(format!("mount option {option:?} of {path:?}")));
    }
    if asked.recursive_read_only {
        if !asked.readonly {
            return wrong("recursive_read_only needs readonly");
        }
        if asked.propagation != v1::MountPropagation::PropagationPrivate as i32 {
            return wrong("recursive_read_only needs private propagation");
        }
    }
    if let Some(image) = asked.image.as_ref().filter(|image| !image.image.is_empty()) {
        if !asked.host_path.is_empty() {
            return wrong("has both a host path and an image");
        }
        let mut options = vec!["ro".to_owned()];
        if !asked.image_sub_path.is_empty() {
            check_text("image_sub_path", &asked.image_sub_path)?;
            options.insert(0, format!("subPath={}", asked.image_sub_path));
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        return Ok(mount(&normal, IMAGE_MOUNT_TYPE, &PathBuf::from(&image.image), &options));
    }
    if !asked.host_path.starts_with('/') {
        return wrong("the host path is not absolute");
    }
    let propagation = match v1::MountPropagation::try_from(asked.propagation) {
        Ok(v1::MountPropagation::PropagationPrivate) => "rprivate",
        Ok(v1::MountPropagation::PropagationHostToContainer) => "rslave",
        Ok(v1::MountPropagation::PropagationBidirectional) => "rshared",
        Err(_) => return wrong("has an unknown propagation"),
    };
    let access = match (asked.recursive_read_only, asked.readonly) {
        (true, _) => "rro",
        (false, true) => "ro",
        (false, false) => "rw",
    };
    let mut mount = mount(&normal, "bind", &PathBuf::from(&asked.host_path), &["rbind", propagation, access]);
    map_ids(&mut mount, &asked.uid_mappings, &asked.gid_mappings);
    Ok(mount)
}

/// Shows the owners of files as the user namespace sees them. Without mappings nothing changes.
fn map_ids(mount: &mut Mount, uids: &[v1::IdMapping], gids: &[v1::IdMapping]) {
    if !uids.is_empty() || !gids.is_empty() {
        mount.set_uid_mappings(Some(oci_id_maps(uids)));
        mount.set_gid_mappings(Some(oci_id_maps(gids)));
    }
}

/// An absolute path without empty and `.` parts. `..` and the root itself are refused.
fn target(path: &str) -> Result<String, SpecError> {
    let wrong = |problem| Err(SpecError::Mount { path: path.into(), problem });
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return wrong("the path contains \"..\"");
    }
    if parts.is_empty() {
        return wrong("nothing can be mounted on the root");
    }
    Ok(format!("/{}", parts.join("/")))
}

fn mount(path: &str, typ: &str, source: &std::path::Path, options: &[&str]) -> Mount {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let builder = MountBuilder::default().destination(path).typ(typ).source(source).options(options);
    builder.build().expect("complete")
}
