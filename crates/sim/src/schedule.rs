//! One seed, one run: a mix of faults, a storm of actions, then calm, and a look at what is left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::check::Violation;
use crate::faults::Faults;
use crate::keeper::Wire;
use crate::world::{Item, World};

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Events that core handled.
    pub turns: u64,
    /// The first broken rule.
    pub violation: Option<Violation>,
}

/// Run one seed. A panic of core is a broken rule.
pub fn run(seed: u64, tracing: bool) -> Outcome {
    let mut world = prepare(seed);
    world.tracing = tracing;
    finish(&mut world)
}

/// Run one seed and keep what core was told, in the form of the agent's flight recorder.
pub fn run_recorded(seed: u64, tracing: bool) -> (Outcome, Vec<String>) {
    let mut world = prepare(seed);
    (world.tracing, world.recording) = (tracing, Some(vec![]));
    let outcome = finish(&mut world);
    (outcome, world.recording.unwrap_or_default())
}

fn finish(world: &mut World) -> Outcome {
    let finished = catch_unwind(AssertUnwindSafe(|| {
        storm(world);
    }));
    if let Err(panic) = finished {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        world.broken("15 no panic", text);
    }
    Outcome { turns: world.turns, violation: world.violation.clone() }
}

/// The world of a seed, before anything happened.
pub fn prepare(seed: u64) -> World {
    let mix = usize::try_from(seed % Faults::MIXES as u64).expect("small");
    let (_, faults) = Faults::mix(mix);
    let mut world = World::new(seed, faults);
    // Of six rounds of the mixes two have an API server, and in one pods are submitted to the node.
    match (seed / Faults::MIXES as u64) % 6 {
        1 | 3 => world.join(),
        5 => world.open_store(),
        _ => {}
    }
    world.boot();
    let (actions, names) = (2 + world.rng.below(8), 1 + world.rng.below(3));
    world.begin_work(u32::try_from(actions).unwrap_or(2), u32::try_from(names).unwrap_or(1));
    let f = world.faults.clone();
    accidents(&mut world, f.outages, &[Item::RuntimeDown]);
    accidents(&mut world, f.reboots, &[Item::Reboot]);
    accidents(&mut world, f.jumps, &[Item::Jump]);
    accidents(&mut world, f.sandbox_deaths, &[Item::SandboxDies]);
    accidents(&mut world, f.cgroup_losses, &[Item::CgroupGoes]);
    if world.has_api() {
        accidents(&mut world, f.api_outages, &[Item::Wire(Wire::Down)]);
    }
    for _ in 0..f.full_disk {
        let (begin, length) = (world.rng.millis(0, 60_000), world.rng.millis(100, 20_000));
        world.after(begin, Item::Disk { full: true });
        world.after(begin + length, Item::Disk { full: false });
    }
    world
}

fn accidents(world: &mut World, count: u32, items: &[Item]) {
    for _ in 0..count {
        for item in items {
            let delay = world.rng.millis(0, 70_000);
            world.after(delay, item.clone());
        }
    }
}

fn storm(world: &mut World) {
    let length = world.rng.millis(5_000, 90_000);
    if world.run_for(length) {
        world.calm_down();
        world.settle(REST);
    }
}

/// The longest way to rest: crash, image and mount backoffs one after another.
const REST: Duration = Duration::from_secs(1500);

#[cfg(test)]
mod tests {
    use podwright_core::model::Now;
    use podwright_core::record::{self, Replay, Replayed};

    use super::*;

    /// Seeds that once broke a rule.
    const ONCE_BROKEN: [u64; 32] = [
        26, 95, 264, 305, 316, 620, 645, 845, 1520, 2263, 2947, 3769, 4207, 4388, 4407, 4803, 12409, 14856, 16980,
        18246, 25274, 25771, 28129, 35858, 36876, 40362, 61719, 89247, 100_077, 121_526, 171_044, 292_517,
    ];

    #[test]
    fn seeds_that_once_broke_a_rule_hold() {
        for seed in ONCE_BROKEN {
            let outcome = run(seed, false);
            assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        }
    }

    #[test]
    fn a_thousand_seeds_hold_every_rule() {
        for seed in 0..1000 {
            let outcome = run(seed, false);
            assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        }
    }

    #[test]
    fn what_a_seed_recorded_is_decided_again_and_can_begin_anywhere() {
        for seed in [3, 8, 26, 95, 264, 305, 4803] {
            let (outcome, lines) = run_recorded(seed, false);
            let (mut replay, mut later) = (Replay::default(), Replay::default());
            let (mut steps, mut begun) = (0, false);
            for (n, line) in lines.iter().enumerate() {
                // A part that begins in the middle knows all that the whole one knows.
                if let Some(node) = replay.node().filter(|_| n % 97 == 50) {
                    let at = Now { boot: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH };
                    later.feed(&record::begin(node, at).expect("written")).expect("read");
                    begun = true;
                }
                let Replayed::Step(step) = replay.feed(line).expect("read") else {
                    if begun {
                        later.feed(line).expect("read");
                    }
                    continue;
                };
                assert!(step.is_same(), "seed {seed}, step {}: {}", step.number, step.event);
                steps += 1;
                if begun && let Replayed::Step(step) = later.feed(line).expect("read") {
                    assert!(step.is_same(), "seed {seed}, begun late, line {n}: {}", step.event);
                }
            }
            assert_eq!(steps, outcome.turns, "seed {seed}");
        }
    }

    #[test]
    fn a_seed_replays_its_run() {
        assert_eq!(run(8, false).turns, run(8, false).turns);
    }
}
