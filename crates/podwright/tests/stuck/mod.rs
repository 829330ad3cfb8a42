//! The ways in which pods get stuck: `explain` names the cause and what to do in its first three lines, at each moment of a loop.
//!
//! `snapshots/stuck_transcript.snap` is what a user reads.

mod registry;
mod ways;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use podwright_testbed::{Agent, HungMount, Scratch, TestRuntime, wait_until};
use serde_json::{Value, json};

use crate::cli::mask;
use crate::cli::pty::Pty;
use crate::fixture::{LIMIT, LocalNode};
use registry::FailingRegistry;
use ways::{Way, pod_of, sh};

/// Lines in which cause and remedy must be.
const LINES: usize = 3;
/// Looks at each loop, from its first exit on.
const MOMENTS: usize = 20;
/// Restarts that each loop must have had.
const RESTARTS: u64 = 3;

#[test]
fn explain_begins_with_cause_and_remedy_of_every_way_to_get_stuck() {
    // Loops take a second, so that many of their moments are seen.
    let node = LocalNode::configured(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}}));
    let hung = HungMount::new(&node.scratch.path().join("hung")).expect("mounted");
    let registry = FailingRegistry::start();
    let mut transcript = Transcript { text: String::new(), registry: registry.address().to_owned() };
    node.put("port-owner", &pod_of(&json!({"ports": [{"containerPort": 80, "hostPort": 38081}]})));
    node.wait_status("port-owner", "Running");

    let all = [
        ways::images(&registry),
        ways::starts(),
        ways::probes(),
        ways::ends(),
        ways::rejections(),
        ways::volumes(&hung.point().join("x")),
    ];
    let all: Vec<Way> = all.into_iter().flatten().collect();
    for way in &all {
        node.put(way.name, &way.spec);
    }
    let requested = requested_ends(&node);
    watch_loops(&node, &all);
    for way in all.iter().chain(&requested) {
        transcript.add(&node, way);
    }
    for way in &unusable_manifests(&node) {
        transcript.add(&node, way);
    }
    times_and_width(&node);
    drop(hung);
    let ways = transcript.text.matches("$ podwright").count();
    assert!(ways >= 40, "{ways} ways");
    transcript.compare("stuck_transcript");
}

#[test]
fn a_runtime_without_network_and_a_lost_one_are_named_and_logged() {
    let mut transcript = Transcript { text: String::new(), registry: "none".to_owned() };
    without_network_and_runtime(&mut transcript);
    transcript.compare("stuck_transcript_of_the_runtime");
}

/// The first lines of each explanation.
struct Transcript {
    text: String,
    registry: String,
}

impl Transcript {
    fn compare(&self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.bind(|| insta::assert_snapshot!(name, self.text));
    }

    /// Waits until the first lines have the expected texts.
    fn add(&mut self, node: &LocalNode, way: &Way) {
        let lines = wait_until(LIMIT, &format!("the explanation of {}", way.name), || {
            let lines = first_lines(node, way.name);
            check(way, &lines)?;
            Ok::<_, anyhow::Error>(lines)
        });
        let masked = mask::all(&lines.join("\n"), &node.scratch.path()).replace(&self.registry, "<registry>");
        let mut lines = masked.lines().map(str::to_owned);
        let first = lines.next().map(|line| without_counts(&line)).unwrap_or_default();
        // Of an error, the line of the manifest: which others are listed depends on the moment.
        let shown = if first.starts_with("podwright: ") { 1 } else { LINES };
        let rest: Vec<String> = lines.take(shown).collect();
        self.text.push_str(&format!("$ podwright explain {}\n{first}\n{}\n\n", way.name, rest.join("\n")));
    }
}

fn first_lines(node: &LocalNode, name: &str) -> Vec<String> {
    let output = node.run(&format!("explain {name} --utc"));
    let text = if output.status.success() { output.stdout } else { output.stderr };
    String::from_utf8_lossy(&text).lines().take(LINES).map(str::to_owned).collect()
}

fn check(way: &Way, lines: &[String]) -> Result<()> {
    let (first, rest) = lines.split_first().map(|(first, rest)| (first.as_str(), rest)).unwrap_or_default();
    let rest: Vec<&str> = rest.iter().map(|line| line.trim()).collect();
    let rest = rest.join(" ");
    for part in way.cause {
        ensure!(first.contains(part), "{}: no {part:?} in {first:?}", way.name);
    }
    ensure!(rest.contains(way.remedy), "{}: no {:?} in {lines:?}", way.name, way.remedy);
    Ok(())
}

