//! Bytes and errors of the interfaces of a pod.

use std::io;
use std::path::{Path, PathBuf};

use crate::netlink::NetlinkError;
use crate::netlink::route::{InterfaceCounters, RouteSocket};
use crate::netns;

/// The counters of a namespace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// The namespace cannot be entered.
    #[error("enter network namespace {}", path.display())]
    Namespace {
        /// The pin.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel did not list the interfaces.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// All interfaces of a pinned network namespace, `lo` included. Blocks; a thread enters the namespace.
pub fn interface_counters(netns: &Path) -> Result<Vec<InterfaceCounters>, CountersError> {
    let failed = |source| CountersError::Namespace { path: netns.to_owned(), source };
    let namespace = netns::open(netns).map_err(failed)?;
    let read = netns::inside(&namespace, || RouteSocket::open()?.counters());
    Ok(read.map_err(failed)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interfaces_of_a_namespace_are_listed_with_their_traffic() {
        let own = Path::new("/proc/self/ns/net");
        let sent = || {
            let counters = interface_counters(own).unwrap();
            counters.into_iter().find(|counters| counters.name == "lo").expect("every namespace has it").tx_bytes
        };
        let before = sent();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 1000], socket.local_addr().unwrap()).unwrap();
        assert!(sent() >= before + 1000);
        let error = interface_counters(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(error, CountersError::Namespace { .. }), "{error}");
    }
}
