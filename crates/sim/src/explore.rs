//! A bounded model check: two static pods that share a name, and everything that can happen to them.
//!
//! Nothing is random: every latency is its shortest, nothing fails. One edit replaces the first pod by the second, at any step.
//! Before and after it, up to a number of *deviations* are placed at every step: the agent dies, a pod is killed, a call is
//! slow, fails, or is in doubt and took effect or did not. Each placement runs until everything has settled, and every rule is
//! checked on the way. Within the bound on deviations and the stride over steps the search is complete: states are not merged.

use std::time::Duration;

use podwright_core::model::{Effect, Event, PodUid, Source};

use crate::check::Violation;
use crate::container_script::{ContainerScript, OnTerm};
use crate::env::Scheduled;
use crate::faults::{CallFate, Faults};
use crate::manifest::{ContainerPlan, PodPlan};
use crate::rng::Rng;
use crate::world::World;

/// Something that differs from the undisturbed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The agent dies.
    Death,
    /// The first pod is killed.
    KillFirst,
    /// The second pod is killed.
    KillSecond,
    /// The next runtime call is slow.
    Slow,
    /// The next runtime call fails.
    Fails,
    /// The next runtime call takes effect, and its answer is lost.
    DoneInDoubt,
    /// The next runtime call has no effect and no answer.
    LostInDoubt,
}

const KINDS: [Deviation; 7] = [
    Deviation::Death,
    Deviation::KillFirst,
    Deviation::KillSecond,
    Deviation::Slow,
    Deviation::Fails,
    Deviation::DoneInDoubt,
    Deviation::LostInDoubt,
];

/// The result of a search.
#[derive(Debug, Default)]
pub struct Explored {
    /// How many runs were completed.
    pub runs: u64,
    /// The placements that led to the first broken rule.
    pub broken: Option<(Vec<String>, Violation)>,
}

/// Runs every placement of the edit and of this many deviations. With a `stride` of n, only every nth step is used.
pub fn explore(deviations: usize, stride: usize) -> Explored {
    let mut search = Search { stride, path: vec![], explored: Explored::default() };
    search.dive(start(), deviations, false);
    search.explored
}

fn start() -> World {
    let mut world = World::new(0, Faults::default());
    world.env.rng = Rng::flat();
    world.agent.restart_after = Some(Duration::from_millis(100));
    world.runtime.images.insert("app:1".into());
    // The pod takes longer to stop than another one to start: core must wait for it.
    let term = OnTerm::Exits { after: Duration::from_millis(300), code: 143 };
    world.runtime.scripts = vec![ContainerScript { on_term: term, ..ContainerScript::default() }];
    world.boot();
    world.put_manifest(Source::File, pod("first").manifest());
    world
}

fn pod(uid: &str) -> PodPlan {
    PodPlan { grace: 1, ..PodPlan::new("p", uid, vec![ContainerPlan::new("app", 0)]) }
}

/// One search through all placements.
struct Search {
    stride: usize,
    /// What was placed so far.
    path: Vec<String>,
    explored: Explored,
}

impl Search {
    /// Runs until everything has settled, and branches at every step.
    fn dive(&mut self, mut world: World, left: usize, edited: bool) {
        let until = world.env.clock.now + if edited { SECOND_UP } else { FIRST_UP };
        let mut step = 0;
        while (left > 0 || !edited) && world.violation().is_none() && world.env.clock.now < until {
            if self.explored.broken.is_some() {
                return;
            }
            if step % self.stride == 0 {
                self.branch(&world, step, left, edited);
            }
            world.step();
            step += 1;
        }
        if world.violation().is_none() {
            world.calm_down();
            world.settle(SETTLE_WITHIN);
        }
        self.explored.runs += 1;
        if let Some(violation) = world.checks.violation
            && self.explored.broken.is_none()
        {
            self.explored.broken = Some((self.path.clone(), violation));
        }
    }

    fn branch(&mut self, world: &World, step: usize, left: usize, edited: bool) {
        if !edited {
            let mut other = world.clone();
            other.put_manifest(Source::File, pod("second").manifest());
            self.place(format!("edit before step {step}"), other, left, true);
        }
        for kind in KINDS.iter().filter(|_| left > 0) {
            let mut other = world.clone();
            if deviate(&mut other, *kind) {
                self.place(format!("{kind:?} before step {step}"), other, left - 1, edited);
            }
        }
    }

    fn place(&mut self, what: String, world: World, left: usize, edited: bool) {
        self.path.push(what);
        self.dive(world, left, edited);
        self.path.pop();
    }
}

/// Applies a deviation. False if it is not possible at this step.
fn deviate(world: &mut World, kind: Deviation) -> bool {
    let uid = |name: &str| PodUid::from(name);
    let known = |world: &World, name: &str| world.agent.node().is_some_and(|n| n.workers().get(&uid(name)).is_some());
    let grace = Some(Duration::from_secs(1));
    let kill = |name: &str| Event::Kill { uid: uid(name), grace, evicted: None };
    match kind {
        Deviation::Death if world.agent.is_running() => world.crash_agent("on request"),
        Deviation::KillFirst if known(world, "first") => world.env.send(Duration::ZERO, kill("first")),
        Deviation::KillSecond if known(world, "second") => world.env.send(Duration::ZERO, kill("second")),
        Deviation::Slow | Deviation::Fails | Deviation::DoneInDoubt | Deviation::LostInDoubt
            if is_about_to_call(world) =>
        {
            world.calls.next_fate = Some(match kind {
                Deviation::Slow => CallFate::Succeeds(Duration::from_millis(500)),
                Deviation::Fails => CallFate::Fails(Duration::from_millis(1)),
                Deviation::DoneInDoubt => CallFate::Late(Duration::from_millis(1)),
                _ => CallFate::Never,
            });
        }
        _ => return false,
    }
    true
}

/// The next step is a commit that sends a runtime call: the step at which the fate of a call is decided.
fn is_about_to_call(world: &World) -> bool {
    let calls = |effect: &Effect| matches!(effect, Effect::Call { call, .. } if call.changes_runtime());
    matches!(world.env.peek(), Some(Scheduled::Commit { out, .. }) if out.effects.iter().any(calls))
}

/// Without deviations the first pod runs within this time.
const FIRST_UP: Duration = Duration::from_secs(2);
/// And the second within this time after the edit.
const SECOND_UP: Duration = Duration::from_secs(6);
/// After the last deviation everything settles within this time.
const SETTLE_WITHIN: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds without optimization use fewer steps.
    const SLOW: bool = cfg!(debug_assertions);

    #[test]
    fn one_deviation_at_every_step_breaks_no_rule() {
        let explored = explore(1, if SLOW { 4 } else { 1 });
        assert!(explored.broken.is_none(), "{:?}", explored.broken);
        let least = if SLOW { 500 } else { 10_000 };
        assert!(explored.runs > least, "only {} runs", explored.runs);
    }

    #[test]
    fn two_deviations_at_some_steps_break_no_rule() {
        let explored = explore(2, if SLOW { 24 } else { 8 });
        assert!(explored.broken.is_none(), "{:?}", explored.broken);
        let least = if SLOW { 200 } else { 5_000 };
        assert!(explored.runs > least, "only {} runs", explored.runs);
    }
}
