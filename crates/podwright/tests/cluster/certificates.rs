//! Certificates of the node from a real API server and its signers: joining with a token, rotation, the serving certificate.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use podwright_testbed::{AgentBuilder, BootstrapToken, ControlPlane, GoKubelet, Scratch, TokenGroup, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, one, sh, sleeper};

/// A node that joins with a token. Its kubeconfig does not exist yet.
struct JoiningNode<'a> {
    node: ClusterNode<'a>,
    token: BootstrapToken,
    kubeconfig: PathBuf,
}

impl<'a> JoiningNode<'a> {
    fn launch(plane: &'a ControlPlane, name: &'static str, group: TokenGroup, config: Value) -> Self {
        let token = plane.bootstrap_token(name, group).expect("a token");
        let kubeconfig = plane.admin_kubeconfig().with_file_name(format!("{name}-joined/kubeconfig"));
        let _ = fs::remove_file(&kubeconfig);
        let bootstrap = token.kubeconfig.clone();
        let more = |agent: AgentBuilder| agent.config(config).arg("--bootstrap-kubeconfig").arg(bootstrap);
        let node = ClusterNode::launched(plane, name, &kubeconfig, more);
        Self { node, token, kubeconfig }
    }

    fn pki(&self) -> PathBuf {
        self.node.scratch.root_dir().expect("a directory").join("pki")
    }

    /// The file that `-current` links to.
    fn current(&self) -> Result<PathBuf> {
        Ok(fs::read_link(self.pki().join("kubelet-client-current.pem"))?)
    }

    fn requests(&self) -> Vec<Value> {
        self.node.plane.signing_requests(&self.token.user()).expect("a list")
    }

    /// Waits until there are so many requests with the token; returns the name of the last one.
    fn wait_request(&self, count: usize) -> String {
        wait_until(LIMIT, "a request", || {
            let requests = self.requests();
            ensure!(requests.len() == count, "{requests:#?}");
            Ok(requests[count - 1]["metadata"]["name"].as_str().context("a name")?.to_owned())
        })
    }
}

fn rotating() -> Value {
    json!({"rotateCertificates": true})
}

/// The value of a metric of the agent.
fn metric(node: &ClusterNode<'_>, name: &str) -> Result<f64> {
    let page = node.agent.get("/metrics")?.body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    Ok(line.trim().parse()?)
}

#[test]
fn a_token_becomes_a_ready_node_that_no_longer_needs_it() {
    let mut joining = JoiningNode::launch(ControlPlane::shared(), "joins", TokenGroup::Approved, rotating());
    joining.node.wait_joined();
    println!("ready {:?} after the start", joining.node.ready_after);
    joining.node.put("web", &one(&sleeper("c")));
    joining.node.wait_ready("web");
    let current = joining.current().expect("a link");
    assert!(current.is_absolute() && current.starts_with(joining.pki()), "{current:?}");
    assert_eq!(fs::metadata(&current).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&joining.kubeconfig).expect("there").permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&joining.kubeconfig).expect("there");
    assert!(text.contains("default-context") && text.contains("kubelet-client-current.pem"), "{text}");
    assert!(!text.contains(&joining.token.token) && !joining.node.agent.log().contains(&joining.token.token));
    let left = metric(&joining.node, "kubelet_certificate_manager_client_ttl_seconds").expect("a metric");
    assert!(left > 3600.0 * 24.0 * 300.0, "{left}");
    assert!(metric(&joining.node, "kubelet_certificate_manager_server_ttl_seconds").expect("a metric").is_infinite());
    // Installers delete the bootstrap kubeconfig.
    joining.node.plane.revoke(&joining.token).expect("revoked");
    fs::remove_file(&joining.token.kubeconfig).expect("removed");
    let ready = joining.node.starts_anew(ClusterNode::joined);
    println!("ready {ready:?} after a restart");
    assert_eq!(joining.current().expect("a link"), current);
    assert_eq!(joining.requests().len(), 1);
    joining.node.delete_all();
    joining.node.wait_nothing_left();
}

#[test]
fn without_rotation_the_first_certificate_is_requested_once() {
    let mut joining = JoiningNode::launch(ControlPlane::shared(), "joins-once", TokenGroup::Approved, json!({}));
    joining.node.wait_joined();
    joining.node.agent.restart().expect("restarted");
    joining.node.put("web", &one(&sleeper("c")));
    joining.node.wait_ready("web");
    assert_eq!(joining.requests().len(), 1);
    joining.node.delete_all();
    joining.node.wait_nothing_left();
}

