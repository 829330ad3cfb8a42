//! Plans of the specifications that the tests of `spec` make, and what is refused.

use oci_spec::runtime::{LinuxSeccomp, LinuxSyscall, Mount};

use super::*;
use crate::spec::IMAGE_MOUNT_TYPE as IMAGE;
use crate::spec::tests::{confined, plain};
use podwright_shim::plan::{MountKind, MountPlan};

fn planned(spec: &Spec) -> Result<LaunchPlan, PlanError> {
    let layers = BTreeMap::from([(
        "/model".to_owned(),
        OverlayLayers { lower: vec!["/layers/1/fs".into()], ..OverlayLayers::default() },
    )]);
    launch_plan(
        spec,
        &PlanInputs {
            container_id: "c1",
            rootfs: RootfsPlan { directory: "/bundle/rootfs".into(), ..RootfsPlan::default() },
            staging_dir: "/run/staging",
            cgroups: vec![CgroupMembership { hierarchy: String::new(), directory: "/sys/fs/cgroup/c1".into() }],
            user: None,
            image_layers: &layers,
            devices: &[],
        },
    )
}

fn with_mount(mount: serde_json::Value) -> Result<MountPlan, PlanError> {
    let mut spec = plain();
    let mount: Mount = serde_json::from_value(mount).expect("a mount");
    spec.set_mounts(Some(vec![mount]));
    planned(&spec).map(|plan| plan.mounts[0].clone())
}

#[test]
fn a_specification_becomes_a_plan() {
    let plan = planned(&plain()).expect("a plan");
    let process = plan.process.as_ref().expect("a process");
    assert_eq!(process.argv, [b"/bin/app".to_vec(), b"--serve".to_vec()]);
    assert_eq!(process.cwd, "/srv");
    assert!(process.no_new_privileges && process.seccomp.is_empty() && !process.terminal);
    assert_eq!(process.rlimits, []);
    let capabilities = process.capabilities.expect("capabilities");
    assert_eq!(capabilities.bounding.count_ones(), 14);
    assert_eq!(capabilities.bounding & 1, 1, "CAP_CHOWN is bit 0");
    assert_eq!((capabilities.inheritable, capabilities.ambient), (0, 0));
    assert_eq!(plan.user.as_ref().map(|user| user.user.as_str()), Some("1000:0"));
    assert_eq!(plan.oom_score_adj, Some(936));
    assert_eq!(plan.masked_paths, ["/proc/kcore"]);
    assert_eq!((plan.pid_namespace(), plan.new_cgroup_namespace), (PidNamespace::Own, true));
    assert_eq!([plan.needs_network, plan.needs_ipc, plan.needs_uts], [true; 3]);
    let kinds: Vec<(MountKind, &str)> = plan.mounts.iter().map(|m| (m.kind(), m.target.as_str())).collect();
    assert!(kinds.contains(&(MountKind::Dev, "/dev")) && kinds.contains(&(MountKind::Proc, "/proc")), "{kinds:?}");
    let data = plan.mounts.iter().find(|m| m.target == "/data").expect("the volume");
    assert_eq!(
        (data.kind(), data.attributes, data.recursive, data.propagation()),
        (MountKind::Bind, 1, true, Propagation::Private)
    );
    let dev = plan.mounts.iter().find(|m| m.target == "/dev").expect("/dev");
    assert_eq!(dev.options, ["mode=755", "size=65536k"]);
}

#[test]
fn a_confined_specification_has_a_program_and_a_terminal() {
    let plan = planned(&confined()).expect("a plan");
    let process = plan.process.expect("a process");
    assert!(process.terminal);
    assert!(process.seccomp.len() > 800 && process.seccomp.len().is_multiple_of(8), "{} bytes", process.seccomp.len());
    assert!(plan.rootfs.expect("a root").readonly);
}

#[test]
fn mount_options_become_attributes_and_unknown_ones_are_refused() {
    let bind = |options: &[&str]| {
        with_mount(serde_json::json!({"destination": "/x", "type": "bind", "source": "/h", "options": options}))
    };
    assert_eq!(bind(&["rbind", "rro", "rprivate"]).expect("valid").recursive_attributes, 1);
    assert_eq!(bind(&["bind", "ro", "nosuid", "nodev", "noexec"]).expect("valid").attributes, 0xf);
    assert_eq!(bind(&["rbind", "ro", "rw"]).expect("valid").attributes, 0);
    assert_eq!(bind(&["rbind", "rshared"]).expect("valid").propagation(), Propagation::Shared);
    assert!(matches!(bind(&["rbind", "size=1"]), Err(PlanError::Unsupported(_))));
    assert!(matches!(bind(&["rbind", "rro", "rshared"]), Err(PlanError::Unsupported(_))));
    assert!(matches!(bind(&["runbindable"]), Err(PlanError::Unsupported(_))));
    let nfs = with_mount(serde_json::json!({"destination": "/x", "type": "nfs", "source": "a:/b"}));
    assert_eq!(nfs, Err(PlanError::Unsupported("mount type \"nfs\"".into())));
    let relative = with_mount(serde_json::json!({"destination": "/x", "type": "bind", "source": "h"}));
    assert!(matches!(relative, Err(PlanError::Invalid { field: "mounts.source", .. })));
    let up = with_mount(serde_json::json!({"destination": "/x/../y", "type": "tmpfs"}));
    assert!(matches!(up, Err(PlanError::Invalid { field: "mounts.destination", .. })));
}

