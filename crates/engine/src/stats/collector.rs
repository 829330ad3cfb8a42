//! What was measured, by container.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use podwright_linux::beneath::TreeUsage;

use super::MeasuredContainer;
use crate::images::now_ns;

/// The last measurements of every container and pod.
#[derive(Debug, Default)]
pub(super) struct Measurements(Mutex<BTreeMap<String, Measured>>);

#[derive(Debug, Default)]
struct Measured {
    cpu: Option<CpuPoint>,
    /// The writable layer, with the time of its measurement in nanoseconds since 1970.
    layer: Option<(TreeUsage, i64)>,
    /// The last count of the layer that was complete.
    complete: Option<TreeUsage>,
    /// When the layer is measured again. `None`: at once.
    due: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct CpuPoint {
    at: Instant,
    usage_ns: u64,
    /// Between this point and the one before.
    nano_cores: Option<u64>,
}

/// What is known about one container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct KnownUsage {
    pub(super) nano_cores: Option<u64>,
    pub(super) layer: Option<(TreeUsage, i64)>,
}

impl Measurements {
    /// Records the CPU time of a cgroup; returns its CPU per second. `None`: there is only one point, or the counter began again.
    pub(super) fn add_cpu(&self, id: &str, usage_ns: Option<u64>, at: Instant) -> Option<u64> {
        let mut all = self.lock();
        let Some(usage_ns) = usage_ns else {
            if let Some(measured) = all.get_mut(id) {
                measured.cpu = None;
            }
            return None;
        };
        let measured = all.entry(id.to_owned()).or_default();
        let nano_cores = match measured.cpu {
            // Over a short time the kernel's rounding would dominate.
            Some(last) if at.saturating_duration_since(last.at) < INTERVAL_MIN => return last.nano_cores,
            Some(last) if last.usage_ns <= usage_ns => {
                let elapsed = at.saturating_duration_since(last.at).as_nanos();
                u64::try_from(u128::from(usage_ns - last.usage_ns) * 1_000_000_000 / elapsed).ok()
            }
            _ => None,
        };
        measured.cpu = Some(CpuPoint { at, usage_ns, nano_cores });
        nano_cores
    }

    /// Records the end of a walk. A tree that takes long is measured less often, so that walks use a twentieth of a disk's time. An
    /// incomplete count does not replace a larger complete one: a container would hide what it uses.
    pub(super) fn add_walk(&self, id: &str, usage: Option<TreeUsage>, begun: Instant, ended: Instant) {
        let mut all = self.lock();
        let measured = all.entry(id.to_owned()).or_default();
        if let Some(usage) = usage {
            let was_complete = measured.layer.is_none_or(|(layer, _)| layer.complete);
            if was_complete && !usage.complete {
                tracing::warn!(container_id = id, "writable layer counted in part, the last complete count holds");
            }
            measured.layer = Some((usage.or_last(measured.complete), now_ns()));
            measured.complete = Some(usage).filter(|usage| usage.complete).or(measured.complete);
        }
        measured.due = Some(ended + ended.saturating_duration_since(begun) * PAUSE_PER_WALK);
    }

    /// The containers whose layer is to be measured, those that waited longest first.
    pub(super) fn due<'a>(&self, containers: &'a [MeasuredContainer], now: Instant) -> Vec<&'a MeasuredContainer> {
        let all = self.lock();
        let due_at = |container: &&MeasuredContainer| all.get(&container.id).and_then(|measured| measured.due);
        let mut due: Vec<_> = containers.iter().filter(|c| due_at(c).is_none_or(|at| at <= now)).collect();
        due.sort_by_key(due_at);
        due
    }

    /// Forgets containers that are gone. Pods are forgotten when they were not asked for in a while.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let now = Instant::now();
        let asked =
            |measured: &Measured| measured.cpu.is_some_and(|cpu| now.saturating_duration_since(cpu.at) < POD_MEMORY);
        self.lock().retain(|id, measured| match id.strip_prefix("pod/") {
            Some(_) => asked(measured),
            None => is_there(id),
        });
    }

    pub(super) fn of(&self, id: &str) -> KnownUsage {
        let all = self.lock();
        let Some(measured) = all.get(id) else { return KnownUsage::default() };
        KnownUsage { nano_cores: measured.cpu.and_then(|cpu| cpu.nano_cores), layer: measured.layer }
    }

    pub(super) fn total(&self) -> TreeUsage {
        let all = self.lock();
        let none = TreeUsage { complete: true, ..TreeUsage::default() };
        all.values().filter_map(|measured| measured.layer).fold(none, |sum, (layer, _)| TreeUsage {
            bytes: sum.bytes + layer.bytes,
            inodes: sum.inodes + layer.inodes,
            complete: sum.complete && layer.complete,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Measured>> {
        // The map is whole at every moment in which a panic could happen.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Pause after a walk, in durations of the walk.
const PAUSE_PER_WALK: u32 = 19;
/// For the CPU point of a pod without requests.
const POD_MEMORY: Duration = Duration::from_secs(300);
