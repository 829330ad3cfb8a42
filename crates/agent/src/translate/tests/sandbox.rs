use podwright_cri::v1::{DnsConfig, NamespaceMode, PodSandboxConfig};
use serde_json::{Value, json};

use super::*;

fn config(spec: Value) -> PodSandboxConfig {
    sandbox_config(&pod(spec), 2, &settings(), &Situation::default()).expect("translates")
}

fn refused(spec: Value) -> String {
    let error = sandbox_config(&pod(spec), 0, &settings(), &Situation::default()).expect_err("is refused");
    assert_eq!(error.reason(), "CreatePodSandboxError");
    error.message()
}

#[test]
fn a_sandbox_has_the_metadata_and_labels_of_its_pod() {
    let config = config(json!({"containers": [{"name": "web"}]}));
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.namespace.as_str()), ("shop", "default"));
    assert_eq!((metadata.uid.as_str(), metadata.attempt), ("u-1", 2));
    assert_eq!(config.log_directory, "/var/log/pods/default_shop_u-1");
    let labels: Vec<_> = config.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        labels,
        ["app=shop", "io.kubernetes.pod.name=shop", "io.kubernetes.pod.namespace=default", "io.kubernetes.pod.uid=u-1"]
    );
    assert_eq!(config.annotations["kubernetes.io/config.source"], "file");
    let linux = config.linux.unwrap();
    assert_eq!(linux.cgroup_parent, "/kubepods/besteffort/podu-1");
    assert_eq!(linux.security_context.unwrap().seccomp.unwrap().profile_type, 0);
}

#[test]
fn hostnames() {
    let long = "a".repeat(62) + "-bcd";
    let table = [
        (json!({}), "shop"),
        (json!({"hostname": "till"}), "till"),
        (json!({"hostname": "till", "subdomain": "mall"}), "till"),
        (json!({"hostname": "till", "subdomain": "mall", "setHostnameAsFQDN": true}), "till.mall.default.svc.example"),
        (json!({"setHostnameAsFQDN": true}), "shop"),
        (json!({"hostNetwork": true, "hostname": "till"}), ""),
        (json!({"hostnameOverride": "a.b.c", "hostname": "till"}), "a.b.c"),
    ];
    for (mut spec, expected) in table {
        spec["containers"] = json!([]);
        let settings = NodeSettings { cluster_domain: "example".into(), ..settings() };
        let config = sandbox_config(&pod(spec.clone()), 0, &settings, &Situation::default()).unwrap();
        assert_eq!(config.hostname, expected, "{spec}");
    }
    let mut named = pod(json!({"containers": []}));
    named.metadata.name = Some(long);
    let config = sandbox_config(&named, 0, &settings(), &Situation::default()).unwrap();
    assert_eq!(config.hostname, "a".repeat(62), "cut at 63, without the dash");
    assert!(refused(json!({"containers": [], "hostname": "Not_A_Label"})).contains("not a valid DNS label"));
    let spec = json!({"containers": [], "hostname": "h".repeat(60), "subdomain": "s", "setHostnameAsFQDN": true});
    assert!(refused(spec).contains("too long"));
}

#[test]
fn dns_policies() {
    let host = HostDns::parse("# ours\nnameserver 9.9.9.9\nsearch a.example. .\noptions ndots:2 ndots:3 rotate\n");
    assert_eq!(host.options, ["ndots:3", "rotate"]);
    let cluster =
        NodeSettings { cluster_dns: vec!["10.0.0.10".into()], cluster_domain: "c.local".into(), ..settings() };
    let dns = |settings: &NodeSettings, mut spec: Value| {
        spec["containers"] = json!([]);
        let situation = Situation { dns: host.clone(), ..Situation::default() };
        sandbox_config(&pod(spec), 0, settings, &situation).unwrap().dns_config.unwrap()
    };
    let lines =
        |dns: DnsConfig| format!("{} | {} | {}", dns.servers.join(" "), dns.searches.join(" "), dns.options.join(" "));
    let of_host = "9.9.9.9 | a.example | ndots:3 rotate";
    let of_cluster = "10.0.0.10 | default.svc.c.local svc.c.local c.local a.example | ndots:5";
    let table = [
        (&cluster, json!({"dnsPolicy": "ClusterFirst"}), of_cluster),
        (&cluster, json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), of_host),
        (&cluster, json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), of_cluster),
        (&cluster, json!({"dnsPolicy": "Default"}), of_host),
        (&settings(), json!({"dnsPolicy": "ClusterFirst"}), of_host),
        (&cluster, json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}), "1.1.1.1 |  | "),
        (
            &cluster,
            json!({"dnsPolicy": "Default", "dnsConfig": {"nameservers": ["9.9.9.9", "1.1.1.1"], "searches": ["b"],
                "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]}}),
            "9.9.9.9 1.1.1.1 | a.example b | ndots:1 rotate edns0",
        ),
        (
            &cluster,
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"],
                "searches": ["x".repeat(254), "ok"]}}),
            "1.1.1.1 1.1.1.2 1.1.1.3 | ok | ",
        ),
        (&NodeSettings { resolv_conf: None, ..settings() }, json!({"dnsPolicy": "Default"}), "127.0.0.1 | . | "),
    ];
    for (settings, spec, expected) in table {
        assert_eq!(lines(dns(settings, spec.clone())), expected, "{spec}");
    }
    let many: Vec<String> = (0..40).map(|n| format!("{n:02}{}", "d".repeat(98))).collect();
    let cut = dns(&settings(), json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [], "searches": many}}));
    assert_eq!(cut.searches.len(), 20, "at most 32 paths and 2048 characters in total");
}

