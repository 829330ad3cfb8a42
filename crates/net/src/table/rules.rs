//! The rules of the table.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::NftTable;
use crate::netlink::expr::{
    Expr, MetaKey, PayloadBase, REG, REG_AFTER_4, REG_AFTER_8, REG_AFTER_16, REG_AFTER_20, Verdict,
};

/// `NFPROTO_IPV4` and `_IPV6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `RTN_LOCAL`.
const ROUTE_LOCAL: u32 = 2;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;
const LOOPBACK_V4: ipnet::Ipv4Net = ipnet::Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
const LOOPBACK_V6: ipnet::Ipv6Net = ipnet::Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128);

/// The rules with their chains, in order.
pub(super) fn of(table: &NftTable) -> Vec<(&'static str, Vec<Expr>)> {
    let mut rules = vec![
        ("to_pod", by_address_and_port(IPV4)),
        ("to_pod", by_port(IPV4)),
        // The kernel sends nothing from ::1 to another link; without this, a client of localhost waits instead of trying 127.0.0.1.
        ("to_pod", [address_in(Direction::To, LOOPBACK_V6.into(), true), verdict(Verdict::Return)].concat()),
        ("to_pod", by_address_and_port(IPV6)),
        ("to_pod", by_port(IPV6)),
    ];
    for chain in ["prerouting", "output"] {
        let local = Expr::Cmp { equal: true, value: ROUTE_LOCAL.to_ne_bytes().to_vec() };
        rules.push((chain, vec![Expr::DestinationType, local, Expr::Verdict(Verdict::Jump("to_pod"))]));
    }
    let out = interface(MetaKey::InterfaceOut, &table.bridge, true);
    for range in &table.ranges {
        let from_pod = address_in(Direction::From, *range, true);
        let rule = [out.clone(), translated(), from_pod, masquerade(false)].concat();
        rules.push(("postrouting", rule));
    }
    let from_loopback = address_in(Direction::From, LOOPBACK_V4.into(), true);
    rules.push(("postrouting", [out, from_loopback, masquerade(false)].concat()));
    for range in &table.ranges {
        let outside = [address_in(Direction::To, *range, false), address_in(Direction::To, multicast(range), false)];
        let from_pod = address_in(Direction::From, *range, true);
        rules.push(("postrouting", [from_pod, outside.concat(), masquerade(true)].concat()));
    }
    let to_loopback = address_in(Direction::To, LOOPBACK_V4.into(), true);
    // Not only from pods: a host port on 127.0.0.1 is translated before the kernel would drop a neighbour's packet as a martian.
    let from_others = interface(MetaKey::InterfaceIn, "lo", false);
    rules.push(("guard", [from_others, to_loopback, verdict(Verdict::Drop)].concat()));
    rules
}

#[derive(Clone, Copy)]
enum Direction {
    From,
    To,
}

fn verdict(verdict: Verdict) -> Vec<Expr> {
    vec![Expr::Verdict(verdict)]
}

fn masquerade(fully_random: bool) -> Vec<Expr> {
    vec![Expr::Masquerade { fully_random }]
}

fn multicast(range: &IpNet) -> IpNet {
    match range {
        IpNet::V4(_) => ipnet::Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4).into(),
        IpNet::V6(_) => ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8).into(),
    }
}

/// Names are compared in a buffer of 16 bytes (`IFNAMSIZ`).
fn interface(key: MetaKey, name: &str, equal: bool) -> Vec<Expr> {
    let mut value = name.as_bytes().to_vec();
    value.resize(16, 0);
    vec![Expr::Meta { key, to: REG }, Expr::Cmp { equal, value }]
}

/// The connection's destination was translated.
fn translated() -> Vec<Expr> {
    vec![
        Expr::CtStatus,
        Expr::Mask { mask: STATUS_DNAT.to_ne_bytes().to_vec() },
        Expr::Cmp { equal: false, value: vec![0; 4] },
    ]
}

fn family(number: u8) -> Vec<Expr> {
    vec![Expr::Meta { key: MetaKey::Family, to: REG }, Expr::Cmp { equal: true, value: vec![number] }]
}

/// Source or destination is inside (or outside) a network of the packet's family.
fn address_in(direction: Direction, network: IpNet, inside: bool) -> Vec<Expr> {
    let (number, offset) = match (network, direction) {
        (IpNet::V4(_), Direction::From) => (IPV4, 12),
        (IpNet::V4(_), Direction::To) => (IPV4, 16),
        (IpNet::V6(_), Direction::From) => (IPV6, 8),
        (IpNet::V6(_), Direction::To) => (IPV6, 24),
    };
    let (value, mask) = (super::octets(network.network()), super::octets(network.netmask()));
    let len = if network.addr().is_ipv4() { 4 } else { 16 };
    let mut exprs = family(number);
    exprs.push(Expr::Payload { base: PayloadBase::Network, offset, len, to: REG });
    if network.prefix_len() < network.max_prefix_len() {
        exprs.push(Expr::Mask { mask });
    }
    exprs.push(Expr::Cmp { equal: inside, value });
    exprs
}

/// `dnat … to daddr . meta l4proto . th dport map @ports*_at`.
fn by_address_and_port(number: u8) -> Vec<Expr> {
    let mut exprs = family(number);
    let (offset, len, protocol, port) = match number {
        IPV4 => (16, 4, REG_AFTER_4, REG_AFTER_8),
        _ => (24, 16, REG_AFTER_16, REG_AFTER_20),
    };
    exprs.push(Expr::Payload { base: PayloadBase::Network, offset, len, to: REG });
    exprs.push(Expr::Meta { key: MetaKey::Protocol, to: protocol });
    exprs.push(Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: port });
    exprs.push(Expr::Lookup { map: if number == IPV4 { "ports4_at" } else { "ports6_at" } });
    exprs.push(dnat(number));
    exprs
}

/// `dnat … to meta l4proto . th dport map @ports*`.
fn by_port(number: u8) -> Vec<Expr> {
    vec![
        Expr::Meta { key: MetaKey::Protocol, to: REG },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: REG_AFTER_4 },
        Expr::Lookup { map: if number == IPV4 { "ports4" } else { "ports6" } },
        dnat(number),
    ]
}

/// The translation applies to packets of its family only; the kernel skips others.
fn dnat(number: u8) -> Expr {
    Expr::Dnat { family: number.into(), port: if number == IPV4 { REG_AFTER_4 } else { REG_AFTER_16 } }
}
