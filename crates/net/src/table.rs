//! The table `inet podwright` of nf_tables: host ports, masquerade, and the guard of the node's loopback.
//!
//! ```text
//! map ports4, ports6          l4proto . dport → address . port            map ports4_at, ports6_at   address . l4proto . dport → address . port
//! chain to_pod                dnat by ports4_at, then ports4; ports6_at, then ports6
//! chain prerouting, output    nat, dstnat − 1: fib daddr type local jump to_pod
//! chain postrouting           nat, srcnat: masquerade what goes to a host port of the same bridge, from 127.0.0.0/8, or out of the range
//! chain guard                 filter, raw: only the node itself reaches its 127.0.0.0/8 (CVE-2020-8558)
//! ```
//! The table is replaced as a whole, in one batch. No other table is read or written.

mod rules;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Attachment, NetworkError, PortForward};
use crate::netlink::NetlinkError;
use crate::netlink::nft::{self, Batch, Hook, MapElement, MapType};

/// `nft`'s numbers of types; a concatenation shifts by 6 bits.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_PROTOCOL: u32 = 12;
const TYPE_SERVICE: u32 = 13;

/// The maps and their types.
const MAPS: [(&str, MapType); 4] = [
    (
        "ports4",
        MapType {
            key_type: TYPE_PROTOCOL << 6 | TYPE_SERVICE,
            key_len: 8,
            data_type: TYPE_IPV4 << 6 | TYPE_SERVICE,
            data_len: 8,
        },
    ),
    (
        "ports4_at",
        MapType {
            key_type: TYPE_IPV4 << 12 | TYPE_PROTOCOL << 6 | TYPE_SERVICE,
            key_len: 12,
            data_type: TYPE_IPV4 << 6 | TYPE_SERVICE,
            data_len: 8,
        },
    ),
    (
        "ports6",
        MapType {
            key_type: TYPE_PROTOCOL << 6 | TYPE_SERVICE,
            key_len: 8,
            data_type: TYPE_IPV6 << 6 | TYPE_SERVICE,
            data_len: 20,
        },
    ),
    (
        "ports6_at",
        MapType {
            key_type: TYPE_IPV6 << 12 | TYPE_PROTOCOL << 6 | TYPE_SERVICE,
            key_len: 24,
            data_type: TYPE_IPV6 << 6 | TYPE_SERVICE,
            data_len: 20,
        },
    ),
];

/// Elements per batch: a batch must fit into the socket's send buffer (208 KiB; an element has at most 300 bytes).
const ELEMENTS_PER_BATCH: usize = 500;
/// Number of the rules' form, kept in the table's user data: a table of another version is replaced.
const VERSION: u8 = 2;

/// The table; its bridge and ranges determine the rules.
#[derive(Clone, Debug)]
pub(crate) struct NftTable {
    pub(crate) name: String,
    pub(crate) bridge: String,
    pub(crate) ranges: Vec<IpNet>,
}

impl NftTable {
    /// Whether the kernel has the table in this form: right version and settings, and each chain with its rules.
    pub(crate) fn is_loaded(&self) -> Result<bool, NetlinkError> {
        if nft::table_userdata(&self.name)? != Some(self.fingerprint()) {
            return Ok(false);
        }
        let wanted: Vec<String> = rules::of(self).into_iter().map(|(chain, _)| chain.to_owned()).collect();
        let (mut wanted, mut found) = (wanted, nft::rule_chains(&self.name)?);
        wanted.sort_unstable();
        found.sort_unstable();
        Ok(wanted == found)
    }