#[test]
fn namespaces_follow_the_spec() {
    let table = [
        (json!({}), [NamespaceMode::Pod, NamespaceMode::Container, NamespaceMode::Pod]),
        (json!({"shareProcessNamespace": true}), [NamespaceMode::Pod, NamespaceMode::Pod, NamespaceMode::Pod]),
        (
            json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "shareProcessNamespace": true}),
            [NamespaceMode::Node, NamespaceMode::Node, NamespaceMode::Node],
        ),
    ];
    for (mut spec, expected) in table {
        spec["containers"] = json!([]);
        let namespaces = config(spec.clone()).linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!([namespaces.network(), namespaces.pid(), namespaces.ipc()], expected, "{spec}");
        assert_eq!(namespaces.userns_options.unwrap().mode(), NamespaceMode::Node);
    }
}

#[test]
fn a_user_namespace_needs_a_runtime_that_has_it() {
    let spec = json!({"containers": [], "hostUsers": false});
    assert!(refused(spec.clone()).contains("runtime does not support user namespaces"));
    let situation = Situation {
        features: RuntimeFeatures { user_namespaces: true, ..Default::default() },
        userns: Some(IdRange { host_id: 131_072, length: 65_536 }),
        ..Default::default()
    };
    let config = sandbox_config(&pod(spec), 0, &settings(), &situation).unwrap();
    let userns = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap().userns_options.unwrap();
    assert_eq!(userns.mode(), NamespaceMode::Pod);
    assert_eq!((userns.uids[0].host_id, userns.uids[0].container_id, userns.uids[0].length), (131_072, 0, 65_536));
    assert_eq!(userns.gids, userns.uids);
}

#[test]
fn ports_of_all_containers_once_each() {
    let config = config(json!({"containers": [
        {"name": "web", "ports": [
            {"name": "http", "containerPort": 80, "hostPort": 8080, "protocol": "TCP"},
            {"name": "http", "containerPort": 81},
            {"containerPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
            {"containerPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
        ]},
        {"name": "side", "ports": [{"containerPort": 9, "protocol": "SCTP"}]},
    ]}));
    let ports: Vec<_> =
        config.port_mappings.iter().map(|p| (p.protocol, p.container_port, p.host_port, p.host_ip.as_str())).collect();
    assert_eq!(ports, [(0, 80, 8080, ""), (1, 53, 0, "127.0.0.1"), (2, 9, 0, "")]);
}

#[test]
fn security_and_resources_of_the_whole_pod() {
    let config = config(json!({
        "securityContext": {"runAsUser": 7, "runAsGroup": 8, "fsGroup": 9, "supplementalGroups": [10, 11],
            "sysctls": [{"name": "net.core.somaxconn", "value": "128"}],
            "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "s0"}},
        "overhead": {"cpu": "250m", "memory": "64Mi"},
        "containers": [
            {"name": "web", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "128Mi"}}},
            {"name": "side", "resources": {"limits": {"cpu": "1", "memory": "128Mi"}, "requests": {"cpu": "500m"}},
                "securityContext": {"privileged": true}},
        ],
    }));
    let linux = config.linux.unwrap();
    assert_eq!(linux.cgroup_parent, "/kubepods/burstable/podu-1");
    assert_eq!(linux.sysctls["net.core.somaxconn"], "128");
    let context = linux.security_context.unwrap();
    assert_eq!((context.run_as_user.unwrap().value, context.run_as_group.unwrap().value), (7, 8));
    assert_eq!(context.supplemental_groups, [9, 10, 11]);
    assert!(context.privileged);
    assert_eq!(context.selinux_options.unwrap().r#type, "t");
    let resources = linux.resources.unwrap();
    assert_eq!((resources.cpu_shares, resources.cpu_quota, resources.cpu_period), (1024, 200_000, 100_000));
    assert_eq!(resources.memory_limit_in_bytes, 256 << 20, "without the overhead");
    let overhead = linux.overhead.unwrap();
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes), (256, 25_000, 64 << 20));
}

#[test]
fn strict_groups_are_refused_where_the_runtime_would_merge_them() {
    let spec = json!({"containers": [], "securityContext": {"supplementalGroupsPolicy": "Strict"}});
    assert!(refused(spec.clone()).contains("Strict"));
    let features = RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() };
    let situation = Situation { features, ..Default::default() };
    let config = sandbox_config(&pod(spec), 0, &settings(), &situation).unwrap();
    assert_eq!(config.linux.unwrap().security_context.unwrap().supplemental_groups_policy, 1);
}

#[test]
fn slices_of_systemd() {
    let mut guaranteed = pod(json!({"containers": [{"name": "web",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}}]}));
    guaranteed.metadata.uid = Some("a-b-c".into());
    let systemd = NodeSettings { cgroup_driver: CgroupDriver::Systemd, ..settings() };
    assert_eq!(cgroup_parent(&guaranteed, &systemd), "kubepods-poda_b_c.slice");
    let mut below = settings();
    below.paths.cgroup_root = "/test".into();
    assert_eq!(cgroup_parent(&guaranteed, &below), "/test/kubepods/poda-b-c");
    let best_effort = pod(json!({"containers": [{"name": "web"}]}));
    assert_eq!(cgroup_parent(&best_effort, &systemd), "kubepods-besteffort-podu_1.slice");
}