#[test]
fn a_denied_request_is_followed_by_another_and_static_pods_run_meanwhile() {
    let mut joining = JoiningNode::launch(ControlPlane::shared(), "denied", TokenGroup::Manual, rotating());
    let plane = joining.node.plane;
    joining.node.put_static("web", "text");
    joining.node.wait_static("web", "text");
    let first = joining.wait_request(1);
    plane.kubectl(&["certificate", "deny", &first]).expect("denied");
    let second = joining.wait_request(2);
    let log = joining.node.agent.log();
    assert!(log.contains(&format!("{first} was denied")), "{log}");
    let requests = joining.requests();
    assert_ne!(requests[0]["spec"]["request"], requests[1]["spec"]["request"], "a new key");
    assert_eq!(plane.api().request("GET", "/api/v1/nodes/denied", None).expect("an answer").status, 404);
    // A request that nobody decides about is named.
    wait_until(LIMIT, "the request to be named", || {
        let log = joining.node.agent.log();
        ensure!(log.contains("waits for approval") && log.contains(&second), "{log}");
        Ok(())
    });
    plane.kubectl(&["certificate", "approve", &second]).expect("approved");
    joining.node.wait_joined();
    joining.node.wait_mirror("web", "text");
    assert!(
        metric(&joining.node, "kubelet_certificate_manager_client_expiration_renew_errors").expect("a metric") >= 1.0
    );
    joining.node.scratch.remove_manifest("web.json").expect("removed");
    joining.node.wait_nothing_left();
}

#[test]
fn certificates_of_20_seconds_are_rotated_without_a_missed_lease() {
    let scratch = Scratch::new().expect("a scratch");
    let plane = ControlPlane::start_signing(&scratch, Duration::from_secs(20)).expect("a control plane");
    let config = json!({"rotateCertificates": true, "nodeLeaseDurationSeconds": 8});
    let mut joining = JoiningNode::launch(&plane, "rotates", TokenGroup::Approved, config);
    joining.node.wait_joined();
    joining.node.put("web", &one(&sleeper("c")));
    joining.node.wait_ready("web");
    let (began, mut oldest, mut files) = (Instant::now(), 0, vec![]);
    while began.elapsed() < Duration::from_secs(70) {
        let lease = plane.api().get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/rotates");
        let lease = lease.expect("a lease");
        let renewed: Timestamp = lease["spec"]["renewTime"].as_str().expect("a time").parse().expect("a time");
        oldest = oldest.max(Timestamp::now().duration_since(renewed).as_millis());
        let current = joining.current().expect("a link");
        if files.last() != Some(&current) {
            files.push(current);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} certificates, the oldest lease had {oldest} ms", files.len());
    assert!(files.len() >= 4, "{files:?}");
    assert!(oldest < 8000, "a lease had {oldest} ms");
    joining.node.joined().expect("ready");
    let log = joining.node.agent.log();
    // A word of its own: times of the log have these digits now and then.
    let is_refused = |word: &str| word == "401" || word == "Unauthorized";
    assert!(!log.split(|letter: char| !letter.is_alphanumeric()).any(is_refused), "{log}");
    assert_eq!(joining.requests().len(), 1, "later requests are made with the certificate itself");
    // Its pods are still followed: the watch moved to the new connection.
    joining.node.put("late", &one(&sleeper("c")));
    joining.node.wait_ready("late");
    joining.node.delete_all();
    joining.node.wait_nothing_left();
    // While the agent is down the certificate expires: it joins again.
    joining.node.agent.kill9().expect("killed");
    std::thread::sleep(Duration::from_secs(21));
    joining.node.agent.start_again().expect("started");
    wait_until(LIMIT, "another request with the token", || {
        ensure!(joining.requests().len() == 2, "{}", joining.requests().len());
        joining.node.joined()
    });
}

#[test]
fn an_agent_that_is_killed_while_it_joins_joins_after_all() {
    let mut joining = JoiningNode::launch(ControlPlane::shared(), "killed-joining", TokenGroup::Approved, rotating());
    joining.node.wait_joined();
    let pki = joining.pki();
    for delay in [20, 60, 100, 150, 200, 250, 300, 400, 600, 900] {
        joining.node.agent.kill9().expect("killed");
        fs::remove_dir_all(&pki).expect("removed");
        fs::remove_file(&joining.kubeconfig).expect("removed");
        for _ in 0..2 {
            joining.node.agent.launch_again().expect("started");
            std::thread::sleep(Duration::from_millis(delay));
            joining.node.agent.kill9().expect("killed");
        }
        let _ = joining.node.plane.api().delete("/api/v1/nodes/killed-joining", None);
        joining.node.agent.start_again().expect("started");
        wait_until(LIMIT, "the node to be ready", || joining.node.joined());
        let pem = fs::read_to_string(pki.join("kubelet-client-current.pem")).expect("a certificate");
        assert!(pem.contains("CERTIFICATE") && pem.contains("PRIVATE KEY"), "after {delay} ms");
    }
}

/// Connects to the kubelet's API with the cluster's CA.
fn verified(node: &ClusterNode<'_>) -> Result<String> {
    let (certificate, key) = node.plane.user_certificate("root", "system:masters")?;
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "10", "--cacert"]).arg(node.plane.certificate_authority());
    curl.arg("--cert").arg(certificate).arg("--key").arg(key);
    let output = curl.arg(format!("https://127.0.0.1:{}/healthz", node.agent.https_port())).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(text(&output.stdout))
}

