//! Recovery after crashes and after changes by other programs.

use std::sync::Arc;
use std::time::Instant;

use super::fixture::*;
use crate::BridgeNetwork;
use crate::model::*;
use crate::netlink::route::RouteSocket;

const V4: &str = "10.99.0.0/24";
const V6: &str = "fd99::/64";

#[test]
fn a_flushed_ruleset_is_restored_from_the_records_and_ports_work_again() {
    on_a_node(|node| {
        let outside = node.outside();
        let network = node.network(&[V4, V6]);
        let web = node.connected(&network, "web", &[tcp_port(8080, 80)]);
        let server = web.listen(80);
        let before = nft(&["list", "ruleset"]);
        nft(&["flush", "ruleset"]);
        assert!(network.status().unwrap_err().to_string().contains("is not loaded"));
        assert!(cannot_reach(From::Netns(&outside), NODE_V4, 8080));
        // Another process: the records alone must suffice.
        let restarted = BridgeNetwork::new(node.settings(&[V4, V6]), Arc::clone(&node.pins)).unwrap();
        assert!(restarted.reconcile(&[web.owned()]).unwrap().table_restored);
        assert_eq!(nft(&["list", "ruleset"]), before);
        reach(&server, From::Netns(&outside), NODE_V4, 8080);
        assert_eq!(restarted.reconcile(&[web.owned()]).unwrap(), ReconcileSummary::default());
        web.release(&restarted);
    });
}

#[test]
fn other_tables_are_not_changed() {
    on_a_node(|node| {
        nft(&["add", "table", "inet", "firewall"]);
        nft(&["add", "chain", "inet", "firewall", "input", "{ type filter hook input priority 0; }"]);
        let network = node.network(&[V4]);
        assert!(nft(&["list", "ruleset"]).contains("table inet firewall"));
        assert!(network.remove_if_unused().unwrap());
        assert!(nft(&["list", "ruleset"]).contains("table inet firewall"));
        assert!(!nft(&["list", "ruleset"]).contains(TABLE));
        assert!(!link_exists(BRIDGE));
    });
}

/// The operator names them by mistake, or lets pods use a bridge of his.
#[test]
fn a_table_or_a_bridge_of_another_program_is_not_deleted() {
    on_a_node(|node| {
        let network = BridgeNetwork::new(node.settings(&[V4]), Arc::clone(&node.pins)).unwrap();
        for options in ["", "{ comment \"web:filter:1\"; }"] {
            nft(&["add", "table", "inet", TABLE, options]);
            nft(&["add", "chain", "inet", TABLE, "input", "{ type filter hook input priority 0; }"]);
            nft(&["add", "rule", "inet", TABLE, "input", "tcp", "dport", "22", "accept"]);
            let before = nft(&["list", "table", "inet", TABLE]);
            for refused in [network.reconcile(&[]).unwrap_err(), network.status().unwrap_err()] {
                let text = refused.to_string();
                assert!(text.contains(TABLE) && text.contains("--engine-table") || text.contains(BRIDGE), "{text}");
            }
            assert!(!link_exists(BRIDGE), "nothing is made");
            network.remove_if_unused().unwrap();
            assert_eq!(nft(&["list", "table", "inet", TABLE]), before);
            nft(&["delete", "table", "inet", TABLE]);
        }
        let mut route = RouteSocket::open().unwrap();
        route.create_bridge(BRIDGE, [2, 0, 0, 0, 0, 7], 1500).unwrap();
        network.reconcile(&[]).unwrap();
        network.status().unwrap();
        assert!(network.remove_if_unused().unwrap());
        let bridge = route.link(BRIDGE).unwrap().expect("it is not ours");
        assert_eq!(bridge.alias, "");
        assert!(!nft(&["list", "ruleset"]).contains(TABLE), "the table was ours");
    });
}

