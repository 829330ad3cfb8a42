//! `podwright exec`, `attach` and `port-forward` with processes and ports of this host in place of a container.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Api, Outcome};

/// A pod whose container runs; `process` are fields of the container.
fn start_with(process: &Value) -> Api {
    let api = Api::start();
    let mut container = json!({"name": "c", "image": "busybox:1", "ports": [{"name": "http", "containerPort": 80}]});
    process.as_object().into_iter().flatten().for_each(|(key, value)| container[key] = value.clone());
    let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
                        "containerID": "containerd://abc"});
    api.publish("default", "web", &json!([container]), &json!({"phase": "Running", "containerStatuses": [status]}));
    api.publish_static("default", "starting", &json!({"phase": "Pending"}));
    api
}

fn with_input(api: &Api, line: &str, input: &[u8]) -> Outcome {
    let mut command = api.command(line);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("piped");
    let (input, output) = (input.to_vec(), std::thread::spawn(move || child.wait_with_output().expect("it ends")));
    // A process that does not read its input ends before all is written.
    let _ = stdin.write_all(&input);
    drop(stdin);
    let output = output.join().expect("it ended");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

#[test]
fn a_command_that_writes_while_it_reads_gets_all_of_its_input() {
    let api = start_with(&json!({}));
    let input = "0123456789abcdef".repeat(1 << 20);
    let outcome = with_input(&api, "exec -i web -- cat", input.as_bytes());
    assert_eq!((outcome.code, outcome.stdout.len(), outcome.stderr.as_str()), (0, input.len(), ""));
    assert!(outcome.stdout == input, "the output differs");
    let outcome = api.run_with("exec web -- sh -c", &["exit 3"]);
    assert_eq!(outcome.code, 3, "{outcome:?}");
}

#[test]
fn attach_shows_the_output_of_the_process_and_passes_input_to_it() {
    let api = start_with(&json!({"stdin": true}));
    let outcome = with_input(&api, "attach -i web", b"hello\n");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "from the process\ngot hello\n"), "{outcome:?}");
    assert_eq!(outcome.stderr, "an error\n");
    let outcome = api.run("attach web");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "from the process\n"), "{outcome:?}");
    let outcome = api.run("attach -t web");
    assert!(outcome.code == 0 && outcome.stderr.contains("started without a terminal"), "{outcome:?}");
    for (line, message) in [
        ("attach web -c other", "container other is not valid for pod web-node"),
        ("attach starting", "container c of pod starting-node is not running"),
    ] {
        let outcome = api.run(line);
        assert!(outcome.code == 1 && outcome.stderr.contains(message), "{line}: {outcome:?}");
    }
    let without = start_with(&json!({}));
    let outcome = with_input(&without, "attach -i web", b"hello\n");
    assert_eq!(outcome.stdout, "from the process\n", "{outcome:?}");
    assert!(outcome.code == 0 && outcome.stderr.contains("was started without stdin"), "{outcome:?}");
}

#[test]
fn without_a_container_the_first_is_taken_and_named() {
    let api = start_with(&json!({}));
    let status = |name: &str| {
        json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
               "containerID": "containerd://abc"})
    };
    let two = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    let statuses = json!([status("a"), status("b")]);
    api.publish("default", "two", &two, &json!({"phase": "Running", "containerStatuses": statuses}));
    for line in ["exec two -- true", "attach two"] {
        let outcome = api.run(line);
        assert_eq!(outcome.code, 0, "{line}: {outcome:?}");
        assert!(outcome.stderr.contains("Defaulted container \"a\" out of: a, b\n"), "{line}: {outcome:?}");
    }
    let outcome = api.run("exec two -c b -- true");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
}

/// `podwright port-forward`, and what it prints.
struct Forwarding {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Forwarding {
    fn start(api: &Api, line: &str) -> Self {
        let mut child = api.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The port in `Forwarding from 127.0.0.1:1234 -> 80`.
    fn port(&mut self, remote: u16) -> u16 {
        let line = self.line();
        let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split_once(" -> "));
        let (port, to) = port.unwrap_or_else(|| panic!("{line:?} {:?}", self.stderr()));
        assert_eq!(to, remote.to_string());
        port.parse().expect("a port")
    }

