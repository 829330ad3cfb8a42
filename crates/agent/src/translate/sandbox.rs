//! The configuration of a pod's sandbox, which all its containers share.

use podwright_core::model::{Container, Pod, all_containers};
use podwright_cri::v1::{
    Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig, PodSandboxMetadata, PortMapping,
    Protocol, security_profile::ProfileType,
};

use super::{NodeSettings, Situation, TranslateError};
use super::{annotations, cgroup_parent, dns, resources, security, utf8_path};
use crate::pod_spec::{is_host_network, kernel_hostname, pod_name, pod_namespace, pod_uid};

/// The configuration of a pod's sandbox. Every call about one sandbox sends the same one.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    settings: &NodeSettings,
    situation: &Situation,
) -> Result<PodSandboxConfig, TranslateError> {
    // A pod on the host network has the host's name.
    let hostname = if is_host_network(pod) { String::new() } else { kernel_hostname(pod, &settings.cluster_domain)? };
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod_name(pod).to_owned(),
            uid: pod_uid(pod).to_owned(),
            namespace: pod_namespace(pod).to_owned(),
            attempt,
        }),
        hostname,
        log_directory: utf8_path(&settings.paths.pod_logs(pod))?,
        dns_config: Some(dns::pod_dns(pod, settings, &situation.dns)),
        port_mappings: pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(port_mappings).collect(),
        labels: annotations::sandbox_labels(pod),
        annotations: annotations::sandbox_annotations(pod),
        linux: Some(linux(pod, settings, situation)?),
    })
}

fn linux(pod: &Pod, settings: &NodeSettings, situation: &Situation) -> Result<LinuxPodSandboxConfig, TranslateError> {
    let context = security::pod_context(pod);
    let sysctls = context.and_then(|sc| sc.sysctls.as_deref()).unwrap_or_default();
    Ok(LinuxPodSandboxConfig {
        cgroup_parent: cgroup_parent(pod, settings),
        security_context: Some(LinuxSandboxSecurityContext {
            namespace_options: Some(security::namespaces(pod, situation)?),
            selinux_options: context.and_then(|sc| sc.se_linux_options.as_ref()).map(security::se_linux),
            run_as_user: context.and_then(|sc| sc.run_as_user).map(|value| Int64Value { value }),
            run_as_group: context.and_then(|sc| sc.run_as_group).map(|value| Int64Value { value }),
            supplemental_groups: security::supplemental_groups(context),
            supplemental_groups_policy: security::groups_policy(context, situation.features)?,
            privileged: all_containers(pod).any(|container| is_privileged(&container)),
            // For the sandbox's own process; containers have their own profile.
            seccomp: Some(security::profile(ProfileType::RuntimeDefault, "")),
            ..Default::default()
        }),
        sysctls: sysctls.iter().map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect(),
        overhead: Some(resources::overhead(pod, settings)),
        resources: Some(resources::sandbox_resources(pod, settings)),
    })
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|sc| sc.privileged).unwrap_or_default()
}

/// All ports, mapped or not: the runtime ignores those with host port 0. Of ports with the same name, or unnamed ports that
/// are equal, the first is used.
fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut seen = Vec::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let mapping = PortMapping {
            protocol: protocol.into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        };
        let key = match port.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => format!("{mapping:?}"),
        };
        if !seen.contains(&key) {
            seen.push(key);
            mappings.push(mapping);
        }
    }
    mappings
}
