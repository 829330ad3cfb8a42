//! The node's credentials for the API server, and its behaviour without valid ones.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use podwright_testbed::{Agent, ControlPlane, Scratch, free_port, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::mixed_workload::MixedWorkload;
use crate::suite::{LIMIT, container, one, sh, sleeper};

#[test]
fn an_invalid_kubeconfig_is_rejected_with_file_and_field() {
    let good = ControlPlane::shared().node_kubeconfig("broken").expect("a kubeconfig");
    let good: Value = serde_json::from_slice(&fs::read(good).expect("there")).expect("JSON");
    let scratch = Scratch::new().expect("a scratch");
    let file = scratch.path().join("broken.kubeconfig");
    let no_pem = scratch.path().join("no.pem");
    fs::write(&no_pem, "nothing").expect("written");
    let changes: [(&str, Value, &str); 8] = [
        ("/current-context", json!(""), "current-context"),
        ("/contexts/0/context/cluster", json!("other"), "contexts[testbed].context.cluster"),
        ("/contexts/0/context/user", json!("other"), "contexts[testbed].context.user"),
        ("/clusters/0/cluster/server", json!("127.0.0.1"), "clusters[testbed].cluster.server"),
        ("/clusters/0/cluster/certificate-authority", json!(no_pem), "clusters[testbed].cluster.certificate-authority"),
        ("/users/0/user/client-key", Value::Null, "users[broken].user.client-key"),
        ("/users/0/user/client-certificate", json!("/no/such/file"), "/no/such/file"),
        ("/users/0/user", json!({"client-key-data": "hunter2 is no base64"}), "users[broken].user.client-key-data"),
    ];
    for (at, value, field) in changes {
        let mut broken = good.clone();
        *broken.pointer_mut(at).expect("it is there") = value;
        refused(&scratch, &file, &broken.to_string(), field);
    }
    refused(&scratch, &file, "hunter2: [", "broken.kubeconfig");
    fs::remove_file(&file).expect("removed");
    let message = run(&scratch, &file);
    assert!(message.contains("No such file") && message.contains("broken.kubeconfig"), "{message}");
}

fn refused(scratch: &Scratch, file: &Path, text: &str, field: &str) {
    fs::write(file, text).expect("written");
    let message = run(scratch, file);
    assert!(message.contains(&file.display().to_string()) && message.contains(field), "{field} is not in: {message}");
    assert!(!message.contains("hunter2"), "what may be a secret is shown: {message}");
}

/// The output of an agent that exits at once.
fn run(scratch: &Scratch, kubeconfig: &Path) -> String {
    let mut command = Command::new("timeout");
    command.arg("60").arg(Agent::program().expect("built")).arg("run").arg("--kubeconfig").arg(kubeconfig);
    for (flag, dir) in [("--root-dir", scratch.root_dir()), ("--run-dir", scratch.run_dir())] {
        command.arg(flag).arg(dir.expect("a directory"));
    }
    // The engine would make a network of the host.
    command.arg("--container-runtime-endpoint").arg(scratch.path().join("no-runtime.sock"));
    let output = command.output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!matches!(output.status.code(), Some(0 | 124) | None), "{}: {message}", output.status);
    message
}

#[test]
fn an_expired_certificate_is_reported_and_its_replacement_is_used() {
    let plane = ControlPlane::shared();
    let kubeconfig = plane.expired_kubeconfig("expired").expect("a kubeconfig");
    let mut node = ClusterNode::launched(plane, "expired", &kubeconfig, |agent| agent);
    node.put_static("web", "text");
    node.wait_static("web", "text");
    let log = node.agent.log();
    assert!(log.contains("client certificate has expired") && log.contains("2002-01-01T00:00:00Z"), "{log}");
    wait_until(LIMIT, "the refusal to be reported", || {
        let log = node.agent.log();
        ensure!(log.contains("401 Unauthorized"), "{log}");
        Ok(())
    });
    // The same kubeconfig, and the files that it refers to.
    plane.node_kubeconfig("expired").expect("a kubeconfig");
    node.wait_joined();
    node.wait_mirror("web", "text");
    node.scratch.remove_manifest("web.json").expect("removed");
    node.wait_nothing_left();
}

