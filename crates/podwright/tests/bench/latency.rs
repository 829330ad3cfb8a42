//! The latency that the agent adds: one pod after the other, without the time of the runtime.

use anyhow::{Context, Result};
use podwright_testbed::{Agent, Containerd, Flavor, Scratch};

use crate::pods;
use crate::report::{Table, verdict};
use crate::trace::{Mark, Trace, now, percentile};

/// Pods that run until they are removed, and pods that fail twice.
const LASTING: usize = 110;
const FAILING: usize = 50;

/// CRI: CONTAINER_STOPPED_EVENT.
const STOPPED: &str = "kind=2";

/// Microseconds: the agent's own, and with the runtime's time.
#[derive(Default)]
struct Spans {
    own: Vec<i64>,
    whole: Vec<i64>,
}

impl Spans {
    fn add(&mut self, trace: &Trace, from: i64, to: i64) {
        self.own.push(trace.own_time(from, to));
        self.whole.push(to - from);
    }
}

pub(crate) fn measure() -> Result<Table> {
    let scratch = Scratch::new()?;
    let containerd = Containerd::start(&scratch, Flavor::V2)?;
    let agent = Agent::new(&scratch).runtime(&containerd).arg("--v").arg("6").start()?;
    let mut trace = Trace::follow(agent.log_path())?;
    let (mut begun, mut exited, mut forgotten) = (Spans::default(), Spans::default(), Spans::default());
    for round in 0..LASTING {
        lasting(&scratch, &mut trace, &format!("lasts{round}"), &mut begun, &mut forgotten)?;
    }
    for round in 0..FAILING {
        failing(&scratch, &mut trace, &format!("fails{round}"), &mut begun, &mut exited)?;
    }
    let mut table = Table::new(
        "Added latency",
        &["from … to", "p50", "p99", "max", "goal (p99)", "", "with the runtime: p50", "p99", "n"],
    );
    for (name, spans, goal) in [
        ("manifest closed → RunPodSandbox sent", &begun, 20),
        ("exit → restart decided or status published", &exited, 50),
        ("last exit → pod forgotten", &forgotten, 100),
    ] {
        let own = |part| percentile(&spans.own, part);
        table.row(&[
            name.to_owned(),
            millis(own(0.5)?),
            millis(own(0.99)?),
            millis(own(1.0)?),
            format!("≤ {goal} ms"),
            verdict(own(0.99)? <= goal * 1000),
            millis(percentile(&spans.whole, 0.5)?),
            millis(percentile(&spans.whole, 0.99)?),
            spans.own.len().to_string(),
        ]);
    }
    table.note(
        "One pod at a time, on the host's network, containerd 2.x. The agent's own time is the span without the moments in which a \
         CRI call was under way; its journal, cgroups and directories are in it. An observation is a CRI call, too.",
    );
    Ok(table)
}

/// A pod is started and removed.
fn lasting(scratch: &Scratch, trace: &mut Trace, name: &str, begun: &mut Spans, forgotten: &mut Spans) -> Result<()> {
    let from = trace.marks.len();
    pods::put(scratch, name, &pods::sleeper(true))?;
    let started = now();
    let sent = trace.wait(from, "RunPodSandbox", |m| m.is("sent", "call=RunPodSandbox"))?;
    begun.add(trace, started, trace.marks[sent].at);
    let up = trace.wait(sent, "StartContainer", |m| m.is("returned", "call=StartContainer"))?;
    // The status Running, and all effects of it.
    trace.wait(up, "its status", |m| m.what == "status")?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    pods::remove(scratch, name)?;
    let exit = trace.wait(up, "the exit", |m| m.is("event", STOPPED))?;
    let end = trace.wait(exit, "the pod to be forgotten", |m| m.is("pod", "removed"))?;
    forgotten.add(trace, trace.marks[exit].at, trace.marks[end].at);
    Ok(())
}

/// A pod is started and fails twice: the first failure leads to a restart, the second to a back-off.
fn failing(scratch: &Scratch, trace: &mut Trace, name: &str, begun: &mut Spans, exited: &mut Spans) -> Result<()> {
    let mut at = trace.marks.len();
    pods::put(scratch, name, &pods::failing())?;
    let started = now();
    at = trace.wait(at, "RunPodSandbox", |m| m.is("sent", "call=RunPodSandbox"))?;
    begun.add(trace, started, trace.marks[at].at);
    for _ in 0..2 {
        at = trace.wait(at, "a start", |m| m.is("returned", "call=StartContainer"))?;
        at = trace.wait(at, "an exit", |m| m.is("event", STOPPED))?;
        let uid = trace.marks[at].field("uid").context("an event has a pod")?.to_owned();
        let decision = move |m: &Mark| m.is("status", &format!("uid={uid}")) || (m.is("order", &format!("uid={uid}")));
        let acted = trace.wait(at + 1, "the decision", decision)?;
        exited.add(trace, trace.marks[at].at, trace.marks[acted].at);
    }
    pods::remove(scratch, name)?;
    trace.wait(at, "the pod to be forgotten", |m| m.is("pod", "removed"))?;
    Ok(())
}

fn millis(micros: i64) -> String {
    format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10)
}
