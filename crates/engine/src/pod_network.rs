//! What the configuration of a sandbox says about its network and its shared memory.

use std::net::IpAddr;

use podwright_cri::v1;
use podwright_net::{PodIdentity, PortForward, TransportProtocol};

use crate::machine::{SandboxId, SandboxResources};

/// A port mapping that can not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port mapping {host_port} to {container_port}: {problem}")]
pub(crate) struct PortMappingError {
    host_port: i32,
    container_port: i32,
    problem: &'static str,
}

fn options(config: &v1::PodSandboxConfig) -> Option<&v1::NamespaceOption> {
    config.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()
}

fn is_node(mode: i32) -> bool {
    mode == v1::NamespaceMode::Node as i32
}

/// The pod has a network of its own. POD is the default of the API, also for absent options.
pub(crate) fn has_own(config: &v1::PodSandboxConfig) -> bool {
    options(config).is_none_or(|options| !is_node(options.network))
}

/// The pod has an IPC namespace of its own, and with it its own shared memory.
pub(crate) fn has_own_ipc(config: &v1::PodSandboxConfig) -> bool {
    options(config).is_none_or(|options| !is_node(options.ipc))
}

/// The containers of the pod share a PID namespace.
pub(crate) fn has_shared_pid(config: &v1::PodSandboxConfig) -> bool {
    options(config).is_none_or(|options| options.pid == v1::NamespaceMode::Pod as i32)
}

/// The pod has a user namespace of its own.
pub(crate) fn has_user_namespace(config: &v1::PodSandboxConfig) -> bool {
    let user = options(config).and_then(|options| options.userns_options.as_ref());
    user.is_some_and(|user| user.mode == v1::NamespaceMode::Pod as i32 && !user.uids.is_empty())
}

/// Everything that a sandbox with this configuration has.
pub(crate) fn planned(config: &v1::PodSandboxConfig) -> SandboxResources {
    let (network, shm) = (has_own(config), has_own_ipc(config));
    SandboxResources { shim: true, namespaces: true, network, shm, pause: has_shared_pid(config) }
}

/// The pod as its network knows it.
pub(crate) fn identity(id: &SandboxId, config: &v1::PodSandboxConfig) -> PodIdentity {
    let v1::PodSandboxMetadata { name, uid, namespace, .. } = config.metadata.clone().unwrap_or_default();
    PodIdentity { sandbox_id: id.0.clone(), namespace, name, uid }
}

/// The ports of the node that lead to the pod. A mapping without a host port is only a note.
pub(crate) fn host_ports(config: &v1::PodSandboxConfig) -> Result<Vec<PortForward>, PortMappingError> {
    let mapped = config.port_mappings.iter().filter(|mapping| mapping.host_port != 0);
    let port = |mapping: &v1::PortMapping| {
        let wrong = |problem| PortMappingError {
            host_port: mapping.host_port,
            container_port: mapping.container_port,
            problem,
        };
        let number = |port: i32| u16::try_from(port).ok().filter(|port| *port != 0).ok_or(wrong("no such port"));
        let protocol = match v1::Protocol::try_from(mapping.protocol) {
            Ok(v1::Protocol::Tcp) => TransportProtocol::Tcp,
            Ok(v1::Protocol::Udp) => TransportProtocol::Udp,
            Ok(v1::Protocol::Sctp) => TransportProtocol::Sctp,
            Err(_) => return Err(wrong("unknown protocol")),
        };
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| wrong("the host IP is not a valid address"))?),
        };
        let (host_port, container_port) = (number(mapping.host_port)?, number(mapping.container_port)?);
        Ok(PortForward { protocol, host_ip, host_port, container_port })
    };
    mapped.map(port).collect()
}
