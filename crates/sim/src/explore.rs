//! A bounded model check: two static pods that share a name, and everything that can come between.
//!
//! The world runs without chance: every latency is its shortest, nothing fails. One edit replaces the first pod by the
//! second, at any step. Before and after it, up to a number of *deviations* are placed at every step there is: the agent dies, a pod is
//! killed, a call is slow, fails, is in doubt and was done, or is in doubt and never was. Each placement is run to its rest
//! and every rule is checked on the way. Within the bound on deviations, and the stride over steps, nothing is left out: no
//! state is taken for another.

use std::time::Duration;

use podwright_core::model::{Effect, Event, PodUid, Source};

use crate::behaviour::{Behaviour, Term};
use crate::check::Violation;
use crate::faults::{Fate, Faults};
use crate::manifest::{Part, PodPlan};
use crate::rng::Rng;
use crate::world::{Item, World};

/// Something that comes between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The agent dies.
    Death,
    /// The first pod is killed.
    KillFirst,
    /// The second pod is killed.
    KillSecond,
    /// The next runtime call takes its time.
    Slow,
    /// The next runtime call fails.
    Fails,
    /// The next runtime call is done, and its answer is lost.
    DoneInDoubt,
    /// The next runtime call is lost.
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

/// What was explored.
#[derive(Debug, Default)]
pub struct Explored {
    /// Runs that came to rest.
    pub runs: u64,
    /// The way to the first broken rule.
    pub broken: Option<(Vec<String>, Violation)>,
}

/// Explore every placement of the edit and of so many deviations. `stride`: only every so manieth step, for a coarse look.
pub fn explore(deviations: usize, stride: usize) -> Explored {
    let mut search = Search { stride, path: vec![], explored: Explored::default() };
    search.dive(start(), deviations, false);
    search.explored
}

fn start() -> World {
    let mut world = World::new(0, Faults::default());
    world.rng = Rng::flat();
    world.restart_after = Some(Duration::from_millis(100));
    world.runtime.images.insert("app:1".into());
    // Its end takes longer than another pod's beginning: whoever does not wait for it is seen.
    let term = Term::Obeys { after: Duration::from_millis(300), code: 143 };
    world.behaviours = vec![Behaviour { term, ..Behaviour::default() }];
    world.boot();
    world.put(Source::File, pod("first").manifest());
    world
}

fn pod(uid: &str) -> PodPlan {
    PodPlan { grace: 1, ..PodPlan::new("p", uid, vec![Part::new("app", 0)]) }
}

/// One walk through all placements.
struct Search {
    stride: usize,
    /// What was placed on the way here.
    path: Vec<String>,
    explored: Explored,
}

impl Search {
    /// Go on to the rest, and on the way try everything that may come at every step.
    fn dive(&mut self, mut world: World, left: usize, edited: bool) {
        let until = world.clock.now + if edited { SECOND_UP } else { FIRST_UP };
        let mut step = 0;
        while (left > 0 || !edited) && world.violation.is_none() && world.clock.now < until {
            if self.explored.broken.is_some() {
                return;
            }
            if step % self.stride == 0 {
                self.branch(&world, step, left, edited);
            }
            world.step();
            step += 1;
        }
        if world.violation.is_none() {
            world.calm_down();
            world.settle(REST);
        }
        self.explored.runs += 1;
        if let Some(violation) = world.violation
            && self.explored.broken.is_none()
        {
            self.explored.broken = Some((self.path.clone(), violation));
        }
    }

    fn branch(&mut self, world: &World, step: usize, left: usize, edited: bool) {
        if !edited {
            let mut other = world.clone();
            other.put(Source::File, pod("second").manifest());
            self.place(format!("edit before step {step}"), other, left, true);
        }
        for kind in KINDS.iter().filter(|_| left > 0) {
            let mut other = world.clone();
            if other.deviate(*kind) {
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

impl World {
    /// Something comes between, if it can here.
    fn deviate(&mut self, kind: Deviation) -> bool {
        let uid = |name: &str| PodUid::from(name);
        let known =
            |world: &Self, name: &str| world.node.as_ref().is_some_and(|n| n.workers().get(&uid(name)).is_some());
        let grace = Some(Duration::from_secs(1));
        let kill = |name: &str| Event::Kill { uid: uid(name), grace, evicted: None, waiter: None };
        match kind {
            Deviation::Death if self.node.is_some() => self.crash("by choice"),
            Deviation::KillFirst if known(self, "first") => self.send(Duration::ZERO, kill("first")),
            Deviation::KillSecond if known(self, "second") => self.send(Duration::ZERO, kill("second")),
            Deviation::Slow | Deviation::Fails | Deviation::DoneInDoubt | Deviation::LostInDoubt
                if self.is_about_to_call() =>
            {
                self.next_fate = Some(match kind {
                    Deviation::Slow => Fate::Fine(Duration::from_millis(500)),
                    Deviation::Fails => Fate::Fails(Duration::from_millis(1)),
                    Deviation::DoneInDoubt => Fate::Late(Duration::from_millis(1)),
                    _ => Fate::Never,
                });
            }
            _ => return false,
        }
        true
    }

    /// The next thing to happen is a commit that sends a runtime call: the only place where a call's fate is decided.
    fn is_about_to_call(&self) -> bool {
        let calls = |effect: &Effect| matches!(effect, Effect::Call { call, .. } if call.changes_runtime());
        let next = self.queue.first_key_value().map(|(_, item)| item);
        matches!(next, Some(Item::Commit { out, .. }) if out.effects.iter().any(calls))
    }
}

/// Within this time the first pod is up and at rest, if nothing comes between.
const FIRST_UP: Duration = Duration::from_secs(2);
/// Within this time after the edit the second is.
const SECOND_UP: Duration = Duration::from_secs(6);
/// Within this time everything is as it should be once nothing comes between any more.
const REST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds without optimization look at fewer steps.
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
