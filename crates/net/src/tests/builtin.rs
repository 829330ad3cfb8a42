//! Reachability through the builtin network.

use std::net::{TcpListener, UdpSocket};
use std::process::Command;

use super::fixture::*;
use crate::model::*;
use crate::netlink::route::RouteSocket;
use crate::{BridgeNetwork, bridge, netns, sysctl};

const V4: &str = "10.99.0.0/24";
const V6: &str = "fd99::/64";

#[test]
fn two_pods_reach_each_other_with_their_own_addresses_in_both_families() {
    on_a_node(|node| {
        let network = node.network(&[V4, V6]);
        let (a, b) = (node.connected(&network, "a", &[]), node.connected(&network, "b", &[]));
        assert_eq!([a.address(0).to_string(), a.address(1).to_string()], ["10.99.0.2", "fd99::2"]);
        let server = b.listen(80);
        for family in [0, 1] {
            let seen = reach(&server, From::Netns(&a.netns), &b.address(family).to_string(), 80);
            assert_eq!(seen, a.address(family));
            // The node reaches a pod, and the pod the node.
            reach(&server, From::Node, &b.address(family).to_string(), 80);
        }
        let on_node = TcpListener::bind("0.0.0.0:8000").unwrap();
        assert_eq!(reach(&on_node, From::Netns(&a.netns), "10.99.0.1", 8000), a.address(0));
        drop(server);
        for pod in [a, b] {
            pod.release(&network);
        }
        drop(network);
        node.assert_no_pods();
    });
}

#[test]
fn a_host_port_is_reached_from_node_loopback_other_pod_own_pod_and_outside() {
    on_a_node(|node| {
        let outside = node.outside();
        let network = node.network(&[V4, V6]);
        let web = node.connected(&network, "web", &[tcp_port(8080, 80)]);
        let other = node.connected(&network, "other", &[]);
        let server = web.listen(80);
        reach(&server, From::Node, NODE_V4, 8080);
        reach(&server, From::Node, NODE_V6, 8080);
        reach(&server, From::Node, "127.0.0.1", 8080);
        reach(&server, From::Netns(&other.netns), NODE_V4, 8080);
        reach(&server, From::Netns(&other.netns), NODE_V6, 8080);
        reach(&server, From::Netns(&web.netns), NODE_V4, 8080);
        reach(&server, From::Netns(&web.netns), NODE_V6, 8080);
        // A client outside keeps its address.
        assert_eq!(reach(&server, From::Netns(&outside), NODE_V4, 8080).to_string(), OUTSIDE_V4);
        assert_eq!(reach(&server, From::Netns(&outside), NODE_V6, 8080).to_string(), OUTSIDE_V6);
        assert!(cannot_reach(From::Node, NODE_V4, 80));
        // [::1] is not mapped, and is refused at once instead of hanging.
        let refused = std::net::TcpStream::connect("[::1]:8080").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        web.release(&network);
        other.release(&network);
        assert!(cannot_reach(From::Netns(&outside), NODE_V4, 8080));
        drop((server, web, other, network));
        node.assert_no_pods();
    });
}

#[test]
fn a_host_port_of_one_address_does_not_answer_on_another() {
    on_a_node(|node| {
        let _outside = node.outside();
        let network = node.network(&[V4]);
        let at = PortForward { host_ip: Some(NODE_V4.parse().unwrap()), ..tcp_port(8081, 80) };
        let local = PortForward { host_ip: Some("127.0.0.1".parse().unwrap()), ..tcp_port(8082, 80) };
        let web = node.connected(&network, "web", &[at, local]);
        let server = web.listen(80);
        reach(&server, From::Node, NODE_V4, 8081);
        reach(&server, From::Node, "127.0.0.1", 8082);
        assert!(cannot_reach(From::Node, "127.0.0.1", 8081));
        assert!(cannot_reach(From::Node, NODE_V4, 8082));
        web.release(&network);
    });
}

