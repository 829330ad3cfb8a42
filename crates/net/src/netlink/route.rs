//! Links, addresses and routes (`NETLINK_ROUTE`), encoded by `netlink-packet-route`.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use super::NetlinkError;
use super::socket::{ACK, CREATE, DUMP, DumpMessage, EXCL, NetlinkSocket, REQUEST};

/// A hardware address.
pub(crate) type MacAddress = [u8; 6];

/// A network interface with the properties that are used here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Index of the bridge it is a port of.
    pub(crate) master: Option<u32>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) bridge: bool,
    pub(crate) mac: Vec<u8>,
    /// Free text; on our bridge it names the engine.
    pub(crate) alias: String,
}

/// Traffic counters of one interface since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Its name in the pod.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that were received damaged.
    pub rx_errors: u64,
    /// Packets that were received and dropped.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets that were dropped before they were sent.
    pub tx_dropped: u64,
}

/// The pod's end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VethPeer<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: MacAddress,
    pub(crate) netns: BorrowedFd<'a>,
}

/// A connection to the routing tables of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct RouteSocket {
    socket: NetlinkSocket,
}

impl RouteSocket {
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        Ok(RouteSocket { socket: NetlinkSocket::open(None)? })
    }

    /// `None` if there is no such link.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let operation = format!("get link {name}");
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        match self.request(&operation, 0, RouteNetlinkMessage::GetLink(message)) {
            Ok(answers) => match answers.iter().find_map(decode_link) {
                Some(link) => Ok(Some(link)),
                None => Err(NetlinkError::Malformed { operation }),
            },
            Err(e) if e.errno() == Some(Errno::NODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Traffic counters of all links.
    pub(crate) fn counters(&mut self) -> Result<Vec<InterfaceCounters>, NetlinkError> {
        let request = |sequence| {
            let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
            encode(REQUEST | DUMP, sequence, message)
        };
        Ok(self.socket.dump("list links", request)?.iter().filter_map(decode_counters).collect())
    }

    /// All links; one that cannot be decoded is left out, as the host may have kinds unknown here.
    pub(crate) fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = |sequence| {
            let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
            encode(REQUEST | DUMP, sequence, message)
        };
        Ok(self.socket.dump("list links", request)?.iter().filter_map(decode_link).collect())
    }

    /// Creates a bridge that is down.
    pub(crate) fn create_bridge(&mut self, name: &str, mac: MacAddress, mtu: u32) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        self.change(&format!("create bridge {name}"), CREATE | EXCL, RouteNetlinkMessage::NewLink(message))
    }

    /// Creates a veth pair whose host end is a port of `bridge` and whose other end is in the pod's namespace. Both are down: the
    /// kernel refuses to set one up before the other is there.
    pub(crate) fn create_veth(
        &mut self,
        name: &str,
        bridge: u32,
        mtu: u32,
        peer: VethPeer<'_>,
    ) -> Result<(), NetlinkError> {
        let message = veth_message(name, bridge, mtu, peer);
        self.change(&format!("create veth {name}"), CREATE | EXCL, RouteNetlinkMessage::NewLink(message))
    }

    /// Sets a link up.
    pub(crate) fn set_up(&mut self, link: &Link) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(&format!("set link {} up", link.name), 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Sets the free text of a link.
    pub(crate) fn set_alias(&mut self, link: &Link, alias: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes = vec![LinkAttribute::IfAlias(alias.to_owned())];
        self.change(&format!("set the alias of link {}", link.name), 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Makes a link a port of a bridge.
    pub(crate) fn set_master(&mut self, link: &Link, bridge: u32) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes = vec![LinkAttribute::Controller(bridge)];
        self.change(&format!("add link {} to the bridge", link.name), 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Sets a bridge port up and lets it send packets back to where they came from: a pod reaches its own host port.
    pub(crate) fn set_port_up(&mut self, link: &Link) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(true)])),
        ])];
        self.change(&format!("set bridge port {} up", link.name), 0, RouteNetlinkMessage::NewLink(message))
    }

    /// Deletes a link. A missing one is no error.
    pub(crate) fn delete_link(&mut self, link: &Link) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let deleted = self.change(&format!("delete link {}", link.name), 0, RouteNetlinkMessage::DelLink(message));
        match deleted {
            Err(e) if e.errno() == Some(Errno::NODEV) => Ok(()),
            other => other,
        }
    }

    /// Adds an address, IPv6 without duplicate address detection. A present one is no error.
    pub(crate) fn add_address(&mut self, link: &Link, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.addr());
        message.header.prefix_len = address.prefix_len();
        message.header.index = link.index;
        message.attributes = vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
        match address {
            IpNet::V4(v4) => message.attributes.push(AddressAttribute::Broadcast(v4.broadcast())),
            IpNet::V6(_) => message.header.flags = AddressHeaderFlags::Nodad,
        }
        let operation = format!("add address {address} to {}", link.name);
        match self.change(&operation, CREATE | EXCL, RouteNetlinkMessage::NewAddress(message)) {
            Err(e) if e.errno() == Some(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Adds the default route of the gateway's family.
    pub(crate) fn add_default_route(&mut self, link: &Link, gateway: IpAddr) -> Result<(), NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        let address = match gateway {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        message.attributes = vec![RouteAttribute::Gateway(address), RouteAttribute::Oif(link.index)];
        let operation = format!("add default route by {gateway} to {}", link.name);
        self.change(&operation, CREATE | EXCL, RouteNetlinkMessage::NewRoute(message))
    }

    /// Indexes of the links with a default route of the main table, the preferred one first.
    pub(crate) fn default_route_links(&mut self) -> Result<Vec<u32>, NetlinkError> {
        let request = |sequence| {
            let message = RouteNetlinkMessage::GetRoute(RouteMessage::default());
            encode(REQUEST | DUMP, sequence, message)
        };
        let mut found = vec![];
        for answer in self.socket.dump("list routes", request)? {
            let Some(RouteNetlinkMessage::NewRoute(route)) = decode(&answer) else { continue };
            let main = route.header.table == RouteHeader::RT_TABLE_MAIN;
            if !main || route.header.destination_prefix_length != 0 || route.header.kind != RouteType::Unicast {
                continue;
            }
            let priority = route.attributes.iter().find_map(|a| match a {
                RouteAttribute::Priority(priority) => Some(*priority),
                _ => None,
            });
            let link = route.attributes.iter().find_map(|a| match a {
                RouteAttribute::Oif(link) => Some(*link),
                _ => None,
            });
            found.extend(link.map(|link| (priority.unwrap_or(0), link)));
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, link)| link).collect())
    }

    fn change(&mut self, operation: &str, flags: u16, message: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        self.request(operation, flags, message).map(drop)
    }

    fn request(
        &mut self,
        operation: &str,
        flags: u16,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<DumpMessage>, NetlinkError> {
        let sequence = self.socket.next_sequence();
        self.socket.request(operation, sequence, &encode(REQUEST | ACK | flags, sequence, message))
    }
}

