//! The termination matrix: every way a pod's end can go, in virtual time.
//!
//! preStop ends well, fails or hangs × TERM obeyed or ignored × 0–3 sidecars × grace 1, 5, 30 s × shortened midway × the agent
//! dies midway, at ten points. The order is kept, every container gets TERM, and the last KILL is sent at most 2 s after the
//! deadline, or after the return of an agent that was dead at the deadline. Which moment that is follows from what was asked, and
//! not from what the agent wrote down: that must be the same moment.

use std::time::Duration;

use podwright_core::model::{Event, PodUid, Source};

use crate::behaviour::{Behaviour, Hook, Term};
use crate::check::Signal;
use crate::faults::Faults;
use crate::manifest::{Part, PodPlan};
use crate::world::World;

/// One way to end.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The preStop hook of every container.
    pub hook: Hook,
    /// Containers end when they get TERM.
    pub obeys: bool,
    /// How many sidecars.
    pub sidecars: usize,
    /// `terminationGracePeriodSeconds`.
    pub grace: u64,
    /// Half-way, someone asks for a quarter of the time.
    pub shortened: bool,
    /// The agent dies at so many tenths of the grace period.
    pub death: Option<u32>,
}

/// All of them.
pub fn cases() -> impl Iterator<Item = Case> {
    let after = Duration::from_millis(300);
    let hooks = [Hook::Ends { after, well: true }, Hook::Ends { after, well: false }, Hook::Hangs];
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

/// Run one. An error says what went wrong.
pub fn run(case: &Case) -> Result<(), String> {
    let mut world = World::new(u64::from(case.death.unwrap_or(0)), Faults::default());
    world.restart_after = Some(DEAD_FOR);
    let term = if case.obeys { Term::Obeys { after: Duration::from_millis(200), code: 0 } } else { Term::Ignores };
    world.behaviours = vec![Behaviour { term, pre_stop: case.hook, ..Behaviour::default() }];
    world.boot();
    let uid = PodUid::from("pod");
    let plan = plan(case);
    world.put(Source::File, plan.manifest());
    if !world.settle(Duration::from_secs(120)) {
        return Err(format!("did not come up: {:?}", world.violation));
    }
    let grace = Duration::from_secs(case.grace);
    world.remove(Source::File, &plan.origin);
    let asked = world.clock.now;
    if case.shortened {
        let (uid, quarter) = (uid.clone(), Some((grace / 4).max(Duration::from_secs(1))));
        world.send(grace / 2, Event::Kill { uid, grace: quarter, evicted: None, waiter: None });
    }
    if let Some(at) = death(case, asked) {
        world.crash_after(at - asked);
    }
    let mut deadline = None;
    while world.violation.is_none() && world.clock.now < asked + grace + Duration::from_secs(30) {
        world.step();
        // The record goes at the end; the deadline in force is the last that was written.
        deadline = world.checks.record(&uid).and_then(|r| world.deadline(r)).or(deadline);
        if world.checks.marks.forgotten.contains_key(&uid) {
            break;
        }
    }
    if let Some(violation) = &world.violation {
        return Err(format!("{}: {}", violation.rule, violation.text));
    }
    let deadline = deadline.ok_or("its end was never written down")?;
    let wanted = wanted_deadline(case, asked, world.checks.marks.forgotten.get(&uid).copied());
    if deadline < wanted || deadline > wanted + LATENCY {
        return Err(format!("its deadline was to be {wanted:?}, and {deadline:?} was written down"));
    }
    judge(case, &world, &uid, wanted, asked)?;
    world.calm = true;
    if world.settle(Duration::from_secs(300)) { Ok(()) } else { Err(format!("no rest: {:?}", world.violation)) }
}

fn plan(case: &Case) -> PodPlan {
    let part = |name: &str| Part { pre_stop: true, ..Part::new(name, 0) };
    PodPlan {
        grace: i64::try_from(case.grace).unwrap_or(30),
        inits: (0..case.sidecars).map(|n| (part(&sidecar(n)), true)).collect(),
        ..PodPlan::new("p", "pod", vec![part("app")])
    }
}

fn sidecar(n: usize) -> String {
    format!("side{n}")
}

/// When its time is over.
fn wanted_deadline(case: &Case, asked: Duration, gone: Option<Duration>) -> Duration {
    let grace = Duration::from_secs(case.grace);
    let half = asked + grace / 2;
    // Whoever asks an agent that died meanwhile is not heard, and a pod that has gone has no deadline any more.
    let heard = case.shortened && [death(case, asked), gone].into_iter().flatten().all(|at| at > half);
    let shortened = half + (grace / 4).max(Duration::from_secs(1));
    if heard { shortened.min(asked + grace) } else { asked + grace }
}

/// When the agent dies.
fn death(case: &Case, asked: Duration) -> Option<Duration> {
    let tenths = |tenths| Duration::from_secs(case.grace) * tenths / 10;
    case.death.map(|n| asked + tenths(n) + Duration::from_millis(400))
}

fn judge(case: &Case, world: &World, uid: &PodUid, deadline: Duration, asked: Duration) -> Result<(), String> {
    let of_pod = |s: &&Signal| s.uid == *uid;
    let terms: Vec<&Signal> = world.checks.marks.terms.iter().filter(of_pod).collect();
    let kills: Vec<&Signal> = world.checks.marks.kills.iter().filter(of_pod).collect();
    if terms.len() != case.sidecars + 1 {
        return Err(format!("{} stop signals for {} containers", terms.len(), case.sidecars + 1));
    }
    let place = |name: &str| (0..case.sidecars).find(|n| sidecar(*n) == name);
    for term in terms.iter().filter(|t| t.at < deadline) {
        // Before a sidecar: the app and every later sidecar.
        let before = |other: &&String| place(&term.name).is_some_and(|mine| place(other).is_none_or(|n| n > mine));
        if let Some(other) = term.beside.iter().find(before) {
            return Err(format!("TERM for {} while {other} runs", term.name));
        }
    }
    let back = death(case, asked).map_or(Duration::ZERO, |at| at + DEAD_FOR);
    // Twice: what was asked took its way, too.
    let latest = deadline.max(back) + Duration::from_secs(2) + LATENCY * 2;
    if let Some(kill) = kills.iter().find(|k| k.at > latest) {
        return Err(format!("KILL for {} {:?} after the last moment", kill.name, kill.at - latest));
    }
    // Whole seconds are what a stop can say: up to one of them may be lost, not more.
    if let Some(kill) = kills.iter().find(|k| k.at + Duration::from_secs(1) < deadline) {
        return Err(format!("KILL for {} {:?} too early", kill.name, deadline - kill.at));
    }
    let in_time = case.obeys && case.hook != Hook::Hangs && case.grace >= 5 && case.death.is_none() && !case.shortened;
    if in_time && !kills.is_empty() {
        return Err(format!("{} obeys and was killed", kills[0].name));
    }
    let gone = world.checks.marks.forgotten.get(uid).ok_or("its record was never dropped")?;
    if *gone > latest + Duration::from_secs(2) {
        return Err(format!("it was forgotten only {:?} after the last moment", *gone - latest));
    }
    Ok(())
}

/// How long a dead agent stays dead.
const DEAD_FOR: Duration = Duration::from_millis(150);
/// Commits, looks and the way of a call.
const LATENCY: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept_and_the_last_kill_comes_at_most_two_seconds_late() {
        let failed: Vec<String> =
            cases().filter_map(|case| run(&case).err().map(|why| format!("{case:?}: {why}"))).collect();
        assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases().count(), failed.join("\n"));
    }
}
