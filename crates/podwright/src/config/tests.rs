//! Tests of valid and invalid configurations.

use std::collections::BTreeSet;
use std::fs;

use podwright_core::eviction::EvictionConfig;
use podwright_core::model::Source;
use podwright_linux::hugepages::HugePages;

use super::*;
use crate::run_flags::ObservabilityFlags;
use crate::run_flags::kubelet_flags::FieldFlag;
use podwright_core::image_access::VerificationPolicy;

mod engine;
mod eviction;
mod node;
mod server;
mod shutdown;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn facts() -> HostFacts {
    HostFacts {
        hostname: "Node-1.Example".into(),
        boot_id: "b".into(),
        addresses: vec!["10.1.2.3".parse().unwrap()],
        cpus: 4,
        memory: 8 << 30,
        disk: 100 << 30,
        pids: 32_768,
        huge_pages: vec![HugePages { size: 2 << 20, count: 512 }, HugePages { size: 1 << 30, count: 0 }],
        app_armor: false,
        selinux: true,
        thermal_paths: vec!["/sys/cpu0".into()],
        swaps: Vec::new(),
        foreign_node_ips: Vec::new(),
    }
}

fn load_with(flags: &RunFlags, facts: HostFacts, yaml: &str) -> Result<AgentConfig, Vec<String>> {
    let (file, warnings) = KubeletFile::decode(file::document(format!("{HEAD}{yaml}").as_bytes())?)?;
    let configz = serde_json::Value::Null;
    let inputs = ConfigInputs { flags, file, facts, configz, base: "/etc/podwright".into() };
    reader::read(&inputs, Diagnostics { errors: Vec::new(), warnings })
}

fn load(yaml: &str) -> Result<AgentConfig, Vec<String>> {
    load_with(&RunFlags::default(), facts(), yaml)
}

