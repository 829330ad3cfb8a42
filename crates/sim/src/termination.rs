//! The termination matrix: every way a pod can terminate, in virtual time.
//!
//! preStop succeeds, fails or hangs × TERM obeyed or ignored × 0–3 sidecars × grace period 1, 5, 30 s × shortened midway × the
//! agent dies midway, at ten points. Containers stop in order, each gets TERM, and the last KILL is sent at most 2 s after the
//! deadline, or after the restart of an agent that was dead at the deadline. The expected deadline is computed from the
//! requests, and the recorded one must equal it.

use std::time::Duration;

use podwright_core::model::{Event, PodUid, Source};

use crate::check::{Signal, deadline as recorded_deadline};
use crate::container_script::{ContainerScript, HookScript, OnTerm};
use crate::faults::Faults;
use crate::manifest::{ContainerPlan, PodPlan};
use crate::world::World;

/// One way to terminate.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The preStop hook of every container.
    pub hook: HookScript,
    /// Containers exit on TERM.
    pub obeys: bool,
    /// Number of sidecars.
    pub sidecars: usize,
    /// `terminationGracePeriodSeconds`.
    pub grace: u64,
    /// Halfway, a kill with a quarter of the grace period is requested.
    pub shortened: bool,
    /// The agent dies at this many tenths of the grace period.
    pub death: Option<u32>,
}

/// The whole matrix.
pub fn cases() -> impl Iterator<Item = Case> {
    let after = Duration::from_millis(300);
    let hooks = [
        HookScript::Completes { after, succeeds: true },
        HookScript::Completes { after, succeeds: false },
        HookScript::Hangs,
    ];
    let deaths = std::iter::once(None).chain((0..10).map(Some));
    let all = hooks.into_iter().flat_map(move |hook| deaths.clone().map(move |death| (hook, death)));
    let all = all.flat_map(|(hook, death)| (0..4).map(move |sidecars| (hook, death, sidecars)));
    all.flat_map(|(hook, death, sidecars)| {
        let rest = [true, false].into_iter().flat_map(|obeys| [1, 5, 30].map(|grace| (obeys, grace)));
        rest.flat_map(move |(obeys, grace)| {
            [false, true].map(|shortened| Case { hook, obeys, sidecars, grace, shortened, death })
        })
    })
}

/// Runs one case. The error says what went wrong.
pub fn run(case: &Case) -> Result<(), String> {
    let mut world = World::new(u64::from(case.death.unwrap_or(0)), Faults::default());
    world.agent.restart_after = Some(DEAD_FOR);
    let term = if case.obeys { OnTerm::Exits { after: Duration::from_millis(200), code: 0 } } else { OnTerm::Ignores };
    world.runtime.scripts = vec![ContainerScript { on_term: term, pre_stop: case.hook, ..ContainerScript::default() }];
    world.boot();
    let uid = PodUid::from("pod");
    let plan = plan(case);
    world.put_manifest(Source::File, plan.manifest());
    if !world.settle(Duration::from_secs(120)) {
        return Err(format!("did not start: {:?}", world.violation()));
    }
    let grace = Duration::from_secs(case.grace);
    world.remove_manifest(Source::File, &plan.origin);
    let requested = world.env.clock.now;
    if case.shortened {
        let (uid, quarter) = (uid.clone(), Some((grace / 4).max(Duration::from_secs(1))));
        world.env.send(grace / 2, Event::Kill { uid, grace: quarter, evicted: None });
    }
    if let Some(at) = death(case, requested) {
        world.env.crash_after(at - requested);
    }
    let mut deadline = None;
    while world.violation().is_none() && world.env.clock.now < requested + grace + Duration::from_secs(30) {
        world.step();
        // The record is dropped at the end; the deadline in force is the last recorded one.
        deadline = world.checks.record(&uid).and_then(|r| recorded_deadline(&world.env.clock, r)).or(deadline);
        if world.checks.history.forgotten.contains_key(&uid) {
            break;
        }
    }
    if let Some(violation) = world.violation() {
        return Err(format!("{}: {}", violation.rule, violation.detail));
    }
    let deadline = deadline.ok_or("its termination was never recorded")?;
    let wanted = wanted_deadline(case, requested, world.checks.history.forgotten.get(&uid).copied());
    if deadline < wanted || deadline > wanted + LATENCY {
        return Err(format!("the deadline is {wanted:?}, recorded was {deadline:?}"));
    }
    check_signals(case, &world, &uid, wanted, requested)?;
    world.env.calm = true;
    if world.settle(Duration::from_secs(300)) { Ok(()) } else { Err(format!("not settled: {:?}", world.violation())) }
}

