//! The facts of the host in the Node object.

use std::fs;

use k8s_openapi::api::core::v1::{NodeSystemInfo, Taint};
use podwright_agent::stats::MachineIds;
use podwright_core::node_status::{NodeFacts, Resources};

use crate::config::{AgentConfig, go_arch};

/// From the configuration and the files of the host.
pub(super) fn node_facts(config: &AgentConfig, taints: Vec<Taint>, images_max: usize) -> NodeFacts {
    let node = &config.node;
    let pods = i64::try_from(node.max_pods).unwrap_or(i64::MAX);
    NodeFacts {
        name: node.node_name.clone(),
        labels: node.labels.clone(),
        taints,
        addresses: node.host_ips.clone(),
        hostname: config.hostname.clone(),
        info: info(&node.boot_id),
        kubelet_port: config.server.as_ref().map(|server| server.address.port()),
        images_max: Some(images_max),
        capacity: Resources {
            cpu_millis: config.capacity.cpu_millis,
            memory: config.capacity.memory,
            ephemeral_storage: config.capacity.ephemeral,
            pods,
            huge_pages: config.capacity.huge_pages.clone(),
        },
        allocatable: Resources {
            cpu_millis: node.allocatable_cpu_millis,
            memory: node.allocatable_memory,
            ephemeral_storage: node.allocatable_ephemeral,
            pods,
            huge_pages: node.allocatable_huge_pages.clone(),
        },
    }
}

fn info(boot_id: &str) -> NodeSystemInfo {
    let first = |paths: &[&str]| {
        let texts = paths.iter().filter_map(|path| fs::read_to_string(path).ok());
        texts.map(|text| text.trim().to_owned()).find(|text| !text.is_empty()).unwrap_or_default()
    };
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    let system_uuid = first(&["/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid"]);
    NodeSystemInfo {
        architecture: go_arch().into(),
        boot_id: boot_id.into(),
        kernel_version: rustix::system::uname().release().to_string_lossy().into_owned(),
        kubelet_version: kubelet_version(),
        system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
        machine_id,
        operating_system: "linux".into(),
        os_image: os_image(&first(&["/etc/os-release", "/usr/lib/os-release"])),
        ..NodeSystemInfo::default()
    }
}

/// The version that the node reports.
pub(crate) fn kubelet_version() -> String {
    format!("{KUBERNETES}+podwright.{}", env!("CARGO_PKG_VERSION"))
}

/// The identifiers of this host.
pub(crate) fn machine_ids(boot_id: &str) -> MachineIds {
    let NodeSystemInfo { boot_id, machine_id, system_uuid, .. } = info(boot_id);
    MachineIds { boot_id, machine_id, system_uuid }
}

fn os_image(os_release: &str) -> String {
    let line = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map_or("Linux".into(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// The Kubernetes release whose kubelet this agent is compatible with.
const KUBERNETES: &str = "v1.36.3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_os_image_is_the_pretty_name() {
        assert_eq!(os_image("ID=debian\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(os_image(""), "Linux");
    }
}
