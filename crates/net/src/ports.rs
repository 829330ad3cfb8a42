//! Checks of host ports before they are given to a pod.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};

use crate::model::{NetworkError, PortForward, TransportProtocol};

/// More ports than a pod can have; keeps a batch within a socket's buffer.
const PORTS_MAX: usize = 256;

/// Refuses ports that cannot be mapped.
pub(crate) fn validate(ports: &[PortForward]) -> Result<(), NetworkError> {
    if ports.len() > PORTS_MAX {
        return Err(NetworkError::Invalid(format!("{} host ports, at most {PORTS_MAX}", ports.len())));
    }
    for (i, port) in ports.iter().enumerate() {
        if port.host_port == 0 || port.container_port == 0 {
            return Err(NetworkError::Invalid(format!("host port {} needs two ports from 1 to 65535", describe(port))));
        }
        let same = |other: &PortForward| (other.protocol, other.host_port) == (port.protocol, port.host_port);
        let overlaps = |other: &PortForward| {
            let any = |ip: Option<IpAddr>| ip.is_none_or(|ip| ip.is_unspecified());
            other.host_ip == port.host_ip || (any(other.host_ip) && any(port.host_ip))
        };
        if ports[..i].iter().any(|other| same(other) && overlaps(other)) {
            return Err(NetworkError::Invalid(format!("host port {} is given twice", describe(port))));
        }
    }
    Ok(())
}

/// Finds a process of the node that listens on the port: a translated port would silently take its connections.
pub(crate) fn probe(port: &PortForward, families: &[IpAddr]) -> Result<(), NetworkError> {
    let addresses: Vec<IpAddr> = match port.host_ip {
        Some(address) => vec![address],
        None => families.iter().map(unspecified).collect(),
    };
    for address in addresses {
        match try_bind(port.protocol, SocketAddr::new(address, port.host_port)) {
            Err(Errno::ADDRINUSE) => return Err(NetworkError::PortInUse { port: describe(port) }),
            // The address may come later, or the kernel lacks the protocol: neither can have a listener.
            Ok(()) | Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => {}
            Err(Errno::SOCKTNOSUPPORT) => {}
            Err(e) => {
                let error = io::Error::from(e);
                return Err(NetworkError::Invalid(format!("host port {} cannot be bound: {error}", describe(port))));
            }
        }
    }
    Ok(())
}

fn unspecified(address: &IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Binds without listening, so that no client can connect to the probe.
fn try_bind(protocol: TransportProtocol, address: SocketAddr) -> Result<(), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (kind, number): (SocketType, Protocol) = match protocol {
        TransportProtocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        TransportProtocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        TransportProtocol::Sctp => (SocketType::STREAM, ipproto::SCTP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(number))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == TransportProtocol::Tcp {
        // Connections that are closing are no listeners; a listener still refuses the address.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)
}

/// `address:port/protocol`, without the address if any is meant.
pub(crate) fn describe(port: &PortForward) -> String {
    match port.host_ip {
        Some(address) => format!("{}/{}", SocketAddr::new(address, port.host_port), port.protocol.name()),
        None => format!("{}/{}", port.host_port, port.protocol.name()),
    }
}
