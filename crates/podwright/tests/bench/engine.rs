//! The embedded engine: beside containerd by the same CRI calls, and under the agent beside the Go kubelet on containerd.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_testbed::{Agent, Containerd, ControlPlane, EngineBed, EngineProcess, Flavor, GoKubelet, Scratch};
use serde_json::json;

use crate::cluster::{NODE, burst, median};
use crate::forty_pods::{self, Measured, until};
use crate::launch;
use crate::pods;
use crate::process::pss_kib;
use crate::report::{Table, verdict};
use crate::runtime_calls::RuntimeCalls;
use crate::trace::{Trace, now, percentile};

/// Repetitions of a single pod, and of many; the median is reported.
const SINGLES: usize = 15;
const ROUNDS: usize = 3;
/// Pods of the memory measurement and of the burst.
const MANY: usize = 60;
/// The goal for the time from a manifest to its container.
const EXECVE_GOAL_MS: i64 = 30;

/// A row: name, our value, the peer's, unit, and the goal as a fraction of the peer's value.
type Row = (String, f64, f64, &'static str, f64);

pub(crate) fn measure() -> Result<Table> {
    let mut rows = launches()?;
    rows.extend(by_calls()?);
    rows.extend(static_pods()?);
    rows.extend(api_pods()?);
    let mut table = Table::new("The engine", &["", "engine", "peer", "ratio", "goal", ""]);
    for (name, ours, theirs, unit, goal) in rows {
        let ratio = ours / theirs;
        let digits = if unit == "MiB" { 1 } else { 3 };
        table.row(&[
            name,
            format!("{ours:.digits$} {unit}"),
            format!("{theirs:.digits$} {unit}"),
            format!("{ratio:.2}"),
            format!("≤ {goal}"),
            verdict(ratio <= goal),
        ]);
    }
    let first = first_instruction()?;
    let p50 = percentile(&first, 0.5)?;
    table.row(&[
        "manifest closed → the container's program runs, p50".into(),
        format!("{:.3} s", seconds(p50)),
        String::new(),
        String::new(),
        format!("≤ 0.0{EXECVE_GOAL_MS} s"),
        verdict(p50 <= EXECVE_GOAL_MS * 1000),
    ]);
    table.note(&format!(
        "Launched: cgroups, shim, namespaces, mounts, `true` and its exit, medians of 20 in turn; the C program makes the namespaces, pivots, \
         mounts /proc and executes, without cgroups and further mounts. Calls: RunPodSandbox, CreateContainer, StartContainer; StopContainer, StopPodSandbox, RemoveContainer, RemovePodSandbox with the \
         configurations that the agent makes, on a bridge; the peer is containerd 2.x with runc, in turn; medians of {SINGLES} single pods \
         and of {ROUNDS} rounds. Memory: the proportional share (PSS) of the engine or containerd and of all shims, without the processes of \
         containers. Static pods and pods of the API: podwright with its engine; the peer is the Go kubelet on containerd 2.x. p99 from the \
         manifest to the program: {:.3} s.",
        seconds(percentile(&first, 0.99)?),
    ));
    Ok(table)
}

/// One container, from nothing to the exit of `true`.
fn launches() -> Result<Vec<Row>> {
    let took = launch::measure()?;
    Ok(vec![
        ("one container launched, beside `runc run`".into(), took.engine, took.runc, "s", 0.25),
        ("one container launched, beside a minimal C program".into(), took.engine, took.minimal, "s", 3.0),
    ])
}

/// Times and memory by the same calls.
fn by_calls() -> Result<Vec<Row>> {
    let (ours, theirs) = (Scratch::new()?, Scratch::new()?);
    let _images = EngineBed::prepare(&ours)?;
    let mut engine = EngineProcess::start(&ours)?;
    let containerd = Containerd::start(&theirs, Flavor::V2)?;
    let calls = [RuntimeCalls::new(&ours, &engine.endpoint())?, RuntimeCalls::new(&theirs, &containerd.endpoint())?];
    // The first round warms up caches and kernel modules.
    calls.iter().try_for_each(|calls| calls.up_and_down(4, false).map(drop))?;
    let mut rows = vec![];
    for (pods, rounds) in [(1, SINGLES), (forty_pods::PODS, ROUNDS)] {
        let mut times = [[vec![], vec![]], [vec![], vec![]]];
        for _ in 0..rounds {
            for (calls, [ups, downs]) in calls.iter().zip(&mut times) {
                let (up, down) = calls.up_and_down(pods, false)?;
                ups.push(up.as_secs_f64());
                downs.push(down.as_secs_f64());
            }
        }
        let [[up, down], [their_up, their_down]] = times.map(|times| times.map(median));
        let name = if pods == 1 { "one pod".to_owned() } else { format!("{pods} pods, 4 at a time") };
        rows.push((format!("{name} by calls, up"), up, their_up, "s", 0.25));
        rows.push((format!("{name} by calls, down"), down, their_down, "s", 0.25));
    }
    let [our_memory, their_memory] = [
        calls[0].with_pods(MANY, false, || Ok(memory(&engine.processes())))?.1,
        calls[1].with_pods(MANY, false, || Ok(memory(&containerd.processes())))?.1,
    ];
    rows.push((format!("memory of the runtime with {MANY} pods"), our_memory, their_memory, "MiB", 0.2));
    engine.terminate(Duration::from_secs(20))?;
    Ok(rows)
}

/// The sum over processes, in MiB.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn memory(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| pss_kib(*pid)).sum::<u64>() as f64 / 1024.0
}

