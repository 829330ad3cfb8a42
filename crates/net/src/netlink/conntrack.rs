//! Deletion of conntrack entries.
//!
//! A flow keeps the translation it was created with. UDP flows have no end, so a client that sent to a host port before the pod
//! was there, or while another pod had it, would never reach the new pod.

use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::netlink;

use super::NetlinkError;
use super::attr::{MessageWriter, find};
use super::socket::{ACK, DUMP, NetlinkSocket, REQUEST};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 1 << 8 | 2;
/// Size of `struct nfgenmsg`.
const FAMILY_HEADER_LEN: usize = 4;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPPROTO_UDP: u8 = 17;

/// Deletes the UDP flows whose client sent to one of the ports (`None` as address: to any address). Returns how many.
pub(crate) fn delete_udp_flows(ports: &[(Option<IpAddr>, u16)]) -> Result<usize, NetlinkError> {
    let mut socket = NetlinkSocket::open(Some(netlink::NETFILTER))?;
    let entries = socket.dump("list conntrack entries", |sequence| {
        let mut writer = MessageWriter::default();
        writer.message(GET, REQUEST | DUMP, sequence, |w| w.raw(&[0; FAMILY_HEADER_LEN]));
        writer.as_bytes().to_vec()
    })?;
    let mut deleted = 0;
    for (_, body) in entries {
        let Some((header, attributes)) = body.split_at_checked(FAMILY_HEADER_LEN) else { continue };
        let Some(tuple) = find(attributes, CTA_TUPLE_ORIG) else { continue };
        if !udp_target(tuple).is_some_and(|(address, port)| {
            ports.iter().any(|(wanted, number)| *number == port && wanted.is_none_or(|wanted| wanted == address))
        }) {
            continue;
        }
        let sequence = socket.next_sequence();
        let mut writer = MessageWriter::default();
        writer.message(DELETE, REQUEST | ACK, sequence, |w| {
            w.raw(header);
            w.nest(CTA_TUPLE_ORIG, |w| w.raw(tuple));
            for kind in [CTA_ZONE, CTA_ID] {
                if let Some(value) = find(attributes, kind) {
                    w.attr(kind, value);
                }
            }
        });
        match socket.request("delete a conntrack entry", sequence, writer.as_bytes()) {
            Ok(_) => deleted += 1,
            // It ended meanwhile.
            Err(e) if e.errno() == Some(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(deleted)
}

/// Address and port that a UDP flow's client sends to.
fn udp_target(tuple: &[u8]) -> Option<(IpAddr, u16)> {
    let (ip, protocol) = (find(tuple, CTA_TUPLE_IP)?, find(tuple, CTA_TUPLE_PROTO)?);
    if find(protocol, CTA_PROTO_NUM)? != [IPPROTO_UDP] {
        return None;
    }
    let port = u16::from_be_bytes(find(protocol, CTA_PROTO_DST_PORT)?.try_into().ok()?);
    let address = match (find(ip, CTA_IP_V4_DST), find(ip, CTA_IP_V6_DST)) {
        (Some(v4), _) => IpAddr::from(<[u8; 4]>::try_from(v4).ok()?),
        (None, v6) => IpAddr::from(<[u8; 16]>::try_from(v6?).ok()?),
    };
    Some((address, port))
}
