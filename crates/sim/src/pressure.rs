//! A disk that unused images fill: the agent removes them, and no pod is evicted.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_core::eviction::{EvictionConfig, Threshold, ThresholdValue};
use podwright_core::model::{
    DiskLayout, Effect, Event, NodeReading, PodReading, PodUid, Seq, Signal, SignalReading, SignalReadings, Source,
};
use podwright_core::quantity::Amount;

use crate::faults::Faults;
use crate::manifest::{ContainerPlan, PodPlan};
use crate::world::World;

/// The disk in GiB: its size, what is free with and without the images, and what must be.
const DISK: i64 = 100;
const FREE_WITH_IMAGES: i64 = 5;
const FREE_WITHOUT: i64 = 50;
const THRESHOLD: i64 = 10;
const GIB: i64 = 1 << 30;

impl World {
    /// Effects of eviction; false for others.
    pub(crate) fn perform_eviction(&mut self, effect: &Effect) -> bool {
        match effect {
            Effect::ReadNode { seq, pods } => self.read_node(*seq, *pods),
            Effect::RemoveUnusedImages { seq } => {
                self.host.unused_images = false;
                let delay = self.env.rng.millis(1, 3000);
                self.env.send(delay, Event::ImagesRemoved { seq: *seq });
            }
            Effect::Evicted { signal } => {
                if self.host.unused_images {
                    let detail = format!("evicted for {signal}");
                    self.checks.violate("17 no pod is evicted while unused images fill the disk", detail);
                }
            }
            _ => return false,
        }
        true
    }

    fn read_node(&mut self, seq: Seq, pods: PodReading) {
        let free = if self.host.unused_images { FREE_WITH_IMAGES } else { FREE_WITHOUT };
        let at = self.env.clock.read().boot;
        let reading = SignalReading { available: free * GIB, capacity: DISK * GIB, at };
        let reading = NodeReading {
            signals: SignalReadings::from([(Signal::NodeFsAvailable, reading)]),
            layout: Some(DiskLayout::Shared),
            pods: (pods != PodReading::None).then(BTreeMap::new),
        };
        let delay = self.env.rng.millis(0, 20);
        self.env.send(delay, Event::NodeRead { seq, reading });
    }
}

/// The scenario; the broken rule, if there is one.
pub fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed, Faults::default());
    let value = ThresholdValue::Quantity(Amount::from_bytes(THRESHOLD * GIB));
    let threshold = Threshold { signal: Signal::NodeFsAvailable, value, min_reclaim: None, grace: Duration::ZERO };
    world.agent.config.eviction = EvictionConfig { thresholds: vec![threshold], ..EvictionConfig::default() };
    world.join_cluster();
    world.boot();
    world.run_for(Duration::from_secs(3));
    let plan = PodPlan { source: Source::Api, ..PodPlan::new("u", "u", vec![ContainerPlan::new("app", 0)]) };
    world.store.create_pod(&mut world.env, &plan);
    world.run_for(Duration::from_secs(30));
    for _ in 0..3 {
        world.host.unused_images = true;
        world.run_for(Duration::from_secs(60));
        if world.host.unused_images && world.violation().is_none() {
            return Err("unused images were not removed".into());
        }
    }
    match world.violation() {
        Some(violation) => Err(format!("{}: {}", violation.rule, violation.detail)),
        None if world.runtime.alive(&PodUid::from("u")).count() != 1 => Err("the pod does not run".into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_disk_full_of_unused_images_evicts_nothing() {
        for seed in 0..20 {
            assert_eq!(super::run(seed), Ok(()), "seed {seed}");
        }
    }
}
