//! The interface of a network: requests, results and errors.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cni_error::CniError;
use crate::dns_files::ResolvConf;
use crate::ipam::IpamError;
use crate::netlink::NetlinkError;

/// A way to connect pods. All calls block; calls for one pod never overlap, calls for different pods may.
pub trait Network: Send + Sync + fmt::Debug {
    /// Connects a pod's network namespace. After an error nothing of it is left.
    fn add(&self, request: &AttachRequest<'_>) -> Result<Attachment, NetworkError>;
    /// Undoes [`Network::add`], whether it ended or not, and unpins the namespace. May be repeated.
    fn release(&self, request: &ReleaseRequest<'_>) -> Result<(), NetworkError>;
    /// The reason why no pod can be connected now, for the runtime condition `NetworkReady`.
    fn status(&self) -> Result<(), NetworkError>;
    /// Restores what others removed and removes what no pod owns. Called at start and periodically.
    fn reconcile(&self, owned: &[OwnedPod]) -> Result<ReconcileSummary, NetworkError>;
    /// Removes what all pods share if there is no pod, for a clean shutdown. `false`: a pod still uses it.
    fn remove_if_unused(&self) -> Result<bool, NetworkError>;
    /// Other ranges for the addresses of pods, which outlast this process. Refused while a pod has an address of the former ones.
    /// Plugins have ranges of their own.
    fn set_ranges(&self, ranges: &[IpNet]) -> Result<(), NetworkError>;
}

/// A sandbox as its network knows it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PodIdentity {
    /// Id of the sandbox; unique, and a file name.
    pub sandbox_id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

impl fmt::Display for PodIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod to connect.
#[derive(Clone, Copy, Debug)]
pub struct AttachRequest<'a> {
    /// The pod.
    pub pod: &'a PodIdentity,
    /// Its network namespace, pinned ([`crate::NetnsPins`]).
    pub netns: &'a Path,
    /// Ports of the node that lead to it.
    pub ports: &'a [PortForward],
    /// Limits for plugins with the capability `bandwidth`; the builtin network has none.
    pub bandwidth: Option<Bandwidth>,
    /// For plugins with the capability `dns`; the builtin network needs none.
    pub dns: ResolvConf<'a>,
}

/// A pod to disconnect.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseRequest<'a> {
    /// The pod.
    pub pod: &'a PodIdentity,
    /// The pinned namespace; `None` if it is gone.
    pub netns: Option<&'a Path>,
    /// What [`Network::add`] returned; `None` if that is not known, because a crash came first.
    pub attachment: Option<&'a Attachment>,
}

/// A pod that exists according to the engine's records.
#[derive(Clone, Debug)]
pub struct OwnedPod {
    /// Id of its sandbox.
    pub sandbox_id: String,
    /// `None` while it is being connected, and if it is not known: its link, addresses and ports stay as they are.
    pub attachment: Option<Attachment>,
}

/// A connected pod, to be kept in the engine's record.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Attachment {
    /// The pod.
    pub pod: PodIdentity,
    /// Its addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// The ports that lead to it.
    pub ports: Vec<PortForward>,
}

/// A port of the node that leads to a pod.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct PortForward {
    /// The protocol.
    pub protocol: TransportProtocol,
    /// The node's address; `None` is any, 0.0.0.0 and :: are any of their family.
    pub host_ip: Option<IpAddr>,
    /// The node's port, not 0.
    pub host_port: u16,
    /// The pod's port, not 0.
    pub container_port: u16,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl TransportProtocol {
    /// The number of the protocol in IP headers.
    pub(crate) fn number(self) -> u8 {
        match self {
            TransportProtocol::Tcp => 6,
            TransportProtocol::Udp => 17,
            TransportProtocol::Sctp => 132,
        }
    }

    /// The name in lower case, as CNI and `nft` write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
            TransportProtocol::Sctp => "sctp",
        }
    }
}

/// Limits in bits per second (annotations `kubernetes.io/ingress-bandwidth` and `egress-bandwidth`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bandwidth {
    /// Towards the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// What [`Network::reconcile`] changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReconcileSummary {
    /// The nf_tables table was loaded again.
    pub table_restored: bool,
    /// Links deleted because no pod owns them.
    pub links_removed: usize,
    /// Addresses freed because no pod owns them.
    pub leases_removed: usize,
    /// Map elements deleted because no pod owns them.
    pub ports_removed: usize,
    /// Pinned namespaces unpinned because no pod owns them.
    pub netns_removed: usize,
}

/// Why a network operation failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel refused a change of links, addresses, routes or tables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// No address could be reserved.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// A CNI plugin or its configuration failed.
    #[error(transparent)]
    Cni(#[from] CniError),
    /// The settings or the request contradict themselves.
    #[error("{0}")]
    Invalid(String),
    /// Another pod has the host port.
    #[error("host port {port} is taken by pod {owner}")]
    PortTaken {
        /// `address:port/protocol`.
        port: String,
        /// `namespace/name` of the other pod.
        owner: String,
    },
    /// A process of the node listens on the host port.
    #[error("host port {port} is in use by a process of the node")]
    PortInUse {
        /// `address:port/protocol`.
        port: String,
    },
    /// The pod's network namespace could not be opened, entered or unpinned.
    #[error("network namespace {path}")]
    Netns {
        /// The pin.
        path: PathBuf,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
    /// A kernel setting could not be written.
    #[error("set {key} to {value}")]
    Sysctl {
        /// The setting below `/proc/sys`.
        key: String,
        /// The value.
        value: String,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
    /// Pods have addresses of the ranges that should be replaced.
    #[error(
        "the range of pod addresses stays {}: {pods} pods have addresses of it; {} is used once they are gone",
        text(.before), text(.ranges)
    )]
    RangeInUse {
        /// The ranges in use.
        before: Vec<IpNet>,
        /// Those that were asked for.
        ranges: Vec<IpNet>,
        /// How many pods have an address.
        pods: usize,
    },
    /// The ranges could not be kept.
    #[error("write the ranges of pod addresses")]
    Ranges {
        /// The system call's error.
        #[source]
        source: io::Error,
    },
    /// The network is not set up.
    #[error("network not ready: {0}")]
    NotReady(String),
}

/// Ranges as users write them.
fn text(ranges: &[IpNet]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