/// How often a container ended, and when it is started next, depends on the moment.
fn without_counts(line: &str) -> String {
    if let Some((begin, _)) = line.split_once(" hangs: ") {
        return format!("{begin} hangs: <calls>");
    }
    let often = [", once,", ", twice,", " times,"].iter().find_map(|text| line.find(text));
    let Some(at) = often else { return line.to_owned() };
    line[..line[..=at].rfind(',').unwrap_or(at)].to_owned()
}

/// From its first exit on, each look at a loop finds the cause.
fn watch_loops(node: &LocalNode, ways: &[Way]) {
    let mut loops: Vec<(&Way, usize)> = ways.iter().filter(|way| way.is_loop).map(|way| (way, 0)).collect();
    wait_until(LIMIT, "all moments of the loops", || {
        for (way, moments) in &mut loops {
            let output = String::from_utf8_lossy(&node.run(&format!("explain {} --utc", way.name)).stdout).into_owned();
            if output.contains("exited with code") {
                let lines: Vec<String> = output.lines().take(LINES).map(str::to_owned).collect();
                check(way, &lines).unwrap_or_else(|error| panic!("{error}\n{output}"));
                *moments += 1;
            }
        }
        for (way, moments) in &loops {
            let query = format!("get pods {} -o json", way.name);
            let pod: Value = serde_json::from_slice(&node.run(&query).stdout)?;
            let statuses = ["initContainerStatuses", "containerStatuses"].map(|field| pod["status"][field].clone());
            let restarts = statuses.iter().flat_map(|list| list.as_array().cloned().unwrap_or_default());
            let restarts = restarts.filter_map(|status| status["restartCount"].as_u64()).max().unwrap_or_default();
            let is_seen = *moments >= MOMENTS && restarts >= RESTARTS;
            ensure!(is_seen, "{}: {moments} moments, {restarts} restarts", way.name);
        }
        Ok(())
    });
}

