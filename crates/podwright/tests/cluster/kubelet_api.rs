//! The kubelet's API: kubectl through a real API server, and every route with every kind of credential.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use podwright_testbed::{Component, ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, one, sh, sleeper};

/// A node whose address and port the API server reaches over loopback.
pub(crate) fn reachable<'a>(plane: &'a ControlPlane, name: &'static str) -> ClusterNode<'a> {
    let ca = plane.certificate_authority();
    ClusterNode::configured(plane, name, |agent| {
        let agent = agent.arg("--node-ip").arg("127.0.0.1");
        agent.config(json!({"authentication": {"x509": {"clientCAFile": ca}}}))
    })
}

/// A process that is killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kubectl_logs_selects_follows_and_shows_the_previous_instance() {
    let node = reachable(ControlPlane::shared(), "logged");
    let port = node.get_node().expect("a node")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].clone();
    assert_eq!(port, json!(node.agent.https_port()));
    let logs = |options: &[&str]| {
        let mut all = vec!["-n", node.name, "logs", "talker"];
        all.extend(options);
        node.plane.kubectl(&all)
    };
    let script = "for n in 1 2 3; do echo line $n; done; sleep 0.3; echo error >&2; sleep 1; [ -e /out/again ] || { touch /out/again; exit 1; }
                  trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let out = node.scratch.dir("talker").expect("a directory");
    let mut spec = one(&sh("c", script));
    spec["containers"][0]["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    spec["volumes"] = json!([{"name": "out", "hostPath": {"path": out}}]);
    node.put("talker", &spec);
    wait_until(LIMIT, "the restart", || {
        let pod = node.get("pods", "talker")?;
        let status = &pod["status"]["containerStatuses"][0];
        ensure!(status["restartCount"] == 1 && status["state"]["running"].is_object(), "{status:#}");
        Ok(())
    });
    let all = "line 1\nline 2\nline 3\nerror\n";
    wait_until(LIMIT, "the log", || {
        let log = logs(&[])?;
        ensure!(log == all, "{log}");
        Ok(())
    });
    assert_eq!(logs(&["--previous"]).expect("logs"), all);
    assert_eq!(logs(&["--tail=2"]).expect("logs"), "line 3\nerror\n");
    assert_eq!(logs(&["--tail=1", "--limit-bytes=3"]).expect("logs"), "err");
    assert_eq!(logs(&["--since=1h"]).expect("logs"), all);
    assert_eq!(logs(&["--since-time=2099-01-01T00:00:00Z"]).expect("logs"), "");
    let stamped = logs(&["--timestamps", "--tail=1"]).expect("logs");
    let (time, text) = stamped.split_once(' ').expect("a time");
    assert!(time.parse::<jiff::Timestamp>().is_ok() && text == "error\n", "{stamped}");
    let error = logs(&["-c", "none"]).expect_err("no such container").to_string();
    assert!(error.contains("container none is not valid for pod talker"), "{error}");

    let mut follow = node.plane.kubectl_command(&["-n", node.name, "logs", "-f", "talker"]).expect("kubectl");
    let mut follow = Running(follow.stdout(Stdio::piped()).spawn().expect("started"));
    let mut lines = BufReader::new(follow.0.stdout.take().expect("piped"));
    let mut text = String::new();
    lines.read_line(&mut text).expect("read");
    node.plane.kubectl(&["-n", node.name, "delete", "pod", "talker"]).expect("deleted");
    let began = Instant::now();
    lines.read_to_string(&mut text).expect("read");
    assert!(text == all && began.elapsed() < LIMIT, "it ends with the container: {text}");
    node.wait_nothing_left();
}