fn plan(case: &Case) -> PodPlan {
    let container = |name: &str| ContainerPlan { pre_stop: true, ..ContainerPlan::new(name, 0) };
    PodPlan {
        grace: i64::try_from(case.grace).unwrap_or(30),
        inits: (0..case.sidecars).map(|n| (container(&sidecar(n)), true)).collect(),
        ..PodPlan::new("p", "pod", vec![container("app")])
    }
}

fn sidecar(n: usize) -> String {
    format!("side{n}")
}

/// When its grace period is over.
fn wanted_deadline(case: &Case, requested: Duration, gone: Option<Duration>) -> Duration {
    let grace = Duration::from_secs(case.grace);
    let half = requested + grace / 2;
    // A request to a dead agent is lost, and a pod that is gone has no deadline any more.
    let shortens = case.shortened && [death(case, requested), gone].into_iter().flatten().all(|at| at > half);
    let shortened = half + (grace / 4).max(Duration::from_secs(1));
    if shortens { shortened.min(requested + grace) } else { requested + grace }
}

/// When the agent dies.
fn death(case: &Case, requested: Duration) -> Option<Duration> {
    let tenths = |tenths| Duration::from_secs(case.grace) * tenths / 10;
    case.death.map(|n| requested + tenths(n) + Duration::from_millis(400))
}

fn check_signals(
    case: &Case,
    world: &World,
    uid: &PodUid,
    deadline: Duration,
    requested: Duration,
) -> Result<(), String> {
    let of_pod = |s: &&Signal| s.uid == *uid;
    let terms: Vec<&Signal> = world.checks.history.terms.iter().filter(of_pod).collect();
    let kills: Vec<&Signal> = world.checks.history.kills.iter().filter(of_pod).collect();
    if terms.len() != case.sidecars + 1 {
        return Err(format!("{} stop signals for {} containers", terms.len(), case.sidecars + 1));
    }
    let place = |name: &str| (0..case.sidecars).find(|n| sidecar(*n) == name);
    for term in terms.iter().filter(|t| t.at < deadline) {
        // Before a sidecar: the app and every later sidecar.
        let before = |other: &&String| place(&term.name).is_some_and(|mine| place(other).is_none_or(|n| n > mine));
        if let Some(other) = term.others_running.iter().find(before) {
            return Err(format!("TERM for {} while {other} runs", term.name));
        }
    }
    let restarted = death(case, requested).map_or(Duration::ZERO, |at| at + DEAD_FOR);
    // Twice: for the request, too.
    let latest = deadline.max(restarted) + Duration::from_secs(2) + LATENCY * 2;
    if let Some(kill) = kills.iter().find(|k| k.at > latest) {
        return Err(format!("KILL for {} {:?} after the latest time", kill.name, kill.at - latest));
    }
    // A stop has whole seconds: up to one of them may be lost, not more.
    if let Some(kill) = kills.iter().find(|k| k.at + Duration::from_secs(1) < deadline) {
        return Err(format!("KILL for {} {:?} too early", kill.name, deadline - kill.at));
    }
    let in_time =
        case.obeys && case.hook != HookScript::Hangs && case.grace >= 5 && case.death.is_none() && !case.shortened;
    if in_time && !kills.is_empty() {
        return Err(format!("{} exits on TERM and was killed", kills[0].name));
    }
    let gone = world.checks.history.forgotten.get(uid).ok_or("its record was never dropped")?;
    if *gone > latest + Duration::from_secs(2) {
        return Err(format!("its record was dropped {:?} after the latest time", *gone - latest));
    }
    Ok(())
}

/// How long the agent stays dead.
const DEAD_FOR: Duration = Duration::from_millis(150);
/// Commits, observations and calls.
const LATENCY: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_stop_in_order_and_the_last_kill_is_at_most_two_seconds_late() {
        let failed: Vec<String> =
            cases().filter_map(|case| run(&case).err().map(|why| format!("{case:?}: {why}"))).collect();
        assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases().count(), failed.join("\n"));
    }
}
