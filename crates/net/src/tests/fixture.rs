//! The node of a test, its pods, and the host outside of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwright_linux::mountinfo;
use podwright_linux::namespace::{self, flags};
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::dns_files::ResolvConf;
use crate::model::*;
use crate::netlink::route::{RouteSocket, VethPeer};
use crate::{BridgeNetwork, BridgeSettings, NetnsPins, bridge, netns};

pub(super) const BRIDGE: &str = "pwtest0";
pub(super) const TABLE: &str = "podwright_test";
/// Addresses of the node and of the host outside.
pub(super) const NODE_V4: &str = "192.0.2.1";
pub(super) const OUTSIDE_V4: &str = "192.0.2.2";
pub(super) const NODE_V6: &str = "2001:db8::1";
pub(super) const OUTSIDE_V6: &str = "2001:db8::2";
/// Long enough for a busy machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const NO_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a test on a node of its own and checks that the host is as before.
pub(super) fn on_a_node(test: impl FnOnce(&Node) + Send) {
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            namespace::unshare(flags::NEWNET | flags::NEWNS).expect("namespaces need root");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            bridge::loopback_up().unwrap();
            let node = Node::new();
            test(&node);
            node.dir.path().to_owned()
        });
        let dir = run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(!dir.exists(), "the directory of the test is left");
        assert!(mountinfo::read().unwrap().iter().all(|mount| !mount.point.starts_with(&dir)), "mounts are left");
        let links = RouteSocket::open().unwrap().links().unwrap();
        assert!(links.iter().all(|link| link.name != BRIDGE && !bridge::is_veth_name(&link.name)), "{links:?}");
        assert_eq!(crate::netlink::nft::table_userdata(TABLE).unwrap(), None, "the host has the table");
    });
}

pub(super) fn new_netns() -> OwnedFd {
    let made = thread::spawn(|| {
        namespace::unshare(flags::NEWNET).unwrap();
        OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
    });
    made.join().unwrap()
}

/// A program of the cache that `hack/debs runtime nftables` fills.
pub(super) fn cached_program(path: &str) -> PathBuf {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let cache = std::env::var_os("PODWRIGHT_CACHE").map_or_else(|| home.join(".cache/podwright"), PathBuf::from);
    let program = cache.join("debian").join(path);
    assert!(program.exists(), "{} is missing: run hack/debs runtime nftables", program.display());
    program
}

/// Runs `nft` on the node and returns its output.
pub(super) fn nft(arguments: &[&str]) -> String {
    run(Command::new(cached_program("exec/nft")).args(arguments))
}

pub(super) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(super) struct Node {
    pub(super) dir: tempfile::TempDir,
    pub(super) pins: Arc<NetnsPins>,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pins = Arc::new(NetnsPins::new(dir.path().join("netns")));
        Node { dir, pins }
    }

    pub(super) fn settings(&self, ranges: &[&str]) -> BridgeSettings {
        BridgeSettings {
            bridge: BRIDGE.to_owned(),
            table: TABLE.to_owned(),
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ranges_file: None,
            mtu: None,
            leases: self.dir.path().join("leases"),
        }
    }

    /// A network that is set up.
    pub(super) fn network(&self, ranges: &[&str]) -> BridgeNetwork {
        let network = BridgeNetwork::new(self.settings(ranges), Arc::clone(&self.pins)).unwrap();
        network.reconcile(&[]).unwrap();
        network.status().unwrap();
        network
    }

    /// A host outside of the node, and the node's default route to it over a link with an MTU of 1400.
    pub(super) fn outside(&self) -> OwnedFd {
        let outside = new_netns();
        let mut route = RouteSocket::open().unwrap();
        route.create_bridge("up0", [2, 0, 0, 0, 0, 1], 1400).unwrap();
        let uplink = route.link("up0").unwrap().unwrap();
        let peer = VethPeer { name: "eth0", mac: [2, 0, 0, 0, 0, 2], netns: outside.as_fd() };
        route.create_veth("up1", uplink.index, 1400, peer).unwrap();
        let port = route.link("up1").unwrap().unwrap();
        route.set_up(&uplink).unwrap();
        route.set_port_up(&port).unwrap();
        let with_prefix = |address: &str, len| IpNet::new(address.parse().unwrap(), len).unwrap();
        route.add_address(&uplink, with_prefix(NODE_V4, 24)).unwrap();
        route.add_address(&uplink, with_prefix(NODE_V6, 64)).unwrap();
        netns::inside(&outside, || {
            let mut route = RouteSocket::open().unwrap();
            let link = route.link("eth0").unwrap().unwrap();
            route.set_up(&link).unwrap();
            route.add_address(&link, with_prefix(OUTSIDE_V4, 24)).unwrap();
            route.add_address(&link, with_prefix(OUTSIDE_V6, 64)).unwrap();
        })
        .unwrap();
        route.add_default_route(&uplink, OUTSIDE_V4.parse().unwrap()).unwrap();
        outside
    }

    /// Pins a new namespace for a pod that is not connected yet.
    pub(super) fn pod(&self, name: &str) -> Pod {
        let sandbox_id = format!("{name}{}", "0123456789abcdef".repeat(4));
        let identity = PodIdentity { sandbox_id, namespace: "shop".into(), name: name.into(), uid: "u1".into() };
        let netns = new_netns();
        let path = self.pins.pin(&identity.sandbox_id, &netns).unwrap();
        Pod { identity, netns, path, attachment: None }
    }

    /// A connected pod.
    pub(super) fn connected(&self, network: &dyn Network, name: &str, ports: &[PortForward]) -> Pod {
        let mut pod = self.pod(name);
        pod.connect(network, ports).unwrap();
        pod
    }

    /// Nothing of any pod is left: links, leases, map elements, pins.
    pub(super) fn assert_no_pods(&self) {
        let links = RouteSocket::open().unwrap().links().unwrap();
        assert!(links.iter().all(|link| !bridge::is_veth_name(&link.name)), "{links:?}");
        let leases = crate::ipam::Ipam::new(self.dir.path().join("leases")).leases().unwrap();
        assert_eq!(leases, []);
        let pins: Vec<_> = fs::read_dir(self.dir.path().join("netns")).map_or(vec![], |dir| dir.collect());
        assert!(pins.is_empty(), "{pins:?}");
        let dir = self.dir.path();
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
        for map in ["ports4", "ports4_at", "ports6", "ports6_at"] {
            if let Ok(elements) = crate::netlink::nft::elements(TABLE, map) {
                assert_eq!(elements, []);
            }
        }
    }
}

