//! A real metrics-server reads the node's metrics, and `kubectl top` shows them through the API server's aggregation.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_testbed::{Cache, ControlPlane, Process, free_port, wait_until};
use serde_json::{Value, json};

use crate::kubelet_api::reachable;
use crate::suite::{LIMIT, one, sh};

#[test]
fn kubectl_top_shows_what_metrics_server_reads_from_the_node() {
    let plane = ControlPlane::shared();
    let node = reachable(plane, "measured");
    let script = "x=0; while [ $x -lt 400000 ]; do x=$((x+1)); done; while :; do sleep 0.05; done";
    let mut busy = sh("busy", script);
    busy["resources"] = json!({"limits": {"memory": "64Mi"}});
    node.put("worker", &one(&busy));
    wait_until(LIMIT, "the pod to run", || {
        let pod = node.get("pods", "worker")?;
        ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    });

    let port = free_port().expect("a port");
    let admin = plane.admin_kubeconfig();
    let mut command = Command::new(Cache::find().peer("metrics-server").expect("metrics-server"));
    command.arg(format!("--secure-port={port}")).arg("--bind-address=127.0.0.1");
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", admin.display()));
    }
    command.arg(format!("--cert-dir={}", node.scratch.dir("metrics-server").expect("a directory").display()));
    command.args(["--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP"]);
    command.args(["--kubelet-use-node-status-port", "--metric-resolution=15s"]);
    let server = Process::start(&node.scratch, "metrics-server", &mut command).expect("metrics-server starts");
    register(plane, node.scratch.dir("metrics-api").expect("a directory").join("objects.json").as_path(), port);

    let kubectl = |arguments: &[&str]| plane.kubectl(arguments);
    let limit = Duration::from_secs(120);
    let pods = wait_until(limit, "metrics of the pod", || {
        let list = kubectl(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/measured/pods"])
            .with_context(|| server.log().lines().rev().take(5).collect::<Vec<_>>().join("\n"))?;
        let list: Value = serde_json::from_str(&list)?;
        ensure!(list["items"][0]["containers"][0]["usage"].is_object(), "{list:#}");
        Ok(list)
    });
    let container = &pods["items"][0]["containers"][0];
    assert_eq!((&pods["items"][0]["metadata"]["name"], &container["name"]), (&json!("worker"), &json!("busy")));
    let memory = container["usage"]["memory"].as_str().expect("memory");
    let kib: u64 = memory.trim_end_matches("Ki").parse().expect("KiB");
    assert!((50..64 << 10).contains(&kib), "{pods:#}");

    let top = kubectl(&["-n", "measured", "top", "pod", "--containers", "--no-headers"]).expect("kubectl top pod");
    let fields: Vec<&str> = top.split_whitespace().collect();
    assert!(fields.starts_with(&["worker", "busy"]) && fields[2].ends_with('m') && fields[3].ends_with("Mi"), "{top}");
    let top = wait_until(limit, "kubectl top node", || kubectl(&["top", "node", "measured", "--no-headers"]));
    let fields: Vec<&str> = top.split_whitespace().collect();
    assert!(fields.len() == 5 && fields[0] == "measured" && fields[2].ends_with('%'), "{top}");
    let _ = kubectl(&["delete", "apiservice", "v1beta1.metrics.k8s.io"]);
}

/// Registers metrics-server with the API server, which proxies to it as an anonymous user.
fn register(plane: &ControlPlane, file: &std::path::Path, port: u16) {
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server", "namespace": "kube-system"},
         "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"},
         "spec": {"service": {"name": "metrics-server", "namespace": "kube-system", "port": port}, "group": "metrics.k8s.io",
                  "version": "v1beta1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100, "versionPriority": 100}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "metrics-reader"},
         "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list"]},
                   {"nonResourceURLs": ["/apis/metrics.k8s.io/*", "/apis/metrics.k8s.io"], "verbs": ["get"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "metrics-reader"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics-reader"},
         "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}]},
    ]});
    std::fs::write(file, objects.to_string()).expect("written");
    plane.kubectl(&["apply", "-f", file.to_str().expect("a path")]).expect("registered");
}
