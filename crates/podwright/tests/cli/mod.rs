//! The commands against a real agent; values that differ in every run are masked.

mod explain_stuck;
pub(crate) mod mask;
pub(crate) mod pty;
mod terminals;
mod verbs;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::ensure;
use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime, image, wait_until};
use serde_json::{Value, json};

use crate::fixture::{LIMIT, LocalNode, pod};

const NOBODY: u32 = 65534;

impl LocalNode {
    pub(crate) fn put(&self, name: &str, spec: &Value) {
        self.scratch.put_manifest(&format!("{name}.json"), &pod(name, spec)).expect("written");
    }

    /// A command of the tested binary for this agent.
    pub(crate) fn command(&self, program: &Path, line: &str) -> Command {
        let mut command = Command::new(program);
        command.args(line.split_whitespace()).env("PODWRIGHT_RUN_DIR", self.scratch.run_dir().expect("there"));
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(&Agent::program().expect("built"), line).output().expect("it runs")
    }

    /// Exit code, stdout and stderr, masked.
    fn masked_output(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        let text = |bytes: &[u8]| mask::all(&String::from_utf8_lossy(bytes), &self.scratch.path());
        let mut message = text(format!("$ podwright {line}\n").as_bytes()) + &text(&stdout);
        if !stderr.is_empty() {
            message.push_str(&format!("[on stderr]\n{}", text(&stderr)));
        }
        if !status.success() {
            message.push_str(&format!("[exit code {}]\n", status.code().unwrap_or(-1)));
        }
        message
    }

    pub(crate) fn wait_status(&self, name: &str, word: &str) {
        wait_until(LIMIT, &format!("{name} to be {word}"), || {
            let message = self.masked_output(&format!("get pods {name}"));
            ensure!(message.split_whitespace().any(|found| found == word), "{message}");
            Ok(())
        });
    }
}

/// Compares with a file of `snapshots`, whatever the test program is: output does not depend on the runtime, except for its name.
fn assert_snapshot(name: &str, output: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, output));
}

/// With cp: if this process held the file open for writing while another thread forks, executing it would fail with ETXTBSY.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp is there").success());
}

fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": image::BUSYBOX, "command": ["sh", "-c", script]})
}

fn web() -> Value {
    let mut sidecar = sh("writer", "trap 'exit 0' TERM; echo hello > /www/index.html; while :; do sleep 0.1; done");
    sidecar["restartPolicy"] = json!("Always");
    let mut server = sh("server", "trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait");
    server["readinessProbe"] =
        json!({"httpGet": {"port": 8080, "path": "/index.html"}, "periodSeconds": 1, "initialDelaySeconds": 2});
    server["resources"] = json!({"requests": {"cpu": "10m"}, "limits": {"memory": "32Mi"}});
    server["env"] = json!([{"name": "COLOUR", "value": "blue"}]);
    for container in [&mut sidecar, &mut server] {
        container["volumeMounts"] = json!([{"name": "www", "mountPath": "/www"}]);
    }
    json!({"terminationGracePeriodSeconds": 2, "initContainers": [sidecar], "containers": [server],
           "volumes": [{"name": "www", "emptyDir": {}}]})
}

