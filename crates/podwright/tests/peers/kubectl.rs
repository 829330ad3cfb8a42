//! The real kubectl against the local API, through `podwright proxy`; and the streams of our own commands with real containers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use podwright_testbed::{Agent, Cache, Flavor, image, wait_until};
use serde_json::{Value, json};

use crate::suite::{LIMIT, TestNode};

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node, its proxy, and the kubeconfig that it wrote.
struct Proxied {
    node: TestNode,
    kubeconfig: PathBuf,
    _proxy: Running,
}

impl Proxied {
    fn start() -> Self {
        let node = TestNode::start(Flavor::V2);
        let kubeconfig = node.scratch.path().join("kubeconfig");
        let mut proxy = Self::podwright(&node, &["proxy", "--port", "0", "--kubeconfig"]);
        let proxy = proxy.arg(&kubeconfig).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut proxy = Running(proxy);
        let mut line = String::new();
        BufReader::new(proxy.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, format!("export KUBECONFIG={}\n", kubeconfig.display()));
        Self { node, kubeconfig, _proxy: proxy }
    }

    fn podwright(node: &TestNode, arguments: &[&str]) -> Command {
        let mut command = Command::new(Agent::program().expect("built"));
        command.args(arguments).env("PODWRIGHT_RUN_DIR", node.scratch.run_dir().expect("there"));
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Cache::find().peer("kubectl").expect("make peers"));
        command.arg("--cache-dir").arg(self.node.scratch.path().join("kubectl-cache"));
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        command
    }

    fn output(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code().unwrap_or(-1), text(stdout), text(stderr))
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.output(arguments);
        assert_eq!(code, 0, "kubectl {arguments:?}: {stdout}{stderr}");
        stdout
    }

    fn write(&self, name: &str, object: &Value) -> String {
        let file = self.node.scratch.path().join(name);
        std::fs::write(&file, object.to_string()).expect("written");
        file.display().to_string()
    }
}

/// Columns are as wide as their widest cell.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn web(image: &str) -> Value {
    let script = "echo started; echo hello > /index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h / & wait";
    let container = json!({"name": "c", "image": image, "command": ["sh", "-c", script],
                           "ports": [{"name": "http", "containerPort": 8080}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
           "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]}})
}

#[test]
fn kubectl_works_through_the_proxy() {
    let host = Proxied::start();
    let mode = std::fs::metadata(&host.kubeconfig).expect("written").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let file = host.write("web.json", &web(image::BUSYBOX));
    assert_eq!(host.kubectl(&["apply", "-f", &file]), "pod/web created\n");
    assert_eq!(host.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]), "pod/web condition met\n");
    let table = host.kubectl(&["get", "pods"]);
    assert!(words(&table).starts_with("NAME READY STATUS RESTARTS AGE web 1/1 Running 0 "), "{table}");
    let wide = host.kubectl(&["get", "pods", "-o", "wide", "--show-labels"]);
    assert!(wide.contains("NOMINATED NODE") && wide.contains("app=web"), "{wide}");
    assert_eq!(host.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.phase}"]), "Running");
    let described = host.kubectl(&["describe", "pod", "web"]);
    for part in ["Status: Running", "Ready True", "Started", "Events:"] {
        assert!(words(&described).contains(part), "{part} is not in\n{described}");
    }
    // An update sends a strategic merge patch.
    assert_eq!(host.kubectl(&["apply", "-f", &file]), "pod/web unchanged\n");
    let mut labelled = web(image::BUSYBOX);
    labelled["metadata"]["labels"]["tier"] = json!("front");
    host.write("web.json", &labelled);
    assert_eq!(host.kubectl(&["apply", "-f", &file]), "pod/web configured\n");
    assert_eq!(host.kubectl(&["get", "pods", "-l", "tier=front", "-o", "name"]), "pod/web\n");
    let mut typo = web(image::BUSYBOX);
    typo["spec"]["hostNetwrk"] = json!(true);
    let (code, _, refused) = host.output(&["apply", "-f", &host.write("typo.json", &typo)]);
    assert!(code == 1 && refused.contains("unknown field \"spec.hostNetwrk\""), "{refused}");

    assert_eq!(host.kubectl(&["logs", "web"]), "started\n");
    assert_eq!(host.kubectl(&["exec", "web", "--", "cat", "/index.html"]), "hello\n");
    let (code, _, _) = host.output(&["exec", "web", "--", "sh", "-c", "exit 7"]);
    assert_eq!(code, 7);
    let copy = host.node.scratch.path().join("copy");
    host.kubectl(&["cp", "web:/index.html", &copy.display().to_string()]);
    assert_eq!(std::fs::read_to_string(&copy).expect("copied"), "hello\n");
    host.kubectl(&["cp", &copy.display().to_string(), "web:/back.html"]);
    assert_eq!(host.kubectl(&["exec", "web", "--", "cat", "/back.html"]), "hello\n");
    let events = host.kubectl(&["events", "--for", "pod/web"]);
    assert!(events.contains("Started"), "{events}");
    let events = host.kubectl(&["get", "events"]);
    assert!(events.starts_with("LAST SEEN") && events.contains("pod/web"), "{events}");
    wait_until(LIMIT, "kubectl top", || {
        let (code, top, error) = host.output(&["top", "pod"]);
        ensure!(code == 0 && words(&top).starts_with("NAME CPU(cores) MEMORY(bytes) web "), "{top}{error}");
        Ok(())
    });
    assert_eq!(host.kubectl(&["delete", "pod", "web"]), "pod \"web\" deleted from default namespace\n");
    let (code, _, missing) = host.output(&["get", "pod", "web"]);
    assert!(code == 1 && missing.contains("pods \"web\" not found"), "{missing}");
    requests_without_the_token_are_refused(&host);
    host.node.wait_nothing_left();
}