    fn stderr(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut text).expect("read");
        text
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that sends back what a client wrote, after the client has closed its half.
fn echo_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut read = Vec::new();
                stream.read_to_end(&mut read).expect("read");
                stream.write_all(&read).expect("written");
            });
        }
    });
    port
}

fn echoed(port: u16, data: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream.write_all(data).expect("written");
    stream.shutdown(Shutdown::Write).expect("half-closed");
    let mut read = Vec::new();
    stream.read_to_end(&mut read).expect("read");
    read
}

#[test]
fn connections_are_forwarded_independently_of_each_other() {
    let mut api = start_with(&json!({}));
    let remote = echo_server();
    let mut forwarding = Forwarding::start(&api, &format!("port-forward pod/web :{remote}"));
    let local = forwarding.port(remote);
    // A client that reads nothing must not hold up the next one.
    let mut slow = TcpStream::connect((Ipv4Addr::LOCALHOST, local)).expect("connected");
    let large = vec![7; 8 << 20];
    slow.write_all(&large).expect("written");
    slow.shutdown(Shutdown::Write).expect("half-closed");
    assert_eq!(echoed(local, b"hello"), b"hello");
    assert!(echoed(local, &large) == large, "the answer differs");
    let mut read = Vec::new();
    slow.read_to_end(&mut read).expect("read");
    assert!(read == large, "the answer to the slow client differs");
    // The agent may restart in between.
    api.restart();
    assert_eq!(echoed(local, b"again"), b"again");
}

#[test]
fn port_forward_reports_what_it_cannot_do() {
    let api = start_with(&json!({}));
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let taken = free.local_addr().expect("an address").port();
    for (line, code, message) in [
        ("port-forward web :https", 2, "no container of pod \"web-node\" has a port named \"https\""),
        ("port-forward web", 2, "required"),
        ("port-forward web 0", 2, "with ports from 1 to 65535"),
        ("port-forward web 80 --address nowhere", 2, "must be an IP address or localhost"),
        ("port-forward starting :80", 1, "pod is not running. Current status=Pending"),
    ] {
        let outcome = api.run(line);
        assert!(outcome.code == code && outcome.stderr.contains(message), "{line}: {outcome:?}");
    }
    let outcome = api.run(&format!("port-forward web {taken}:80 --address 127.0.0.1"));
    assert!(outcome.code == 1 && outcome.stderr.contains("cannot listen on 127.0.0.1:"), "{outcome:?}");
    assert!(outcome.stderr.contains("use another local port"), "{outcome:?}");

    // Nothing listens on the port of the pod.
    drop(free);
    let mut forwarding = Forwarding::start(&api, &format!("port-forward web :{taken} --address 127.0.0.1"));
    let local = forwarding.port(taken);
    assert_eq!(echoed(local, b""), b"");
    assert_eq!(forwarding.line(), format!("Handling connection for {local}"));
    std::thread::sleep(Duration::from_millis(300));
    let message = forwarding.stderr();
    assert!(message.contains(&format!("error forwarding port {taken}")) && message.contains("refused"), "{message}");
}

#[test]
fn port_forward_ends_when_the_pod_does_not_exist_any_more() {
    let api = start_with(&json!({}));
    let mut forwarding = Forwarding::start(&api, "port-forward web :http --address 127.0.0.1");
    let local = forwarding.port(80);
    api.remove("default", "web");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, local)).expect("connected");
    let _ = stream.read(&mut [0]);
    let status = forwarding.child.wait().expect("it ends");
    let message = forwarding.stderr();
    assert!(status.code() == Some(1) && message.contains("\"web-node\" not found"), "{status} {message}");
}

#[test]
fn a_closed_output_ends_a_command_without_an_error() {
    let api = start_with(&json!({}));
    let mut child =
        api.command("exec web -- yes").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let end = child.wait_with_output().expect("it ends");
    assert_eq!((line.as_str(), end.status.code(), end.stderr.as_slice()), ("y\n", Some(0), &b""[..]), "{end:?}");
}