#[test]
fn kubectl_exec_cp_attach_and_port_forward_work() {
    let node = reachable(ControlPlane::shared(), "exec");
    let script = "mkdir -p /tmp/www; echo page > /tmp/www/index.html; httpd -p 8080 -h /tmp/www; trap 'exit 0' TERM;
                  while :; do echo tick; sleep 0.2; done";
    node.put("web", &one(&sh("c", script)));
    node.wait_ready("web");
    let kubectl = |words: &[&str]| {
        let mut all = vec!["-n", node.name];
        all.extend(words);
        node.plane.kubectl_command(&all).expect("kubectl")
    };
    let run = |mut command: Command, input: &str| {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let done = run(kubectl(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2"]), "");
    assert_eq!((done.0, done.1.as_str()), (Some(0), "out\n"), "{done:?}");
    assert!(done.2.contains("err"), "{done:?}");
    let done = run(kubectl(&["exec", "-i", "web", "--", "sh", "-c", "read a; echo got $a; exit 7"]), "text\n");
    assert_eq!((done.0, done.1.as_str()), (Some(7), "got text\n"), "{done:?}");
    // An old client: SPDY from end to end.
    let mut spdy = kubectl(&["exec", "web", "--", "echo", "spdy"]);
    spdy.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
    assert_eq!(run(spdy, "").1, "spdy\n");
    // kubectl needs a terminal of its own for -t.
    let words: Vec<String> = {
        let command = kubectl(&["exec", "-it", "web", "--", "sh", "-c", "tty; echo size"]);
        let program = command.get_program().to_string_lossy().into_owned();
        std::iter::once(program).chain(command.get_args().map(|word| format!("'{}'", word.to_string_lossy()))).collect()
    };
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]);
    let done = run(script, "");
    assert!(done.1.contains("/dev/pts/") && done.1.contains("size"), "{done:?}");

    let source = node.scratch.dir("cp").expect("a directory").join("file");
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&source, &content).expect("written");
    let path = source.display().to_string();
    assert_eq!(run(kubectl(&["cp", &path, "web:/tmp/copy"]), "").0, Some(0));
    let back = format!("{path}.back");
    assert_eq!(run(kubectl(&["cp", "web:/tmp/copy", &back]), "").0, Some(0));
    assert!(fs::read(&back).expect("copied") == content, "the copy differs");

    let mut attach = Running(kubectl(&["attach", "web"]).stdout(Stdio::piped()).spawn().expect("started"));
    let line = BufReader::new(attach.0.stdout.take().expect("piped")).lines().next().expect("a line").expect("read");
    assert_eq!(line, "tick");
    drop(attach);

    let mut forward =
        Running(kubectl(&["port-forward", "web", ":8080"]).stdout(Stdio::piped()).spawn().expect("started"));
    // kubectl exits when it can no longer write to its output.
    let mut output = BufReader::new(forward.0.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    let address = line.split_whitespace().nth(2).expect("an address").to_owned();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&address).expect("connected");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
        let mut page = String::new();
        // The server closes the connection with a reset.
        let _ = stream.read_to_string(&mut page);
        assert!(page.ends_with("page\n"), "{page}");
    }
    drop((forward, output));
    node.plane.kubectl(&["-n", node.name, "delete", "pod", "web"]).expect("deleted");
    node.wait_nothing_left();
}

/// Status and body of a request to the node itself.
fn ask(node: &ClusterNode<'_>, credential: &[String], method: &str, path: &str) -> (u16, String) {
    let url = format!("https://127.0.0.1:{}{path}", node.agent.https_port());
    let mut curl = Command::new("curl");
    curl.args(["-sk", "--path-as-is", "--max-time", "25", "-w", "\n%{http_code}", "-X", method])
        .args(credential)
        .arg(url);
    let output = curl.output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').expect("a status");
    (code.parse().expect("a number"), body.to_owned())
}