/// CVE-2020-8558: `route_localnet` on the bridge would lead pods to services that listen on the node's loopback only.
#[test]
fn a_pod_does_not_reach_the_nodes_loopback() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let pod = node.connected(&network, "attacker", &[]);
        let secret = TcpListener::bind("127.0.0.1:9000").unwrap();
        // Without a loopback address of its own, and with martians allowed, the pod sends 127.0.0.1 to its gateway.
        netns::inside(&pod.netns, || {
            run(Command::new(cached_program("exec/busybox")).args(["ip", "addr", "del", "127.0.0.1/8", "dev", "lo"]));
            sysctl::set("net/ipv4/conf/eth0/route_localnet", "1").unwrap();
        })
        .unwrap();
        assert!(cannot_reach(From::Netns(&pod.netns), "127.0.0.1", 9000));
        // The attack works without the guard: the test does not pass for another reason.
        nft(&["flush", "chain", "inet", TABLE, "guard"]);
        reach(&secret, From::Netns(&pod.netns), "127.0.0.1", 9000);
        assert!(network.reconcile(&[pod.owned()]).unwrap().table_restored);
        assert!(cannot_reach(From::Netns(&pod.netns), "127.0.0.1", 9000));
        pod.release(&network);
    });
}

#[test]
fn traffic_that_leaves_the_node_has_the_nodes_address() {
    on_a_node(|node| {
        let outside = node.outside();
        let network = node.network(&[V4, V6]);
        let pod = node.connected(&network, "client", &[]);
        let server = netns::inside(&outside, || TcpListener::bind("[::]:80")).unwrap().unwrap();
        assert_eq!(reach(&server, From::Netns(&pod.netns), OUTSIDE_V4, 80).to_string(), NODE_V4);
        assert_eq!(reach(&server, From::Netns(&pod.netns), OUTSIDE_V6, 80).to_string(), NODE_V6);
        pod.release(&network);
    });
}

#[test]
fn a_udp_client_that_never_pauses_reaches_each_pod_that_gets_the_port() {
    on_a_node(|node| {
        let outside = node.outside();
        let network = node.network(&[V4]);
        let target = format!("{NODE_V4}:5353");
        let client: UdpSocket = netns::inside(&outside, || udp("0.0.0.0:4000")).unwrap();
        // A flow without a translation is there before the pod.
        client.send_to(b"early", &target).unwrap();
        for name in ["first", "second"] {
            let pod = node.connected(&network, name, &[udp_port(5353, 53)]);
            let server = pod.listen_udp(53);
            assert!(udp_exchange(&client, &server, &target), "{name}");
            pod.release(&network);
        }
    });
}

#[test]
fn a_taken_host_port_is_an_error_that_names_the_other_pod_and_leaves_nothing() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let web = node.connected(&network, "web", &[tcp_port(8080, 80)]);
        let mut second = node.pod("second");
        let error = second.connect(&network, &[tcp_port(8081, 80), tcp_port(8080, 80)]).unwrap_err();
        assert_eq!(error.to_string(), "host port 8080/tcp is taken by pod shop/web");
        // A port of one address overlaps with the same port of all.
        let at = PortForward { host_ip: Some("127.0.0.1".parse().unwrap()), ..tcp_port(8080, 80) };
        let error = second.connect(&network, &[at]).unwrap_err();
        assert_eq!(error.to_string(), "host port 127.0.0.1:8080/tcp is taken by pod shop/web");
        assert!(!link_exists(&second.link()));
        let leases = crate::ipam::Ipam::new(node.dir.path().join("leases")).leases().unwrap();
        assert_eq!(leases.len(), 1);
        // UDP is another port.
        second.connect(&network, &[udp_port(8080, 80), tcp_port(8081, 80)]).unwrap();
        second.release(&network);
        web.release(&network);
        drop(network);
        node.assert_no_pods();
    });
}

#[test]
fn a_port_on_which_the_node_listens_is_refused() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let listener = TcpListener::bind("127.0.0.1:8080").unwrap();
        let mut pod = node.pod("web");
        let error = pod.connect(&network, &[tcp_port(8080, 80)]).unwrap_err();
        assert_eq!(error.to_string(), "host port 8080/tcp is in use by a process of the node");
        let socket = udp("0.0.0.0:53");
        let error = pod.connect(&network, &[udp_port(53, 53)]).unwrap_err();
        assert_eq!(error.to_string(), "host port 53/udp is in use by a process of the node");
        drop((listener, socket));
        pod.connect(&network, &[tcp_port(8080, 80), udp_port(53, 53)]).unwrap();
        pod.release(&network);
    });
}