#[test]
fn healthy_and_failing_pods_are_shown_and_explained() {
    let node = LocalNode::start();
    let nothing = wait_until(LIMIT, "the first answer of the runtime", || {
        let message = node.masked_output("get pods");
        // The engine is in the agent: it is asked, or it responds.
        assert!(crate::FLAVOR != Flavor::Engine || !message.contains("does not respond"), "a false alarm: {message}");
        ensure!(!message.contains("container runtime"), "{message}");
        Ok(message)
    });
    assert_snapshot("nothing", &nothing);
    let absent = json!({"name": "c", "image": "127.0.0.1:1/no/such:1"});
    let with = |changes: &[(&str, Value)], mut container: Value| {
        changes.iter().for_each(|(field, value)| container[*field] = value.clone());
        json!({"containers": [container]})
    };
    let (never, greedy) = (("imagePullPolicy", json!("Never")), ("resources", json!({"requests": {"cpu": "1000"}})));
    let root = ("securityContext", json!({"runAsNonRoot": true}));
    let crash = json!({"containers": [sh("c", "echo no config > /dev/termination-log; sleep 1; exit 3")]});
    std::fs::write(node.scratch.manifests().expect("there").join("broken.yaml"), "kind: Pod\n  oops: [")
        .expect("written");
    // Each pod is checked before its next attempt; pods with a final state come first.
    for (name, word, spec) in [
        ("web", "2/2", web()),
        ("once", "Completed", json!({"restartPolicy": "Never", "containers": [sh("c", "sleep 1")]})),
        ("slow", "Init:0/1", json!({"initContainers": [sh("i", "sleep 3600")], "containers": [sh("c", "true")]})),
        ("never", "ErrImageNeverPull", with(&[never], absent.clone())),
        ("greedy", "OutOfcpu", with(&[greedy], sh("c", "true"))),
        ("root", "CreateContainerConfigError", with(&[root], sh("c", "true"))),
        ("crash", "CrashLoopBackOff", crash),
    ] {
        node.put(name, &spec);
        node.wait_status(name, word);
        let message = wait_until(LIMIT, "terminations to complete", || {
            let message = node.masked_output(&format!("explain {name}"));
            ensure!(!message.contains("is terminating") && !message.contains("are being removed"), "{message}");
            // The start is shown when its call returns, what it waits for when the container was observed.
            ensure!(name != "slow" || message.contains("    since "), "{message}");
            let is_retried = matches!(name, "never" | "root" | "crash");
            ensure!(!is_retried || message.contains("    until "), "{message}");
            Ok(message)
        });
        assert_snapshot(&format!("explain_{name}"), &message);
    }
    assert_snapshot("get_pods", &node.masked_output("get pods"));
    assert_snapshot("get_pods_wide", &node.masked_output("get po web -A -o wide"));
    let missing = json!([{"name": "v", "hostPath": {"path": "/no/such/place", "type": "Directory"}}]);
    for (name, word, spec) in [
        ("absent", "ImagePullBackOff", with(&[], absent)),
        ("mount", "ContainerCreating", json!({"containers": [sh("c", "true")], "volumes": missing})),
    ] {
        node.put(name, &spec);
        node.wait_status(name, word);
        let message = wait_until(LIMIT, "the failure to be reported", || {
            let message = node.masked_output(&format!("explain {name}"));
            ensure!(message.contains("failed: ") && message.contains("    until "), "{message}");
            // A mount is retried within a second: the number of attempts does not matter here.
            Ok(message.replace(" (<n> times)", ""))
        });
        // Errors of pulls are the runtime's own.
        let suffix = if name == "absent" && crate::FLAVOR == Flavor::Engine { "_on_engine" } else { "" };
        assert_snapshot(&format!("explain_{name}{suffix}"), &message);
    }
    node.put("wrong", &with(&[("command", json!(["/no/such/command"]))], sh("c", "true")));
    node.wait_status("wrong", "RunContainerError");
    // The number of attempts depends on timing.
    let wrong = node.masked_output("explain wrong");
    for words in ["c: RunContainerError", "/no/such/command", "check that its command exists"] {
        assert!(wrong.contains(words), "{words} is not in {wrong}");
    }
    assert_snapshot("describe_web", &node.masked_output("describe pod web"));
    assert_snapshot("events_of_web", &node.masked_output("events --for pod/web"));
    same_object_in_every_format(&node);

    node.scratch.remove_manifest("web.json").expect("removed");
    wait_until(LIMIT, "web to be gone", || {
        ensure!(!node.run("get pods web").status.success(), "it is there");
        Ok(())
    });
    let gone = node.masked_output("explain default/web-node");
    assert!(gone.contains("Pod default/web-node was removed") && gone.contains("termination requested"), "{gone}");
}