#[test]
fn every_route_answers_every_credential_as_the_kubelet_does() {
    let plane = ControlPlane::shared();
    let node = reachable(plane, "asked");
    node.put("web", &one(&sleeper("c")));
    node.wait_ready("web");
    let token = plane.kubectl(&["-n", node.name, "create", "token", "default"]).expect("a token").trim().to_owned();
    let bearer = |token: &str| vec!["-H".to_owned(), format!("Authorization: Bearer {token}")];
    let certificate = |user: &str, group: &str| {
        let (certificate, key) = plane.user_certificate(user, group).expect("a certificate");
        vec!["--cert".into(), certificate.display().to_string(), "--key".into(), key.display().to_string()]
    };
    let admin = certificate("root", "system:masters");
    let developer = certificate("jane", "developers");
    let own = certificate("system:node:asked", "system:nodes");
    let user = format!("system:serviceaccount:{}:default", node.name);
    let logs = format!("/containerLogs/{}/web/c", node.name);
    let run = format!("/run/{}/web/c?cmd=true", node.name);
    let routes: [(&str, &str, &str, u16); 12] = [
        ("GET", "/pods", "[pods proxy]", 200),
        ("GET", "/runningpods/", "[pods proxy]", 200),
        ("GET", "/healthz", "[healthz proxy]", 200),
        ("GET", "/configz", "[configz proxy]", 200),
        ("GET", "/metrics", "[metrics]", 200),
        ("GET", "/logs/", "[log]", 200),
        ("GET", &logs, "[proxy]", 200),
        ("POST", &run, "[proxy]", 200),
        ("GET", "/run/a/b/c", "[proxy]", 405),
        ("POST", "/pods", "[pods proxy]", 405),
        ("GET", "/logs/../../etc/passwd", "[log]", 403),
        ("GET", "/nowhere", "[proxy]", 404),
    ];
    for (method, path, subresources, code) in routes {
        for credential in [vec![], bearer("bad"), bearer(&format!("{token}x"))] {
            assert_eq!(ask(&node, &credential, method, path), (401, "Unauthorized".into()), "{method} {path}");
        }
        let verb = if method == "GET" { "get" } else { "create" };
        for (credential, name) in [(bearer(&token), user.as_str()), (developer.clone(), "jane")] {
            let text = format!("Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)={subresources})\n");
            assert_eq!(ask(&node, &credential, method, path), (403, text), "{method} {path}");
        }
        let (answered, body) = ask(&node, &admin, method, path);
        assert_eq!(answered, code, "{method} {path}: {body}");
    }
    // A node may read the API of no node: the authorizer of nodes allows it only its own objects.
    assert_eq!(ask(&node, &own, "GET", "/pods").0, 403);
    let configz: Value = serde_json::from_str(&ask(&node, &admin, "GET", "/configz").1).expect("JSON");
    let endpoint = format!("unix://{}", node.runtime.socket().display());
    assert_eq!(configz["kubeletconfig"]["kind"], "KubeletConfiguration");
    assert_eq!(configz["kubeletconfig"]["containerRuntimeEndpoint"], endpoint);
    node.plane.kubectl(&["-n", node.name, "delete", "pod", "web"]).expect("deleted");
    node.wait_nothing_left();
}

#[test]
fn without_the_api_server_no_access_is_granted_and_the_answer_comes_in_time() {
    let scratch = podwright_testbed::Scratch::new().expect("a scratch");
    let plane = ControlPlane::start(&scratch).expect("a control plane");
    let node = reachable(&plane, "cut-off");
    let (certificate, key) = plane.user_certificate("root", "system:masters").expect("a certificate");
    let admin = ["--cert".into(), certificate.display().to_string(), "--key".into(), key.display().to_string()];
    plane.stop(Component::ApiServer).expect("stopped");
    let began = Instant::now();
    let text = "Authorization error (user=root, verb=get, resource=nodes, subresource=metrics)";
    assert_eq!(ask(&node, &admin, "GET", "/metrics"), (500, text.into()));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let token = ["-H".into(), "Authorization: Bearer x".into()];
    assert_eq!(ask(&node, &token, "GET", "/metrics"), (401, "Unauthorized".into()));
    plane.start_again(Component::ApiServer).expect("started");
    wait_until(LIMIT, "access", || {
        let (code, body) = ask(&node, &admin, "GET", "/metrics");
        ensure!(code == 200, "{code} {body}");
        Ok(())
    });
}
