//! The commands as a person types them, against a real agent on Debian's containerd; what differs from run to run is masked.

mod explain_stuck;
mod mask;
mod pty;
mod verbs;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::ensure;
use podwright_testbed::{Agent, Scratch, image, wait_until};
use serde_json::{Value, json};

use crate::fixture::{Bed, LIMIT, pod};

const NOBODY: u32 = 65534;

impl Bed {
    fn put(&self, name: &str, spec: &Value) {
        self.scratch.put_manifest(&format!("{name}.json"), &pod(name, spec)).expect("written");
    }

    /// A command of the tested binary, on this agent.
    fn command(&self, program: &Path, line: &str) -> Command {
        let mut command = Command::new(program);
        command.args(line.split_whitespace()).env("PODWRIGHT_RUN_DIR", self.scratch.run_dir().expect("there"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(&Agent::program().expect("built"), line).output().expect("it runs")
    }

    /// Exit code and both outputs, masked.
    fn said(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        let text = |bytes: &[u8]| mask::all(&String::from_utf8_lossy(bytes), &self.scratch.path());
        let mut said = text(format!("$ podwright {line}\n").as_bytes()) + &text(&stdout);
        if !stderr.is_empty() {
            said.push_str(&format!("[on stderr]\n{}", text(&stderr)));
        }
        if !status.success() {
            said.push_str(&format!("[exit code {}]\n", status.code().unwrap_or(-1)));
        }
        said
    }

    fn wait_status(&self, name: &str, word: &str) {
        wait_until(LIMIT, &format!("{name} to be {word}"), || {
            let said = self.said(&format!("get pods {name}"));
            ensure!(said.split_whitespace().any(|found| found == word), "{said}");
            Ok(())
        });
    }
}

/// By another process: a file that this one has open for writing while it forks elsewhere can't be executed.
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
fn pods_well_and_ill_are_shown_and_explained() {
    let bed = Bed::start();
    insta::assert_snapshot!("nothing", bed.said("get pods"));
    let absent = json!({"name": "c", "image": "127.0.0.1:1/no/such:1"});
    let with = |changes: &[(&str, Value)], mut container: Value| {
        changes.iter().for_each(|(field, value)| container[*field] = value.clone());
        json!({"containers": [container]})
    };
    let (never, greedy) = (("imagePullPolicy", json!("Never")), ("resources", json!({"requests": {"cpu": "1000"}})));
    let root = ("securityContext", json!({"runAsNonRoot": true}));
    let crash = json!({"containers": [sh("c", "echo no config > /dev/termination-log; exit 3")]});
    std::fs::write(bed.scratch.manifests().expect("there").join("broken.yaml"), "kind: Pod\n  oops: [")
        .expect("written");
    // Each is looked at before it is tried again; what stays as it is comes first.
    for (name, word, spec) in [
        ("web", "2/2", web()),
        ("once", "Completed", json!({"restartPolicy": "Never", "containers": [sh("c", "exit 0")]})),
        ("slow", "Init:0/1", json!({"initContainers": [sh("i", "sleep 3600")], "containers": [sh("c", "true")]})),
        ("never", "ErrImageNeverPull", with(&[never], absent.clone())),
        ("greedy", "OutOfcpu", with(&[greedy], sh("c", "true"))),
        ("root", "CreateContainerConfigError", with(&[root], sh("c", "true"))),
        ("crash", "CrashLoopBackOff", crash),
    ] {
        bed.put(name, &spec);
        bed.wait_status(name, word);
        let said = wait_until(LIMIT, "what has begun to end to have ended", || {
            let said = bed.said(&format!("explain {name}"));
            ensure!(!said.contains("is terminating") && !said.contains("are being removed"), "{said}");
            Ok(said)
        });
        insta::assert_snapshot!(format!("explain_{name}"), said);
    }
    insta::assert_snapshot!("get_pods", bed.said("get pods"));
    insta::assert_snapshot!("get_pods_wide", bed.said("get po web -A -o wide"));
    let missing = json!([{"name": "v", "hostPath": {"path": "/no/such/place", "type": "Directory"}}]);
    for (name, word, spec) in [
        ("absent", "ImagePullBackOff", with(&[], absent)),
        ("mount", "ContainerCreating", json!({"containers": [sh("c", "true")], "volumes": missing})),
    ] {
        bed.put(name, &spec);
        bed.wait_status(name, word);
        let said = wait_until(LIMIT, "the failure to be told", || {
            let said = bed.said(&format!("explain {name}"));
            ensure!(said.contains("failed: ") && said.contains("    until "), "{said}");
            // A mount is tried again within a second: whether it was the first time is no matter here.
            Ok(said.replace(" (<n> times)", ""))
        });
        insta::assert_snapshot!(format!("explain_{name}"), said);
    }
    bed.put("wrong", &with(&[("command", json!(["/no/such/command"]))], sh("c", "true")));
    bed.wait_status("wrong", "RunContainerError");
    // How often it was tried by now depends on the moment.
    let wrong = bed.said("explain wrong");
    for words in ["c: RunContainerError", "/no/such/command", "check that its command exists"] {
        assert!(wrong.contains(words), "{words} is not in {wrong}");
    }
    insta::assert_snapshot!("describe_web", bed.said("describe pod web"));
    insta::assert_snapshot!("events_of_web", bed.said("events --for pod/web"));
    same_object_in_every_format(&bed);

    bed.scratch.remove_manifest("web.json").expect("removed");
    wait_until(LIMIT, "web to be gone", || {
        ensure!(!bed.run("get pods web").status.success(), "it is there");
        Ok(())
    });
    let gone = bed.said("explain default/web-node");
    assert!(gone.contains("Pod default/web-node was removed") && gone.contains("termination requested"), "{gone}");
}

fn same_object_in_every_format(bed: &Bed) {
    let listed: Value = serde_json::from_slice(&bed.run("get pods -A -o json").stdout).expect("JSON");
    assert_eq!((&listed["kind"], &listed["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let once: Value = serde_json::from_slice(&bed.run("get pods once -o json").stdout).expect("JSON");
    let in_list = listed["items"].as_array().expect("a list").iter().find(|pod| pod["metadata"]["name"] == "once-node");
    assert_eq!(Some(&once), in_list);
    let yaml = bed.run("get pods once -o yaml").stdout;
    let from_yaml: Value = serde_saphyr::from_str(&String::from_utf8(yaml).expect("text")).expect("YAML");
    assert_eq!(from_yaml, once);
}

#[test]
fn exit_codes_tell_what_happened() {
    let scratch = Scratch::new().expect("a scratch");
    let run_dir = scratch.run_dir().expect("there");
    let run = |line: &str| {
        let words = line.split_whitespace();
        let mut command = Command::new(Agent::program().expect("built"));
        let output = command.args(words).env("PODWRIGHT_RUN_DIR", &run_dir).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for line in ["get pods", "events", "describe pod x", "explain x"] {
        let (code, said) = run(line);
        assert_eq!(code, Some(1), "{line}: {said}");
        assert!(said.contains(&run_dir.join("api.sock").display().to_string()), "{line} names the socket: {said}");
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
fn the_socket_is_for_its_owner_and_outlives_no_one() {
    let mut bed = Bed::start();
    let socket = bed.socket();
    let mode = std::fs::metadata(&socket).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(
        bed.said("get pods nothing"),
        "$ podwright get pods nothing\n[on stderr]\npodwright: pods \"nothing\" not found in namespace \"default\"\n[exit code 1]\n"
    );

    // Nobody can't even read where the binary is built.
    let program = bed.scratch.path().join("podwright");
    copy(&Agent::program().expect("built"), &program);
    let as_nobody = || {
        let output = bed.command(&program, "get pods").uid(NOBODY).gid(NOBODY).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    open(&bed.scratch.path(), 0o755);
    open(&bed.scratch.run_dir().expect("there"), 0o755);
    let (code, said) = as_nobody();
    assert!(code == Some(1) && said.contains("only root and the user of the agent have access"), "by its mode: {said}");
    open(&socket, 0o666);
    let (code, said) = as_nobody();
    assert!(
        code == Some(1) && said.contains("only root and the user of the agent have access"),
        "by credentials: {said}"
    );
    assert!(bed.agent.log().contains("local API connection rejected"), "{}", bed.agent.log());

    // A second agent finds the first; a dead one's socket is replaced; at the end it goes.
    let mut second = bed.command(&program, "run --hostname-override other --root-dir");
    let second = second.arg(bed.scratch.path().join("other-root")).arg("--container-runtime-endpoint");
    let output = second.arg(bed.containerd.endpoint()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("another agent uses"), "{said}");
    bed.agent.kill9().expect("killed");
    assert!(socket.exists());
    bed.agent.start_again().expect("started again");
    assert!(bed.run("get pods").status.success());
    assert!(bed.agent.sigterm().expect("it ends").success());
    assert!(!socket.exists(), "a socket is left");
}
