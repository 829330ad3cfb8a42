//! A run with faults is recorded, and decided again bit for bit from the recording.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use podwright_testbed::{Agent, Containerd, Flavor, Scratch};
use serde_json::json;

use super::{Bed, container, one, sh, sleeper};

pub(crate) fn a_run_with_faults_is_recorded_and_replayed_bit_for_bit(flavor: Flavor, seconds: u64) {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
    let flight = scratch.path().join("flight");
    let agent = Agent::new(&scratch).runtime(&containerd).arg("--record").arg(&flight).start().expect("it starts");
    let mut bed = Bed { scratch, containerd, agent };
    fill(&bed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < end {
        trouble(&mut bed, rounds);
        rounds += 1;
    }
    // Recordings are bounded: only the newest pod is sure to be in them from its beginning.
    let newest = format!("p{rounds}");
    bed.put(&newest, &one(&sleeper("c")));
    bed.wait_phase(&newest, "Running");
    bed.remove_all();
    bed.wait_nothing_left();
    assert!(bed.agent.sigterm().expect("it ends").success());

    let parts = parts(&flight);
    assert!(parts.len() >= 2, "the agent was killed in between: {parts:?}");
    let mut steps = 0;
    for part in &parts {
        let said = replay(part, &["-q"]);
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.status.success(), "{}: {text}{}", part.display(), String::from_utf8_lossy(&said.stderr));
        let count = text.lines().rev().find_map(|line| line.strip_suffix(" steps, all decisions are the same"));
        steps += count.unwrap_or_else(|| panic!("{text}")).parse::<u64>().expect("a number");
    }
    println!("{} parts, {steps} steps", parts.len());
    assert!(steps > 300, "{steps}");
    one_pod_is_followed(&parts, &newest);
    let made = |part: &&PathBuf| std::fs::read_to_string(part).is_ok_and(|text| text.contains(SANDBOX));
    let part = parts.iter().find(made).expect("a sandbox was made in one of them");
    others_are_refused(part, &bed.scratch.path().join("altered"));
}

fn fill(bed: &Bed) {
    let mut crash = one(&sh("c", "sleep 0.5; exit 3"));
    crash["initContainers"] = json!([sh("i", "true")]);
    let mut probed = sleeper("c");
    probed["livenessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 3});
    let absent = json!({"name": "c", "image": "127.0.0.1:1/no/such:1"});
    for (name, spec) in [("crash", crash), ("probed", one(&probed)), ("absent", one(&absent))] {
        bed.put(name, &spec);
    }
}

/// Something else goes wrong each round.
fn trouble(bed: &mut Bed, round: u64) {
    let name = format!("p{round}");
    bed.put(&name, &one(&sleeper("c")));
    let pod = bed.wait_phase(&name, "Running");
    match round % 5 {
        0 | 3 => {
            let id =
                container(&pod, "c")["containerID"].as_str().unwrap_or_default().rsplit('/').next().map(str::to_owned);
            bed.containerd.ctr(&["tasks", "kill", "-s", "KILL", &id.expect("an id")]).expect("killed");
        }
        1 => bed.put(&name, &json!("broken")),
        2 => {
            bed.agent.kill9().expect("killed");
            bed.agent.start_again().expect("started again");
        }
        _ => {
            bed.containerd.kill9().expect("killed");
            std::thread::sleep(Duration::from_millis(500));
            bed.containerd.start_again().expect("started again");
        }
    }
    if round > 0 {
        bed.remove(&format!("p{}", round - 1));
    }
    std::thread::sleep(Duration::from_millis(700));
}

/// The newest first.
fn parts(flight: &Path) -> Vec<PathBuf> {
    let older = (1..).map(|n| PathBuf::from(format!("{}.{n}", flight.display()))).take_while(|part| part.exists());
    [flight.to_owned()].into_iter().chain(older).collect()
}

fn replay(part: &Path, more: &[&str]) -> Output {
    let program = Agent::program().expect("built");
    Command::new(program).arg("replay").arg(part).args(more).output().expect("it runs")
}

fn one_pod_is_followed(parts: &[PathBuf], name: &str) {
    let told = |more: &[&str]| -> String {
        parts.iter().map(|part| String::from_utf8_lossy(&replay(part, more).stdout).into_owned()).collect()
    };
    let of_one = told(&["--pod", name]);
    for words in [&format!("default/{name}-node: CreateContainer c"), "all decisions are the same"] {
        assert!(of_one.contains(words), "{words} is not told");
    }
    // A step that concerns several pods is told for each of them; those of others alone are not.
    let (one, all) = (of_one.lines().count(), told(&[]).lines().count());
    assert!(one < all, "{one} lines of {all}");
}

/// How a recording has the answer that a sandbox was made.
const SANDBOX: &str = "\"Sandbox\":\"";

fn others_are_refused(part: &Path, altered: &Path) {
    let text = std::fs::read_to_string(part).expect("read");
    let core = text.split("\"core\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a version");
    std::fs::write(altered, text.replacen(core, "0.0.1+other", 1)).expect("written");
    let said = replay(altered, &[]);
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && error.contains("0.0.1+other") && error.contains(core), "{error}");

    // One answer that was another: the first decision that follows from it is found.
    let line = text.lines().find(|line| line.contains(SANDBOX)).expect("a sandbox was made");
    let other = line.replace(SANDBOX, &format!("{SANDBOX}other"));
    std::fs::write(altered, text.replacen(line, &other, 1)).expect("written");
    let said = replay(altered, &["-q"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.code() == Some(1) && text.contains(" differs: recorded"), "{text}");
}