#[test]
fn without_a_file_all_defaults_apply() {
    let config = load("").unwrap();
    assert_eq!(config.node.node_name, "node-1.example");
    assert_eq!(config.node.host_ips, ["10.1.2.3"]);
    assert_eq!(config.node.labels["kubernetes.io/hostname"], "node-1.example");
    assert_eq!((config.node.max_pods, config.node.sandbox_parallel), (110, 8));
    assert_eq!(
        (config.node.allocatable_cpu_millis, config.node.allocatable_memory),
        (4000, (7 << 30) - (100 << 20)),
        "a gibibyte is in huge pages, and 100 MiB are the threshold of eviction"
    );
    let pages = BTreeMap::from([("hugepages-2Mi".to_owned(), 1 << 30), ("hugepages-1Gi".to_owned(), 0)]);
    assert_eq!(config.node.allocatable_huge_pages, pages);
    let thermal_paths = vec!["/sys/cpu0".to_owned()];
    let machine = HostFeatures { huge_page_sizes: vec![2 << 20, 1 << 30], selinux: true, thermal_paths };
    assert_eq!(config.machine, machine);
    assert_eq!(config.node.backoff_max, Duration::from_secs(300));
    assert_eq!(config.runtime.endpoint, "embedded");
    assert_eq!(config.runtime.image_endpoint, config.runtime.endpoint);
    assert_eq!(config.dirs.pod_logs, Path::new("/var/log/pods"));
    assert_eq!((config.listen, config.cgroups.pids_limit, config.cgroups.root.as_str()), (None, None, "/"));
    assert_eq!(config.logs, rotate::RotationConfig::default());
    assert_eq!(config.dns.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
    assert_eq!((config.warnings.len(), config.node.sources), (0, BTreeSet::from([Source::Local])));
}

#[test]
fn all_supported_fields_take_effect() {
    let config = load(
        "staticPodPath: manifests\nstaticPodURL: http://127.0.0.1/p\nstaticPodURLHeader: {X-A: [b, c]}\n\
         fileCheckFrequency: 5s\nhttpCheckFrequency: 1m30s\nsyncFrequency: 2m\nruntimeRequestTimeout: 30s\n\
         containerRuntimeEndpoint: unix:///c.sock\nimageServiceEndpoint: /i.sock\n\
         cgroupRoot: test\ncgroupDriver: cgroupfs\ncgroupsPerQOS: false\nmaxPods: 7\npodPidsLimit: 100\n\
         podLogsDir: /logs\ncontainerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s\n\
         serializeImagePulls: false\nmaxParallelImagePulls: 9\nregistryPullQPS: 0\nimageMinimumGCAge: 1m\nimageMaximumGCAge: 24h\n\
         imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\n\
         imagePullCredentialsVerificationPolicy: AlwaysVerify\n\
         clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\nresolvConf: ''\n\
         systemReserved: {cpu: 500m, memory: 1Gi}\nkubeReserved: {cpu: '1', ephemeral-storage: 10Gi}\n\
         crashLoopBackOff: {maxContainerRestartPeriod: 60s}\nreadOnlyPort: 10255\naddress: 127.0.0.1\nfailSwapOn: false\n",
    )
    .unwrap();
    assert_eq!(config.images.verification, VerificationPolicy::AlwaysVerify);
    let file = config.sources.file.unwrap();
    assert_eq!(
        (file.path.as_path(), file.check_frequency),
        (Path::new("/etc/podwright/manifests"), Duration::from_secs(5))
    );
    assert!(!file.all_names);
    assert_eq!(config.node.sources, BTreeSet::from([Source::File, Source::Url, Source::Local]));
    assert_eq!(config.node.sync_frequency, Duration::from_secs(120));
    assert_eq!(config.node.runtime_request_timeout, Duration::from_secs(30));
    assert_eq!(config.node.backoff_max, Duration::from_secs(60));
    assert_eq!(config.node.max_pods, 7);
    assert_eq!(config.node.allocatable_cpu_millis, 2500);
    assert_eq!(config.node.allocatable_memory, (6 << 30) - (100 << 20));
    assert_eq!(config.node.allocatable_ephemeral, (90 << 30) - 10_737_418_400, "10 % in single precision");
    let huge_pages = config.node.allocatable_huge_pages;
    assert_eq!(
        config.capacity,
        Capacity { cpu_millis: 4000, memory: 8 << 30, ephemeral: 100 << 30, pids: 32_768, huge_pages }
    );
    assert_eq!(
        config.cgroups.node_allocatable,
        NodeAllocatable { cpu_millis: 4000, memory: 8 << 30, pids: 32_768 },
        "no cgroups per class"
    );
    assert_eq!(
        (config.runtime.endpoint.as_str(), config.runtime.image_endpoint.as_str()),
        ("unix:///c.sock", "unix:///i.sock")
    );
    assert_eq!(config.cgroups.root, "/test");
    assert_eq!((config.cgroups.per_qos, config.cgroups.pids_limit), (false, Some(100)));
    assert_eq!(
        config.logs,
        rotate::RotationConfig { max_size: 1 << 20, max_files: 3, interval: Duration::from_secs(3) }
    );
    assert_eq!((config.images.parallel, config.images.rate), (9, None));
    assert_eq!((config.images.gc_high, config.images.gc_low), (70, 60));
    assert_eq!(config.images.gc_max_age, Some(Duration::from_secs(86_400)));
    assert_eq!((config.dns.domain.as_str(), config.dns.resolv_conf), ("cluster.local", None));
    assert_eq!(config.listen, Some("127.0.0.1:10255".parse().unwrap()));
    let warning = "readOnlyPort: shows pods and metrics to every local user, without values of environment variables";
    assert_eq!(config.warnings, [warning]);
}

#[test]
fn listeners_off_loopback_are_warned_about() {
    let warnings = load("readOnlyPort: 10255\n").unwrap().warnings;
    let text = "0.0.0.0:10255 shows pods and metrics to the network without authentication; use a loopback address";
    assert_eq!(warnings, [format!("readOnlyPort: {text}")]);
    assert_eq!(load("readOnlyPort: 0\n").unwrap().warnings, Vec::<String>::new());
    assert_eq!(load("address: 10.0.0.1\n").unwrap().warnings, Vec::<String>::new(), "nothing listens");
}

#[test]
fn all_pods_together_are_held_to_what_is_not_reserved() {
    let reserved = "systemReserved: {cpu: 500m, memory: 1Gi, pid: '1000'}\nkubeReserved: {memory: 1Gi}\n";
    let held = |yaml: &str| load(&format!("{reserved}{yaml}")).unwrap().cgroups.node_allocatable;
    let less = NodeAllocatable { cpu_millis: 3500, memory: 6 << 30, pids: 31_768 };
    let all = NodeAllocatable { cpu_millis: 4000, memory: 8 << 30, pids: 32_768 };
    assert_eq!(
        [held(""), held("enforceNodeAllocatable: [pods]"), held("enforceNodeAllocatable: [pods, kube-reserved]")],
        [less; 3]
    );
    assert_eq!([held("enforceNodeAllocatable: []"), held("enforceNodeAllocatable: [none]")], [all; 2]);
    let warned = load("enforceNodeAllocatable: [pods, kube-reserved]").unwrap().warnings;
    assert_eq!(warned, ["enforceNodeAllocatable: kube-reserved is not supported yet and has no effect"]);
    for (yaml, error) in [
        ("enforceNodeAllocatable: [all]", "\"all\" must be pods or none"),
        ("enforceNodeAllocatable: [pods]\ncgroupsPerQOS: false", "pods requires cgroupsPerQOS: true"),
    ] {
        assert_eq!(load(yaml).unwrap_err(), [format!("enforceNodeAllocatable: {error}")]);
    }
}

/// The fields, then the allocatable memory and storage of 8 GiB, 1 GiB of it in huge pages, and 100 GiB.
#[test]
fn what_pods_can_request_excludes_reservations_and_eviction_thresholds() {
    let (gi, mi) = (1i64 << 30, 1i64 << 20);
    let ten_percent = 10_737_418_400;
    let table = [
        ("", 7 * gi - 100 * mi, 100 * gi - ten_percent),
        ("evictionHard: {}", 7 * gi, 100 * gi),
        ("evictionHard: {memory.available: 1Gi}", 6 * gi, 100 * gi),
        ("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true", 6 * gi, 100 * gi - ten_percent),
        ("evictionHard: {memory.available: 0%, nodefs.available: 100%}", 7 * gi, 100 * gi),
        ("evictionHard: {memory.available: 50%, nodefs.available: 25%}", 3 * gi, 75 * gi),
        ("evictionHard: {pid.available: 10%, nodefs.inodesFree: 5%}", 7 * gi, 100 * gi),
        (
            "systemReserved: {memory: 1Gi}\nkubeReserved: {memory: 1Gi, ephemeral-storage: 1Gi}\nevictionHard: {memory.available: 500Mi}",
            5 * gi - 500 * mi,
            99 * gi,
        ),
    ];
    for (yaml, memory, ephemeral) in table {
        let config = load(yaml).unwrap();
        assert_eq!((config.node.allocatable_memory, config.node.allocatable_ephemeral), (memory, ephemeral), "{yaml}");
    }
    let config = load("evictionHard: {memory.available: 1Gi}").unwrap();
    assert_eq!(config.cgroups.node_allocatable.memory, 8 * gi, "the cgroup of all pods has no threshold");
    for (yaml, error) in [
        ("evictionHard: {memory.available: 9Gi}", "evictionHard: more memory is kept free"),
        (
            "evictionHard: {memory.available: 1Gi}\nsystemReserved: {memory: 7500Mi}",
            "evictionHard: more memory is kept",
        ),
    ] {
        let errors = load(yaml).unwrap_err();
        assert!(errors[0].starts_with(error), "{yaml}: {errors:?}");
    }
}

#[test]
fn the_cgroup_driver_is_cgroupfs_or_systemd() {
    for (yaml, driver) in [
        ("", CgroupDriver::Cgroupfs),
        ("cgroupDriver: cgroupfs", CgroupDriver::Cgroupfs),
        ("cgroupDriver: systemd", CgroupDriver::Systemd),
    ] {
        assert_eq!(load(yaml).unwrap().cgroups.driver, driver, "{yaml}");
    }
    assert_eq!(
        load("cgroupDriver: other").unwrap_err(),
        ["cgroupDriver (--cgroup-driver): \"other\" must be cgroupfs or systemd"]
    );
}

#[test]
fn flags_override_the_file() {
    let flags = RunFlags {
        pod_manifest_path: Some("/flag".into()),
        manifest_url: Some("http://flag/".into()),
        manifest_url_header: vec!["A:b,C:d".into(), "E:f, g".into()],
        container_runtime_endpoint: Some("unix:///flag.sock".into()),
        hostname_override: Some(" Other ".into()),
        node_ip: vec!["192.0.2.7".into(), "2001:db8::7".into()],
        node_labels: vec!["zone=a".into(), "disk=".into()],
        listen: Some("127.0.0.1:1".parse().unwrap()),
        as_kubelet: true,
        ignored: vec!["--kubeconfig".into(), "--pod-infra-container-image".into()],
        ..RunFlags::default()
    };
    let yaml = "staticPodPath: /file\nstaticPodURL: http://file/\ncontainerRuntimeEndpoint: unix:///file.sock\nreadOnlyPort: 2\n";
    let config = load_with(&flags, facts(), yaml).unwrap();
    let file = config.sources.file.unwrap();
    assert_eq!((file.path.as_path(), file.all_names), (Path::new("/flag"), true));
    let url = format!("{:?}", config.sources.url.unwrap());
    assert!(url.contains("http://flag/") && url.contains("\"a\", \"c\", \"e\""), "{url}");
    assert_eq!(config.runtime.endpoint, "unix:///flag.sock");
    assert_eq!(config.node.node_name, "other");
    assert_eq!(config.node.host_ips, ["192.0.2.7", "2001:db8::7"]);
    assert_eq!((config.node.labels["zone"].as_str(), config.node.labels["disk"].as_str()), ("a", ""));
    assert_eq!(config.listen, Some("127.0.0.1:1".parse().unwrap()));
    assert_eq!(config.dirs.root, Path::new("/var/lib/kubelet"));
    let expected = [
        "--kubeconfig: this kubelet flag is not supported yet and has no effect",
        "--pod-infra-container-image: this flag of older kubelets was removed from Kubernetes and has no effect: it can be deleted",
    ];
    assert_eq!(config.warnings, expected);
}

#[test]
fn a_wrong_type_is_an_error_with_its_path() {
    for (yaml, error) in [
        ("maxPods: many", "maxPods: must be an integer, not the string \"many\""),
        ("maxPods: 1.5", "maxPods: must be an integer, not the number 1.5"),
        ("syncFrequency: 60", "syncFrequency: must be a duration like \"20s\", not the number 60"),
        ("syncFrequency: 1 minute", "syncFrequency: \"1 minute\" is not a duration such as 20s, 1m30s or 500ms"),
        ("failSwapOn: 'no'", "failSwapOn: must be true or false, not the string \"no\""),
        ("clusterDNS: 10.96.0.10", "clusterDNS: must be a list of strings, not the string \"10.96.0.10\""),
        ("clusterDNS: [{}]", "clusterDNS[0]: must be a string (in quotes if it looks like a number), not a mapping"),
        (
            "systemReserved: {cpu: 1}",
            "systemReserved.cpu: must be a string (in quotes if it looks like a number), not the number 1",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: true}",
            "crashLoopBackOff.maxContainerRestartPeriod: must be a duration like \"20s\", not true",
        ),
        (
            "authentication: {anonymous: {enabled: 1}}",
            "authentication.anonymous.enabled: must be true or false, not the number 1",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: x}]",
            "shutdownGracePeriodByPodPriority[0].priority: must be an integer, not the string \"x\"",
        ),
        ("featureGates: {A: 1}", "featureGates.A: must be true or false, not the number 1"),
        ("staticPodURLHeader: {A: b}", "staticPodURLHeader.A: must be a list of strings, not the string \"b\""),
    ] {
        assert_eq!(load(yaml).unwrap_err(), [error], "{yaml}");
    }
}

