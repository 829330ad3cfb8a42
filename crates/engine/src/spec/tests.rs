//! Whole specifications, and the rules one by one.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn config() -> v1::ContainerConfig {
    v1::ContainerConfig {
        command: vec!["/bin/app".into()],
        args: vec!["--serve".into()],
        envs: vec![v1::KeyValue { key: "MODE".into(), value: b"test".to_vec().into() }],
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota: 50_000,
                cpu_shares: 512,
                memory_limit_in_bytes: 64 << 20,
                oom_score_adj: 936,
                ..Default::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(v1::NamespaceOption {
                    pid: v1::NamespaceMode::Container as i32,
                    ..Default::default()
                }),
                run_as_user: Some(v1::Int64Value { value: 1000 }),
                supplemental_groups: vec![2000],
                no_new_privs: true,
                masked_paths: vec!["/proc/kcore".into()],
                readonly_paths: vec!["/proc/sys".into()],
                ..Default::default()
            }),
        }),
        mounts: vec![v1::Mount {
            container_path: "/data/".into(),
            host_path: "/srv/data".into(),
            readonly: true,
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn context(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()).expect("set by config()")
}

fn sandbox() -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        hostname: "web-0".into(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/pod1".into(),
            security_context: Some(v1::LinuxSandboxSecurityContext { privileged: true, ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn image() -> ContainerDefaults {
    ContainerDefaults {
        user: "app:staff".into(),
        env: vec!["PATH=/opt/bin:/bin".into(), "MODE=image".into(), "LANG=C".into()],
        entrypoint: vec!["/entry".into()],
        cmd: vec!["default".into()],
        working_dir: "/srv".into(),
        ..Default::default()
    }
}

fn host() -> SpecHost {
    SpecHost { hostname: "node".into(), cgroup_v2: true, swap_limit: true, hugetlb: true, last_capability: 40 }
}

fn paths() -> NamespacePaths {
    let path = |name: &str| Some(PathBuf::from(format!("/run/ns/{name}")));
    NamespacePaths { network: path("net"), ipc: path("ipc"), uts: path("uts"), user: None, pid: None }
}

fn files() -> SandboxFiles {
    let path = |name: &str| Some(PathBuf::from(format!("/var/sandbox/{name}")));
    SandboxFiles {
        hosts: path("hosts"),
        hostname: path("hostname"),
        resolv_conf: path("resolv.conf"),
        shm: path("shm"),
    }
}

fn disk() -> HostDevice {
    HostDevice { path: "/dev/sda".into(), block: true, major: 8, minor: 0, mode: 0o660, uid: 0, gid: 6 }
}

fn made_with(
    config: &v1::ContainerConfig,
    image: &ContainerDefaults,
    host: &SpecHost,
) -> Result<ContainerSpec, SpecError> {
    container_spec(&SpecInputs {
        container_id: "c1",
        config,
        sandbox: &sandbox(),
        image,
        files: &files(),
        namespaces: &paths(),
        host,
        devices: &[disk()],
        localhost_seccomp: None,
    })
}

fn made(config: &v1::ContainerConfig) -> Result<ContainerSpec, SpecError> {
    made_with(config, &image(), &host())
}

/// Capabilities are sets: their order says nothing.
fn sorted(mut value: Value) -> Value {
    if let Some(Value::Object(sets)) = value.pointer_mut("/process/capabilities") {
        for set in sets.values_mut().filter_map(Value::as_array_mut) {
            set.sort_by_key(|name| name.as_str().map(str::to_owned));
        }
    }
    value
}

/// A plain container.
pub(crate) fn plain() -> Spec {
    made(&config()).expect("valid").spec
}

/// A container with a terminal, the default seccomp profile and a read-only root.
pub(crate) fn confined() -> Spec {
    let mut confined = config();
    let default = v1::security_profile::ProfileType::RuntimeDefault as i32;
    context(&mut confined).seccomp = Some(v1::SecurityProfile { profile_type: default, ..Default::default() });
    context(&mut confined).readonly_rootfs = true;
    confined.tty = true;
    made(&confined).expect("valid").spec
}

/// The places of a specification with their expected values.
fn check_places(spec: &Spec, places: &[(&str, Value)]) {
    let json = sorted(serde_json::to_value(spec).expect("JSON"));
    for (place, expected) in places {
        assert_eq!(json.pointer(place).unwrap_or(&Value::Null), expected, "{place}");
    }
}

fn destinations(spec: &Spec) -> Vec<String> {
    spec.mounts().iter().flatten().map(|mount| mount.destination().display().to_string()).collect()
}

#[test]
fn a_plain_container() {
    let spec = plain();
    let namespaces = json!([
        {"type": "mount"},
        {"type": "network", "path": "/run/ns/net"},
        {"type": "ipc", "path": "/run/ns/ipc"},
        {"type": "uts", "path": "/run/ns/uts"},
        {"type": "pid"},
        {"type": "cgroup"},
    ]);
    check_places(
        &spec,
        &[
            ("/hostname", Value::Null),
            ("/root", json!({"path": "rootfs", "readonly": false})),
            ("/process/terminal", json!(false)),
            ("/process/args", json!(["/bin/app", "--serve"])),
            ("/process/cwd", json!("/srv")),
            ("/process/user/uid", json!(1000)),
            ("/process/user/additionalGids", json!([2000])),
            ("/process/noNewPrivileges", json!(true)),
            ("/process/oomScoreAdj", json!(936)),
            ("/process/rlimits", Value::Null),
            ("/process/capabilities/ambient", json!([])),
            ("/linux/namespaces", namespaces),
            ("/linux/cgroupsPath", json!("/kubepods/pod1/c1")),
            ("/linux/maskedPaths", json!(["/proc/kcore"])),
            ("/linux/readonlyPaths", json!(["/proc/sys"])),
            ("/linux/seccomp", Value::Null),
            ("/linux/resources/cpu", json!({"shares": 512, "quota": 50_000, "period": 100_000})),
            ("/linux/resources/memory", json!({"limit": 64 << 20, "swap": 64 << 20})),
            ("/linux/resources/devices/0", json!({"allow": false, "type": "a", "access": "rwm"})),
        ],
    );
    let expected = [
        "/proc",
        "/dev",
        "/sys",
        "/data",
        "/dev/pts",
        "/dev/mqueue",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/dev/shm",
        "/sys/fs/cgroup",
    ];
    assert_eq!(destinations(&spec), expected);
}

#[test]
fn a_privileged_container_has_every_device_and_capability_and_no_mask() {
    let mut config = config();
    context(&mut config).privileged = true;
    let spec = made(&config).expect("valid").spec;
    check_places(
        &spec,
        &[
            ("/linux/maskedPaths", json!([])),
            ("/linux/readonlyPaths", json!([])),
            ("/linux/devices/0/path", json!("/dev/sda")),
            ("/linux/resources/devices", json!([{"allow": true, "type": "a", "access": "rwm"}])),
        ],
    );
    let json = serde_json::to_value(&spec).expect("JSON");
    assert_eq!(json["process"]["capabilities"]["bounding"].as_array().map(Vec::len), Some(41));
    let sys = spec.mounts().iter().flatten().find(|m| m.destination().as_os_str() == "/sys").expect("/sys");
    assert!(sys.options().iter().flatten().any(|option| option == "rw"));
}

#[test]
fn a_confined_container() {
    let spec = confined();
    let places = [("/process/terminal", json!(true)), ("/root", json!({"path": "rootfs", "readonly": true}))];
    check_places(&spec, &places);
    let profile = spec.linux().as_ref().and_then(|linux| linux.seccomp().clone()).expect("a profile");
    assert_eq!(serde_json::to_value(profile.default_action()).expect("JSON"), json!("SCMP_ACT_ERRNO"));
    let env = spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default();
    assert!(env.contains(&"TERM=xterm".to_owned()));
    let hosts = spec.mounts().iter().flatten().find(|m| m.destination().as_os_str() == "/etc/hosts").expect("hosts");
    assert!(hosts.options().iter().flatten().any(|option| option == "ro"));
}

#[test]
fn the_command_of_the_pod_replaces_that_of_the_image() {
    let args = |command: &[&str], args: &[&str]| {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let config = v1::ContainerConfig { command: list(command), args: list(args), ..config() };
        made(&config).map(|made| made.spec.process().as_ref().and_then(|p| p.args().clone()).unwrap_or_default())
    };
    assert_eq!(args(&[], &[]).unwrap(), ["/entry", "default"]);
    assert_eq!(args(&[], &["x"]).unwrap(), ["/entry", "x"]);
    assert_eq!(args(&["/a"], &[]).unwrap(), ["/a"]);
    assert_eq!(args(&["/a"], &["x"]).unwrap(), ["/a", "x"]);
    assert!(matches!(args(&["/a\0b"], &[]), Err(SpecError::Text { field: "command", .. })));
    let nothing = v1::ContainerConfig { command: vec![], args: vec![], ..config() };
    assert_eq!(made_with(&nothing, &ContainerDefaults::default(), &host()), Err(SpecError::NoCommand));
}

#[test]
fn the_environment_of_the_pod_wins_over_that_of_the_image() {
    let env = serde_json::to_value(plain()).expect("JSON")["process"]["env"].clone();
    let expected = ["PATH=/opt/bin:/bin", "HOSTNAME=web-0", "MODE=test", "LANG=C"];
    assert_eq!(env, json!(expected));
    let mut bad = config();
    bad.envs[0].key = "A=B".into();
    assert!(matches!(made(&bad), Err(SpecError::Text { .. })));
}

#[test]
fn the_user_of_the_pod_wins_over_that_of_the_image() {
    let user = |change: fn(&mut v1::LinuxContainerSecurityContext)| {
        let mut config = config();
        change(context(&mut config));
        made(&config).map(|made| made.user.user)
    };
    assert_eq!(user(|_| {}).unwrap(), "1000");
    assert_eq!(user(|c| c.run_as_user = None).unwrap(), "app:staff");
    assert_eq!(user(|c| (c.run_as_user, c.run_as_username) = (None, "www".into())).unwrap(), "www");
    assert_eq!(user(|c| c.run_as_group = Some(v1::Int64Value { value: 7 })).unwrap(), "1000:7");
    let image_group = |c: &mut v1::LinuxContainerSecurityContext| {
        (c.run_as_user, c.run_as_group) = (None, Some(v1::Int64Value { value: 7 }));
    };
    assert_eq!(user(image_group).unwrap(), "app:7");
    let negative = user(|c| c.run_as_user = Some(v1::Int64Value { value: -1 }));
    assert_eq!(negative, Err(SpecError::Number { field: "run_as_user", value: -1 }));
}

#[test]
fn capabilities_are_added_and_dropped_after_all() {
    let bounding = |add: &[&str], drop: &[&str], ambient: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut config = config();
        context(&mut config).capabilities = Some(v1::Capability {
            add_capabilities: list(add),
            drop_capabilities: list(drop),
            add_ambient_capabilities: list(ambient),
        });
        made(&config).map(|made| {
            let sets = sorted(serde_json::to_value(made.spec).expect("JSON"))["process"]["capabilities"].clone();
            let names = |set: &str| -> Vec<String> {
                let set = sets[set].as_array().into_iter().flatten();
                set.filter_map(|name| name.as_str().map(str::to_owned)).collect()
            };
            (names("bounding"), names("ambient"), names("inheritable"))
        })
    };
    assert_eq!(bounding(&[], &[], &[]).unwrap().0.len(), 14);
    assert_eq!(bounding(&["ALL"], &["chown"], &[]).unwrap().0.len(), 40);
    assert_eq!(bounding(&["NET_ADMIN"], &["ALL"], &[]).unwrap().0, ["CAP_NET_ADMIN"]);
    let (set, ambient, inheritable) = bounding(&[], &["ALL"], &["CAP_NET_BIND_SERVICE"]).unwrap();
    assert_eq!((set.clone(), set), (ambient, inheritable));
    assert_eq!(bounding(&["FLY"], &[], &[]), Err(SpecError::Capability("FLY".into())));
}

#[test]
fn mounts_are_checked_and_ordered() {
    let with = |mount: v1::Mount| made(&v1::ContainerConfig { mounts: vec![mount], ..config() });
    let base = || v1::Mount { container_path: "/x".into(), host_path: "/h".into(), ..Default::default() };
    let bidirectional = v1::MountPropagation::PropagationBidirectional as i32;
    let refused = [
        v1::Mount { container_path: "/../x".into(), ..base() },
        v1::Mount { container_path: "/".into(), ..base() },
        v1::Mount { host_path: "h".into(), ..base() },
        v1::Mount { recursive_read_only: true, ..base() },
        v1::Mount { recursive_read_only: true, readonly: true, propagation: bidirectional, ..base() },
    ];
    for mount in refused {
        assert!(matches!(with(mount.clone()), Err(SpecError::Mount { .. })), "{mount:?}");
    }
    let options = |mount: v1::Mount| {
        let made = with(mount).expect("valid").spec;
        let mounts = made.mounts().clone().unwrap_or_default();
        let at = mounts.iter().find(|m| m.destination().as_os_str() == "/x").expect("the mount");
        (at.typ().clone().unwrap_or_default(), at.options().clone().unwrap_or_default().join(","))
    };
    assert_eq!(options(v1::Mount { propagation: bidirectional, ..base() }).1, "rbind,rshared,rw");
    assert_eq!(options(v1::Mount { readonly: true, recursive_read_only: true, ..base() }).1, "rbind,rprivate,rro");
    let image = Some(v1::ImageSpec { image: "sha256:1".into(), ..Default::default() });
    let image = v1::Mount { image, host_path: String::new(), image_sub_path: "etc".into(), ..base() };
    assert_eq!(options(image), (IMAGE_MOUNT_TYPE.into(), "subPath=etc,ro".into()));
    let own_hosts = v1::Mount { container_path: "/etc/hosts".into(), ..base() };
    let made = with(own_hosts).expect("valid").spec;
    let hosts = made.mounts().iter().flatten().filter(|m| m.destination().as_os_str() == "/etc/hosts");
    assert_eq!(hosts.filter_map(|m| m.source().clone()).collect::<Vec<_>>(), [PathBuf::from("/h")]);
}

#[test]
fn devices_are_found_below_the_requested_path() {
    let with = |host_path: &str, container_path: &str, permissions: &str| {
        let device = v1::Device {
            host_path: host_path.into(),
            container_path: container_path.into(),
            permissions: permissions.into(),
        };
        made(&v1::ContainerConfig { devices: vec![device], ..config() })
    };
    let made = with("/dev/sda", "/dev/disk", "r").expect("valid").spec;
    let linux = serde_json::to_value(made.linux()).expect("JSON");
    assert_eq!(linux["devices"][0]["path"], "/dev/disk");
    let last = linux["resources"]["devices"].as_array().and_then(|rules| rules.last()).cloned();
    assert_eq!(last, Some(json!({"allow": true, "type": "b", "major": 8, "minor": 0, "access": "r"})));
    assert_eq!(with("/dev/sdb", "", ""), Err(SpecError::NoDevice("/dev/sdb".into())));
    assert_eq!(with("/dev/sd", "", ""), Err(SpecError::NoDevice("/dev/sd".into())), "a prefix is no directory");
    assert!(matches!(with("/dev/sda", "", "x"), Err(SpecError::Text { .. })));
}

#[test]
fn resources_follow_the_host() {
    let v1_host = SpecHost { cgroup_v2: false, swap_limit: false, hugetlb: false, ..host() };
    let mut config = config();
    let resources = config.linux.as_mut().and_then(|l| l.resources.as_mut()).expect("set by config()");
    resources.hugepage_limits = vec![v1::HugepageLimit { page_size: "2MB".into(), limit: 4096 }];
    let on = |config: &v1::ContainerConfig, host: &SpecHost| {
        made_with(config, &image(), host).map(|made| serde_json::to_value(made.spec).expect("JSON")["linux"].clone())
    };
    let v2 = on(&config, &host()).expect("valid");
    assert_eq!(v2["resources"]["memory"]["swap"], 64 << 20, "a memory limit forbids swap");
    assert_eq!(v2["resources"]["hugepageLimits"][0]["limit"], 4096);
    let v1 = on(&config, &v1_host).expect("valid");
    assert_eq!(v1["resources"]["memory"].get("swap"), None);
    assert_eq!(v1["resources"].get("hugepageLimits"), None);
    assert!(v1["namespaces"].as_array().is_some_and(|all| all.iter().all(|n| n["type"] != "cgroup")));
    let resources = config.linux.as_mut().and_then(|l| l.resources.as_mut()).expect("set by config()");
    resources.unified.insert("memory.high".into(), "1".into());
    assert!(matches!(on(&config, &v1_host), Err(SpecError::Unsupported(_))));
    assert!(on(&config, &host()).is_ok());
}

#[test]
fn a_privileged_container_needs_a_privileged_sandbox_and_slices_are_refused() {
    let mut config = config();
    context(&mut config).privileged = true;
    let with = |sandbox: &v1::PodSandboxConfig| {
        container_spec(&SpecInputs {
            container_id: "c1",
            config: &config,
            sandbox,
            image: &image(),
            files: &files(),
            namespaces: &paths(),
            host: &host(),
            devices: &[],
            localhost_seccomp: None,
        })
    };
    assert_eq!(with(&v1::PodSandboxConfig::default()), Err(SpecError::PrivilegedInSandbox));
    let mut slice = sandbox();
    slice.linux.as_mut().expect("set by sandbox()").cgroup_parent = "kubepods.slice".into();
    assert!(matches!(with(&slice), Err(SpecError::CgroupParent(..))));
}

#[test]
fn a_pod_without_a_parent_gets_a_cgroup_of_the_engine_that_is_removed_with_it() {
    let mut own = v1::PodSandboxConfig::default();
    default_pod_cgroup(&mut own, "/base/", "s1");
    assert_eq!(pod_cgroup(&own), Ok("/base/s1".to_owned()));
    assert_eq!(own_pod_cgroup(&own, "s1"), Some("/base/s1"));
    let mut given = sandbox();
    default_pod_cgroup(&mut given, "/base", "s1");
    assert_eq!(pod_cgroup(&given), Ok("/kubepods/pod1".to_owned()));
    assert_eq!(own_pod_cgroup(&given, "s1"), None);
    assert!(pod_cgroup(&v1::PodSandboxConfig::default()).is_err());
}

#[test]
fn the_default_profile_depends_on_capabilities() {
    let rules = |add: &[&str], name: &str| {
        let mut config = config();
        let default = v1::security_profile::ProfileType::RuntimeDefault as i32;
        context(&mut config).seccomp = Some(v1::SecurityProfile { profile_type: default, ..Default::default() });
        let add_capabilities = add.iter().map(|name| (*name).to_owned()).collect();
        context(&mut config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
        let linux = serde_json::to_value(made(&config).expect("valid").spec.linux()).expect("JSON");
        let all = linux["seccomp"]["syscalls"].as_array().cloned().unwrap_or_default();
        let of = |rule: &&Value| rule["names"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        all.iter().filter(of).map(|rule| rule["action"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(rules(&[], "clone3"), ["SCMP_ACT_ERRNO"]);
    assert_eq!(rules(&["SYS_ADMIN"], "clone3"), ["SCMP_ACT_ALLOW"]);
    assert!(rules(&[], "mount").is_empty());
    assert_eq!(rules(&["SYS_ADMIN"], "mount"), ["SCMP_ACT_ALLOW"]);
    assert_eq!(rules(&[], "read"), ["SCMP_ACT_ALLOW"]);
}

#[test]
fn files_of_the_sandbox_belong_to_the_root_of_the_user_namespace() {
    let map = v1::IdMapping { host_id: 100_000, container_id: 0, length: 65_536 };
    let user = v1::UserNamespace { mode: v1::NamespaceMode::Pod as i32, uids: vec![map], gids: vec![map] };
    let (mut config, mut sandbox) = (config(), sandbox());
    context(&mut config).namespace_options.as_mut().unwrap().userns_options = Some(user.clone());
    let options = v1::NamespaceOption { userns_options: Some(user), ..Default::default() };
    sandbox.linux.as_mut().and_then(|l| l.security_context.as_mut()).unwrap().namespace_options = Some(options);
    let inputs = SpecInputs {
        container_id: "c1",
        config: &config,
        sandbox: &sandbox,
        image: &image(),
        files: &files(),
        namespaces: &paths(),
        host: &host(),
        devices: &[],
        localhost_seccomp: None,
    };
    let spec = container_spec(&inputs).unwrap().spec;
    let mapped = |mount: &&oci_spec::runtime::Mount| {
        let maps = mount.uid_mappings().iter().chain(mount.gid_mappings()).flatten();
        maps.filter(|map| (map.container_id(), map.host_id()) == (0, 100_000)).count() == 2
    };
    let mapped: Vec<_> = spec.mounts().iter().flatten().filter(mapped).map(|m| m.destination().clone()).collect();
    assert_eq!(mapped, ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"].map(PathBuf::from));
}
