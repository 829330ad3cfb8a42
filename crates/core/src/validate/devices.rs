//! `volumeDevices`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodSpec;

use super::volume::Volumes;
use super::{FieldErrors, quoted};
use crate::model::Container;

pub(super) fn check(container: &Container, spec: &PodSpec, volumes: &Volumes<'_>, at: &str, errors: &mut FieldErrors) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    if !devices.is_empty() && spec.host_users == Some(false) {
        errors.add(format!("{at}.volumeDevices"), "must not be given when hostUsers is false");
    }
    let mounts = || container.volume_mounts.iter().flatten();
    let mut paths: BTreeSet<&str> = mounts().map(|mount| mount.mount_path.as_str()).collect();
    let mut names: BTreeSet<&str> = mounts().map(|mount| mount.name.as_str()).collect();
    for (i, device) in devices.iter().enumerate() {
        let at = format!("{at}.volumeDevices[{i}]");
        let mut wrong = |field: &str, what: String| errors.add(format!("{at}.{field}"), what);
        match volumes.get(device.name.as_str()) {
            None => {
                wrong("name", format!("{} is not a volume of the pod: add it to spec.volumes", quoted(&device.name)));
            }
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => {
                wrong("name", "must be a volume of kind persistentVolumeClaim or ephemeral".to_owned());
            }
            Some(_) => {}
        }
        if !names.insert(&device.name) {
            wrong("name", format!("{} is used by another mount or device", quoted(&device.name)));
        }
        if device.device_path.is_empty() {
            wrong("devicePath", "must be given".to_owned());
        } else if !paths.insert(&device.device_path) {
            wrong("devicePath", format!("{} is used by another mount or device", quoted(&device.device_path)));
        }
        errors.no_parent_components(&device.device_path, &format!("{at}.devicePath"));
    }
}
