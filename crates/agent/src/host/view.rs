//! The translator's questions about this machine, answered without touching it.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_core::model::Pod;

use super::fieldref::{field_value, resource_value};
use super::{Host, paths, volume_host_path};
use crate::translate::HostView;

impl HostView for Host {
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, String> {
        volume_host_path(self.paths(), pod, volume).map_err(|e| e.message)
    }

    fn sub_path(&self, pod: &Pod, container: &str, index: usize, volume: &str, _sub_path: &str) -> PathBuf {
        self.paths().subpath(paths::uid(pod), volume, container, index)
    }

    fn hosts_file(&self, pod: &Pod) -> PathBuf {
        self.paths().etc_hosts(paths::uid(pod))
    }

    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.paths().termination_log(paths::uid(pod), container, attempt)
    }

    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, String> {
        field_value(pod, path, ips, &self.config.host_ips, &self.config.node_name).map_err(|e| e.to_string())
    }

    fn resource_field(&self, pod: &Pod, container: &str, selector: &ResourceFieldSelector) -> Result<String, String> {
        let divisor = selector.divisor.as_ref();
        resource_value(pod, container, &selector.resource, divisor, &self.config.allocatable).map_err(|e| e.to_string())
    }
}