#[test]
fn invalid_values_are_reported_together() {
    for (yaml, start) in [
        ("maxPods: -1", "maxPods: must be between"),
        ("imageGCLowThresholdPercent: 90", "imageGCLowThresholdPercent: must be below"),
        ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent: must be between"),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles: must be between"),
        ("containerLogMaxSize: big", "containerLogMaxSize: "),
        ("containerLogMonitorInterval: 1s", "containerLogMonitorInterval: must be at least"),
        ("cgroupDriver: cgroups", "cgroupDriver (--cgroup-driver): \"cgroups\" must be"),
        ("cgroupRoot: /a/../..", "cgroupRoot: must not contain"),
        ("containerRuntimeEndpoint: tcp://1.2.3.4:5", "containerRuntimeEndpoint (--container-runtime-endpoint): "),
        (
            "imageServiceEndpoint: /i.sock",
            "imageServiceEndpoint (--image-service-endpoint): \"unix:///i.sock\" cannot be combined",
        ),
        ("podCIDR: 10.0.0.1", "podCIDR (--pod-cidr): \"10.0.0.1\" is not a CIDR"),
        ("podCIDR: '10.1.0.0/24,10.2.0.0/24'", "podCIDR (--pod-cidr): 10.2.0.0/24 is the second range"),
        ("clusterDNS: [dns.local]", "clusterDNS: \"dns.local\" is not an IP address"),
        ("staticPodURL: manifests.yaml", "staticPodURL (--manifest-url): "),
        ("systemReserved: {memory: 9Gi}", "systemReserved, kubeReserved: more memory"),
        ("kubeReserved: {cpu: fast}", "kubeReserved.cpu: "),
        ("kubeReserved: {gpu: '1'}", "kubeReserved.gpu: this resource cannot be reserved"),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 10m}",
            "crashLoopBackOff.maxContainerRestartPeriod: must be between",
        ),
        ("readOnlyPort: 70000", "readOnlyPort: must be between"),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 2", "maxParallelImagePulls: must not be more than 1"),
        ("reservedSystemCPUs: all", "reservedSystemCPUs: "),
        ("imagePullCredentialsVerificationPolicy: Sometimes", "imagePullCredentialsVerificationPolicy: \"Sometimes\""),
        ("preloadedImagesVerificationAllowlist: [a]", "preloadedImagesVerificationAllowlist: needs"),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a*']",
            "preloadedImagesVerificationAllowlist: not a valid wildcard pattern",
        ),
    ] {
        let errors = load(yaml).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(start), "{yaml}: {errors:?}");
    }
    assert_eq!(load("maxPods: -1\naddress: nowhere\nclusterDNS: [x]").unwrap_err().len(), 3);
    let flags = RunFlags {
        node_ip: vec!["10.0.0.1".into(), "10.0.0.2".into(), "x".into()],
        node_labels: vec!["novalue".into()],
        hostname_override: Some("bad_name".into()),
        ..RunFlags::default()
    };
    assert_eq!(load_with(&flags, facts(), "").unwrap_err().len(), 4);
}

