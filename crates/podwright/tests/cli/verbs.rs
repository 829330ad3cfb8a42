//! The commands that change something or run for a while.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use anyhow::ensure;
use podwright_testbed::{Agent, wait_until};
use serde_json::{Value, json};

use super::pty::Pty;
use super::{LIMIT, LocalNode, assert_snapshot, pod, sh};

/// A running command whose output is read line by line.
struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Reads until a line contains this text.
    fn until(&self, word: &str) -> Vec<String> {
        let mut read = vec![];
        loop {
            let line = self.lines.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no {word:?} after {read:?}"));
            let found = line.contains(word);
            read.push(line);
            if found {
                return read;
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exits at once on SIGTERM.
fn sleeper(script: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 5,
           "containers": [sh("c", &format!("trap 'exit 0' TERM; {script}; while :; do sleep 0.1; done"))]})
}

impl LocalNode {
    fn write(&self, name: &str, object: &Value) -> String {
        let file = self.scratch.path().join(name);
        std::fs::write(&file, object.to_string()).expect("written");
        file.display().to_string()
    }

    /// The output of a command that must succeed.
    fn success_output(&self, line: &str) -> String {
        let message = self.masked_output(line);
        assert!(!message.contains("[exit code"), "{message}");
        message
    }

    fn following(&self, line: &str) -> Following {
        Following::start(self.command(&Agent::program().expect("built"), line))
    }

    fn with_input(&self, line: &str, input: &[u8]) -> (Option<i32>, String) {
        let mut command = self.command(&Agent::program().expect("built"), line);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut stdin = child.stdin.take().expect("piped");
        // Aside: the command stops reading when its output is not read.
        let output = std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input).expect("taken"));
            child.wait_with_output().expect("it ends")
        });
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn apply_watch_change_and_delete_work() {
    let node = LocalNode::start();
    let web = node.write("web.json", &pod("web", &sleeper("echo up")));
    assert_snapshot("apply_dry_run", &node.masked_output(&format!("apply -f {web} --dry-run")));
    let (watch, events) = (node.following("get pods -w"), node.following("events -w"));
    assert_snapshot("apply", &node.success_output(&format!("apply -f {web}")));
    assert_snapshot("wait_ready", &node.success_output("wait pod/web --for=condition=Ready --timeout=30s"));
    watch.until("Running");
    assert_snapshot("apply_unchanged", &node.success_output(&format!("apply -f {web}")));
    let mut changed = pod("web", &sleeper("echo up"));
    changed["metadata"]["labels"]["tier"] = json!("front");
    node.write("web.json", &changed);
    assert_snapshot("apply_configured", &node.success_output(&format!("apply -f {web}")));
    let found = node.success_output("get pods -l tier=front");
    assert!(found.contains("web"), "{found}");
    // Changes that an API server rejects are rejected, with a hint.
    node.write("web.json", &pod("web", &sleeper("echo other")));
    assert_snapshot("apply_refused", &node.masked_output(&format!("apply -f {web}")));
    assert_snapshot("apply_force", &node.success_output(&format!("apply -f {web} --force")));
    node.success_output("wait web --for=jsonpath={.status.phase}=Running");
    assert_snapshot("delete", &node.success_output("delete pod web"));
    watch.until("Terminating");
    let shown = events.until("Killing");
    for word in ["LAST SEEN", "Pulled", "Created", "Started"] {
        assert!(shown.iter().any(|line| line.contains(word)), "{word} is not in {shown:?}");
    }
    assert_snapshot("delete_missing", &node.masked_output("delete web"));
    assert_snapshot("wait_for_what_is_gone", &node.success_output("wait web --for=delete"));
    assert_snapshot("wait_for_nothing", &node.masked_output("wait web --for=condition=Ready"));

    // Static pods can be changed only through their files.
    node.put("static", &sleeper("true"));
    node.wait_status("static", "Running");
    assert_snapshot("delete_static", &node.masked_output("delete static"));
    let clash = node.write("clash.json", &pod("static-node", &sleeper("true")));
    assert_snapshot("apply_taken_name", &node.masked_output(&format!("apply -f {clash}")));
    let invalid = node.write("invalid.json", &pod("Invalid_Name", &json!({"containers": []})));
    assert_snapshot("apply_invalid", &node.masked_output(&format!("apply -f {invalid}")));
    // Unsupported fields cause a warning.
    let mut typo = pod("typo", &sleeper("true"));
    typo["spec"]["hostNetwrk"] = json!(true);
    let typo = node.write("typo.json", &typo);
    assert_snapshot("apply_strict", &node.masked_output(&format!("apply --strict -f {typo}")));
    assert_snapshot("apply_with_warnings", &node.success_output(&format!("apply --validate=warn -f {typo}")));
    node.success_output("wait typo --for=condition=Ready");
    assert_snapshot("get_names", &node.success_output("get pods static typo -o name"));
    assert_snapshot("get_one_of_two", &node.masked_output("get pod/typo nothing -o name"));
    let listed: Value = serde_json::from_slice(&node.run("get pods static typo -o json").stdout).expect("JSON");
    assert_eq!((&listed["kind"], listed["items"].as_array().map(Vec::len)), (&json!("List"), Some(2)));
    assert_snapshot("wait_too_long", &node.masked_output("wait static --for=condition=Never --timeout=1s"));
}

