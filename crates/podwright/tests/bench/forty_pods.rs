//! Start and removal of forty static pods: this agent, the Go kubelet, and plain CRI calls, in turn on one containerd.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use podwright_testbed::{Agent, Containerd, Flavor, GoKubelet, Scratch};
use serde_json::{Value, json};

use crate::pods;
use crate::process::cpu_time;
use crate::report::{Table, verdict};
use crate::runtime_calls::{RuntimeCalls, RuntimeCounts};

pub(crate) const PODS: usize = 40;
/// Rounds; the median is reported, because the host may be busy.
const ROUNDS: usize = 3;
/// Longer than any regular round.
const TOO_LONG: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);

/// The times of one round. `gone` is `None` if the removal is left to a later clean-up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) up: Duration,
    pub(crate) stopped: Option<Duration>,
    pub(crate) gone: Option<Duration>,
    /// CPU time of the agent, and of containerd without its shims.
    pub(crate) agent: Duration,
    pub(crate) containerd: Duration,
}

/// containerd and the directories of the bench.
pub(crate) struct Bench {
    scratch: Scratch,
    containerd: Containerd,
    bare: RuntimeCalls,
    host_network: bool,
}

pub(crate) fn measure() -> Result<Table> {
    let mut bench = Bench::start()?;
    let mut table = Table::new(
        "Forty static pods",
        &["", "podwright", "Go kubelet", "bare calls", "to the kubelet", "to the calls", "goal", ""],
    );
    let mut rounds = vec![];
    for host_network in [false, true] {
        bench.host_network = host_network;
        let mut all = [vec![], vec![], vec![]];
        for _ in 0..ROUNDS {
            let round = [bench.podwright()?, bench.kubelet()?, bench.bare()?];
            println!("{}", line(host_network, &round));
            rounds.push(line(host_network, &round));
            all.iter_mut().zip(round).for_each(|(all, took)| all.push(took));
        }
        rows(&mut table, if host_network { "host" } else { "bridge" }, &all);
    }
    table.note(&format!(
        "All manifests at once, one container each, on a bridge with the portmap plugin or on the host's network; the medians of {ROUNDS} rounds in turn. Bare calls: \
         RunPodSandbox, CreateContainer, StartContainer; StopContainer, StopPodSandbox, RemoveContainer, RemovePodSandbox, 4 pods at a \
         time, with the configurations that the agent makes. The time of the bare calls is the lower limit on this machine: no agent is faster. Rounds, \
         up/down: {}.",
        rounds.join(" · "),
    ));
    Ok(table)
}

fn rows(table: &mut Table, network: &str, all: &[Vec<Measured>; 3]) {
    let median = |who: usize, what: fn(&Measured) -> Option<Duration>| {
        let mut times: Vec<Duration> = all[who].iter().filter_map(what).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    };
    let seconds = |t: Option<Duration>| t.map_or(String::new(), |t| format!("{:.2} s", t.as_secs_f64()));
    let ratio = |a: Option<Duration>, b: Option<Duration>| Some(a?.as_secs_f64() / b?.as_secs_f64());
    let mut row = |name: &str, what: fn(&Measured) -> Option<Duration>, goal: &str, met: fn(f64, f64) -> bool| {
        let times = [median(0, what), median(1, what), median(2, what)];
        let (kubelet, calls) = (ratio(times[0], times[1]), ratio(times[0], times[2]));
        let shown = |ratio: Option<f64>| ratio.map_or(String::new(), |r| format!("{r:.2}"));
        let passed =
            if goal.is_empty() { String::new() } else { verdict(met(kubelet.unwrap_or(9.0), calls.unwrap_or(9.0))) };
        table.row(&[
            format!("{network}, {name}"),
            seconds(times[0]),
            seconds(times[1]),
            seconds(times[2]),
            shown(kubelet),
            shown(calls),
            goal.to_owned(),
            passed,
        ]);
    };
    row("up: dropped → all Ready", |t| Some(t.up), "≤ 0.6 × kubelet", |kubelet, _| kubelet <= 0.6);
    let stopped_goal = if network == "bridge" { "≤ 0.85 × kubelet" } else { "" };
    row("down: removed → all stopped", |t| t.stopped, stopped_goal, |kubelet, _| kubelet <= 0.85);
    row("down: removed → nothing in the runtime", |t| t.gone, "≤ 1.15 × calls", |_, calls| calls <= 1.15);
    row("processor time of the agent", |t| Some(t.agent).filter(|t| !t.is_zero()), "", |_, _| true);
    row("processor time of containerd", |t| Some(t.containerd), "", |_, _| true);
}

impl Bench {
    pub(crate) fn start() -> Result<Self> {
        let scratch = Scratch::new()?;
        let containerd = Containerd::start(&scratch, Flavor::V2)?;
        let bare = RuntimeCalls::new(&scratch, &containerd.endpoint())?;
        // The first round warms up caches and kernel modules.
        bare.up_and_down(4, false)?;
        Ok(Self { scratch, containerd, bare, host_network: false })
    }

