//! Paths and values that translation needs from the node, without access to files.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_core::model::Pod;

use super::Host;
use crate::pod_spec::field_ref::{field_value, resource_value};
use crate::pod_spec::{FieldRefError, VolumeSpecError, pod_uid, volume_host_path};
use crate::translate::HostView;

impl HostView for Host {
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        volume_host_path(self.paths(), pod, volume)
    }

    fn sub_path(&self, pod: &Pod, container: &str, index: usize, volume: &str, _sub_path: &str) -> PathBuf {
        self.paths().subpath(pod_uid(pod), volume, container, index)
    }

    fn hosts_file(&self, pod: &Pod) -> PathBuf {
        self.paths().etc_hosts(pod_uid(pod))
    }

    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.paths().termination_log(pod_uid(pod), container, attempt)
    }

    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, FieldRefError> {
        field_value(pod, path, ips, &self.io.config.host_ips, &self.io.config.node_name)
    }

    fn resource_field(
        &self,
        pod: &Pod,
        container: &str,
        selector: &ResourceFieldSelector,
    ) -> Result<String, FieldRefError> {
        let divisor = selector.divisor.as_ref();
        resource_value(pod, container, &selector.resource, divisor, &self.io.config.allocatable)
    }
}
