//! downwardAPI: files that tell a pod about itself.

use k8s_openapi::api::core::v1::DownwardAPIVolumeFile;
use podwright_core::model::Pod;

use super::atomic::{File, Payload};
use super::{failed, files};
use crate::host::fieldref::{metadata_value, resource_value};
use crate::host::{HostConfig, HostError};

/// Adds the files these items ask for.
pub(super) fn collect(
    config: &HostConfig,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    payload: &mut Payload,
) -> Result<(), HostError> {
    for item in items {
        let told = |e: String| failed(format!("file {:?}: {e}", item.path));
        let content = if let Some(field) = &item.field_ref {
            metadata_value(pod, &field.field_path)
        } else if let Some(r) = &item.resource_field_ref {
            let container = r.container_name.as_deref().unwrap_or_default();
            resource_value(pod, container, &r.resource, r.divisor.as_ref(), &config.allocatable)
        } else {
            Ok(String::new())
        };
        let content = content.map_err(|e| told(e.to_string()))?.into_bytes();
        let mode = files::mode(item.mode, default_mode).map_err(told)?;
        payload.insert(files::clean(&item.path).map_err(told)?, File { content, mode, owner: None });
    }
    Ok(())
}