#[test]
fn a_serving_certificate_is_used_once_its_request_is_approved() {
    let plane = ControlPlane::shared();
    let ca = plane.certificate_authority();
    let mut node = ClusterNode::configured(plane, "serves", |agent| {
        let x509 = json!({"x509": {"clientCAFile": ca}});
        agent.arg("--node-ip").arg("127.0.0.1").config(json!({"serverTLSBootstrap": true, "authentication": x509}))
    });
    node.put("web", &one(&sh("c", "echo text; trap 'exit 0' TERM; while :; do sleep 0.1; done")));
    node.wait_ready("web");
    let error = verified(&node).expect_err("there is no certificate").to_string();
    println!("before the approval: {error}");
    plane.kubectl(&["-n", node.name, "logs", "web"]).expect_err("no handshake");
    let message = wait_until(LIMIT, "the event", || {
        let list = plane.api().get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=serves")?;
        let events = list["items"].as_array().context("a list")?;
        let event = events.iter().find(|event| event["reason"] == "CertificateRequestPending").context("no event")?;
        Ok::<_, anyhow::Error>(event["message"].as_str().context("a message")?.to_owned())
    });
    let requests = plane.signing_requests("system:node:serves").expect("a list");
    let name = requests[0]["metadata"]["name"].as_str().expect("a name");
    assert!(requests.len() == 1 && message.contains(&format!("kubectl certificate approve {name}")), "{message}");
    plane.kubectl(&["certificate", "approve", name]).expect("approved");
    wait_until(LIMIT, "the certificate to be served", || verified(&node));
    assert_eq!(plane.kubectl(&["-n", node.name, "logs", "web"]).expect("a log"), "text\n");
    let left = metric(&node, "kubelet_certificate_manager_server_ttl_seconds").expect("a metric");
    assert!(left > 3600.0 * 24.0 * 300.0, "{left}");
    // It is kept.
    node.agent.restart().expect("restarted");
    wait_until(LIMIT, "the certificate to be served again", || verified(&node));
    assert_eq!(plane.signing_requests("system:node:serves").expect("a list").len(), 1);
    node.delete_all();
    node.wait_nothing_left();
}

#[test]
fn the_go_kubelet_starts_on_our_certificates_and_we_on_its() {
    let mut joining = JoiningNode::launch(ControlPlane::shared(), "given-back", TokenGroup::Approved, rotating());
    joining.node.wait_joined();
    joining.node.agent.sigterm().expect("stopped");
    joining.node.plane.revoke(&joining.token).expect("revoked");
    let theirs = joining.node.scratch.dir("kubelet-certs").expect("a directory");
    copy_links(&joining.pki(), &theirs);
    joining.node.plane.api().delete("/api/v1/nodes/given-back", None).expect("deleted");
    let (scratch, runtime) = (&joining.node.scratch, &joining.node.runtime);
    let mut go = GoKubelet::start_joined(scratch, runtime, "given-back", &joining.kubeconfig, &rotating())
        .expect("the Go kubelet starts");
    wait_until(LIMIT, "the node to be ready again", || {
        joining.node.joined()?;
        let version = joining.node.get_node()?["status"]["nodeInfo"]["kubeletVersion"].clone();
        ensure!(version == "v1.36.3", "{version}");
        Ok(())
    });
    assert!(go.log().contains("kubelet-client-current.pem"), "it read our file");
    go.stop().expect("stopped");
    drop(go);
    joining.node.plane.api().delete("/api/v1/nodes/given-back", None).expect("deleted");
    joining.node.agent.start_again().expect("started");
    wait_until(LIMIT, "the node to be ready once more", || joining.node.joined());
    assert_eq!(joining.requests().len(), 1);
}

/// Copies files, and symbolic links as such.
fn copy_links(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match fs::read_link(&path) {
            Ok(linked) => std::os::unix::fs::symlink(linked, target).expect("linked"),
            Err(_) => fs::copy(path, target).map(|_| ()).expect("copied"),
        }
    }
}
