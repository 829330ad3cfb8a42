//! The settings of the embedded engine.

use super::*;

#[test]
fn the_engine_has_names_and_a_range_that_can_be_set() {
    let config = load("").unwrap().engine;
    assert_eq!((config.bridge.as_str(), config.table.as_str()), ("pw0", "podwright"));
    assert_eq!((config.shim_cgroup.as_str(), config.pod_ranges.len()), ("/podwright-shims", 1));
    assert_eq!(config.registries, Path::new("/etc/containerd/certs.d"));

    let mut flags = RunFlags::default();
    flags.engine.engine_bridge = Some("pw7".into());
    flags.engine.engine_table = Some("pw7".into());
    flags.engine.engine_cgroup = Some("/pw7/shims".into());
    flags.engine.engine_registries = Some("/r".into());
    let config = load_with(&flags, facts(), "podCIDR: '10.7.0.9/24,fd00:7::/64'").unwrap();
    assert!(config.runtime.is_embedded() && config.warnings.is_empty(), "{:?}", config.warnings);
    let ranges: Vec<String> = config.engine.pod_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.7.0.0/24", "fd00:7::/64"]);
    assert_eq!((config.engine.bridge.as_str(), config.engine.shim_cgroup.as_str()), ("pw7", "/pw7/shims"));
    assert_eq!((config.engine.table.as_str(), config.engine.registries.as_path()), ("pw7", Path::new("/r")));
}

#[test]
fn names_that_the_kernel_refuses_are_errors() {
    let mut flags = RunFlags::default();
    flags.engine.engine_bridge = Some("a-bridge-with-a-long-name".into());
    flags.engine.engine_cgroup = Some("shims".into());
    let errors = load_with(&flags, facts(), "").unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("--engine-bridge: ") && errors[1].starts_with("--engine-cgroup: "), "{errors:?}");
}

#[test]
fn the_range_of_the_node_counts_unless_one_is_configured() {
    let of_node = |text: &str, wait: bool| {
        let mut flags = RunFlags::default();
        flags.engine.engine_wait_for_pod_cidr = wait;
        load_with(&flags, facts(), text)
            .map(|config| (config.engine.pod_ranges.len(), config.engine.pod_ranges_of_node))
    };
    assert_eq!(of_node("", false).unwrap(), (1, true));
    assert_eq!(of_node("podCIDR: 10.7.0.0/24", false).unwrap(), (1, false));
    assert_eq!(of_node("", true).unwrap(), (0, true));
    let errors = of_node("podCIDR: 10.7.0.0/24", true).unwrap_err();
    assert!(errors[0].starts_with("--engine-wait-for-pod-cidr: contradicts podCIDR"), "{errors:?}");
}

#[test]
fn a_range_for_another_runtime_is_a_warning() {
    let config = load("containerRuntimeEndpoint: unix:///run/c.sock\npodCIDR: 10.7.0.0/24").unwrap();
    assert!(config.warnings[0].starts_with("podCIDR (--pod-cidr): has no effect"), "{:?}", config.warnings);
}

#[test]
fn cni_plugins_connect_pods_if_they_are_configured() {
    assert_eq!(load("").unwrap().engine.cni, None);
    let mut flags = RunFlags::default();
    flags.engine.engine_cni_conf_dir = Some("/etc/cni/net.d".into());
    let dirs = |config: AgentConfig| config.engine.cni.map(|cni| (cni.conf_dir, cni.bin_dirs));
    let expected = |bin_dirs: &[&str]| Some(("/etc/cni/net.d".into(), bin_dirs.iter().map(Into::into).collect()));
    assert_eq!(dirs(load_with(&flags, facts(), "").unwrap()), expected(&["/opt/cni/bin"]));
    flags.engine.engine_cni_bin_dir = vec!["/usr/lib/cni".into(), "/opt/cni/bin".into()];
    assert_eq!(dirs(load_with(&flags, facts(), "").unwrap()), expected(&["/usr/lib/cni", "/opt/cni/bin"]));
    for (file, warning) in [
        ("podCIDR: 10.7.0.0/24", "podCIDR (--pod-cidr): has no effect with --engine-cni-conf-dir"),
        ("containerRuntimeEndpoint: unix:///run/c.sock", "--engine-cni-conf-dir: has no effect: the runtime has"),
    ] {
        let warnings = load_with(&flags, facts(), file).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
    }
    flags.engine.engine_cni_conf_dir = Some("".into());
    flags.engine.engine_cni_bin_dir = vec!["/a:/b".into()];
    let errors = load_with(&flags, facts(), "").unwrap_err();
    let expected = ["--engine-cni-conf-dir: must not be empty", "--engine-cni-bin-dir: \"/a:/b\" must be a directory"];
    assert!(errors.len() == 2 && errors.iter().zip(expected).all(|(e, text)| e.starts_with(text)), "{errors:?}");
}

/// The flag, the file, whether the program was started as kubelet; the runtime that is used, and what `/configz` shows of it.
#[test]
fn the_engine_is_the_default_and_configz_names_the_runtime_that_is_used() {
    let (engine, containerd) = ("unix:///run/podwright/engine.sock", "unix:///run/containerd/containerd.sock");
    for (flag, file, as_kubelet, used, shown) in [
        (None, "", false, "embedded", engine),
        (None, "containerRuntimeEndpoint: ''", false, "embedded", engine),
        (Some("embedded"), "containerRuntimeEndpoint: unix:///c.sock", false, "embedded", engine),
        (Some("unix:///c.sock"), "containerRuntimeEndpoint: embedded", false, "unix:///c.sock", "unix:///c.sock"),
        (Some("/c.sock"), "", false, "unix:///c.sock", "unix:///c.sock"),
        // What /configz shows, given back.
        (Some("/run/podwright/engine.sock"), "", false, "embedded", engine),
        (None, "containerRuntimeEndpoint: unix:///run/podwright/engine.sock", false, "embedded", engine),
        // The configuration of a node that kubeadm made, and the kubelet's own default.
        (None, "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock", false, containerd, containerd),
        (None, "", true, containerd, containerd),
        (Some("embedded"), "", true, "embedded", engine),
    ] {
        let flags = RunFlags {
            container_runtime_endpoint: flag.map(str::to_owned),
            run_dir: "/run/podwright".into(),
            as_kubelet,
            ..RunFlags::default()
        };
        let config = load_with(&flags, facts(), file).unwrap();
        let shown_endpoint = &config.configz["kubeletconfig"]["containerRuntimeEndpoint"];
        assert_eq!((config.runtime.endpoint.as_str(), shown_endpoint), (used, &shown.into()), "{flag:?} {file:?}");
        assert_eq!(config.runtime.is_embedded(), used == "embedded");
    }
    let config = load("containerRuntimeEndpoint: /c.sock\nimageServiceEndpoint: /i.sock").unwrap();
    assert_eq!(config.configz["kubeletconfig"]["imageServiceEndpoint"], "unix:///i.sock");
}
