//! The bridge of the node and the veth pair of a pod.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use ipnet::IpNet;
use rustix::io::Errno;

use crate::ipam::{POD_INTERFACE, gateway};
use crate::model::NetworkError;
use crate::netlink::route::{Link, MacAddress, RouteSocket, VethPeer};
use crate::{netns, sysctl};

/// Names of host ends: this and the first characters of the sandbox's id, within the kernel's 15.
const VETH_PREFIX: &str = "pw-";
const VETH_ID_LEN: usize = 12;
/// Begins the alias of a bridge that an engine uses.
const OWNER_PREFIX: &str = "podwright ";
/// The kernel's limit, with the NUL.
const ALIAS_LEN_MAX: usize = 255;
/// MTU of Ethernet, if the node has no default route.
const MTU_DEFAULT: u32 = 1500;
/// The smallest MTU that IPv6 allows.
const MTU_MIN: u32 = 1280;

/// Name of the host end of a sandbox's veth pair.
pub(crate) fn veth_name(sandbox_id: &str) -> String {
    let id: String = sandbox_id.chars().filter(char::is_ascii_alphanumeric).take(VETH_ID_LEN).collect();
    format!("{VETH_PREFIX}{id}")
}

/// Whether a port of the bridge has the form of [`veth_name`].
pub(crate) fn is_veth_name(name: &str) -> bool {
    name.strip_prefix(VETH_PREFIX).is_some_and(|id| !id.is_empty())
}

/// Identifies an engine on its bridge: the directory of its leases, which no other engine uses.
pub(crate) fn owner(leases: &Path) -> String {
    let leases = std::path::absolute(leases).unwrap_or_else(|_| leases.to_owned());
    let text = format!("{OWNER_PREFIX}{}", leases.display());
    text[..text.floor_char_boundary(ALIAS_LEN_MAX)].to_owned()
}

/// Whether a bridge names another engine than this one.
pub(crate) fn is_foreign(bridge: &Link, owner: &str) -> bool {
    bridge.alias.starts_with(OWNER_PREFIX) && bridge.alias != owner
}

/// As [`check_owner`]; a missing bridge is fine.
pub(crate) fn check_named(name: &str, owner: &str) -> Result<(), NetworkError> {
    let mut route = RouteSocket::open()?;
    match route.link(name)? {
        Some(link) => check_owner(&mut route, &link, owner),
        None => Ok(()),
    }
}

/// Refuses a bridge with pods of another engine: its sweep would delete their links.
fn check_owner(route: &mut RouteSocket, bridge: &Link, owner: &str) -> Result<(), NetworkError> {
    let is_pod = |link: &Link| link.master == Some(bridge.index) && is_veth_name(&link.name);
    if !is_foreign(bridge, owner) || !route.links()?.iter().any(is_pod) {
        return Ok(());
    }
    let (name, other) = (&bridge.name, bridge.alias.trim_start_matches(OWNER_PREFIX));
    Err(NetworkError::Invalid(format!(
        "bridge {name} has pods of another engine, whose addresses are in {other}; choose another bridge and table"
    )))
}