fn way(name: &'static str, cause: &'static [&'static str], remedy: &'static str) -> Way {
    Way { name, spec: Value::Null, cause, remedy, is_loop: false }
}

/// Pods that run, and whose end was requested.
fn requested_ends(node: &LocalNode) -> Vec<Way> {
    let mut hook = pod_of(&json!({"lifecycle": {"preStop": {"exec": {"command": ["sleep", "3600"]}}}}));
    hook["terminationGracePeriodSeconds"] = json!(600);
    let stubborn = json!({"terminationGracePeriodSeconds": 600,
                          "containers": [sh("c", "trap : TERM; while :; do sleep 0.1; done")]});
    node.put("pre-stop", &hook);
    node.put("replaced", &hook);
    node.put("ignores-term", &stubborn);
    node.put("stopped", &pod_of(&json!({})));
    for name in ["pre-stop", "replaced", "ignores-term", "stopped"] {
        node.wait_status(name, "Running");
    }
    node.scratch.remove_manifest("pre-stop.json").expect("removed");
    node.scratch.remove_manifest("ignores-term.json").expect("removed");
    node.put("replaced", &pod_of(&json!({})));
    assert!(node.run("stop stopped").status.success());
    vec![
        way(
            "pre-stop",
            &["is terminating: the preStop hook of c runs, killed in"],
            "`podwright stop POD --grace-period 1`",
        ),
        way("ignores-term", &["is terminating: ", "still running: c, killed in"], "ignores SIGTERM"),
        way("replaced", &["is waiting: ", "the pod of the same name"], "The pod starts when the previous pod"),
        way("stopped", &["has terminated: stopped by a user"], "`podwright start` starts it again"),
    ]
}

/// Manifests of which no pod is made: the file is named.
fn unusable_manifests(node: &LocalNode) -> Vec<Way> {
    let reference = json!([{"configMapRef": {"name": "settings"}}]);
    node.put("env-reference", &pod_of(&json!({"envFrom": reference})));
    let mut secret = pod_of(&json!({}));
    secret["volumes"] = json!([{"name": "data", "secret": {"secretName": "password"}}]);
    node.put("secret-volume", &secret);
    let file = node.scratch.manifests().expect("there").join("no-yaml.yaml");
    std::fs::write(file, "kind: Pod\n  oops: [").expect("written");
    vec![
        way("env-reference", &["\"env-reference\" not found; these manifests can't be used"], "env-reference.json: "),
        way("secret-volume", &["\"secret-volume\" not found; these manifests can't be used"], "secret-volume.json: "),
        way("no-yaml", &["\"no-yaml\" not found; these manifests can't be used"], "no-yaml.yaml: "),
    ]
}

/// Times are those of the time zone, and lines have the width of the terminal.
fn times_and_width(node: &LocalNode) {
    let explained = |zone: &str, line: &str| {
        let mut command = node.command(&Agent::program().expect("built"), line);
        String::from_utf8_lossy(&command.env("TZ", zone).output().expect("it runs").stdout).into_owned()
    };
    let first_hour = |text: &str| {
        let line = text.lines().skip_while(|line| !line.starts_with("What happened")).nth(1).unwrap_or_default();
        line.split([' ', ':']).filter(|word| !word.is_empty()).nth(1).and_then(|hour| hour.parse::<u32>().ok())
    };
    let (utc, local) = (explained("JST-9", "explain stopped --utc"), explained("JST-9", "explain stopped"));
    assert!(utc.contains("What happened (UTC)") && local.contains("What happened (local time)"), "{utc}{local}");
    assert_eq!(first_hour(&utc).map(|hour| (hour + 9) % 24), first_hour(&local), "{utc}{local}");

    let mut terminal = Pty::start(node.command(&Agent::program().expect("built"), "explain pull-refused"));
    let screen = terminal.until("What it waits for");
    let wide = screen.lines().find(|line| line.trim_end().trim_start_matches("\u{1b}[1m").chars().count() > 104);
    assert_eq!(wide, None, "{screen}");
}

/// A runtime of its own, which is killed at the end.
struct OtherRuntime(Child);

impl OtherRuntime {
    /// An engine that is another process, with a directory of CNI configurations that is empty. Its images are in the root directory.
    fn start(scratch: &Scratch) -> Self {
        let (socket, cgroup) = (Self::socket(scratch), scratch.name());
        let mut engine = Command::new(Agent::program().expect("built"));
        engine.arg("engine").arg("--root-dir").arg(scratch.root_dir().expect("there"));
        engine.arg("--run-dir").arg(scratch.dir("other-run").expect("made"));
        engine.arg("--cni-conf-dir").arg(scratch.dir("cni").expect("made"));
        engine.args(["--listen", &format!("unix://{}", socket.display())]);
        engine.args(["--shim-cgroup", &format!("/{cgroup}/shims"), "--pod-cgroup", &format!("/{cgroup}")]);
        Self(engine.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started"))
    }

    fn socket(scratch: &Scratch) -> PathBuf {
        scratch.path().join("other.sock")
    }
}

impl Drop for OtherRuntime {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The runtime has no network, is lost, and comes back.
fn without_network_and_runtime(transcript: &mut Transcript) {
    let scratch = Scratch::new().expect("a scratch");
    let runtime = TestRuntime::start(&scratch, crate::FLAVOR).expect("prepared");
    let (engine, socket) = (OtherRuntime::start(&scratch), OtherRuntime::socket(&scratch));
    wait_until(LIMIT, "the engine", || {
        ensure!(socket.exists(), "no socket");
        Ok(())
    });
    let agent = Agent::new(&scratch).endpoint(&format!("unix://{}", socket.display())).start().expect("started");
    let mut node = LocalNode { scratch, runtime, agent };
    node.put("no-network", &pod_of(&json!({})));
    transcript.add(
        &node,
        &way("no-network", &["cannot start: the runtime has no network for pods yet"], "install a CNI configuration"),
    );
    shows(&node, "status", "Pod network\n  not ready: ");
    drop(engine);
    let cause = &["cannot be observed: the container runtime does not respond"];
    transcript.add(&node, &way("no-network", cause, "Check that the container runtime is running"));
    shows(&node, "get pods", "The container runtime does not respond");
    shows(&node, "status", "Container runtime\n  does not respond");
    assert!(node.agent.log().contains("container runtime does not respond"), "{}", node.agent.log());
    let before = node.agent.log().len();
    let _engine = OtherRuntime::start(&node.scratch);
    shows(&node, "status", "Container runtime\n  responds");
    assert!(node.agent.log()[before..].contains("container runtime responds"), "{}", node.agent.log());

    std::fs::remove_dir_all(node.scratch.manifests().expect("there")).expect("removed");
    node.agent.sigterm().expect("it ends");
    node.agent.launch_again().expect("started again");
    wait_until(LIMIT, "the missing directory to be named", || {
        ensure!(node.agent.log().contains("manifest path does not exist"), "{}", node.agent.log());
        Ok(())
    });
}

/// Waits until a command prints this text.
fn shows(node: &LocalNode, line: &str, text: &str) {
    wait_until(LIMIT, &format!("{text:?} of {line}"), || {
        let output = node.run(line);
        let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        ensure!(shown.contains(text), "{shown}");
        Ok(())
    });
}
