//! The verbs that change something or go on for a while, each as a person types it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use anyhow::ensure;
use podwright_testbed::{Agent, wait_until};
use serde_json::{Value, json};

use super::pty::Pty;
use super::{Bed, LIMIT, pod, sh};

/// A command whose lines are read as they come.
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

    /// Read on until a line has this word.
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

/// Ends at once when asked to.
fn sleeper(script: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 5,
           "containers": [sh("c", &format!("trap 'exit 0' TERM; {script}; while :; do sleep 0.1; done"))]})
}

impl Bed {
    fn write(&self, name: &str, object: &Value) -> String {
        let file = self.scratch.path().join(name);
        std::fs::write(&file, object.to_string()).expect("written");
        file.display().to_string()
    }

    /// Succeeds, and says this.
    fn says(&self, line: &str) -> String {
        let said = self.said(line);
        assert!(!said.contains("[exit code"), "{said}");
        said
    }

    fn following(&self, line: &str) -> Following {
        Following::start(self.command(&Agent::program().expect("built"), line))
    }

    fn with_input(&self, line: &str, input: &[u8]) -> (Option<i32>, String) {
        let mut command = self.command(&Agent::program().expect("built"), line);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("piped").write_all(input).expect("taken");
        let output = child.wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn pods_are_applied_watched_changed_and_deleted() {
    let bed = Bed::start();
    let web = bed.write("web.json", &pod("web", &sleeper("echo up")));
    insta::assert_snapshot!("apply_dry_run", bed.said(&format!("apply -f {web} --dry-run")));
    let (watch, events) = (bed.following("get pods -w"), bed.following("events -w"));
    insta::assert_snapshot!("apply", bed.says(&format!("apply -f {web}")));
    insta::assert_snapshot!("wait_ready", bed.says("wait pod/web --for=condition=Ready --timeout=30s"));
    watch.until("Running");
    insta::assert_snapshot!("apply_unchanged", bed.says(&format!("apply -f {web}")));
    let mut changed = pod("web", &sleeper("echo up"));
    changed["metadata"]["labels"]["tier"] = json!("front");
    bed.write("web.json", &changed);
    insta::assert_snapshot!("apply_configured", bed.says(&format!("apply -f {web}")));
    let found = bed.says("get pods -l tier=front");
    assert!(found.contains("web"), "{found}");
    // What an API server would refuse is refused, with the way out.
    bed.write("web.json", &pod("web", &sleeper("echo other")));
    insta::assert_snapshot!("apply_refused", bed.said(&format!("apply -f {web}")));
    insta::assert_snapshot!("apply_force", bed.says(&format!("apply -f {web} --force")));
    bed.says("wait web --for=jsonpath={.status.phase}=Running");
    insta::assert_snapshot!("delete", bed.says("delete pod web"));
    watch.until("Terminating");
    let told = events.until("Killing");
    for word in ["LAST SEEN", "Pulled", "Created", "Started"] {
        assert!(told.iter().any(|line| line.contains(word)), "{word} is not in {told:?}");
    }
    insta::assert_snapshot!("delete_missing", bed.said("delete web"));
    insta::assert_snapshot!("wait_for_what_is_gone", bed.says("wait web --for=delete"));
    insta::assert_snapshot!("wait_for_nothing", bed.said("wait web --for=condition=Ready"));

    // Pods of files belong to their files.
    bed.put("static", &sleeper("true"));
    bed.wait_status("static", "Running");
    insta::assert_snapshot!("delete_static", bed.said("delete static"));
    let clash = bed.write("clash.json", &pod("static-node", &sleeper("true")));
    insta::assert_snapshot!("apply_taken_name", bed.said(&format!("apply -f {clash}")));
    let invalid = bed.write("invalid.json", &pod("Invalid_Name", &json!({"containers": []})));
    insta::assert_snapshot!("apply_invalid", bed.said(&format!("apply -f {invalid}")));
    // A field that does nothing is never passed over in silence.
    let mut typo = pod("typo", &sleeper("true"));
    typo["spec"]["hostNetwrk"] = json!(true);
    let typo = bed.write("typo.json", &typo);
    insta::assert_snapshot!("apply_strict", bed.said(&format!("apply --strict -f {typo}")));
    insta::assert_snapshot!("apply_with_warnings", bed.says(&format!("apply -f {typo}")));
    bed.says("wait typo --for=condition=Ready");
    insta::assert_snapshot!("get_names", bed.says("get pods static typo -o name"));
    insta::assert_snapshot!("get_one_of_two", bed.said("get pod/typo nothing -o name"));
    let listed: Value = serde_json::from_slice(&bed.run("get pods static typo -o json").stdout).expect("JSON");
    assert_eq!((&listed["kind"], listed["items"].as_array().map(Vec::len)), (&json!("List"), Some(2)));
    insta::assert_snapshot!("wait_too_long", bed.said("wait static --for=condition=Never --timeout=1s"));
}

#[test]
fn containers_are_entered_read_restarted_and_stopped() {
    let bed = Bed::start();
    let spec = sleeper("echo started; i=0; while [ $i -lt 3 ]; do echo line $i; i=$((i+1)); done");
    let web = bed.write("web.json", &pod("web", &spec));
    bed.says(&format!("apply -f {web}"));
    bed.says("wait web --for=condition=Ready");

    insta::assert_snapshot!("logs", bed.says("logs web"));
    insta::assert_snapshot!("logs_tail", bed.says("logs web --tail 1 -c c"));
    insta::assert_snapshot!("logs_of_no_container", bed.said("logs web -c x"));
    insta::assert_snapshot!("exec", bed.said("exec web -- echo hello"));
    insta::assert_snapshot!("exec_fails", bed.said("exec web -- false"));
    insta::assert_snapshot!("exec_no_container", bed.said("exec web -c x -- true"));
    assert!(bed.said("exec web -- /no/such").contains("[exit code 12"), "{}", bed.said("exec web -- /no/such"));
    // A closed stdin reaches the command, and many bytes come back whole.
    let many = "0123456789abcdef".repeat(1 << 15);
    assert_eq!(bed.with_input("exec -i web -- cat", many.as_bytes()), (Some(0), many));

    let mut shell = Pty::start(bed.command(&Agent::program().expect("built"), "exec -it web -- sh"));
    shell.press("stty size; tty; exit 7\r");
    let screen = shell.until("40 100");
    assert!(screen.contains("stty size"), "keys are shown: {screen:?}");
    shell.until("/dev/pts/");
    assert_eq!(shell.end().code(), Some(7));

    // Restarted in place: same sandbox, the old log is the previous one.
    let ip = |bed: &Bed| bed.says("get pods web -o wide");
    let before = ip(&bed);
    insta::assert_snapshot!("restart", bed.says("restart web"));
    bed.says("wait web --for=jsonpath={.status.containerStatuses[0].restartCount}=1");
    bed.says("wait web --for=condition=Ready");
    let after = ip(&bed);
    assert!(after.contains("1 ("), "one restart: {before} {after}");
    insta::assert_snapshot!("logs_previous", bed.says("logs web --previous --tail 1"));

    let numbers = bed.agent.get("/metrics").expect("answered").body;
    for line in [
        "kubelet_running_pods 1",
        "kubelet_desired_pods{static=\"true\"} 1",
        "kubelet_started_containers_total{container_type=\"container\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_pod_start_duration_seconds_count 1",
    ] {
        assert!(numbers.lines().any(|found| found == line), "{line} is not in\n{numbers}");
    }

    // Stopped, all stay ended; a pod of a file gets a new life when a person wants it.
    bed.put("static", &sleeper("true"));
    bed.wait_status("static", "Running");
    let stopped = bed.says("stop --all");
    assert!(stopped.contains("pod/web stopped") && stopped.contains("pod/static-node stopped"), "{stopped}");
    let explained = bed.says("explain static");
    assert!(explained.contains("a person stopped it"), "{explained}");
    bed.says("restart static");
    bed.says("wait static --for=condition=Ready");
    // So does one that was applied: the same pod anew, under a UID of its own.
    let uid =
        |bed: &Bed| bed.says("get pod/web -o yaml").lines().find(|line| line.contains("uid: ")).map(str::to_owned);
    let before = uid(&bed);
    insta::assert_snapshot!("restart_of_what_has_ended", bed.says("restart web"));
    bed.says("wait web --for=condition=Ready");
    assert_ne!(uid(&bed), before);
    let explained = bed.says("explain web");
    assert_eq!(explained.matches("Pod default/web ").count(), 2, "both lives are told: {explained}");
    bed.says("delete web --now");
}

#[test]
fn whoever_watches_goes_on_when_the_agent_is_started_anew() {
    let mut bed = Bed::start();
    let web = bed.write("web.json", &pod("web", &sleeper("true")));
    bed.says(&format!("apply -f {web}"));
    let (watch, events) = (bed.following("get pods -w"), bed.following("events -w"));
    let waiting = bed.following("wait web --for=delete --timeout=100s");
    watch.until("Running");
    events.until("Started");
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started again");
    // What stays is seen by whoever comes back, however late; only then what goes by.
    let second = bed.write("second.json", &pod("second", &sleeper("true")));
    bed.says(&format!("apply -f {second}"));
    watch.until("second");
    events.until("pod/second");
    bed.says("delete web");
    watch.until("Terminating");
    events.until("Killing");
    waiting.until("web");
}

#[test]
fn a_log_is_followed_across_its_rotation_to_its_end() {
    let bed = Bed::configured(
        json!({"containerLogMaxSize": "64Ki", "containerLogMaxFiles": 5, "containerLogMonitorInterval": "3s"}),
    );
    let script = "i=0; while [ $i -lt 6000 ]; do echo line-$i-of-a-log-that-grows-and-grows; i=$((i+1)); \
                  [ $((i % 100)) = 0 ] && sleep 0.15; done";
    let spec = json!({"restartPolicy": "Never", "containers": [sh("c", script)]});
    let file = bed.write("writer.json", &pod("writer", &spec));
    bed.says(&format!("apply -f {file}"));
    bed.says("wait writer --for=jsonpath={.status.phase}=Running");
    let log = bed.following("logs -f writer");
    let lines = log.until("line-5999-");
    for (number, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("line-{number}-")), "line {number} is {line}");
    }
    // The container has ended, so the follower does too.
    let mut child = log;
    wait_until(LIMIT, "the follower to end", || {
        ensure!(child.child.try_wait()?.is_some(), "it follows on");
        Ok(())
    });
    let rotated = std::fs::read_dir(bed.scratch.pod_logs().expect("there")).expect("read").flatten();
    let mut files = rotated.flat_map(|pod| std::fs::read_dir(pod.path().join("c"))).flatten().flatten();
    assert!(files.any(|file| file.file_name().to_string_lossy().contains(".log.")), "nothing was rotated");
}