#[test]
fn unknown_and_unsupported_fields_are_warnings_by_path() {
    let config = load(
        "maxpods: 5\nnoSuchField: {a: 1}\nmemoryManagerPolicy: Static\nauthentication: {anonymous: {enabled: false, x: 1}}\n\
         crashLoopBackOff: {foo: 1}\nhairpinMode: null\nstaticPodPath: /m\n",
    )
    .unwrap();
    let mut warnings = config.warnings;
    warnings.sort();
    assert_eq!(
        warnings,
        [
            "authentication.anonymous.x: unknown field",
            "crashLoopBackOff.foo: unknown field",
            "maxpods: unknown field, did you mean maxPods?",
            "memoryManagerPolicy: not supported yet, it has no effect",
            "noSuchField: unknown field",
        ]
    );
    assert_eq!(config.node.max_pods, 110);
}

#[test]
fn other_documents_are_rejected() {
    for (text, error) in [
        ("", "it is empty"),
        ("a: [", "line "),
        ("- a\n", "kind: must be"),
        ("kind: Pod\napiVersion: v1\n", "kind: must be KubeletConfiguration"),
        ("kind: KubeletConfiguration\napiVersion: v1\n", "apiVersion: must be"),
        ("kind: KubeletConfiguration\n---\nkind: KubeletConfiguration\n", "expected one document, found 2"),
    ] {
        let errors = file::document(text.as_bytes()).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(error), "{text:?}: {errors:?}");
    }
}

