//! CNI with the plugins of Debian, and with scripts that record how they were called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::*;
use crate::dns_files::ResolvConf;
use crate::model::*;
use crate::netlink::route::RouteSocket;
use crate::{CniNetwork, CniSettings, netns};

/// Records its environment and input, and answers as the test says.
const RECORDER: &str = r#"#!/bin/sh
input=$(cat)
dir=$(dirname "$0")/../calls
mkdir -p "$dir"
n=$(ls "$dir" | wc -l)
printf '%s\n%s\n%s\n%s\n%s\n%s' "$(basename "$0")" "$CNI_COMMAND" "$CNI_NETNS" "$CNI_CONTAINERID" "$CNI_ARGS" "$input" >"$dir/$(printf %03d "$n")"
"#;
const RESULT: &str = r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.7.0.2/24"},{"address":"fd07::2/64"}]}'"#;

struct Call {
    plugin: String,
    command: String,
    netns: String,
    args: String,
    input: Value,
}

struct Plugins<'a> {
    node: &'a Node,
}

impl Plugins<'_> {
    fn settings(&self, bin_dirs: Vec<PathBuf>) -> CniSettings {
        let dir = self.node.dir.path();
        fs::create_dir_all(dir.join("conf")).unwrap();
        CniSettings {
            conf_dir: dir.join("conf"),
            bin_dirs,
            cache_dir: dir.join("cache"),
            ip_ranges: vec!["10.7.0.0/24".parse().unwrap()],
            timeout: Duration::from_secs(20),
        }
    }

    fn network(&self) -> CniNetwork {
        CniNetwork::new(self.settings(vec![self.node.dir.path().join("bin")]), Arc::clone(&self.node.pins))
    }

    fn script(&self, name: &str, end: &str) {
        let dir = self.node.dir.path().join("bin");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), format!("{RECORDER}{end}\n")).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn conflist(&self, value: &Value) {
        let dir = self.node.dir.path().join("conf");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("10-test.conflist"), value.to_string()).unwrap();
    }

    fn calls(&self) -> Vec<Call> {
        let mut files: Vec<_> = fs::read_dir(self.node.dir.path().join("calls"))
            .map_or(vec![], |dir| dir.map(|entry| entry.unwrap().path()).collect());
        files.sort();
        files.iter().map(|path| parse(&fs::read_to_string(path).unwrap())).collect()
    }

    fn forget_calls(&self) {
        let _ = fs::remove_dir_all(self.node.dir.path().join("calls"));
    }
}

fn parse(text: &str) -> Call {
    let mut lines = text.splitn(6, '\n').map(str::to_owned);
    let mut line = || lines.next().unwrap();
    let (plugin, command, netns) = (line(), line(), line());
    let _container_id = line();
    Call { plugin, command, netns, args: line(), input: serde_json::from_str(&line()).unwrap() }
}

fn names(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| format!("{} {}", call.command, call.plugin)).collect()
}

#[test]
fn a_pod_of_debians_plugins_is_connected_and_disconnected() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        let settings = plugins.settings(vec![cached_program("usr/lib/cni")]);
        plugins.conflist(&json!({
            "cniVersion": "1.0.0", "name": "test",
            "plugins": [{
                "type": "bridge", "bridge": "cni-test0", "isGateway": true, "capabilities": {"ipRanges": true},
                "ipam": {"type": "host-local", "dataDir": node.dir.path().join("ipam"), "routes": [{"dst": "0.0.0.0/0"}]},
            }, {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.accept_redirects": "0"}}],
        }));
        let network = CniNetwork::new(settings, Arc::clone(&node.pins));
        network.status().unwrap();
        let (a, b) = (node.connected(&network, "a", &[]), node.connected(&network, "b", &[]));
        assert_eq!(b.address(0).to_string(), "10.7.0.3");
        let server = b.listen(80);
        assert_eq!(reach(&server, From::Netns(&a.netns), "10.7.0.3", 80), a.address(0));
        assert!(node.dir.path().join("ipam/test/10.7.0.3").exists());
        drop(server);
        a.release(&network);
        // DEL without a namespace, as after a reboot.
        node.pins.unpin(&b.identity.sandbox_id).unwrap();
        let request = ReleaseRequest { pod: &b.identity, netns: None, attachment: None };
        network.release(&request).unwrap();
        network.release(&request).unwrap();
        assert!(
            !node.dir.path().join("ipam/test/10.7.0.3").exists()
                && !node.dir.path().join("ipam/test/10.7.0.2").exists()
        );
        assert_eq!(fs::read_dir(node.dir.path().join("cache")).unwrap().count(), 0);
        drop((a, b));
        until("the links are gone", || {
            let links = RouteSocket::open().unwrap().links().unwrap();
            links.iter().all(|link| link.name == "lo" || link.name == "cni-test0")
        });
    });
}