#[test]
fn exec_logs_restart_and_stop_work() {
    let node = LocalNode::start();
    let spec = sleeper("echo started; i=0; while [ $i -lt 3 ]; do echo line $i; i=$((i+1)); done");
    let web = node.write("web.json", &pod("web", &spec));
    node.success_output(&format!("apply -f {web}"));
    node.success_output("wait web --for=condition=Ready");

    assert_snapshot("logs", &node.success_output("logs web"));
    assert_snapshot("logs_tail", &node.success_output("logs web --tail 1 -c c"));
    assert_snapshot("logs_of_no_container", &node.masked_output("logs web -c x"));
    assert_snapshot("exec", &node.masked_output("exec web -- echo hello"));
    assert_snapshot("exec_fails", &node.masked_output("exec web -- false"));
    assert_snapshot("exec_no_container", &node.masked_output("exec web -c x -- true"));
    assert!(
        node.masked_output("exec web -- /no/such").contains("[exit code 12"),
        "{}",
        node.masked_output("exec web -- /no/such")
    );
    // A closed stdin reaches the command, and a large output is complete.
    let many = "0123456789abcdef".repeat(1 << 15);
    assert_eq!(node.with_input("exec -i web -- cat", many.as_bytes()), (Some(0), many));

    let mut shell = Pty::start(node.command(&Agent::program().expect("built"), "exec -it web -- sh"));
    // The size follows the start of the command: no runtime promises that it is there before the first line runs.
    shell.press("while [ \"$(stty size)\" = \"0 0\" ]; do sleep 0.1; done; stty size; tty; exit 7\r");
    let screen = shell.until("40 100");
    assert!(screen.contains("stty size"), "keys are shown: {screen:?}");
    shell.until("/dev/pts/");
    assert_eq!(shell.end().code(), Some(7));

    // Restarted in place: same sandbox, the old log is the previous log.
    let ip = |node: &LocalNode| node.success_output("get pods web -o wide");
    let before = ip(&node);
    assert_snapshot("restart", &node.success_output("restart web"));
    node.success_output("wait web --for=jsonpath={.status.containerStatuses[0].restartCount}=1");
    node.success_output("wait web --for=condition=Ready");
    let after = ip(&node);
    assert!(after.contains("1 ("), "one restart: {before} {after}");
    assert_snapshot("logs_previous", &node.success_output("logs web --previous --tail 1"));

    let numbers = node.agent.get("/metrics").expect("answered").body;
    for line in [
        "kubelet_running_pods 1",
        "kubelet_desired_pods{static=\"true\"} 1",
        "kubelet_started_containers_total{container_type=\"container\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_pod_start_duration_seconds_count 1",
    ] {
        assert!(numbers.lines().any(|found| found == line), "{line} is not in\n{numbers}");
    }

    // Stopped pods stay terminated; a static pod is started as a new instance by `restart`.
    node.put("static", &sleeper("true"));
    node.wait_status("static", "Running");
    let stopped = node.success_output("stop --all");
    assert!(stopped.contains("pod/web stopped") && stopped.contains("pod/static-node stopped"), "{stopped}");
    let explained = node.success_output("explain static");
    assert!(explained.contains("stopped by a user"), "{explained}");
    // The next command finds the new instance, although there is no pod while it replaces the other.
    node.success_output("restart static");
    node.success_output("wait static --for=condition=Ready");
    // The same for an applied pod: it is created again with a new UID.
    let uid = |node: &LocalNode| {
        node.success_output("get pod/web -o yaml").lines().find(|line| line.contains("uid: ")).map(str::to_owned)
    };
    let before = uid(&node);
    assert_snapshot("restart_of_what_has_ended", &node.success_output("restart web"));
    node.success_output("wait web --for=condition=Ready");
    assert_ne!(uid(&node), before);
    let explained = node.success_output("explain web");
    assert_eq!(explained.matches("Pod default/web ").count(), 2, "both instances are shown: {explained}");
    node.success_output("delete web --now");
}