    /// Refuses a table of another program: it would be deleted with its rules.
    pub(crate) fn check_owner(&self) -> Result<(), NetworkError> {
        match nft::table_userdata(&self.name)? {
            Some(userdata) if !is_own(&userdata) => Err(NetworkError::Invalid(format!(
                "table inet {} is of another program; choose another name (--engine-table)",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Replaces the table, its maps and all elements. One of another program is refused.
    pub(crate) fn load(&self, elements: &BTreeSet<MapElement>) -> Result<(), NetworkError> {
        self.check_owner()?;
        let mut batch = Batch::new(&self.name);
        let fingerprint = self.fingerprint();
        // Adding it first makes the deletion valid when there is none.
        batch.add_table(&fingerprint);
        batch.delete_table();
        batch.add_table(&fingerprint);
        for (name, types) in MAPS {
            batch.add_map(name, types);
        }
        for (name, hook) in CHAINS {
            batch.add_chain(name, hook);
        }
        for (chain, rule) in rules::of(self) {
            batch.add_rule(chain, &rule);
        }
        let elements: Vec<_> = elements.iter().collect();
        let (first, rest) = elements.split_at(elements.len().min(ELEMENTS_PER_BATCH));
        first.iter().for_each(|element| batch.add_element(element));
        batch.commit()?;
        for chunk in rest.chunks(ELEMENTS_PER_BATCH) {
            let mut batch = Batch::new(&self.name);
            chunk.iter().for_each(|element| batch.add_element(element));
            batch.commit()?;
        }
        Ok(())
    }

    /// Deletes the table with all it holds. One of another program stays.
    pub(crate) fn delete(&self) -> Result<(), NetlinkError> {
        if !nft::table_userdata(&self.name)?.is_some_and(|userdata| is_own(&userdata)) {
            return Ok(());
        }
        let mut batch = Batch::new(&self.name);
        batch.add_table(&[]);
        batch.delete_table();
        batch.commit()
    }

    /// Adds elements, all or none.
    pub(crate) fn add_elements(&self, elements: &[MapElement]) -> Result<(), NetlinkError> {
        let mut batch = Batch::new(&self.name);
        elements.iter().for_each(|element| batch.add_element(element));
        batch.commit()
    }

    /// Deletes those of the elements that the kernel has.
    pub(crate) fn delete_elements(&self, elements: &[MapElement]) -> Result<(), NetlinkError> {
        if elements.is_empty() || nft::table_userdata(&self.name)?.is_none() {
            return Ok(());
        }
        let present = self.elements()?;
        let mut batch = Batch::new(&self.name);
        let same = |a: &MapElement, b: &MapElement| a.map == b.map && a.key == b.key && a.data == b.data;
        let wanted = present.iter().filter(|found| elements.iter().any(|element| same(found, element)));
        wanted.for_each(|element| batch.delete_element(element));
        batch.commit()
    }

    /// The elements of all maps.
    pub(crate) fn elements(&self) -> Result<Vec<MapElement>, NetlinkError> {
        let mut found = vec![];
        for (map, _) in MAPS {
            found.extend(nft::elements(&self.name, map)?);
        }
        Ok(found)
    }

    /// The bridge that the loaded table of this name is for; `None` if there is no such table, or it is not ours.
    pub(crate) fn loaded_bridge(&self) -> Result<Option<String>, NetlinkError> {
        let text = nft::table_userdata(&self.name)?.and_then(|userdata| nft::comment_of(&userdata));
        Ok(text.and_then(|text| text.split(':').nth(1).map(str::to_owned)))
    }

    fn fingerprint(&self) -> Vec<u8> {
        let text = format!("{}:{}:{:?}", VERSION, self.bridge, self.ranges);
        nft::comment_userdata(&nft::cut_comment(&text))
    }
}

/// The user data has the form of [`NftTable::fingerprint`], of any version.
fn is_own(userdata: &[u8]) -> bool {
    let comment = nft::comment_of(userdata).unwrap_or_default();
    let mut parts = comment.splitn(3, ':');
    let (version, bridge, ranges) = (parts.next(), parts.next(), parts.next());
    version.is_some_and(|version| version.parse::<u8>().is_ok())
        && bridge.is_some_and(|bridge| !bridge.is_empty())
        && ranges.is_some_and(|ranges| ranges.starts_with('['))
}

/// Chains in an order in which a jump's target comes first.
const CHAINS: [(&str, Option<Hook>); 5] = [
    ("to_pod", None),
    ("prerouting", Some(Hook { kind: "nat", number: 0, priority: -101 })),
    ("output", Some(Hook { kind: "nat", number: 3, priority: -101 })),
    ("postrouting", Some(Hook { kind: "nat", number: 4, priority: 100 })),
    ("guard", Some(Hook { kind: "filter", number: 0, priority: -300 })),
];

/// The elements for a pod's host ports.
pub(crate) fn elements_of(attachment: &Attachment) -> Vec<MapElement> {
    let mut elements = vec![];
    for port in &attachment.ports {
        for address in &attachment.addresses {
            elements.extend(element(port, *address, &attachment.pod.to_string()));
        }
    }
    elements
}

/// `None` if the host address is of the other family.
fn element(port: &PortForward, address: IpAddr, comment: &str) -> Option<MapElement> {
    let mut key = vec![];
    let at = match port.host_ip {
        Some(host) if host.is_ipv4() != address.is_ipv4() => return None,
        Some(host) if !host.is_unspecified() => {
            key.extend(octets(host));
            true
        }
        _ => false,
    };
    let map = match (address.is_ipv4(), at) {
        (true, false) => "ports4",
        (true, true) => "ports4_at",
        (false, false) => "ports6",
        (false, true) => "ports6_at",
    };
    key.extend([port.protocol.number(), 0, 0, 0]);
    key.extend(padded(port.host_port));
    let mut data = octets(address);
    data.extend(padded(port.container_port));
    Some(MapElement { map, key, data, comment: nft::cut_comment(comment) })
}

/// The pod's address in an element.
pub(crate) fn target(element: &MapElement) -> Option<IpAddr> {
    match element.data.len() {
        8 => <[u8; 4]>::try_from(&element.data[..4]).ok().map(IpAddr::from),
        20 => <[u8; 16]>::try_from(&element.data[..16]).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Whether a packet could match both keys: the same protocol and port, and the same address or one without.
pub(crate) fn overlap(a: &MapElement, b: &MapElement) -> bool {
    let (family_a, family_b) = (&a.map[..6], &b.map[..6]);
    let port = |element: &MapElement| element.key[element.key.len().saturating_sub(8)..].to_vec();
    family_a == family_b && port(a) == port(b) && (a.map != b.map || a.key == b.key)
}

fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PodIdentity, TransportProtocol};

    fn attachment(host_ip: Option<&str>) -> Attachment {
        Attachment {
            pod: PodIdentity { sandbox_id: "id".into(), namespace: "ns".into(), name: "web".into(), uid: "u".into() },
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ports: vec![PortForward {
                protocol: TransportProtocol::Tcp,
                host_ip: host_ip.map(|ip| ip.parse().unwrap()),
                host_port: 80,
                container_port: 8080,
            }],
        }
    }

    #[test]
    fn a_host_port_becomes_an_element_per_family_of_its_address() {
        let maps = |ip| elements_of(&attachment(ip)).iter().map(|e| e.map).collect::<Vec<_>>();
        assert_eq!(maps(None), ["ports4", "ports6"]);
        assert_eq!(maps(Some("0.0.0.0")), ["ports4"]);
        assert_eq!(maps(Some("::")), ["ports6"]);
        assert_eq!(maps(Some("192.0.2.1")), ["ports4_at"]);
        assert_eq!(maps(Some("2001:db8::1")), ["ports6_at"]);
        let element = &elements_of(&attachment(None))[0];
        assert_eq!(element.key, [6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(element.data, [10, 0, 0, 2, 31, 144, 0, 0]);
        assert_eq!(target(element), Some("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn a_port_of_one_address_overlaps_with_the_port_of_all_addresses() {
        let (any, one, other) = (attachment(None), attachment(Some("192.0.2.1")), attachment(Some("192.0.2.2")));
        let first = |attachment: &Attachment| elements_of(attachment)[0].clone();
        assert!(overlap(&first(&any), &first(&one)) && overlap(&first(&one), &first(&any)));
        assert!(overlap(&first(&one), &first(&one)));
        assert!(!overlap(&first(&one), &first(&other)));
        assert!(!overlap(&first(&any), &elements_of(&any)[1]));
    }
}