fn veth_message(name: &str, bridge: u32, mtu: u32, peer: VethPeer<'_>) -> LinkMessage {
    let mut inner = LinkMessage::default();
    inner.attributes = vec![
        LinkAttribute::IfName(peer.name.to_owned()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Address(peer.mac.to_vec()),
        LinkAttribute::NetNsFd(peer.netns.as_raw_fd()),
    ];
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Controller(bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inner))),
        ]),
    ];
    message
}

/// The bytes of the message, to compare its cost.
#[cfg(test)]
pub(crate) fn encode_veth(name: &str, bridge: u32, mtu: u32, peer: VethPeer<'_>) -> Vec<u8> {
    encode(REQUEST | ACK | CREATE | EXCL, 1, RouteNetlinkMessage::NewLink(veth_message(name, bridge, mtu, peer)))
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn encode(flags: u16, sequence: u32, message: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn decode((kind, body): &DumpMessage) -> Option<RouteNetlinkMessage> {
    use netlink_packet_core::NetlinkDeserializable;

    let mut header = NetlinkHeader::default();
    header.message_type = *kind;
    RouteNetlinkMessage::deserialize(&header, body).ok()
}

fn decode_counters(answer: &DumpMessage) -> Option<InterfaceCounters> {
    let Some(RouteNetlinkMessage::NewLink(message)) = decode(answer) else { return None };
    let mut counters = InterfaceCounters::default();
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => counters.name = name,
            LinkAttribute::Stats64(stats) => {
                (counters.rx_bytes, counters.rx_packets) = (stats.rx_bytes, stats.rx_packets);
                (counters.rx_errors, counters.rx_dropped) = (stats.rx_errors, stats.rx_dropped);
                (counters.tx_bytes, counters.tx_packets) = (stats.tx_bytes, stats.tx_packets);
                (counters.tx_errors, counters.tx_dropped) = (stats.tx_errors, stats.tx_dropped);
            }
            _ => {}
        }
    }
    Some(counters)
}

fn decode_link(answer: &DumpMessage) -> Option<Link> {
    let Some(RouteNetlinkMessage::NewLink(message)) = decode(answer) else { return None };
    let up = message.header.flags.contains(LinkFlags::Up);
    let mut link = Link { index: message.header.index, up, ..Link::default() };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(master) => link.master = Some(master),
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::IfAlias(alias) => link.alias = alias,
            LinkAttribute::LinkInfo(infos) => {
                link.bridge = infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Bridge)));
            }
            _ => {}
        }
    }
    Some(link)
}
