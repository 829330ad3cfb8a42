//! The network of pods: a bridge with addresses and host ports, set up over netlink without starting a process, or CNI plugins.
//!
//! [`Network`] is the seam: the engine calls [`BridgeNetwork`] or [`CniNetwork`] from blocking threads, serialised per pod.
//!
//! ```text
//!             pod's netns: lo, eth0 (10.244.0.7/24, default via 10.244.0.1)
//!                                │ veth
//!   node's netns: bridge pw0 (10.244.0.1/24) ── table inet podwright: host ports, masquerade, guard
//! ```
//!
//! All of it acts on the network namespace of the calling thread, so that a test can have a node of its own.

mod bridge;
mod bridge_network;
mod bridge_settings;
mod cni;
mod cni_error;
mod collector;
mod counters;
mod dns_files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
mod ipam;
mod model;
mod netlink;
mod netns;
mod ports;
mod sysctl;
mod table;
#[cfg(test)]
mod tests;

pub use bridge::loopback_up;
pub use bridge_network::BridgeNetwork;
pub use bridge_settings::BridgeSettings;
pub use cni::{CniNetwork, CniSettings};
pub use cni_error::CniError;
pub use counters::{CountersError, interface_counters};
pub use dns_files::{DnsFileError, ResolvConf, hosts_file};
pub use ipam::IpamError;
pub use model::{
    AttachRequest, Attachment, Bandwidth, Network, NetworkError, OwnedPod, PodIdentity, PortForward, ReconcileSummary,
    ReleaseRequest, TransportProtocol,
};
pub use netlink::NetlinkError;
pub use netlink::route::InterfaceCounters;
pub use netns::NetnsPins;