#[test]
fn plugins_are_chained_with_results_and_declared_capabilities_and_undone_in_reverse() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        plugins.script("first", RESULT);
        plugins.script("second", RESULT);
        plugins.conflist(&json!({
            "cniVersion": "0.4.0", "name": "net",
            "plugins": [
                {"type": "first", "capabilities": {"ipRanges": true, "dns": true}},
                {"type": "second", "capabilities": {"portMappings": true, "bandwidth": true}},
            ],
        }));
        let network = plugins.network();
        let pod = node.pod("web");
        let (servers, ports) = (vec!["10.0.0.10".to_owned()], [tcp_port(8080, 80)]);
        let request = AttachRequest {
            pod: &pod.identity,
            netns: &pod.path,
            ports: &ports,
            bandwidth: Some(Bandwidth { ingress: Some(1000), egress: None }),
            dns: ResolvConf { servers: &servers, ..ResolvConf::default() },
        };
        let attachment = network.add(&request).unwrap();
        assert_eq!(attachment.addresses[0].to_string(), "10.7.0.2");
        assert!(netns::inside(&pod.netns, || RouteSocket::open().unwrap().link("lo").unwrap().unwrap().up).unwrap());
        let calls = plugins.calls();
        assert_eq!(names(&calls), ["ADD first", "ADD second"]);
        assert_eq!(calls[0].netns, pod.path.to_str().unwrap());
        assert!(calls[0].args.contains("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;"), "{}", calls[0].args);
        let runtime = json!({"ipRanges": [[{"subnet": "10.7.0.0/24"}]], "dns": {"servers": ["10.0.0.10"], "searches": [], "options": []}});
        assert_eq!(calls[0].input["runtimeConfig"], runtime);
        assert_eq!((&calls[0].input["name"], &calls[0].input["cniVersion"]), (&json!("net"), &json!("0.4.0")));
        assert!(calls[0].input.get("prevResult").is_none());
        assert_eq!(calls[1].input["prevResult"]["ips"][0]["address"], "10.7.0.2/24");
        let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        assert_eq!(calls[1].input["runtimeConfig"]["portMappings"], mapping);
        assert_eq!(calls[1].input["runtimeConfig"]["bandwidth"]["ingressRate"], 1000);
        // A changed configuration does not change how the pod is disconnected.
        plugins.conflist(&json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "missing"}]}));
        plugins.forget_calls();
        pod.release(&network);
        let calls = plugins.calls();
        assert_eq!(names(&calls), ["DEL second", "DEL first"]);
        assert_eq!(calls[1].input["prevResult"]["ips"][0]["address"], "10.7.0.2/24");
        assert_eq!(calls[1].input["name"], "net");
        assert!(!pod.path.exists());
        assert!(network.status().unwrap_err().to_string().starts_with("no CNI plugin missing in"));
    });
}

#[test]
fn a_failed_add_reports_the_plugins_message_and_is_undone() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        plugins.script("good", RESULT);
        plugins.script(
            "bad",
            r#"[ "$CNI_COMMAND" = DEL ] || { echo '{"code":11,"msg":"no luck","details":"today"}'; exit 1; }"#,
        );
        plugins.conflist(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "good"}, {"type": "bad"}]}));
        let network = plugins.network();
        let mut pod = node.pod("web");
        let error = pod.connect(&network, &[]).unwrap_err();
        assert_eq!(error.to_string(), "CNI plugin bad failed at ADD: no luck; today (code 11)");
        assert_eq!(names(&plugins.calls()), ["ADD good", "ADD bad", "DEL bad", "DEL good"]);
        assert_eq!(fs::read_dir(node.dir.path().join("cache")).unwrap().count(), 0);
        for (output, reason) in [
            ("echo nonsense", "malformed"),
            ("echo '{\"ips\":[{\"address\":\"x\"}]}'", "is not an address with a prefix"),
            ("echo '{}'", "has no address"),
        ] {
            plugins.script("bad", output);
            let error = pod.connect(&network, &[]).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        node.pins.unpin(&pod.identity.sandbox_id).unwrap();
    });
}

#[test]
fn a_plugin_that_hangs_is_killed_with_its_children_at_the_deadline() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        let mark = node.dir.path().join("child");
        plugins.script(
            "slow",
            &format!("[ \"$CNI_COMMAND\" = DEL ] || {{ sleep 300 & echo $! >{}; wait; }}", mark.display()),
        );
        plugins.conflist(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}));
        let mut settings = plugins.settings(vec![node.dir.path().join("bin")]);
        settings.timeout = Duration::from_secs(2);
        let network = CniNetwork::new(settings, Arc::clone(&node.pins));
        let mut pod = node.pod("web");
        let begun = Instant::now();
        let error = pod.connect(&network, &[]).unwrap_err();
        assert_eq!(error.to_string(), "CNI plugin slow did not end within its deadline at ADD and was killed");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        let child = fs::read_to_string(mark).unwrap();
        let status = format!("/proc/{}/stat", child.trim());
        until("the child of the plugin is gone", || {
            fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z "))
        });
        node.pins.unpin(&pod.identity.sandbox_id).unwrap();
    });
}

