//! The table as `nft` reads it.

use std::collections::BTreeSet;

use super::fixture::*;
use crate::model::*;
use crate::table::{self, NftTable};

/// What `nft list table` prints is what it would load.
const EXPECTED: &str = r#"table inet podwright_test {
	comment "2:pwtest0:[10.99.0.0/20, fd99::/64]"
	map ports4 {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 comment "shop/web" : 10.99.0.2 . 80 }
	}

	map ports4_at {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 192.0.2.1 . udp . 53 comment "shop/web" : 10.99.0.2 . 5353 }
	}

	map ports6 {
		type inet_proto . inet_service : ipv6_addr . inet_service
		elements = { tcp . 8080 comment "shop/web" : fd99::2 . 80 }
	}

	map ports6_at {
		type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
	}

	chain to_pod {
		dnat ip to ip daddr . meta l4proto . th dport map @ports4_at
		dnat ip to meta l4proto . th dport map @ports4
		ip6 daddr ::1 return
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @ports6_at
		dnat ip6 to meta l4proto . th dport map @ports6
	}

	chain prerouting {
		type nat hook prerouting priority dstnat - 1; policy accept;
		fib daddr type local jump to_pod
	}

	chain output {
		type nat hook output priority -101; policy accept;
		fib daddr type local jump to_pod
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "pwtest0" ct status dnat ip saddr 10.99.0.0/20 masquerade
		oifname "pwtest0" ct status dnat ip6 saddr fd99::/64 masquerade
		oifname "pwtest0" ip saddr 127.0.0.0/8 masquerade
		ip saddr 10.99.0.0/20 ip daddr != 10.99.0.0/20 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip6 saddr fd99::/64 ip6 daddr != fd99::/64 ip6 daddr != ff00::/8 masquerade fully-random
	}

	chain guard {
		type filter hook prerouting priority raw; policy accept;
		iifname != "lo" ip daddr 127.0.0.0/8 drop
	}
}
"#;

#[test]
fn nft_reads_the_table_as_it_was_designed_and_loads_the_same() {
    on_a_node(|node| {
        let table = table();
        let elements: BTreeSet<_> = table::elements_of(&attachment("web")).into_iter().collect();
        table.load(&elements).unwrap();
        let listed = nft(&["list", "table", "inet", TABLE]);
        assert_eq!(listed, EXPECTED);
        assert!(table.is_loaded().unwrap());
        // The expressions are those that nft makes of the same text.
        let ours = rules(&nft(&["--debug=netlink", "list", "table", "inet", TABLE]));
        let file = node.dir.path().join("table.nft");
        std::fs::write(&file, EXPECTED).unwrap();
        nft(&["delete", "table", "inet", TABLE]);
        nft(&["-f", file.to_str().unwrap()]);
        assert_eq!(nft(&["list", "table", "inet", TABLE]), EXPECTED);
        let theirs = rules(&nft(&["--debug=netlink", "list", "table", "inet", TABLE]));
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 8);
        table.load(&elements).unwrap();
        table.delete().unwrap();
        assert_eq!(nft(&["list", "ruleset"]), "");
    });
}

#[test]
fn a_damaged_table_is_noticed() {
    on_a_node(|_| {
        let table = table();
        assert!(!table.is_loaded().unwrap());
        for damage in [
            ["flush", "chain", "inet", TABLE, "guard"].as_slice(),
            &["flush", "table", "inet", TABLE],
            &["delete", "table", "inet", TABLE],
        ] {
            table.load(&BTreeSet::new()).unwrap();
            assert!(table.is_loaded().unwrap());
            nft(damage);
            assert!(!table.is_loaded().unwrap(), "{damage:?}");
        }
        table.load(&BTreeSet::new()).unwrap();
        let other = NftTable { ranges: vec!["10.1.0.0/24".parse().unwrap()], ..table.clone() };
        assert!(!other.is_loaded().unwrap());
        table.delete().unwrap();
    });
}

#[test]
fn an_element_that_exists_fails_the_whole_batch() {
    on_a_node(|_| {
        let table = table();
        let elements = table::elements_of(&attachment("web"));
        table.load(&BTreeSet::from([elements[1].clone()])).unwrap();
        let error = table.add_elements(&elements).unwrap_err();
        assert_eq!(error.errno(), Some(rustix::io::Errno::EXIST));
        assert!(error.to_string().contains("ports6 (shop/web)"), "{error}");
        assert_eq!(table.elements().unwrap(), [elements[1].clone()]);
        table.delete_elements(&elements).unwrap();
        table.delete_elements(&elements).unwrap();
        assert_eq!(table.elements().unwrap(), []);
        table.delete().unwrap();
        table.delete_elements(&elements).unwrap();
    });
}

#[test]
fn more_elements_than_fit_into_a_batch_are_loaded() {
    on_a_node(|_| {
        let table = table();
        let mut all = BTreeSet::new();
        for port in 1..=1700 {
            let single = Attachment { ports: vec![tcp_port(port, 80)], ..attachment(&"x".repeat(300)) };
            all.extend(table::elements_of(&single));
        }
        table.load(&all).unwrap();
        assert_eq!(table.elements().unwrap().into_iter().collect::<BTreeSet<_>>(), all);
        assert_eq!(all.len(), 3400);
        table.delete().unwrap();
    });
}

fn table() -> NftTable {
    let ranges = vec!["10.99.0.0/20".parse().unwrap(), "fd99::/64".parse().unwrap()];
    NftTable { name: TABLE.to_owned(), bridge: BRIDGE.to_owned(), ranges }
}

fn attachment(name: &str) -> Attachment {
    let at = PortForward { host_ip: Some("192.0.2.1".parse().unwrap()), ..udp_port(53, 5353) };
    Attachment {
        pod: PodIdentity { sandbox_id: "id".into(), namespace: "shop".into(), name: name.into(), uid: "u".into() },
        addresses: vec!["10.99.0.2".parse().unwrap(), "fd99::2".parse().unwrap()],
        ports: vec![tcp_port(8080, 80), at],
    }
}

/// The translations of a debug listing. Other expressions differ: `nft` compares a prefix of whole bytes without a mask.
fn rules(listing: &str) -> Vec<String> {
    let translation = |line: &&str| line.starts_with("  [ lookup") || line.starts_with("  [ nat");
    listing.lines().filter(translation).map(str::to_owned).collect()
}