fn same_object_in_every_format(node: &LocalNode) {
    let listed: Value = serde_json::from_slice(&node.run("get pods -A -o json").stdout).expect("JSON");
    assert_eq!((&listed["kind"], &listed["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let once: Value = serde_json::from_slice(&node.run("get pods once -o json").stdout).expect("JSON");
    let in_list = listed["items"].as_array().expect("a list").iter().find(|pod| pod["metadata"]["name"] == "once-node");
    assert_eq!(Some(&once), in_list);
    let yaml = node.run("get pods once -o yaml").stdout;
    let from_yaml: Value = serde_saphyr::from_str(&String::from_utf8(yaml).expect("text")).expect("YAML");
    assert_eq!(from_yaml, once);
}

#[test]
fn exit_codes_distinguish_failures_from_usage_errors() {
    let scratch = Scratch::new().expect("a scratch");
    let run_dir = scratch.run_dir().expect("there");
    let run = |line: &str| {
        let words = line.split_whitespace();
        let mut command = Command::new(Agent::program().expect("built"));
        let output = command.args(words).env("PODWRIGHT_RUN_DIR", &run_dir).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for line in ["get pods", "events", "describe pod x", "explain x"] {
        let (code, message) = run(line);
        assert_eq!(code, Some(1), "{line}: {message}");
        assert!(
            message.contains(&run_dir.join("api.sock").display().to_string()),
            "{line} does not name the socket: {message}"
        );
    }
    for line in [
        "get",
        "get nodes",
        "get pods -o xml",
        "get pods -A -n x",
        "get pod/x -l a=b",
        "describe pod",
        "explain",
        "apply -f /no/such/file",
        "delete",
        "check /no/such/file",
        "run --no-such-flag",
    ] {
        assert_eq!(run(line).0, Some(2), "{line}");
    }
}

#[test]
fn the_socket_is_private_and_removed_with_the_agent() {
    let mut node = LocalNode::start();
    let socket = node.socket();
    let mode = std::fs::metadata(&socket).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(
        node.masked_output("get pods nothing"),
        "$ podwright get pods nothing\n[on stderr]\npodwright: pods \"nothing\" not found in namespace \"default\"\n[exit code 1]\n"
    );

    // The user nobody can't read the build directory.
    let program = node.scratch.path().join("podwright");
    copy(&Agent::program().expect("built"), &program);
    let as_nobody = || {
        let output = node.command(&program, "get pods").uid(NOBODY).gid(NOBODY).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    open(&node.scratch.path(), 0o755);
    open(&node.scratch.run_dir().expect("there"), 0o755);
    let (code, message) = as_nobody();
    assert!(
        code == Some(1) && message.contains("only root and the user of the agent have access"),
        "by its mode: {message}"
    );
    open(&socket, 0o666);
    let (code, message) = as_nobody();
    assert!(
        code == Some(1) && message.contains("only root and the user of the agent have access"),
        "by credentials: {message}"
    );
    assert!(node.agent.log().contains("local API connection rejected"), "{}", node.agent.log());

    // A second agent is rejected; the socket of a dead agent is replaced; it is removed at the end.
    let mut second = node.command(&program, "run --hostname-override other --root-dir");
    let output = second.arg(node.scratch.path().join("other-root")).output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("another agent uses"), "{message}");
    node.agent.kill9().expect("killed");
    assert!(socket.exists());
    node.agent.start_again().expect("started again");
    assert!(node.run("get pods").status.success());
    assert!(node.agent.sigterm().expect("it ends").success());
    assert!(!socket.exists(), "a socket is left");
    // Of the engine, without pods, nothing is left either. On containerd the link never existed.
    let socket = node.scratch.run_dir().expect("there").join("engine.sock");
    assert!(!socket.exists(), "the socket of the engine is left");
    let bridge = Path::new("/sys/class/net").join(node.scratch.name());
    assert!(matches!(node.runtime, TestRuntime::Containerd(_)) || !bridge.exists(), "{} is left", bridge.display());
}