#[test]
fn resources_without_a_record_are_removed_and_owned_ones_stay() {
    on_a_node(|node| {
        let pins = Arc::new(crate::NetnsPins::new(node.dir.path().join("netns")));
        let crashed = BridgeNetwork::new(node.settings(&[V4, V6]), Arc::clone(&pins)).unwrap();
        crashed.reconcile(&[]).unwrap();
        let lost = node.connected(&crashed, "lost", &[tcp_port(8080, 80)]);
        let kept = node.connected(&crashed, "kept", &[tcp_port(8081, 80)]);
        // The sweep of the same process leaves even unlisted pods alone: they may be newer than the list.
        let summary = crashed.reconcile(&[]).unwrap();
        assert_eq!(summary, ReconcileSummary { netns_removed: 2, ..ReconcileSummary::default() });
        let restarted = BridgeNetwork::new(node.settings(&[V4, V6]), Arc::clone(&pins)).unwrap();
        let summary = restarted.reconcile(&[kept.owned()]).unwrap();
        assert_eq!((summary.links_removed, summary.leases_removed, summary.ports_removed), (1, 2, 2));
        assert!(!summary.table_restored);
        assert!(!link_exists(&lost.link()) && link_exists(&kept.link()));
        let server = kept.listen(80);
        reach(&server, From::Node, "127.0.0.1", 8081);
        drop(server);
        node.pins.unpin(&lost.identity.sandbox_id).unwrap();
        kept.release(&restarted);
        drop((restarted, crashed));
        node.pins.unpin(&kept.identity.sandbox_id).unwrap();
        node.assert_no_pods();
    });
}

/// Two engines with different directories and the same names, by mistake.
#[test]
fn the_pods_of_another_engine_are_not_changed() {
    on_a_node(|node| {
        let first = node.network(&[V4]);
        let web = node.connected(&first, "web", &[tcp_port(8080, 80)]);
        let server = web.listen(80);
        let own = |bridge: &str| crate::BridgeSettings {
            bridge: bridge.to_owned(),
            leases: node.dir.path().join("others"),
            ..node.settings(&[V4])
        };
        let pins = Arc::new(crate::NetnsPins::new(node.dir.path().join("others-netns")));
        let second = BridgeNetwork::new(own(BRIDGE), Arc::clone(&pins)).unwrap();
        let other_bridge = BridgeNetwork::new(own("pw-other"), Arc::clone(&pins)).unwrap();
        for refused in [second.reconcile(&[]), other_bridge.reconcile(&[])] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("pods of another engine") && text.contains("leases"), "{text}");
        }
        assert!(!link_exists("pw-other"));
        reach(&server, From::Node, "127.0.0.1", 8080);
        assert_eq!(first.reconcile(&[web.owned()]).unwrap(), ReconcileSummary::default());
        drop(server);
        web.release(&first);
        // Without pods nothing can be lost.
        let until = Instant::now() + std::time::Duration::from_secs(30);
        while link_exists(&web.link()) {
            assert!(Instant::now() < until);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        second.reconcile(&[]).unwrap();
        drop((first, second, other_bridge));
    });
}

#[test]
fn pins_are_swept_unless_owned_or_made_by_this_process() {
    on_a_node(|node| {
        let (mine, owned) = (node.pod("mine"), node.pod("owned"));
        let restarted = crate::NetnsPins::new(node.dir.path().join("netns"));
        let ids = [owned.identity.sandbox_id.as_str()].into();
        assert_eq!(node.pins.sweep(&std::collections::BTreeSet::new()).unwrap(), 0);
        assert_eq!(restarted.sweep(&ids).unwrap(), 1);
        assert!(!mine.path.exists() && owned.path.exists());
        restarted.unpin(&owned.identity.sandbox_id).unwrap();
        node.assert_no_pods();
    });
}

#[test]
fn a_release_without_a_record_of_the_add_finds_all_by_the_sandbox_id() {
    on_a_node(|node| {
        let first = node.network(&[V4, V6]);
        let pod = node.connected(&first, "web", &[tcp_port(8080, 80)]);
        let restarted = BridgeNetwork::new(node.settings(&[V4, V6]), Arc::clone(&node.pins)).unwrap();
        let request = ReleaseRequest { pod: &pod.identity, netns: Some(&pod.path), attachment: None };
        restarted.release(&request).unwrap();
        restarted.release(&request).unwrap();
        drop(pod.netns);
        drop(restarted);
        node.assert_no_pods();
    });
}

#[test]
fn the_kernel_deletes_the_link_with_the_namespace() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let pod = node.connected(&network, "web", &[]);
        let link = pod.link();
        pod.release(&network);
        drop(pod.netns);
        until("the link is gone", || !link_exists(&link));
        drop(network);
        node.assert_no_pods();
    });
}

