//! Tests of parsing and help.

use std::path::Path;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::parse_from(line.split_whitespace().map(OsString::from))
}

fn run(line: &str) -> RunFlags {
    match parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).command {
        Command::Run(flags) => *flags,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_definition_is_valid() {
    Cli::definition().debug_assert();
}

#[test]
fn kubelet_flags_are_accepted() {
    let flags =
        run("podwright run --config /c --pod-manifest-path /m --manifest-url=http://u --manifest-url-header A:b \
         --container-runtime-endpoint unix:///s --root-dir /r --run-dir /x --hostname-override n --node-ip 10.0.0.1 \
         --node-labels a=b,c=d --listen 127.0.0.1:10255 --v 4");
    assert_eq!(flags.config.as_deref(), Some(Path::new("/c")));
    assert_eq!(flags.root_dir(), Path::new("/r"));
    assert_eq!(flags.node_labels, ["a=b", "c=d"]);
    assert_eq!(flags.listen, Some("127.0.0.1:10255".parse().unwrap()));
    assert_eq!((flags.verbosity, flags.as_kubelet, flags.ignored.len()), (Some(4), false, 0));
    let flags = run("podwright run --pod_manifest_path=/m -v 2");
    assert_eq!((flags.pod_manifest_path, flags.verbosity), (Some("/m".into()), Some(2)));
}

#[test]
fn started_as_kubelet_means_run() {
    let flags = run("/usr/bin/kubelet --config=/c --v=2");
    assert!(flags.as_kubelet);
    assert_eq!(flags.root_dir(), Path::new("/var/lib/kubelet"));
    assert_eq!(run("podwright run").root_dir(), Path::new("/var/lib/podwright"));
    assert_eq!(parse("kubelet --version").unwrap_err().kind(), clap::error::ErrorKind::DisplayVersion);
}

#[test]
fn unsupported_kubelet_flags_are_collected_and_unknown_flags_fail() {
    let flags = run("kubelet --cert-dir /k --volume-plugin-dir /v --runonce --event_qps=5 --config /c");
    assert_eq!(flags.ignored, ["--volume-plugin-dir", "--runonce", "--event-qps"]);
    assert_eq!((flags.config.as_deref(), flags.field_flags.len()), (Some(Path::new("/c")), 0));
    // Flags that kubeadm wrote for older kubelets.
    let flags = run(
        "kubelet --pod-infra-container-image=registry.k8s.io/pause:3.9 --container-runtime remote --network-plugin=cni",
    );
    assert_eq!(flags.ignored, ["--pod-infra-container-image", "--container-runtime", "--network-plugin"]);
    for line in
        ["podwright run --no-such-flag", "kubelet --max-podz 3", "podwright run extra", "podwright", "podwright fly"]
    {
        parse(line).expect_err(line);
    }
    // Only `run` accepts flags of the kubelet.
    parse("podwright version --kubeconfig /k").unwrap_err();
}

#[test]
fn kubelet_flags_that_set_a_field_are_collected() {
    let flags = run("kubelet --fail-swap-on=false --serialize-image-pulls --max_pods=3 --cgroup-driver systemd --v 1");
    let given: Vec<_> = flags.field_flags.iter().map(|s| (s.flag.as_str(), s.field, s.value.as_str())).collect();
    let expected = [
        ("--fail-swap-on", "failSwapOn", "false"),
        ("--serialize-image-pulls", "serializeImagePulls", "true"),
        ("--max-pods", "maxPods", "3"),
        ("--cgroup-driver", "cgroupDriver", "systemd"),
    ];
    assert_eq!((given.as_slice(), flags.ignored.len(), flags.verbosity), (expected.as_slice(), 0, Some(1)));
    parse("kubelet --max-pods").unwrap_err();
}

#[test]
fn cluster_flags_are_the_kubelets() {
    let flags = run("kubelet --kubeconfig=/k --register-node --register-with-taints=a=b:NoSchedule,c:NoExecute");
    assert_eq!((flags.kubeconfig.as_deref(), flags.register_node), (Some(Path::new("/k")), Some(true)));
    assert_eq!(flags.register_with_taints, ["a=b:NoSchedule", "c:NoExecute"]);
    assert_eq!(run("kubelet --register-node=false").register_node, Some(false));
    assert!(flags.ignored.is_empty());
}

#[test]
fn help_output() {
    let mut command = Cli::definition();
    command.build();
    insta::assert_snapshot!("help", command.render_long_help().to_string());
    let run = command.find_subcommand_mut("run").unwrap();
    insta::assert_snapshot!("help_run", run.render_long_help().to_string());
}

#[test]
fn completions_contain_the_flags() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        Cli::complete(shell, &mut script);
        assert!(String::from_utf8(script).unwrap().contains("pod-manifest-path"), "{shell}");
    }
}