#[test]
fn log_flags_override_the_logging_fields() {
    let expected = |format, verbosity| LoggingConfig { format, verbosity };
    assert_eq!(load("").unwrap().logging, expected(LogFormat::Text, 0));
    let yaml = "logging: {format: json, verbosity: 4, flushFrequency: 5s}\n";
    let config = load(yaml).unwrap();
    assert_eq!(config.logging, expected(LogFormat::Json, 4));
    assert_eq!(config.warnings, ["logging.flushFrequency: not supported yet, it has no effect"]);
    let observability = ObservabilityFlags { logging_format: Some(LogFormat::Text), ..ObservabilityFlags::default() };
    let flags = RunFlags { verbosity: Some(0), observability, ..RunFlags::default() };
    assert_eq!(load_with(&flags, facts(), yaml).unwrap().logging, expected(LogFormat::Text, 0));
    let errors = load("logging: {format: xml, verbosity: -1}\n").unwrap_err();
    assert!(
        errors[0].starts_with("logging.format: \"xml\"") && errors[1].starts_with("logging.verbosity"),
        "{errors:?}"
    );
}

#[test]
fn field_flags_override_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.yaml");
    fs::write(&path, format!("{HEAD}maxPods: 9\nfailSwapOn: false\nallowedUnsafeSysctls: [net.core.somaxconn]\n"))
        .unwrap();
    let of = |flag: &str, field, value: &str| FieldFlag { flag: flag.into(), field, value: value.into() };
    let field_flags = vec![
        of("--max-pods", "maxPods", "7"),
        of("--allowed-unsafe-sysctls", "allowedUnsafeSysctls", "kernel.msg*,net.ipv4.route.min_pmtu"),
    ];
    let flags = RunFlags { config: Some(path), field_flags, ..RunFlags::default() };
    let node = AgentConfig::load(&flags).unwrap().node;
    assert_eq!((node.max_pods, node.allowed_unsafe_sysctls.len()), (7, 2));
    assert_eq!(node.allowed_unsafe_sysctls[0], "kernel.msg*");
    let eviction = |given: &[FieldFlag]| {
        let path = dir.path().join("eviction.yaml");
        let text = "evictionHard: {memory.available: 1Gi, pid.available: 9%}\nlocalStorageCapacityIsolation: true\n";
        fs::write(&path, format!("{HEAD}failSwapOn: false\n{text}")).unwrap();
        let flags = RunFlags { config: Some(path), field_flags: given.to_vec(), ..RunFlags::default() };
        AgentConfig::load(&flags).unwrap().node.eviction
    };
    let hard = of("--eviction-hard", "evictionHard", "nodefs.available<7%");
    let storage = of("--local-storage-capacity-isolation", "localStorageCapacityIsolation", "false");
    let signals = |config: &EvictionConfig| config.thresholds.iter().map(|t| t.signal.as_str()).collect::<Vec<_>>();
    let (file, flag) = (eviction(&[]), eviction(&[hard, storage]));
    assert!(signals(&file).contains(&"pid.available") && file.storage_limits, "{file:?}");
    assert_eq!((signals(&flag), flag.storage_limits), (vec!["nodefs.available"], false));
    let field_flags = vec![of("--max-pods", "maxPods", "many")];
    let error = AgentConfig::load(&RunFlags { field_flags, ..RunFlags::default() }).unwrap_err().to_string();
    assert!(error.contains("the command line:\n  --max-pods: must be an integer"), "{error}");
}