impl Drop for Node {
    /// A failed test leaves no files of the host behind either.
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = NetnsPins::new(self.dir.path().join("netns")).sweep(&BTreeSet::new());
        }
    }
}

pub(super) struct Pod {
    pub(super) identity: PodIdentity,
    pub(super) netns: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) attachment: Option<Attachment>,
}

impl Pod {
    pub(super) fn connect(&mut self, network: &dyn Network, ports: &[PortForward]) -> Result<(), NetworkError> {
        let request = AttachRequest {
            pod: &self.identity,
            netns: &self.path,
            ports,
            bandwidth: None,
            dns: ResolvConf::default(),
        };
        self.attachment = Some(network.add(&request)?);
        Ok(())
    }

    pub(super) fn address(&self, position: usize) -> IpAddr {
        self.attachment.as_ref().unwrap().addresses[position]
    }

    pub(super) fn release(&self, network: &dyn Network) {
        let attachment = self.attachment.as_ref();
        network.release(&ReleaseRequest { pod: &self.identity, netns: Some(&self.path), attachment }).unwrap();
    }

    pub(super) fn owned(&self) -> OwnedPod {
        OwnedPod { sandbox_id: self.identity.sandbox_id.clone(), attachment: self.attachment.clone() }
    }

    pub(super) fn link(&self) -> String {
        bridge::veth_name(&self.identity.sandbox_id)
    }

    pub(super) fn listen(&self, port: u16) -> TcpListener {
        netns::inside(&self.netns, || TcpListener::bind(("::", port))).unwrap().unwrap()
    }

    pub(super) fn listen_udp(&self, port: u16) -> UdpSocket {
        netns::inside(&self.netns, || udp(&format!("[::]:{port}"))).unwrap()
    }
}

pub(super) fn tcp_port(host_port: u16, container_port: u16) -> PortForward {
    PortForward { protocol: TransportProtocol::Tcp, host_ip: None, host_port, container_port }
}

pub(super) fn udp_port(host_port: u16, container_port: u16) -> PortForward {
    PortForward { protocol: TransportProtocol::Udp, ..tcp_port(host_port, container_port) }
}

/// Where a client is.
#[derive(Clone, Copy)]
pub(super) enum From<'a> {
    Node,
    Netns(&'a OwnedFd),
}

impl From<'_> {
    pub(super) fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            From::Node => work(),
            From::Netns(netns) => netns::inside(netns, work).unwrap(),
        }
    }
}

/// Connects, and returns the client's address as the server sees it.
pub(super) fn reach(server: &TcpListener, from: From<'_>, address: &str, port: u16) -> IpAddr {
    let target = SocketAddr::new(address.parse().unwrap(), port);
    let client = from.run(|| TcpStream::connect_timeout(&target, CONNECT_TIMEOUT));
    let _client = client.unwrap_or_else(|e| panic!("connect to {target}: {e}"));
    server.set_nonblocking(true).unwrap();
    let end = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match server.accept() {
            Ok((_, peer)) => return peer.ip().to_canonical(),
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(e) => panic!("{target} led to another server: {e}"),
        }
    }
}

/// Connects to what must not answer.
pub(super) fn cannot_reach(from: From<'_>, address: &str, port: u16) -> bool {
    let target = SocketAddr::new(address.parse().unwrap(), port);
    from.run(|| TcpStream::connect_timeout(&target, NO_ANSWER_TIMEOUT)).is_err()
}

pub(super) fn udp(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(CONNECT_TIMEOUT)).unwrap();
    socket
}

/// Sends from a socket that stays the same, and returns whether the server got it and its reply came back.
pub(super) fn udp_exchange(client: &UdpSocket, server: &UdpSocket, target: &str) -> bool {
    let mut buffer = [0; 16];
    // The error of an earlier datagram is reported at the next call.
    let _ = client.send_to(b"ping", target).or_else(|_| client.send_to(b"ping", target));
    let received = |result: io::Result<(usize, SocketAddr)>| result.ok().map(|(_, peer)| peer);
    let Some(peer) = received(server.recv_from(&mut buffer)) else { return false };
    server.send_to(b"pong", peer).unwrap();
    received(client.recv_from(&mut buffer)).is_some()
}

pub(super) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn link_exists(name: &str) -> bool {
    RouteSocket::open().unwrap().link(name).unwrap().is_some()
}