/// Forty manifests at once.
fn static_pods() -> Result<Vec<Row>> {
    let bench = forty_pods::Bench::start()?;
    let (mut ups, mut downs) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..ROUNDS {
        for (who, took) in [on_engine()?, bench.kubelet()?].into_iter().enumerate() {
            ups[who].push(took.up.as_secs_f64());
            downs[who].push(took.stopped.context("it was measured")?.as_secs_f64());
        }
    }
    let ([up, their_up], [down, their_down]) = (ups.map(median), downs.map(median));
    Ok(vec![
        ("40 static pods, up: dropped → all Ready".into(), up, their_up, "s", 0.25),
        ("40 static pods, down: removed → all stopped (engine: nothing left)".into(), down, their_down, "s", 0.25),
    ])
}

/// A round with a fresh agent, as the Go kubelet's. Nothing is left at its end.
fn on_engine() -> Result<Measured> {
    let scratch = Scratch::new()?;
    let bed = EngineBed::prepare(&scratch)?;
    let mut agent = Agent::new(&scratch).runtime(&bed).start()?;
    std::thread::sleep(Duration::from_secs(2));
    let count =
        |kind: &str| Ok::<_, anyhow::Error>(fs::read_dir(scratch.root_dir()?.join("engine").join(kind))?.count());
    let began = Instant::now();
    pods::put_all(&scratch, forty_pods::PODS, &pods::sleeper(false))?;
    until(began, "all to be made", || Ok(count("containers")? == forty_pods::PODS))?;
    let up = until(began, "all to be ready", || Ok(pods::ready(&agent.pods()?) == forty_pods::PODS))?;
    let began = Instant::now();
    pods::remove_all(&scratch, forty_pods::PODS)?;
    let gone = until(began, "nothing to be left", || Ok(count("containers")? + count("sandboxes")? == 0))?;
    agent.sigterm()?;
    Ok(Measured { up, stopped: Some(gone), ..Measured::default() })
}

/// A burst of pods from an API server.
fn api_pods() -> Result<Vec<Row>> {
    let plane = ControlPlane::shared();
    plane.namespace(NODE)?;
    let kubeconfig = plane.node_kubeconfig(NODE)?;
    let (ours, theirs) = (Scratch::new()?, Scratch::new()?);
    let bed = EngineBed::prepare(&ours)?;
    let mut agent = Agent::new(&ours).runtime(&bed).hostname(NODE).kubeconfig(&kubeconfig).start()?;
    burst(plane, 4, || Ok(()))?;
    let (up, (), down) = burst(plane, MANY, || Ok(()))?;
    agent.sigterm()?;
    plane.kubectl(&["delete", "node", NODE])?;
    let containerd = Containerd::start(&theirs, Flavor::V2)?;
    let kubelet = GoKubelet::start_joined(&theirs, &containerd, NODE, &kubeconfig, &json!({}))?;
    burst(plane, 4, || Ok(()))?;
    let (their_up, (), their_down) = burst(plane, MANY, || Ok(()))?;
    drop(kubelet);
    let row = |name: &str, ours: Duration, theirs: Duration| {
        (format!("{MANY} pods of the API, {name}"), ours.as_secs_f64(), theirs.as_secs_f64(), "s", 0.25)
    };
    Ok(vec![row("up: created → all Ready", up, their_up), row("down: requested → all objects gone", down, their_down)])
}

/// Microseconds from the end of writing a manifest until StartContainer returns, which is after the program was executed.
fn first_instruction() -> Result<Vec<i64>> {
    let scratch = Scratch::new()?;
    let bed = EngineBed::prepare(&scratch)?;
    let agent = Agent::new(&scratch).runtime(&bed).arg("--v").arg("6").start()?;
    let mut trace = Trace::follow(agent.log_path())?;
    let mut spans = vec![];
    for round in 0..50 {
        let (name, from) = (format!("pod{round}"), trace.marks.len());
        pods::put(&scratch, &name, &pods::sleeper(false))?;
        let closed = now();
        let is_start = |fields: &str| fields.split(' ').any(|field| field.starts_with("call=Instance("));
        let started = trace.wait(from, "the start", |m| m.what == "answer" && is_start(&m.fields))?;
        spans.push(trace.marks[started].at - closed);
        pods::remove(&scratch, &name)?;
        trace.wait(started, "the pod to be forgotten", |m| m.is("pod", "removed"))?;
    }
    Ok(spans)
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}