#[test]
fn an_image_volume_needs_its_layers() {
    let image = |path: &str| {
        let options = ["subPath=etc", "ro"];
        with_mount(serde_json::json!({"destination": path, "type": IMAGE, "source": "sha256:1", "options": options}))
    };
    let plan = image("/model").expect("valid");
    assert_eq!((plan.kind(), plan.sub_path.as_str(), plan.attributes), (MountKind::Image, "etc", 1));
    assert_eq!(image("/other"), Err(PlanError::ImageLayers("/other".into())));
}

#[test]
fn what_the_launcher_can_not_do_is_refused_by_name() {
    let changed = |pointer: &str, value: serde_json::Value| {
        let mut json = serde_json::to_value(plain()).expect("JSON");
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = if parent.is_empty() { Some(&mut json) } else { json.pointer_mut(parent) };
        parent.and_then(serde_json::Value::as_object_mut).expect("an object").insert(name.into(), value);
        planned(&serde_json::from_value(json).expect("a specification"))
    };
    let hooks = serde_json::json!({"prestart": [{"path": "/bin/hook"}]});
    assert_eq!(changed("/hooks", hooks), Err(PlanError::Unsupported("hooks".into())));
    assert_eq!(changed("/domainname", "d".into()), Err(PlanError::Unsupported("domainname".into())));
    let unbindable = changed("/linux/rootfsPropagation", "unbindable".into());
    assert_eq!(unbindable, Err(PlanError::Unsupported("rootfsPropagation \"unbindable\"".into())));
    let time = serde_json::json!([{"type": "mount"}, {"type": "time"}]);
    assert_eq!(changed("/linux/namespaces", time), Err(PlanError::Unsupported("a time namespace".into())));
    let host = changed("/linux/namespaces", serde_json::json!([]));
    assert!(matches!(host, Err(PlanError::Unsupported(_))));
    assert_eq!(changed("/process/args", serde_json::json!([])), Err(PlanError::Missing("process.args")));
    let notify = serde_json::json!({"defaultAction": "SCMP_ACT_NOTIFY"});
    assert_eq!(changed("/linux/seccomp", notify), Err(PlanError::Unsupported("seccomp action SCMP_ACT_NOTIFY".into())));
    let outside = serde_json::json!([{"path": "/dev/../etc/x", "type": "c", "major": 1, "minor": 3}]);
    assert!(matches!(changed("/linux/devices", outside), Err(PlanError::Invalid { .. })));
}

#[test]
fn masked_comparisons_keep_mask_and_value() {
    let profile: LinuxSeccomp = serde_json::from_value(serde_json::json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{"names": ["clone"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 9, "value": 1, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}],
    }))
    .expect("a profile");
    assert!(matches!(seccomp::program(&profile), Err(PlanError::Seccomp(_))), "there is no argument 9");
    let names = |syscall: &LinuxSyscall| syscall.names().clone();
    assert_eq!(profile.syscalls().iter().flatten().map(names).collect::<Vec<_>>(), [["clone"]]);
}

#[test]
fn a_pod_sets_only_sysctls_of_its_own_namespaces() {
    let pod = |network: v1::NamespaceMode, sysctl: &str| {
        let namespace_options = Some(v1::NamespaceOption { network: network as i32, ..Default::default() });
        let config = v1::PodSandboxConfig {
            hostname: "web".into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                security_context: Some(v1::LinuxSandboxSecurityContext { namespace_options, ..Default::default() }),
                sysctls: [(sysctl.to_owned(), "1".to_owned())].into_iter().collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        setup_plan(&config, vec![])
    };
    let plan = pod(v1::NamespaceMode::Pod, "net.core.somaxconn").expect("valid");
    assert_eq!(plan.sysctls.len(), 3, "with the two defaults: {:?}", plan.sysctls);
    assert!(plan.new_network && plan.new_ipc && plan.new_uts && plan.pause && plan.hostname == "web");
    assert!(pod(v1::NamespaceMode::Node, "net.core.somaxconn").is_err(), "the host's network");
    assert!(pod(v1::NamespaceMode::Pod, "kernel.panic").is_err());
    let node = pod(v1::NamespaceMode::Node, "kernel.shmmax").expect("valid");
    assert!(!node.new_network && node.hostname.is_empty());
}

#[test]
fn a_pod_without_namespace_options_shares_its_pid_namespace() {
    let plan = setup_plan(&v1::PodSandboxConfig::default(), vec![CgroupMembership::default()]).expect("valid");
    assert!(plan.new_network && plan.new_ipc && plan.pause, "{plan:?}");
    assert_eq!(plan.pause_cgroups.len(), 1);
}