#[test]
fn status_and_gc_are_sent_to_plugins_of_version_1_1_and_orphans_are_disconnected() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        let network = plugins.network();
        assert!(network.status().unwrap_err().to_string().starts_with("no CNI configuration in"));
        plugins.script("p", &format!("[ \"$CNI_COMMAND\" != ADD ] || {RESULT}"));
        plugins.conflist(&json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "p"}]}));
        network.status().unwrap();
        let (lost, kept) = (node.connected(&network, "lost", &[]), node.connected(&network, "kept", &[]));
        plugins.forget_calls();
        // After a restart the pins of the former process are not held any more.
        let pins = Arc::new(crate::NetnsPins::new(node.dir.path().join("netns")));
        let restarted = CniNetwork::new(plugins.settings(vec![node.dir.path().join("bin")]), pins);
        let summary = restarted.reconcile(&[kept.owned()]).unwrap();
        assert_eq!((summary.netns_removed, summary.leases_removed), (1, 1));
        let calls = plugins.calls();
        assert_eq!(names(&calls), ["DEL p", "GC p"]);
        let valid = json!([{"containerID": kept.identity.sandbox_id, "ifname": "eth0"}]);
        assert_eq!(calls[1].input["cni.dev/valid-attachments"], valid);
        assert!(!lost.path.exists());
        kept.release(&restarted);
        plugins.script("p", r#"echo '{"code":50,"msg":"not yet"}'; exit 1"#);
        let error = network.status().unwrap_err().to_string();
        assert_eq!(error, "CNI plugin p failed at STATUS: not yet (code 50)");
    });
}

#[test]
fn a_failed_del_of_an_orphan_does_not_stop_the_others_and_gc_keeps_what_is_cached() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        plugins.script("p", &format!("[ \"$CNI_COMMAND\" != ADD ] || {RESULT}"));
        plugins.conflist(&json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "p"}]}));
        let network = plugins.network();
        let lost = [node.connected(&network, "one", &[]), node.connected(&network, "two", &[])];
        let mut ids = lost.each_ref().map(|pod| pod.identity.sandbox_id.clone());
        ids.sort();
        let cached = json!(ids.each_ref().map(|id| json!({"containerID": id, "ifname": "eth0"})));
        // Added by this process, but not in the list yet.
        plugins.forget_calls();
        network.reconcile(&[]).unwrap();
        let calls = plugins.calls();
        assert_eq!(names(&calls), ["GC p"]);
        assert_eq!(calls[0].input["cni.dev/valid-attachments"], cached);
        let pins = Arc::new(crate::NetnsPins::new(node.dir.path().join("netns")));
        let restarted = CniNetwork::new(plugins.settings(vec![node.dir.path().join("bin")]), pins);
        plugins.script("p", r#"[ "$CNI_COMMAND" != DEL ] || { echo '{"code":11,"msg":"no luck"}'; exit 1; }"#);
        plugins.forget_calls();
        let error = restarted.reconcile(&[]).unwrap_err().to_string();
        assert_eq!(error, "CNI plugin p failed at DEL: no luck (code 11)");
        let calls = plugins.calls();
        assert_eq!(names(&calls), ["DEL p", "DEL p", "GC p"]);
        assert_eq!(calls[2].input["cni.dev/valid-attachments"], cached);
        plugins.script("p", "");
        plugins.forget_calls();
        assert_eq!(restarted.reconcile(&[]).unwrap().leases_removed, 2);
        assert_eq!(plugins.calls()[2].input["cni.dev/valid-attachments"], json!([]));
    });
}

#[test]
fn a_pod_name_cannot_add_arguments() {
    on_a_node(|node| {
        let plugins = Plugins { node };
        plugins.script("p", RESULT);
        plugins.conflist(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "p"}]}));
        let mut pod = node.pod("web");
        pod.identity.name = "web;IP=10.0.0.1".into();
        let error = pod.connect(&plugins.network(), &[]).unwrap_err().to_string();
        assert!(error.contains("cannot be an argument of CNI plugins"), "{error}");
        assert_eq!(names(&plugins.calls()), [] as [&str; 0]);
        node.pins.unpin(&pod.identity.sandbox_id).unwrap();
    });
}
