//! downwardAPI: files with fields and resources of the pod.

use k8s_openapi::api::core::v1::DownwardAPIVolumeFile;
use podwright_core::model::Pod;

use super::atomic::{Payload, VolumeFile};
use super::{FileError, VolumeError, files};
use crate::host::HostConfig;
use crate::pod_spec::field_ref::{metadata_value, resource_value};

/// Adds the files of these items.
pub(super) fn collect(
    config: &HostConfig,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    payload: &mut Payload,
) -> Result<(), VolumeError> {
    for item in items {
        let failed = VolumeError::file(&item.path);
        let content = if let Some(field) = &item.field_ref {
            metadata_value(pod, &field.field_path)
        } else if let Some(r) = &item.resource_field_ref {
            let container = r.container_name.as_deref().unwrap_or_default();
            resource_value(pod, container, &r.resource, r.divisor.as_ref(), &config.allocatable)
        } else {
            Ok(String::new())
        };
        let content = content.map_err(|e| failed(FileError::FieldRef(e)))?.into_bytes();
        let mode = files::mode(item.mode, default_mode).map_err(&failed)?;
        payload.insert(files::clean(&item.path).map_err(&failed)?, VolumeFile { content, mode, owner: None });
    }
    Ok(())
}