#[test]
fn an_exhausted_range_fails_the_pod_and_a_released_address_serves_the_next() {
    on_a_node(|node| {
        let network = node.network(&["10.99.0.0/30"]);
        let first = node.connected(&network, "first", &[]);
        let mut second = node.pod("second");
        let error = second.connect(&network, &[]).unwrap_err();
        assert!(error.to_string().starts_with("no free address in 10.99.0.0/30: all 1 are taken"), "{error}");
        assert!(!link_exists(&second.link()));
        first.release(&network);
        drop(first);
        until("the address is free", || second.connect(&network, &[]).is_ok());
        assert_eq!(second.address(0).to_string(), "10.99.0.2");
        second.release(&network);
    });
}

#[test]
fn bridge_and_pod_have_the_designed_settings() {
    on_a_node(|node| {
        let _outside = node.outside();
        sysctl::set("net/ipv6/conf/up0/accept_ra", "1").unwrap();
        let network = node.network(&[V4, V6]);
        let pod = node.connected(&network, "web", &[]);
        let mut route = RouteSocket::open().unwrap();
        let bridge = route.link(BRIDGE).unwrap().unwrap();
        assert_eq!((bridge.mtu, bridge.mac.as_slice(), bridge.up), (1400, &[0x0a, 0x58, 10, 99, 0, 1][..], true));
        let port = route.link(&pod.link()).unwrap().unwrap();
        assert_eq!((port.master, port.mtu, port.up), (Some(bridge.index), 1400, true));
        assert_eq!(sysctl::get(&format!("net/ipv4/conf/{BRIDGE}/route_localnet")).unwrap(), "1");
        assert_eq!(sysctl::get(&format!("net/ipv6/conf/{BRIDGE}/accept_ra")).unwrap(), "0");
        assert_eq!(sysctl::get("net/ipv4/ip_forward").unwrap(), "1");
        assert_eq!(sysctl::get("net/ipv6/conf/all/forwarding").unwrap(), "1");
        assert_eq!(sysctl::get("net/ipv6/conf/up0/accept_ra").unwrap(), "2");
        netns::inside(&pod.netns, || {
            let mut route = RouteSocket::open().unwrap();
            let eth0 = route.link("eth0").unwrap().unwrap();
            assert_eq!((eth0.mtu, eth0.mac.as_slice(), eth0.up), (1400, &[0x0a, 0x58, 10, 99, 0, 2][..], true));
            assert!(route.link("lo").unwrap().unwrap().up);
            assert_eq!(route.default_route_links().unwrap(), [eth0.index, eth0.index]);
            assert_eq!(sysctl::get("net/ipv6/conf/eth0/accept_ra").unwrap(), "0");
        })
        .unwrap();
        pod.release(&network);
    });
}

#[test]
fn ipv6_forwarding_stays_off_without_an_ipv6_range() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        assert_eq!(sysctl::get("net/ipv6/conf/all/forwarding").unwrap(), "0");
        assert_eq!(sysctl::get(&format!("net/ipv6/conf/{BRIDGE}/accept_ra")).unwrap(), "0");
        drop(network);
    });
}

#[test]
fn settings_that_contradict_themselves_are_refused() {
    on_a_node(|node| {
        let refused = |change: &dyn Fn(&mut crate::BridgeSettings)| {
            let mut settings = node.settings(&[V4]);
            change(&mut settings);
            BridgeNetwork::new(settings, node.pins.clone()).unwrap_err().to_string()
        };
        assert!(refused(&|s| s.bridge = "a-name-longer-than-15".into()).contains("not a valid name of a bridge"));
        assert!(refused(&|s| s.bridge = "a/b".into()).contains("not a valid name of a bridge"));
        assert!(refused(&|s| s.table = "a b".into()).contains("not a valid name of a table"));
        assert!(refused(&|s| s.ranges.clear()).contains("needs one address range"));
        assert!(refused(&|s| s.ranges.push("10.1.0.0/24".parse().unwrap())).contains("needs one address range"));
        assert!(refused(&|s| s.ranges = vec!["10.1.0.0/31".parse().unwrap()]).contains("no addresses for pods"));
        // A link of another kind is not taken over.
        let network = BridgeNetwork::new(
            crate::BridgeSettings { bridge: "lo".into(), ..node.settings(&[V4]) },
            node.pins.clone(),
        );
        let error = network.unwrap().reconcile(&[]).unwrap_err().to_string();
        assert_eq!(error, "interface lo exists and is not a bridge; choose another name");
        assert!(!bridge::is_veth_name("lo"));
    });
}