#[test]
fn swap_is_an_error_unless_allowed() {
    let swapping = HostFacts { swaps: vec!["/dev/vdb".into()], ..facts() };
    let errors = load_with(&RunFlags::default(), swapping.clone(), "").unwrap_err();
    assert!(errors[0].starts_with("failSwapOn: swap is on (/dev/vdb)"), "{errors:?}");
    load_with(&RunFlags::default(), swapping, "failSwapOn: false").unwrap();
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.yaml");
    let flags = RunFlags { config: Some(path.clone()), ..RunFlags::default() };
    let error = AgentConfig::load(&flags).unwrap_err().to_string();
    assert!(error.contains("kubelet.yaml") && error.contains("No such file"), "{error}");
    fs::write(&path, format!("{HEAD}maxPods: x\nfailSwapOn: false\n")).unwrap();
    let error = AgentConfig::load(&flags).unwrap_err().to_string();
    assert!(error.contains("kubelet.yaml:\n  maxPods: must be"), "{error}");
    fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
    assert!(AgentConfig::load(&flags).unwrap_err().to_string().contains("larger than 1048576 bytes"));
    fs::write(&path, format!("{HEAD}staticPodPath: pods\nfailSwapOn: false\ntracing: {{}}\n")).unwrap();
    let config = AgentConfig::load(&flags).unwrap();
    assert_eq!(config.sources.file.unwrap().path, dir.path().join("pods"));
    assert!(
        config.warnings[0].ends_with("kubelet.yaml: tracing: not supported yet, it has no effect"),
        "{:?}",
        config.warnings
    );
}
