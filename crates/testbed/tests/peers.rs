//! The Go peers: containerd 2.x and the kubelet without an API server.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_testbed::{Cache, Containerd, Flavor, GoKubelet, PASSWORD, Registry, Scratch, USER};
use podwright_testbed::{image, leftovers, wait_until};
use serde_json::json;

#[test]
fn containerd_2_runs_a_container_and_nothing_is_left() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
    let output = containerd.ctr_run(image::BUSYBOX, "one", &["echo", "hello"]).expect("it runs");
    assert_eq!(output, "hello\n");
    assert_eq!(leftovers(&scratch, &containerd).expect("leftovers"), Vec::<String>::new());
}

#[test]
fn cri_pulls_from_a_named_registry_with_and_without_a_password() {
    for flavor in [Flavor::Debian16, Flavor::V2] {
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
        let (open, private) =
            (Registry::start(&scratch).expect("open"), Registry::start_private(&scratch).expect("private"));
        open.push(image::BUSYBOX, "podwright/busybox:1").expect("pushed");
        private.push(image::BUSYBOX, "podwright/busybox:1").expect("pushed");
        containerd.use_registry("open.test", &open).expect("configured");
        containerd.use_registry("private.test", &private).expect("configured");
        let pull = |arguments: &[&str]| {
            let mut crictl = Command::new(Cache::find().peer("crictl").expect("crictl"));
            crictl.args(["--runtime-endpoint", &containerd.endpoint(), "pull"]).args(arguments);
            let output = crictl.output().expect("crictl runs");
            if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
        };
        pull(&["open.test/podwright/busybox:1"]).expect("no credentials needed");
        let refused = pull(&["private.test/podwright/busybox:1"]).expect_err("a password is asked for");
        assert!(refused.contains("401") || refused.contains("authorization"), "{refused}");
        let credentials = format!("{USER}:{PASSWORD}");
        pull(&["--creds", &credentials, "private.test/podwright/busybox:1"]).expect("the right password is accepted");
    }
}

#[test]
fn the_go_kubelet_runs_a_static_pod_on_either_containerd() {
    for flavor in [Flavor::Debian16, Flavor::V2] {
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
        let mut kubelet = GoKubelet::start_standalone(&scratch, &containerd, "node", &json!({})).expect("it starts");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "web", "image": image::BUSYBOX, "command": ["sleep", "600"],
                "ports": [{"containerPort": 80, "hostPort": 12080}],
            }]},
        });
        scratch.put_manifest("web.json", &pod).expect("written");
        wait_until(Duration::from_secs(60), "the pod to run", || {
            let pod = kubelet.pod("web-node")?.context("not known")?;
            ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
            Ok(())
        });
        assert!(leftovers(&scratch, &containerd).expect("leftovers").len() > 10, "a running pod has leftovers");
        scratch.remove_manifest("web.json").expect("removed");
        wait_until(Duration::from_secs(90), "the pod to be gone", || {
            // The kubelet keeps exited containers and their logs for its garbage collector: ignored here.
            let left = leftovers(&scratch, &containerd)?;
            let running: Vec<_> = left.into_iter().filter(|line| line.starts_with("process")).collect();
            ensure!(running.is_empty(), "{running:#?}");
            Ok(())
        });
        kubelet.stop().expect("it stops");
    }
}
