//! The cost of a hundred idle pods.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use podwright_testbed::{Agent, Containerd, Flavor, GoKubelet, Scratch};
use serde_json::{Value, json};

use crate::pods;
use crate::process::{cpu_time, field, switches};
use crate::report::{Table, verdict};
use crate::runtime_calls::RuntimeCalls;

const PODS: usize = 100;
/// Until the work after the start is done.
const SETTLE: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(400);

/// An idle process.
pub(crate) struct Cost {
    pub(crate) rss_kib: u64,
    peak_kib: u64,
    /// Percent of one core.
    pub(crate) cpu: f64,
    pub(crate) switches: f64,
    threads: usize,
}

pub(crate) fn measure() -> Result<Table> {
    let scratch = Scratch::new()?;
    let containerd = Containerd::start(&scratch, Flavor::V2)?;
    let bare = RuntimeCalls::new(&scratch, &containerd.endpoint())?;
    let mut agent = Agent::new(&scratch).runtime(&containerd).start()?;
    pods::put_all(&scratch, PODS, &pods::sleeper(true))?;
    wait(|| agent.pods())?;
    let ours = at_rest(agent.pid(), MEASURED)?;
    agent.sigterm()?;
    clear(&scratch, &bare)?;

    let kubelet = GoKubelet::start_standalone(&scratch, &containerd, "node", &json!({}))?;
    pods::put_all(&scratch, PODS, &pods::sleeper(true))?;
    wait(|| kubelet.pods())?;
    let theirs = at_rest(kubelet.pid(), MEASURED)?;
    drop(kubelet);
    clear(&scratch, &bare)?;

    let mut table = Table::new("A hundred idle pods", &["", "podwright", "Go kubelet", "goal", ""]);
    let mib = |kib: u64| format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024);
    table.row(&[
        "RSS".into(),
        mib(ours.rss_kib),
        mib(theirs.rss_kib),
        "≤ 25 MiB".into(),
        verdict(ours.rss_kib <= 25 << 10),
    ]);
    table.row(&["its peak, start included".into(), mib(ours.peak_kib), mib(theirs.peak_kib), "".into(), "".into()]);
    let percent = |cpu: f64| format!("{cpu:.2} %");
    table.row(&[
        "CPU, of one core".into(),
        percent(ours.cpu),
        percent(theirs.cpu),
        "≤ 0.3 %".into(),
        verdict(ours.cpu <= 0.3),
    ]);
    let per_second = |n: f64| format!("{n:.1}/s");
    table.row(&[
        "context switches".into(),
        per_second(ours.switches),
        per_second(theirs.switches),
        "≤ 30/s".into(),
        verdict(ours.switches <= 30.0),
    ]);
    table.row(&["threads".into(), ours.threads.to_string(), theirs.threads.to_string(), "".into(), "".into()]);
    table.note(&format!(
        "Pods without probes on the host's network, {} s after the last one was ready, over {} s, without requests to the agent.",
        SETTLE.as_secs(),
        MEASURED.as_secs(),
    ));
    Ok(table)
}

/// Without an agent: the cost of termination is measured elsewhere.
fn clear(scratch: &Scratch, bare: &RuntimeCalls) -> Result<()> {
    pods::remove_all(scratch, PODS)?;
    bare.clear()
}

fn wait(pods: impl Fn() -> Result<Value>) -> Result<()> {
    let began = Instant::now();
    while pods::ready(&pods()?) < PODS {
        if began.elapsed() > LIMIT {
            bail!("waited {LIMIT:?} for {PODS} pods to be ready");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// The cost of a process over a period, after it has become idle.
pub(crate) fn at_rest(pid: u32, measured: Duration) -> Result<Cost> {
    std::thread::sleep(SETTLE);
    let (cpu, first, began) = (cpu_time(pid)?, switches(pid)?, Instant::now());
    // Threads start and end: each is counted from its first to its last value.
    let mut last = first.clone();
    while began.elapsed() < measured {
        std::thread::sleep(Duration::from_secs(1));
        last.extend(switches(pid)?);
    }
    let elapsed = began.elapsed().as_secs_f64();
    let made: u64 = last.iter().map(|(thread, n)| n - first.get(thread).copied().unwrap_or_default()).sum();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| field(&status, key).with_context(|| format!("{key} in {status}"));
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    Ok(Cost {
        rss_kib: kib("VmRSS:")?,
        peak_kib: kib("VmHWM:")?,
        cpu: (cpu_time(pid)? - cpu).as_secs_f64() / elapsed * 100.0,
        switches: made as f64 / elapsed,
        threads: switches(pid)?.len(),
    })
}