    fn podwright(&self) -> Result<Measured> {
        let mut agent = Agent::new(&self.scratch).runtime(&self.containerd).start()?;
        std::thread::sleep(Duration::from_secs(2));
        let cpu = (cpu_time(agent.pid())?, cpu_time(self.containerd.pid())?);
        let up = self.up(|| agent.pods())?;
        if up > TOO_LONG {
            println!("that took long; the agent says:");
            let log = agent.log();
            log.lines().filter(|l| l.contains("WARN") || l.contains("ERROR")).for_each(|line| println!("  {line}"));
        }
        let (stopped, gone) = self.down(true)?;
        let took = self.took(up, Some(stopped), gone, agent.pid(), cpu)?;
        agent.sigterm()?;
        Ok(took)
    }

    pub(crate) fn kubelet(&self) -> Result<Measured> {
        let kubelet = GoKubelet::start_standalone(&self.scratch, &self.containerd, "node", &json!({}))?;
        // Its startup is not measured.
        std::thread::sleep(Duration::from_secs(10));
        let cpu = (cpu_time(kubelet.pid())?, cpu_time(self.containerd.pid())?);
        let up = self.up(|| kubelet.pods())?;
        let (stopped, gone) = self.down(false)?;
        let took = self.took(up, Some(stopped), gone, kubelet.pid(), cpu)?;
        drop(kubelet);
        self.bare.clear()?;
        Ok(took)
    }

    fn bare(&self) -> Result<Measured> {
        let before = cpu_time(self.containerd.pid())?;
        let (up, gone) = self.bare.up_and_down(PODS, self.host_network)?;
        let containerd = cpu_time(self.containerd.pid())? - before;
        Ok(Measured { up, gone: Some(gone), containerd, ..Measured::default() })
    }

    fn took(
        &self,
        up: Duration,
        stopped: Option<Duration>,
        gone: Option<Duration>,
        agent: u32,
        before: (Duration, Duration),
    ) -> Result<Measured> {
        let (agent, containerd) = (cpu_time(agent)? - before.0, cpu_time(self.containerd.pid())? - before.1);
        Ok(Measured { up, stopped, gone, agent, containerd })
    }

    /// The time from the first manifest until the last pod is ready.
    fn up(&self, pods: impl Fn() -> Result<Value>) -> Result<Duration> {
        let began = Instant::now();
        pods::put_all(&self.scratch, PODS, &pods::sleeper(self.host_network))?;
        // Listing all pods costs an agent more than a pod does: it is queried only when the runtime has them all.
        until(began, "all to be made", || Ok(self.tasks()? == 2 * PODS))?;
        until(began, "all to run", || Ok(self.bare.counts()?.alive == 2 * PODS))?;
        until(began, "all to be ready", || Ok(pods::ready(&pods()?) == PODS))
    }

    /// The times from the first removed manifest until no container runs, and until nothing is left.
    fn down(&self, to_the_end: bool) -> Result<(Duration, Option<Duration>)> {
        let began = Instant::now();
        pods::remove_all(&self.scratch, PODS)?;
        let stopped = until(began, "all to be stopped", || Ok(self.tasks()? == 0))?;
        if !to_the_end {
            return Ok((stopped, None));
        }
        until(began, "nothing to be left", || Ok(self.left()? == 0))?;
        let none = RuntimeCounts { alive: 0, there: 0 };
        let gone = until(began, "nothing to be listed", || Ok(self.bare.counts()? == none))?;
        Ok((stopped, Some(gone)))
    }

    /// The number of shim directories. Reading them costs the runtime nothing, unlike list calls.
    fn tasks(&self) -> Result<usize> {
        entries(&self.containerd, "state/io.containerd.runtime.v2.task/k8s.io")
    }

    fn left(&self) -> Result<usize> {
        let cri = "root/io.containerd.grpc.v1.cri";
        Ok(entries(&self.containerd, &format!("{cri}/containers"))?
            + entries(&self.containerd, &format!("{cri}/sandboxes"))?)
    }
}

/// The number of entries in a directory of the runtime.
fn entries(containerd: &Containerd, within: &str) -> Result<usize> {
    let socket = containerd.socket();
    let path = socket.parent().context("a directory")?.join(within);
    Ok(fs::read_dir(&path).with_context(|| path.display().to_string())?.count())
}

pub(crate) fn until(began: Instant, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<Duration> {
    while !done()? {
        if began.elapsed() > LIMIT {
            bail!("waited {LIMIT:?} for {what}");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(began.elapsed())
}

fn line(host_network: bool, all: &[Measured]) -> String {
    let one = |t: &Measured| {
        let down = t.gone.or(t.stopped).unwrap_or_default();
        format!("{:.1}/{:.1}", t.up.as_secs_f64(), down.as_secs_f64())
    };
    let network = if host_network { "host" } else { "bridge" };
    format!("{network} {} s", all.iter().map(one).collect::<Vec<_>>().join(", "))
}
