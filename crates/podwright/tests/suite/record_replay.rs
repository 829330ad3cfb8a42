//! A run with faults is recorded, and the replay makes identical decisions.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime};
use serde_json::json;

use super::{TestNode, container, container_id, cri, one, sh, sleeper};

pub(crate) fn a_recorded_run_with_faults_replays_identically(flavor: Flavor, seconds: u64) {
    let scratch = Scratch::new().expect("a scratch");
    let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
    let recording = scratch.path().join("recording");
    let agent = Agent::new(&scratch).runtime(&runtime).arg("--record").arg(&recording).start().expect("it starts");
    let mut node = TestNode { scratch, runtime, agent };
    fill(&node);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < end {
        inject_fault(&mut node, rounds);
        rounds += 1;
    }
    // Recordings are bounded: only the newest pod is certainly in them from its start.
    let newest = format!("p{rounds}");
    node.put(&newest, &one(&sleeper("c")));
    node.wait_phase(&newest, "Running");
    node.remove_all();
    node.wait_nothing_left();
    assert!(node.agent.sigterm().expect("it ends").success());

    let parts = parts(&recording);
    assert!(parts.len() >= 2, "each kill of the agent starts a new part: {parts:?}");
    let mut steps = 0;
    for part in &parts {
        let message = replay(part, &["-q"]);
        let text = String::from_utf8_lossy(&message.stdout).into_owned();
        assert!(message.status.success(), "{}: {text}{}", part.display(), String::from_utf8_lossy(&message.stderr));
        let count = text.lines().rev().find_map(|line| line.strip_suffix(" steps, all decisions are the same"));
        steps += count.unwrap_or_else(|| panic!("{text}")).parse::<u64>().expect("a number");
    }
    println!("{} parts, {steps} steps", parts.len());
    assert!(steps > 300, "{steps}");
    replay_can_show_one_pod(&parts, &newest);
    let made = |part: &&PathBuf| std::fs::read_to_string(part).is_ok_and(|text| text.contains(SANDBOX));
    let part = parts.iter().find(made).expect("a part with the creation of a sandbox");
    altered_recordings_are_rejected(part, &node.scratch.path().join("altered"));
}

fn fill(node: &TestNode) {
    let mut crash = one(&sh("c", "sleep 0.5; exit 3"));
    crash["initContainers"] = json!([sh("i", "true")]);
    let mut probed = sleeper("c");
    probed["livenessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 3});
    let absent = json!({"name": "c", "image": "127.0.0.1:1/no/such:1"});
    for (name, spec) in [("crash", crash), ("probed", one(&probed)), ("absent", one(&absent))] {
        node.put(name, &spec);
    }
}

/// A different fault in each round.
fn inject_fault(node: &mut TestNode, round: u64) {
    let name = format!("p{round}");
    node.put(&name, &one(&sleeper("c")));
    let pod = node.wait_phase(&name, "Running");
    match round % 5 {
        0 | 3 => cri::kill(node, &container_id(container(&pod, "c"))),
        1 => node.put(&name, &json!("broken")),
        2 => {
            node.agent.kill9().expect("killed");
            node.agent.start_again().expect("started again");
        }
        _ => {
            node.runtime.kill9().expect("killed");
            std::thread::sleep(Duration::from_millis(500));
            node.runtime.start_again().expect("started again");
        }
    }
    if round > 0 {
        node.remove(&format!("p{}", round - 1));
    }
    std::thread::sleep(Duration::from_millis(700));
}

/// The parts of the recording, newest first.
fn parts(recording: &Path) -> Vec<PathBuf> {
    let older = (1..).map(|n| PathBuf::from(format!("{}.{n}", recording.display()))).take_while(|part| part.exists());
    [recording.to_owned()].into_iter().chain(older).collect()
}

fn replay(part: &Path, more: &[&str]) -> Output {
    let program = Agent::program().expect("built");
    Command::new(program).arg("replay").arg(part).args(more).output().expect("it runs")
}

fn replay_can_show_one_pod(parts: &[PathBuf], name: &str) {
    let replayed = |more: &[&str]| -> String {
        parts.iter().map(|part| String::from_utf8_lossy(&replay(part, more).stdout).into_owned()).collect()
    };
    let of_one = replayed(&["--pod", name]);
    for words in [&format!("default/{name}-node: CreateContainer c"), "all decisions are the same"] {
        assert!(of_one.contains(words), "{words} is missing");
    }
    // A step that concerns several pods is shown for each of them; steps of other pods are not.
    let (one, all) = (of_one.lines().count(), replayed(&[]).lines().count());
    assert!(one < all, "{one} lines of {all}");
}

/// The text of a recorded response that a sandbox was created.
const SANDBOX: &str = "\"Sandbox\":\"";

fn altered_recordings_are_rejected(part: &Path, altered: &Path) {
    let text = std::fs::read_to_string(part).expect("read");
    let core = text.split("\"core\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a version");
    std::fs::write(altered, text.replacen(core, "0.0.1+other", 1)).expect("written");
    let message = replay(altered, &[]);
    let error = String::from_utf8_lossy(&message.stderr).into_owned();
    assert!(message.status.code() == Some(1) && error.contains("0.0.1+other") && error.contains(core), "{error}");

    // With one response changed, the replay finds the first decision that differs because of it.
    let line = text.lines().find(|line| line.contains(SANDBOX)).expect("a line with the creation of a sandbox");
    let other = line.replace(SANDBOX, &format!("{SANDBOX}other"));
    std::fs::write(altered, text.replacen(line, &other, 1)).expect("written");
    let message = replay(altered, &["-q"]);
    let text = String::from_utf8_lossy(&message.stdout).into_owned();
    assert!(message.status.code() == Some(1) && text.contains(" differs: recorded"), "{text}");
}
