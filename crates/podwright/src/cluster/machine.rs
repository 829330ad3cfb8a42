//! What the node's object says of the machine.

use std::collections::BTreeMap;
use std::fs;

use k8s_openapi::api::core::v1::{NodeSystemInfo, Taint};
use podwright_core::node_status::{NodeFacts, Resources};

use crate::config::{Config, go_arch};

/// What the node is.
pub(super) fn facts(config: &Config, taints: Vec<Taint>, images_max: usize) -> NodeFacts {
    let node = &config.node;
    let huge_pages = huge_pages();
    let pods = i64::try_from(node.max_pods).unwrap_or(i64::MAX);
    NodeFacts {
        name: node.node_name.clone(),
        labels: node.labels.clone(),
        taints,
        addresses: node.host_ips.clone(),
        hostname: config.hostname.clone(),
        info: info(&node.boot_id),
        images_max: Some(images_max),
        capacity: Resources {
            cpu_millis: config.capacity.cpu_millis,
            memory: config.capacity.memory,
            ephemeral_storage: config.capacity.ephemeral,
            pods,
            huge_pages: huge_pages.clone(),
        },
        allocatable: Resources {
            cpu_millis: node.allocatable_cpu_millis,
            memory: node.allocatable_memory,
            ephemeral_storage: node.allocatable_ephemeral,
            pods,
            huge_pages,
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
        kubelet_version: format!("{KUBERNETES}+podwright.{}", env!("CARGO_PKG_VERSION")),
        system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
        machine_id,
        operating_system: "linux".into(),
        os_image: os_image(&first(&["/etc/os-release", "/usr/lib/os-release"])),
        ..NodeSystemInfo::default()
    }
}

fn os_image(os_release: &str) -> String {
    let line = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map_or("Linux".into(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// Bytes in huge pages of each size, by the resource's name.
fn huge_pages() -> BTreeMap<String, i64> {
    let dir = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    dir.filter_map(|entry| {
        let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse::<i64>().ok()?;
        huge_page(entry.file_name().to_str()?, count)
    })
    .collect()
}

fn huge_page(dir: &str, count: i64) -> Option<(String, i64)> {
    let kilobytes: i64 = dir.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let size = match kilobytes {
        gi if gi % (1 << 20) == 0 => format!("{}Gi", gi >> 20),
        mi if mi % (1 << 10) == 0 => format!("{}Mi", mi >> 10),
        ki => format!("{ki}Ki"),
    };
    Some((format!("hugepages-{size}"), kilobytes.checked_mul(1024)?.checked_mul(count)?))
}

/// The release of Kubernetes whose kubelet this agent behaves like.
const KUBERNETES: &str = "v1.36.3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_named_as_kubernetes_names_them() {
        assert_eq!(huge_page("hugepages-2048kB", 3), Some(("hugepages-2Mi".into(), 3 << 21)));
        assert_eq!(huge_page("hugepages-1048576kB", 0), Some(("hugepages-1Gi".into(), 0)));
        assert_eq!(huge_page("hugepages-64kB", 1), Some(("hugepages-64Ki".into(), 65536)));
        assert_eq!(huge_page("other", 1), None);
    }

    #[test]
    fn the_system_has_a_name() {
        assert_eq!(os_image("ID=debian\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(os_image(""), "Linux");
    }
}
