//! Tables over the produced configurations. Pods are written as users write them.

use super::*;
use k8s_openapi::api::core::v1::ResourceFieldSelector;

mod container;
mod sandbox;

/// A host that puts everything under `/host`.
pub(crate) struct TestHost;

impl HostView for TestHost {
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        let known = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|v| v.name == volume);
        if known { Ok(format!("/host/volumes/{volume}").into()) } else { Err(VolumeSpecError::NotFound(volume.into())) }
    }
    fn sub_path(&self, _: &Pod, container: &str, index: usize, volume: &str, sub_path: &str) -> PathBuf {
        format!("/host/subpaths/{volume}/{container}/{index}/{sub_path}").into()
    }
    fn hosts_file(&self, _: &Pod) -> PathBuf {
        "/host/etc-hosts".into()
    }
    fn termination_log(&self, _: &Pod, container: &str, attempt: u32) -> PathBuf {
        format!("/host/containers/{container}/{attempt}").into()
    }
    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, FieldRefError> {
        match path {
            "metadata.name" => Ok(pod.metadata.name.clone().unwrap_or_default()),
            "status.podIP" => Ok(ips.first().cloned().unwrap_or_default()),
            other => Err(FieldRefError::Unsupported(other.into())),
        }
    }
    fn resource_field(
        &self,
        _: &Pod,
        container: &str,
        selector: &ResourceFieldSelector,
    ) -> Result<String, FieldRefError> {
        Ok(format!("{container}:{}", selector.resource))
    }
}

/// A pod named `shop` in `default`, uid `u-1`, with this spec. Its first container is called `web` where the spec says so.
pub(crate) fn pod(spec: serde_json::Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "shop", "namespace": "default", "uid": "u-1",
            "labels": {"app": "shop"},
            "annotations": {"kubernetes.io/config.source": "file"},
        },
    }))
    .expect("the frame is a pod");
    pod.spec = Some(serde_json::from_value(spec).expect("the spec is a pod's"));
    pod
}

pub(crate) fn settings() -> NodeSettings {
    NodeSettings { memory_capacity: 8 << 30, ..NodeSettings::default() }
}
