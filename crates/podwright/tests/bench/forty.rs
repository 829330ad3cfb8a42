//! Forty static pods up and down: this agent, the Go kubelet, and the bare calls, in turn on one containerd.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use podwright_testbed::{Agent, Containerd, Flavor, GoKubelet, Scratch};
use serde_json::{Value, json};

use crate::bare::{Bare, Census};
use crate::pods;
use crate::report::{Table, verdict};

const PODS: usize = 40;
/// The median of so many is told: the machine has other things to do as well.
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(25);

/// How long one round took. `gone` is nothing for who leaves the removal to a later clean-up.
#[derive(Clone, Copy)]
struct Took {
    up: Duration,
    stopped: Option<Duration>,
    gone: Option<Duration>,
}

pub(crate) fn measure() -> Result<Table> {
    let scratch = Scratch::new()?;
    let containerd = Containerd::start(&scratch, Flavor::V2)?;
    let bare = Bare::new(&scratch, &containerd)?;
    // What is only slow the first time, caches and kernel modules, is nobody's fault.
    bare.up_and_down(4)?;
    let (mut ours, mut theirs, mut plain) = (vec![], vec![], vec![]);
    for round in 1..=ROUNDS {
        ours.push(podwright(&scratch, &containerd, &bare)?);
        theirs.push(kubelet(&scratch, &containerd, &bare)?);
        let (up, gone) = bare.up_and_down(PODS)?;
        plain.push(Took { up, stopped: None, gone: Some(gone) });
        println!("round {round}: {}", line(&[ours[round - 1], theirs[round - 1], plain[round - 1]]));
    }
    let median = |all: &[Took], what: fn(&Took) -> Option<Duration>| {
        let mut times: Vec<Duration> = all.iter().filter_map(what).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let [up, up_go, up_bare] = [&ours, &theirs, &plain].map(|all| median(all, |t| Some(t.up)));
    let (stopped, stopped_go) = (median(&ours, |t| t.stopped), median(&theirs, |t| t.stopped));
    let (gone, gone_bare) = (median(&ours, |t| t.gone), median(&plain, |t| t.gone));
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    let seconds = |t: Duration| format!("{:.2} s", t.as_secs_f64());

    let mut table = Table::new(
        "Forty static pods",
        &["", "podwright", "Go kubelet", "bare calls", "to the kubelet", "to the calls", "goal", ""],
    );
    table.row(&[
        "up: dropped → all Ready".into(),
        seconds(up),
        seconds(up_go),
        seconds(up_bare),
        format!("{:.2}", ratio(up, up_go)),
        format!("{:.2}", ratio(up, up_bare)),
        "≤ 0.6 × kubelet".into(),
        verdict(ratio(up, up_go) <= 0.6),
    ]);
    table.row(&[
        "down: removed → all stopped".into(),
        seconds(stopped),
        seconds(stopped_go),
        "".into(),
        format!("{:.2}", ratio(stopped, stopped_go)),
        "".into(),
        "".into(),
        "".into(),
    ]);
    table.row(&[
        "down: removed → nothing in the runtime".into(),
        seconds(gone),
        "later, by its GC".into(),
        seconds(gone_bare),
        "".into(),
        format!("{:.2}", ratio(gone, gone_bare)),
        "≤ 1.15 × calls".into(),
        verdict(ratio(gone, gone_bare) <= 1.15),
    ]);
    table.note(&format!(
        "All manifests at once, one container each, bridge network; the median of {ROUNDS} rounds in turn. Bare calls: RunPodSandbox, \
         CreateContainer, StartContainer; StopContainer, StopPodSandbox, RemoveContainer, RemovePodSandbox, 4 pods at a time. Rounds \
         (podwright; kubelet; bare): {}.",
        (0..ROUNDS).map(|n| line(&[ours[n], theirs[n], plain[n]])).collect::<Vec<_>>().join(" · "),
    ));
    Ok(table)
}

fn podwright(scratch: &Scratch, containerd: &Containerd, bare: &Bare) -> Result<Took> {
    let mut agent = Agent::new(scratch).runtime(containerd).start()?;
    std::thread::sleep(Duration::from_secs(2));
    let up = up(scratch, || agent.pods())?;
    let (stopped, gone) = down(scratch, bare, true)?;
    agent.sigterm()?;
    Ok(Took { up, stopped: Some(stopped), gone })
}

fn kubelet(scratch: &Scratch, containerd: &Containerd, bare: &Bare) -> Result<Took> {
    let kubelet = GoKubelet::start_standalone(scratch, containerd, "node", &json!({}))?;
    // It takes its time to begin; that is not measured.
    std::thread::sleep(Duration::from_secs(10));
    let up = up(scratch, || kubelet.pods())?;
    let (stopped, gone) = down(scratch, bare, false)?;
    drop(kubelet);
    bare.clear()?;
    Ok(Took { up, stopped: Some(stopped), gone })
}

/// From the first manifest to the last pod that is ready.
fn up(scratch: &Scratch, pods: impl Fn() -> Result<Value>) -> Result<Duration> {
    let began = Instant::now();
    for n in 0..PODS {
        pods::put(scratch, &format!("pod{n}"), &pods::sleeper(false))?;
    }
    until(began, "all to be ready", || Ok(pods::ready(&pods()?)? == PODS))
}

/// From the first manifest removed to nothing that runs, and to nothing at all.
fn down(scratch: &Scratch, bare: &Bare, to_the_end: bool) -> Result<(Duration, Option<Duration>)> {
    let began = Instant::now();
    for n in 0..PODS {
        pods::remove(scratch, &format!("pod{n}"))?;
    }
    let stopped = until(began, "all to be stopped", || Ok(bare.census()?.alive == 0))?;
    let none = Census { alive: 0, there: 0 };
    let gone = to_the_end.then(|| until(began, "nothing to be left", || Ok(bare.census()? == none))).transpose()?;
    Ok((stopped, gone))
}

fn until(began: Instant, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<Duration> {
    while !done()? {
        if began.elapsed() > LIMIT {
            bail!("waited {LIMIT:?} for {what}");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(began.elapsed())
}

fn line(all: &[Took]) -> String {
    let one = |t: &Took| {
        let down = t.gone.or(t.stopped).unwrap_or_default();
        format!("{:.1}/{:.1} s", t.up.as_secs_f64(), down.as_secs_f64())
    };
    all.iter().map(one).collect::<Vec<_>>().join("; ")
}