#[test]
fn watches_continue_after_a_restart_of_the_agent() {
    let mut node = LocalNode::start();
    let web = node.write("web.json", &pod("web", &sleeper("true")));
    node.success_output(&format!("apply -f {web}"));
    let (watch, events) = (node.following("get pods -w"), node.following("events -w"));
    let waiting = node.following("wait web --for=delete --timeout=100s");
    watch.until("Running");
    events.until("Started");
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    // After reconnecting, a watch first lists what exists; only then follow changes.
    let second = node.write("second.json", &pod("second", &sleeper("true")));
    node.success_output(&format!("apply -f {second}"));
    watch.until("second");
    events.until("pod/second");
    node.success_output("delete web");
    watch.until("Terminating");
    events.until("Killing");
    waiting.until("web");
}

#[test]
fn a_log_is_followed_across_its_rotation_to_its_end() {
    let node = LocalNode::configured(
        json!({"containerLogMaxSize": "64Ki", "containerLogMaxFiles": 5, "containerLogMonitorInterval": "3s"}),
    );
    let script = "i=0; while [ $i -lt 6000 ]; do echo line-$i-of-a-log-that-grows-and-grows; i=$((i+1)); \
                  [ $((i % 100)) = 0 ] && sleep 0.15; done";
    let spec = json!({"restartPolicy": "Never", "containers": [sh("c", script)]});
    let file = node.write("writer.json", &pod("writer", &spec));
    node.success_output(&format!("apply -f {file}"));
    node.success_output("wait writer --for=jsonpath={.status.phase}=Running");
    let log = node.following("logs -f writer");
    let lines = log.until("line-5999-");
    for (number, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("line-{number}-")), "line {number} is {line}");
    }
    // The container has terminated, so the follower ends.
    let mut child = log;
    wait_until(LIMIT, "the follower to end", || {
        ensure!(child.child.try_wait()?.is_some(), "it follows on");
        Ok(())
    });
    let rotated = std::fs::read_dir(node.scratch.pod_logs().expect("there")).expect("read").flatten();
    let mut files = rotated.flat_map(|pod| std::fs::read_dir(pod.path().join("c"))).flatten().flatten();
    assert!(files.any(|file| file.file_name().to_string_lossy().contains(".log.")), "nothing was rotated");
}
