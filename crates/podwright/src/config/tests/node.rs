//! Addresses of the node, and its cluster settings.

use super::*;

#[test]
fn a_node_has_one_address_unless_two_are_given() {
    let both = || HostFacts { addresses: vec!["10.1.2.3".parse().unwrap(), "2001:db8::3".parse().unwrap()], ..facts() };
    let chosen = |node_ip: &[&str], name: Option<&str>| {
        let node_ip = node_ip.iter().map(|ip| (*ip).to_owned()).collect();
        let flags = RunFlags { node_ip, hostname_override: name.map(Into::into), ..RunFlags::default() };
        load_with(&flags, both(), "").map(|config| config.node.host_ips)
    };
    assert_eq!(chosen(&[], None).unwrap(), ["10.1.2.3"]);
    assert_eq!(chosen(&["0.0.0.0"], None).unwrap(), ["10.1.2.3"]);
    assert_eq!(chosen(&["::"], None).unwrap(), ["2001:db8::3"]);
    assert_eq!(chosen(&["2001:db8::9"], None).unwrap(), ["2001:db8::9"]);
    assert_eq!(chosen(&["2001:db8::9", "192.0.2.1"], None).unwrap(), ["2001:db8::9", "192.0.2.1"]);
    assert_eq!(chosen(&[], Some("192.0.2.8")).unwrap(), ["192.0.2.8"]);
    assert_eq!(chosen(&["::", "192.0.2.1"], None).unwrap_err().len(), 1);
}

#[test]
fn a_node_ip_that_no_interface_has_is_an_error() {
    let errors = load_with(
        &RunFlags { node_ip: vec!["192.0.2.7".into()], ..RunFlags::default() },
        HostFacts { foreign_node_ips: vec!["192.0.2.7".parse().unwrap()], ..facts() },
        "",
    );
    assert_eq!(errors.unwrap_err(), ["--node-ip: no network interface of this host has 192.0.2.7"]);
}

#[test]
fn lease_and_status_periods_are_configurable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    fs::write(
        &path,
        "{clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}], \
         contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}",
    )
    .unwrap();
    let flags = RunFlags { kubeconfig: Some(path), ..RunFlags::default() };
    let times = |yaml: &str| {
        load_with(&flags, facts(), yaml).map(|config| {
            let ClusterConfig { lease, check_every, report_every, images_max, .. } = config.cluster.unwrap();
            (lease.as_secs(), check_every.as_secs(), report_every.as_secs(), images_max)
        })
    };
    assert_eq!(times("").unwrap(), (40, 10, 300, 50));
    assert_eq!(times("nodeStatusUpdateFrequency: 20s").unwrap(), (40, 20, 20, 50), "as with the kubelet");
    let all = "nodeLeaseDurationSeconds: 20\nnodeStatusUpdateFrequency: 5s\nnodeStatusReportFrequency: 1m\nnodeStatusMaxImages: 3";
    assert_eq!(times(all).unwrap(), (20, 5, 60, 3));
    assert_eq!(times("nodeStatusMaxImages: -1").unwrap().3, usize::MAX);
    for wrong in ["nodeStatusMaxImages: -2", "nodeLeaseDurationSeconds: 0"] {
        assert_eq!(times(wrong).unwrap_err().len(), 1, "{wrong}");
    }
}

#[test]
fn proxy_variables_cause_a_warning_in_a_cluster() {
    let warnings = |kubeconfig: Option<PathBuf>, set: &str| {
        let flags = RunFlags { kubeconfig, ..RunFlags::default() };
        let (file, _) = KubeletFile::decode(file::document(HEAD.as_bytes()).unwrap()).unwrap();
        let mut diagnostics = Diagnostics::default();
        let configz = serde_json::Value::Null;
        let inputs = ConfigInputs { flags: &flags, file, facts: facts(), configz, base: "/".into() };
        cluster::warn_about_proxies(&inputs, |name| name == set, &mut diagnostics);
        diagnostics.warnings
    };
    let named = warnings(Some("/k".into()), "HTTPS_PROXY");
    assert!(named.len() == 1 && named[0].starts_with("HTTPS_PROXY: "), "{named:?}");
    assert!(warnings(Some("/k".into()), "NO_PROXY").is_empty() && warnings(None, "HTTPS_PROXY").is_empty());
}