fn requests_without_the_token_are_refused(host: &Proxied) {
    let config = std::fs::read_to_string(&host.kubeconfig).expect("read");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    for user in [json!({"token": "0".repeat(64)}), json!({"token": "0"}), json!({"username": "a", "password": "b"})] {
        config["users"][0]["user"] = user;
        let other = host.write("other-kubeconfig", &config);
        let (code, _, refused) = host.output(&["--kubeconfig", &other, "get", "pods"]);
        assert!(code == 1 && refused.contains("logged in"), "{refused}");
    }
    // Without TLS there is no answer at all.
    let server = config["clusters"][0]["cluster"]["server"].as_str().expect("an address").to_owned();
    let mut plain = TcpStream::connect(server.trim_start_matches("https://")).expect("connected");
    plain.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    plain.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn our_own_streams_work_with_containers() {
    let node = TestNode::start(Flavor::V2);
    let file = node.scratch.path().join("web.json");
    let mut pod = web(image::BUSYBOX);
    pod["spec"]["containers"][0]["stdin"] = json!(true);
    std::fs::write(&file, pod.to_string()).expect("written");
    let run = |arguments: &[&str]| -> Result<String> {
        let output = Proxied::podwright(&node, arguments).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        Ok(text(&output.stdout))
    };
    let done = |arguments: &[&str]| run(arguments).expect("it works");
    done(&["apply", "-f", &file.display().to_string()]);
    done(&["wait", "web", "--for=condition=Ready", "--timeout=60s"]);

    let mut forward = Proxied::podwright(&node, &["port-forward", "web", ":http", "--address", "127.0.0.1"]);
    let mut forward = Running(forward.stdout(Stdio::piped()).spawn().expect("it runs"));
    let mut lines = BufReader::new(forward.0.stdout.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    let port: u16 =
        line.split([':', ' ']).nth(3).and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    for _ in 0..3 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        assert!(answer.ends_with("hello\n"), "{answer}");
    }

    let tree = node.scratch.path().join("tree");
    std::fs::create_dir_all(tree.join("deep")).expect("created");
    std::fs::write(tree.join("deep/file"), "content").expect("written");
    done(&["cp", &tree.display().to_string(), "web:/tmp"]);
    assert_eq!(done(&["exec", "web", "--", "stat", "-c", "%u:%g %a", "/tmp/tree/deep/file"]), "0:0 644\n");
    let back = node.scratch.path().join("back");
    done(&["cp", "web:/tmp/tree", &back.display().to_string()]);
    assert_eq!(std::fs::read_to_string(back.join("deep/file")).expect("copied"), "content");

    let attached = Proxied::podwright(&node, &["attach", "web"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let top = wait_until(LIMIT, "the usage of the pod", || run(&["top", "pod", "web", "--containers", "--no-headers"]));
    assert!(words(&top).starts_with("web c ") && top.contains('m') && top.contains("Mi"), "{top}");
    let of_node = done(&["top", "node", "--no-headers"]);
    assert!(of_node.contains('%') && !of_node.contains("unknown"), "{of_node}");
    done(&["delete", "web"]);
    let end = attached.wait_with_output().expect("it ends with the process");
    assert_eq!(end.status.code(), Some(0), "{end:?}");
    node.wait_nothing_left();
}