#[test]
fn a_token_file_is_read_again_when_its_token_is_rejected() {
    let plane = ControlPlane::shared();
    let file = plane.admin_kubeconfig().with_file_name("by-token.token");
    let account = ServiceAccount::new(plane, "by-token-account");
    let (first, second) = (account.token("first"), account.token("second"));
    fs::write(&file, &first).expect("written");
    let kubeconfig = plane.kubeconfig_of("by-token", &json!({"tokenFile": file})).expect("a kubeconfig");
    let mut node = ClusterNode::launched(plane, "by-token", &kubeconfig, |agent| agent);
    node.wait_joined();
    node.put("early", &one(&sleeper("c")));
    node.wait_ready("early");
    fs::write(&file, format!("{second}\n")).expect("written");
    account.revoke("first", &first);
    node.put("late", &one(&sleeper("c")));
    node.wait_ready("late");
    for token in [&first, &second] {
        assert!(!node.agent.log().contains(token.as_str()), "the log tells the token");
    }
    node.delete_all();
    node.wait_nothing_left();
}

/// A service account with the permissions of a node.
struct ServiceAccount<'a> {
    plane: &'a ControlPlane,
    name: &'static str,
}

impl<'a> ServiceAccount<'a> {
    fn new(plane: &'a ControlPlane, name: &'static str) -> Self {
        plane.namespace(name).expect("a namespace");
        let subject = json!({"kind": "ServiceAccount", "namespace": name, "name": "default"});
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"});
        let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]});
        plane.api().create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).expect("created");
        Self { plane, name }
    }

    /// A token that is valid until the secret of this name is deleted.
    fn token(&self, secret: &str) -> String {
        let (api, base) = (self.plane.api(), format!("/api/v1/namespaces/{}", self.name));
        let made = api.create(&format!("{base}/secrets"), &json!({"metadata": {"name": secret}})).expect("created");
        let bound = json!({"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": made["metadata"]["uid"]});
        let request = json!({"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}});
        let granted = api.create(&format!("{base}/serviceaccounts/default/token"), &request).expect("granted");
        granted["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// Deletes the secret and waits until the API server rejects the token.
    fn revoke(&self, secret: &str, token: &str) {
        let path = format!("/api/v1/namespaces/{}/secrets/{secret}", self.name);
        self.plane.api().delete(&path, None).expect("deleted");
        wait_until(LIMIT, "the token to be refused", || {
            let review = json!({"spec": {"token": token}});
            let review = self.plane.api().create("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
            ensure!(review["status"]["authenticated"] != true, "it still holds");
            Ok(())
        });
    }
}

#[test]
fn an_exec_plugin_provides_the_credentials() {
    let plane = ControlPlane::shared();
    let own = plane.node_kubeconfig("by-plugin").expect("a kubeconfig");
    let pem = |end: &str| fs::read_to_string(own.with_extension(end)).expect("there");
    let status = json!({"clientCertificateData": pem("crt"), "clientKeyData": pem("key")});
    let credential =
        json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
    let (script, answer) = (own.with_extension("sh"), own.with_extension("json"));
    fs::write(&answer, credential.to_string()).expect("written");
    fs::write(&script, "case $KUBERNETES_EXEC_INFO in *ExecCredential*) cat \"$1\";; *) exit 3;; esac")
        .expect("written");
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [script, answer],
        "interactiveMode": "Never"});
    let kubeconfig = plane.kubeconfig_of("by-plugin", &json!({"exec": exec})).expect("a kubeconfig");
    let mut node = ClusterNode::launched(plane, "by-plugin", &kubeconfig, |agent| agent);
    node.wait_joined();
    node.put("web", &one(&sleeper("c")));
    node.wait_ready("web");
    assert!(!node.agent.log().contains("PRIVATE KEY"), "the log tells the key");
    node.delete("pods", "web");
    node.wait_nothing_left();
}

#[test]
fn static_pods_start_without_the_api_server() {
    let (plane, port) = (ControlPlane::shared(), free_port().expect("a port"));
    let kubeconfig = plane.proxied_kubeconfig("boot", port).expect("a kubeconfig");
    let mut node = ClusterNode::launched(plane, "boot", &kubeconfig, |agent| agent);
    node.put_static("first", "text");
    node.wait_static("first", "text");
    let proxy = plane.proxy(node.name, port).expect("a proxy");
    node.wait_joined();
    node.wait_mirror("first", "text");

    // Down again when the agent restarts. Pods of the API server, which the agent can't list now, are not restarted.
    let story = MixedWorkload::begin(&node);
    let dir = node.scratch.dir("exits").expect("a directory");
    let wait = "until [ -e /exits/now ]; do sleep 0.1; done";
    let mut exits = one(&sh("c", &format!("echo begun >> /exits/log; {wait}; echo ended >> /exits/log; exit 1")));
    exits["containers"][0]["volumeMounts"] = json!([{"name": "exits", "mountPath": "/exits"}]);
    exits["volumes"] = json!([{"name": "exits", "hostPath": {"path": dir}}]);
    node.put("exits", &exits);
    node.wait_ready("exits");
    drop(proxy);
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    fs::write(dir.join("now"), "").expect("written");
    let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
    wait_until(LIMIT, "it to end", || {
        ensure!(log().contains("ended"), "{:?}", log());
        Ok(())
    });
    fs::remove_file(dir.join("now")).expect("removed");
    story.progress(&node);
    assert_eq!(log(), "begun\nended\n", "restarted without its server's word");
    let _proxy = plane.proxy(node.name, port).expect("a proxy");
    wait_until(LIMIT, "it to be restarted", || {
        ensure!(container(&node.get("pods", "exits")?, "c")["restartCount"] == 1, "not yet");
        ensure!(log() == "begun\nended\nbegun\n", "{:?}", log());
        Ok(())
    });
    node.delete("pods", "exits");
    node.scratch.remove_manifest("first.json").expect("removed");
    story.verify(&node);
}

#[test]
fn a_node_registered_by_others_is_used_unchanged() {
    let plane = ControlPlane::shared();
    let kubeconfig = plane.node_kubeconfig("given").expect("a kubeconfig");
    let more = |agent: podwright_testbed::AgentBuilder| agent.arg("--register-node=false").arg("--node-labels=ours=1");
    let mut node = ClusterNode::launched(plane, "given", &kubeconfig, more);
    node.put_static("web", "text");
    node.wait_static("web", "text");
    let path = "/api/v1/nodes/given";
    assert_eq!(plane.api().request("GET", path, None).expect("an answer").status, 404);
    let labels = json!({"theirs": "1", "kubernetes.io/hostname": "given"});
    let taint = json!({"key": "theirs", "value": "1", "effect": "PreferNoSchedule"});
    let object = json!({"metadata": {"name": "given", "labels": labels}, "spec": {"taints": [taint]}});
    let made = plane.api().create("/api/v1/nodes", &object).expect("created");
    node.wait_joined();
    node.wait_mirror("web", "text");
    node.put("pod", &one(&sleeper("c")));
    node.wait_ready("pod");
    let now = plane.api().get(path).expect("there");
    assert_eq!(now["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!((&now["metadata"]["labels"]["theirs"], &now["metadata"]["labels"]["ours"]), (&json!("1"), &Value::Null));
    let taints = now["spec"]["taints"].as_array().expect("taints");
    assert!(taints.iter().any(|taint| taint["key"] == "theirs"), "{taints:?}");
    node.scratch.remove_manifest("web.json").expect("removed");
    node.delete("pods", "pod");
    node.wait_nothing_left();
}