#[test]
fn a_link_whose_namespace_is_held_is_deleted_after_a_second_and_only_then_its_address_is_free() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let pod = node.connected(&network, "web", &[]);
        let leases = crate::ipam::Ipam::new(node.dir.path().join("leases"));
        let released = Instant::now();
        pod.release(&network);
        assert!(link_exists(&pod.link()), "it is not deleted at once");
        until("the address is free", || {
            let free = leases.leases().unwrap().is_empty();
            assert!(!free || !link_exists(&pod.link()), "the address is free and the link is there");
            free
        });
        assert!(released.elapsed().as_millis() >= 900, "{:?}", released.elapsed());
        node.assert_no_pods();
    });
}

#[test]
fn a_deleted_bridge_is_created_again_with_its_pods() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let (a, b) = (node.connected(&network, "a", &[]), node.connected(&network, "b", &[]));
        let server = b.listen(80);
        let mut route = RouteSocket::open().unwrap();
        let bridge = route.link(BRIDGE).unwrap().unwrap();
        route.delete_link(&bridge).unwrap();
        assert!(network.status().unwrap_err().to_string().contains("there is no bridge"));
        network.reconcile(&[a.owned(), b.owned()]).unwrap();
        network.status().unwrap();
        reach(&server, From::Netns(&a.netns), &b.address(0).to_string(), 80);
        assert!(!network.remove_if_unused().unwrap());
        for pod in [&a, &b] {
            pod.release(&network);
        }
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let mut pod = node.pod("web");
        let good = std::mem::replace(&mut pod.path, node.dir.path().join("missing"));
        assert!(pod.connect(&network, &[]).unwrap_err().to_string().starts_with("network namespace"));
        pod.path = node.dir.path().join("file");
        std::fs::write(&pod.path, "").unwrap();
        assert!(pod.connect(&network, &[]).unwrap_err().to_string().starts_with("network namespace"));
        pod.path = good;
        // A second eth0 is refused by the kernel in the middle of the work.
        pod.connect(&network, &[]).unwrap();
        let mut twin = node.pod("twin");
        std::mem::swap(&mut twin.path, &mut pod.path);
        assert!(twin.connect(&network, &[]).is_err());
        std::mem::swap(&mut twin.path, &mut pod.path);
        assert!(!link_exists(&twin.link()) && link_exists(&pod.link()));
        node.pins.unpin(&twin.identity.sandbox_id).unwrap();
        pod.release(&network);
        drop(network);
        node.assert_no_pods();
    });
}

#[test]
fn a_second_add_of_a_connected_sandbox_is_refused_and_harms_nothing() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let mut pod = node.connected(&network, "web", &[tcp_port(8080, 80)]);
        let server = pod.listen(80);
        let first = pod.attachment.clone();
        // In the same process, and after a restart.
        assert!(pod.connect(&network, &[]).unwrap_err().to_string().contains("is connected already"));
        let restarted = BridgeNetwork::new(node.settings(&[V4]), Arc::clone(&node.pins)).unwrap();
        assert!(pod.connect(&restarted, &[]).unwrap_err().to_string().contains("is connected already"));
        pod.attachment = first;
        reach(&server, From::Node, "127.0.0.1", 8080);
        drop(server);
        pod.release(&restarted);
        drop((network, restarted, pod.netns));
        node.assert_no_pods();
    });
}

#[test]
fn an_older_list_of_owners_does_not_bring_back_the_ports_of_a_released_pod() {
    on_a_node(|node| {
        let first = node.network(&[V4]);
        let pod = node.connected(&first, "web", &[tcp_port(8080, 80)]);
        let restarted = BridgeNetwork::new(node.settings(&[V4]), Arc::clone(&node.pins)).unwrap();
        let older = [pod.owned()];
        restarted.reconcile(&older).unwrap();
        pod.release(&restarted);
        assert!(!restarted.reconcile(&older).unwrap().table_restored);
        assert_eq!(crate::netlink::nft::elements(TABLE, "ports4").unwrap(), []);
    });
}

#[test]
fn a_pod_with_the_longest_name_does_not_make_the_table_look_damaged() {
    on_a_node(|node| {
        let network = node.network(&[V4]);
        let mut pod = node.pod("web");
        pod.identity.name = "x".repeat(253);
        pod.connect(&network, &[tcp_port(8080, 80)]).unwrap();
        assert_eq!(network.reconcile(&[pod.owned()]).unwrap(), ReconcileSummary::default());
        pod.release(&network);
    });
}