/// Creates the bridge and its addresses and applies the node's settings. Existing ones stay.
pub(crate) fn ensure(name: &str, ranges: &[IpNet], mtu: Option<u32>, owner: &str) -> Result<Link, NetworkError> {
    let mut route = RouteSocket::open()?;
    let found = route.link(name)?;
    let is_new = found.is_none();
    let bridge = match found {
        Some(link) if !link.bridge => {
            return Err(NetworkError::Invalid(format!(
                "interface {name} exists and is not a bridge; choose another name"
            )));
        }
        Some(link) => link,
        None => create(&mut route, name, ranges, mtu)?,
    };
    check_owner(&mut route, &bridge, owner)?;
    // What another program made is not marked: the alias says that an engine may delete it.
    if is_new || is_foreign(&bridge, owner) {
        route.set_alias(&bridge, owner)?;
    }
    // Before it is up: a pod must not become the node's router (CVE-2020-10749).
    sysctl::set_if_present(&format!("net/ipv6/conf/{name}/accept_ra"), "0")?;
    // The link-local address follows from the bridge's MAC and is unique. During duplicate address detection the kernel cannot
    // resolve neighbours for packets whose source is an address of another link, and the first pod's host ports would not answer.
    sysctl::set_if_present(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
    if !bridge.up {
        route.set_up(&bridge)?;
    }
    for range in ranges {
        let address = IpNet::new(gateway(*range), range.prefix_len()).expect("a network's own prefix length");
        route.add_address(&bridge, address)?;
    }
    sysctl::set("net/ipv4/ip_forward", "1")?;
    sysctl::set(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
    if ranges.iter().any(|range| matches!(range, IpNet::V6(_))) {
        forward_ipv6(&mut route)?;
    }
    Ok(Link { up: true, ..bridge })
}

fn create(route: &mut RouteSocket, name: &str, ranges: &[IpNet], mtu: Option<u32>) -> Result<Link, NetworkError> {
    let Some(first) = ranges.first() else {
        return Err(NetworkError::Invalid("the pod network needs an address range".to_owned()));
    };
    let mtu = match mtu {
        Some(mtu) => mtu,
        None => uplink_mtu(route)?,
    };
    // With a MAC of its own, the bridge does not take over that of a port, which would change with the ports.
    match route.create_bridge(name, mac_of(gateway(*first)), mtu) {
        Err(e) if e.errno() == Some(Errno::EXIST) => {}
        other => other?,
    }
    let created = route.link(name)?;
    created.ok_or_else(|| NetworkError::NotReady(format!("bridge {name} was deleted while it was set up")))
}

/// The MTU of the link with the default route.
fn uplink_mtu(route: &mut RouteSocket) -> Result<u32, NetworkError> {
    let uplinks = route.default_route_links()?;
    let links = route.links()?;
    let mtu = uplinks.iter().find_map(|index| links.iter().find(|link| link.index == *index)).map(|link| link.mtu);
    // Some virtual links have an MTU of 0 or of 65536 and more; a bridge takes at most 65535.
    Ok(mtu.filter(|mtu| (MTU_MIN..=65535).contains(mtu)).unwrap_or(MTU_DEFAULT))
}

/// A node that forwards ignores router advertisements unless `accept_ra` is 2, and would lose its own default route.
fn forward_ipv6(route: &mut RouteSocket) -> Result<(), NetworkError> {
    if sysctl::get("net/ipv6/conf/all/forwarding").as_deref() == Some("1") {
        return Ok(());
    }
    let uplinks = route.default_route_links()?;
    for link in route.links()?.iter().filter(|link| uplinks.contains(&link.index)) {
        let key = format!("net/ipv6/conf/{}/accept_ra", link.name);
        if sysctl::get(&key).as_deref() == Some("1") {
            sysctl::set(&key, "2")?;
        }
    }
    sysctl::set("net/ipv6/conf/all/forwarding", "1")
}

/// Connects a pod's namespace to the bridge.
pub(crate) fn attach(
    bridge: &Link,
    sandbox_id: &str,
    netns: BorrowedFd<'_>,
    addresses: &[IpAddr],
    ranges: &[IpNet],
) -> Result<(), NetworkError> {
    let name = veth_name(sandbox_id);
    let mut route = RouteSocket::open()?;
    let mac = addresses.first().map_or([0x0a, 0x58, 0, 0, 0, 1], |address| mac_of(*address));
    let peer = VethPeer { name: POD_INTERFACE, mac, netns };
    route.create_veth(&name, bridge.index, bridge.mtu, peer)?;
    let missing = || NetworkError::NotReady(format!("link {name} was deleted while it was set up"));
    let port = route.link(&name)?.ok_or_else(missing)?;
    route.set_port_up(&port)?;
    let entered = netns::inside(netns, || configure_pod(addresses, ranges));
    entered.map_err(|source| NetworkError::Netns { path: sandbox_id.into(), source })?
}

/// Runs in the pod's namespace.
fn configure_pod(addresses: &[IpAddr], ranges: &[IpNet]) -> Result<(), NetworkError> {
    loopback_up()?;
    let mut route = RouteSocket::open()?;
    let missing = || NetworkError::NotReady(format!("the pod's {POD_INTERFACE} was deleted while it was set up"));
    let link = route.link(POD_INTERFACE)?.ok_or_else(missing)?;
    // Addresses and routes of the pod are set here only, not by router advertisements of other pods.
    sysctl::set_if_present(&format!("net/ipv6/conf/{POD_INTERFACE}/accept_ra"), "0")?;
    sysctl::set_if_present(&format!("net/ipv6/conf/{POD_INTERFACE}/accept_dad"), "0")?;
    if addresses.iter().any(IpAddr::is_ipv6) {
        sysctl::set(&format!("net/ipv6/conf/{POD_INTERFACE}/disable_ipv6"), "0")?;
    }
    route.set_up(&link)?;
    for (address, range) in addresses.iter().zip(ranges) {
        let address = IpNet::new(*address, range.prefix_len()).expect("a network's own prefix length");
        route.add_address(&link, address)?;
    }
    for range in ranges {
        route.add_default_route(&link, gateway(*range))?;
    }
    Ok(())
}

/// Sets the loopback interface of the calling thread's namespace up.
pub fn loopback_up() -> Result<(), NetworkError> {
    let mut route = RouteSocket::open()?;
    match route.link("lo")? {
        Some(link) if !link.up => Ok(route.set_up(&link)?),
        _ => Ok(()),
    }
}

/// A MAC that follows from the address: when an address moves to another pod, the neighbour caches of peers stay valid. The
/// prefix is that of kubenet.
pub(crate) fn mac_of(address: IpAddr) -> MacAddress {
    // FNV-1a of all 16 bytes: pods of one range differ in the last ones.
    let hash = |bytes: [u8; 16]| {
        bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    };
    let [a, b, c, d] = match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => hash(v6.octets()).to_be_bytes(),
    };
    [0x0a, 0x58, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_end_is_named_after_the_sandbox_within_the_kernels_limit() {
        let name = veth_name("0123456789abcdef0123456789abcdef");
        assert_eq!(name, "pw-0123456789ab");
        assert!(name.len() <= 15 && is_veth_name(&name));
        assert!(!is_veth_name("pw0") && !is_veth_name("pw-") && !is_veth_name("veth1"));
    }

    #[test]
    fn the_mac_follows_from_the_address_and_is_a_local_unicast_one() {
        assert_eq!(mac_of("10.244.0.7".parse().unwrap()), [0x0a, 0x58, 10, 244, 0, 7]);
        let (a, b) = (mac_of("fd00::7".parse().unwrap()), mac_of("fd00::8".parse().unwrap()));
        assert_ne!(a, b);
        assert_eq!(a[0] & 0b11, 0b10);
    }
}
