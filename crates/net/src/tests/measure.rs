//! The measurements of `docs/decisions/008-network.md`. Run them with `--ignored --nocapture measure`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use super::fixture::*;
use crate::model::Attachment;
use crate::netlink::attr::MessageWriter;
use crate::netlink::route::{RouteSocket, VethPeer, encode_veth};
use crate::table::{self, NftTable};

#[test]
#[ignore = "a measurement"]
fn measure_add_release_elements_and_encoding() {
    on_a_node(|node| {
        let network = node.network(&["10.99.0.0/24", "fd99::/64"]);
        let (mut add, mut add_port, mut release) = (vec![], vec![], vec![]);
        for n in 0..30 {
            let mut pod = node.pod(&format!("a{n}b"));
            let ports = [tcp_port(8000 + n, 80)];
            let with_port = n % 2 == 0;
            let begun = Instant::now();
            pod.connect(&network, if with_port { &ports } else { &[] }).unwrap();
            if with_port { &mut add_port } else { &mut add }.push(begun.elapsed());
            let begun = Instant::now();
            pod.release(&network);
            release.push(begun.elapsed());
        }
        show("add", add);
        show("add with a host port", add_port);
        show("release", release);

        let table =
            NftTable { name: TABLE.into(), bridge: BRIDGE.into(), ranges: vec!["10.99.0.0/24".parse().unwrap()] };
        table.load(&BTreeSet::new()).unwrap();
        let pod = node.pod("element");
        let single = |port| {
            let attachment = Attachment {
                pod: pod.identity.clone(),
                addresses: vec!["10.99.0.2".parse().unwrap()],
                ports: vec![tcp_port(port, 80)],
            };
            table::elements_of(&attachment)
        };
        let times = (1..=200).map(|port| timed(|| table.add_elements(&single(port)).unwrap())).collect();
        show("add one element", times);
        let netns = new_netns();
        let route = RouteSocket::open().unwrap();
        let peer = VethPeer { name: "eth0", mac: [2; 6], netns: netns.as_fd() };
        show(
            "encode a veth with netlink-packet-route",
            (0..1000).map(|_| timed(|| drop(black_box(encode_veth("pw-0123456789ab", 7, 1500, peer))))).collect(),
        );
        show(
            "encode a veth with own attributes",
            (0..1000).map(|_| timed(|| drop(black_box(veth_bytes(peer))))).collect(),
        );
        drop(route);
        node.pins.unpin(&pod.identity.sandbox_id).unwrap();
    });
}

/// The same message as [`encode_veth`] makes.
fn veth_bytes(peer: VethPeer<'_>) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.message(16, 0x605, 1, |w| {
        w.raw(&[0; 16]);
        w.string(3, "pw-0123456789ab");
        w.attr(4, &1500u32.to_ne_bytes());
        w.attr(10, &7u32.to_ne_bytes());
        w.nest(18, |w| {
            w.string(1, "veth");
            w.nest(2, |w| {
                w.nest(1, |w| {
                    w.raw(&[0; 16]);
                    w.string(3, peer.name);
                    w.attr(4, &1500u32.to_ne_bytes());
                    w.attr(1, &peer.mac);
                    w.attr(28, &peer.netns.as_raw_fd().to_ne_bytes());
                });
            });
        });
    });
    writer.as_bytes().to_vec()
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("{what}: min {:?}, p50 {:?}, p99 {:?}", times[0], times[times.len() / 2], times[times.len() * 99 / 100]);
}
