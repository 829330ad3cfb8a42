//! When the node is read, what a reading means, and what is done about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conditions::PressureConditions;
use super::threshold::{Threshold, thresholds_met, with_container_fs};
use crate::model::{
    DiskLayout, NodePressure, NodeReading, PodReading, PodUid, Seq, Signal, SignalReadings, StarvedResource, Time,
};
use crate::mutate::{self, Mutant};

/// Kubernetes: `evictionMonitoringPeriod`.
const PERIOD: Duration = Duration::from_secs(10);
/// The kernel may report pressure often: readings are at least this far apart.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Kubernetes: `podCleanupTimeout`.
const END_MAX: Duration = Duration::from_secs(30);
/// Removals of dead containers are waited for this long.
const REMOVAL_MAX: Duration = Duration::from_secs(15);

/// The settings of eviction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvictionConfig {
    /// `evictionHard`, `evictionSoft` and `evictionMinimumReclaim`.
    pub thresholds: Vec<Threshold>,
    /// `evictionMaxPodGracePeriod`: for soft thresholds.
    pub max_pod_grace: Duration,
    /// `evictionPressureTransitionPeriod`
    pub transition_period: Duration,
    /// `localStorageCapacityIsolation`: limits of local storage are enforced.
    pub storage_limits: bool,
}

/// The action that follows a reading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Nothing, or nothing yet.
    None,
    /// Removes what no pod uses; [`Eviction::next_removal`] returns the next removal.
    Reclaim(StarvedResource),
    /// Evicts one pod for this threshold. All that are met are in its message.
    Evict {
        /// The most urgent one.
        threshold: Threshold,
        /// It and the others.
        met: Vec<Threshold>,
        /// [`Action::Reclaim`] came before it.
        reclaimed: bool,
    },
}

/// State of the removals before pods are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Reclaim {
    /// No removal is in progress.
    #[default]
    Idle,
    /// Dead containers, and images after them.
    Containers { signal: Signal, images: bool, until: Time },
    /// Unused images.
    Images { signal: Signal, seq: Seq },
    /// The next reading shows the result.
    Done { signal: Signal },
}

/// A pod that was evicted and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AwaitedEnd {
    until: Time,
    pressure: NodePressure,
    hard: bool,
}

/// The state of eviction.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Eviction {
    due: Time,
    /// When the last reading began.
    begun: Time,
    in_flight: Option<Seq>,
    /// Pod data that the last reading included.
    requested: PodReading,
    /// Pod data that the next reading must include.
    pods: PodReading,
    conditions: PressureConditions,
    /// Thresholds that are met, since when.
    since: Vec<(Threshold, Time)>,
    /// Those of them whose grace period has passed.
    met: Vec<Threshold>,
    /// The readings that pods were evicted for.
    acted: BTreeMap<Signal, Time>,
    reclaim: Reclaim,
    awaited: BTreeMap<PodUid, AwaitedEnd>,
}

impl EvictionConfig {
    /// The largest amount of available memory, in bytes, at which a threshold is met.
    pub fn memory_threshold(&self, capacity: i64) -> Option<i64> {
        let of_memory = self.thresholds.iter().filter(|t| t.signal == Signal::MemoryAvailable);
        of_memory.map(|t| t.value.of(capacity).value()).max()
    }
}

impl Eviction {
    /// The pressure conditions that hold.
    pub(crate) fn pressures(&self) -> &BTreeSet<NodePressure> {
        self.conditions.held()
    }

    /// Starts a reading if one is due. `limited`: a pod has limits of local storage.
    pub(crate) fn begin(
        &mut self,
        config: &EvictionConfig,
        limited: impl FnOnce() -> bool,
        seq: &mut Seq,
        now: Time,
    ) -> Option<(Seq, PodReading)> {
        let is_off = config.thresholds.is_empty() && !config.storage_limits;
        if is_off || self.in_flight.is_some() || self.due > now {
            return None;
        }
        let for_limits = if config.storage_limits && limited() { PodReading::All } else { PodReading::None };
        let pods = self.pods.max(for_limits);
        (self.due, self.begun, self.requested) = (now + PERIOD, now, pods);
        let seq = seq.draw();
        self.in_flight = Some(seq);
        Some((seq, pods))
    }

    /// When the next reading is due. Readings in flight always return.
    pub(crate) fn wake(&self, config: &EvictionConfig) -> Option<Time> {
        let is_off = config.thresholds.is_empty() && !config.storage_limits;
        let removal = match self.reclaim {
            Reclaim::Containers { until, .. } => Some(until),
            _ => None,
        };
        let reading = (!is_off && self.in_flight.is_none()).then_some(self.due);
        reading.into_iter().chain(removal).min()
    }

    /// The kernel reports that memory is short: the node is read now.
    pub(crate) fn hint(&mut self, now: Time) {
        self.due = self.due.min(now.max(self.begun + INTERVAL_MIN));
    }

    /// The reading of this number arrived. False if it was given up.
    pub(crate) fn arrived(&mut self, seq: Seq) -> bool {
        self.in_flight.take_if(|expected| *expected == seq).is_some()
    }

    /// Updates thresholds and conditions. True if a condition changed.
    pub(crate) fn observe(&mut self, reading: &NodeReading, config: &EvictionConfig, now: Time) -> bool {
        let thresholds = with_container_fs(&config.thresholds, reading.layout);
        let met = thresholds_met(&thresholds, &self.met, &reading.signals);
        let since = met.into_iter().map(|threshold| {
            let before = self.since.iter().find(|(other, _)| *other == threshold).map(|(_, at)| *at);
            (threshold, before.unwrap_or(now))
        });
        self.since = since.collect();
        let past_grace = |(threshold, at): &&(Threshold, Time)| now.saturating_sub(*at) >= threshold.grace;
        self.met = self.since.iter().filter(past_grace).map(|(threshold, _)| threshold.clone()).collect();
        let observed = self.since.iter().map(|(threshold, _)| threshold.signal.pressure());
        self.conditions.update(observed, config.transition_period, now)
    }

    /// Decides the action for the thresholds that are met.
    pub(crate) fn decide(&mut self, reading: &NodeReading, now: Time) -> Action {
        self.awaited.retain(|_, awaited| awaited.until > now);
        self.pods = PodReading::None;
        // What frees space on a disk depends on the layout: the Go kubelet does nothing while that is unknown.
        let can_act = |t: &&Threshold| reading.layout.is_some() || t.signal.pressure() != NodePressure::Disk;
        let met = self.met.iter().filter(|t| self.is_new(t, &reading.signals)).filter(can_act);
        let mut met: Vec<Threshold> = met.cloned().collect();
        met.sort_by_key(|t| (!t.is_hard(), t.signal.resource() != StarvedResource::Memory));
        let reclaimed = match self.reclaim {
            Reclaim::Done { signal } => {
                self.reclaim = Reclaim::Idle;
                Some(signal.resource())
            }
            _ => None,
        };
        let Some(threshold) = met.iter().find(|t| !self.must_wait(t)).cloned() else { return Action::None };
        let resource = threshold.signal.resource();
        let plan = reading.layout.and_then(|layout| removals(threshold.signal, layout));
        let skip = reclaimed == Some(resource) || mutate::is_active(Mutant::EvictedBeforeReclaim);
        if let (Some((containers, images)), false) = (plan, skip) {
            let signal = threshold.signal;
            let until = if containers { now + REMOVAL_MAX } else { now };
            self.reclaim = Reclaim::Containers { signal, images, until };
            return Action::Reclaim(resource);
        }
        let needed = match resource {
            StarvedResource::Memory => PodReading::Memory,
            StarvedResource::Pids => PodReading::All,
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => PodReading::Fresh,
        };
        if reading.pods.is_none() || self.requested < needed {
            self.pods = needed;
            // Pods that could not be read are read again after the usual time.
            if self.requested < needed {
                self.due = now;
            }
            if reclaimed.is_some() {
                self.reclaim = Reclaim::Done { signal: threshold.signal };
            }
            return Action::None;
        }
        Action::Evict { threshold, met, reclaimed: reclaimed == Some(resource) }
    }

    /// The pod is evicted for this threshold: the next one follows when it has ended.
    pub(crate) fn evicting(&mut self, uid: &PodUid, threshold: &Threshold, reading: &NodeReading, now: Time) {
        self.acted.extend(reading.signals.iter().map(|(signal, reading)| (*signal, reading.at)));
        let (pressure, hard) = (threshold.signal.pressure(), threshold.is_hard());
        self.awaited.insert(uid.clone(), AwaitedEnd { until: now + END_MAX, pressure, hard });
    }

    /// The pod is evicted for a limit of its storage: no other one is evicted for the disk before its files are removed.
    pub(crate) fn evicting_for_limit(&mut self, uid: &PodUid, now: Time) {
        let awaited = AwaitedEnd { until: now + END_MAX, pressure: NodePressure::Disk, hard: true };
        self.awaited.insert(uid.clone(), awaited);
    }

    /// Nothing is left of the pod.
    pub(crate) fn ended(&mut self, uid: &PodUid, now: Time) {
        if self.awaited.remove(uid).is_some() {
            self.hint(now);
        }
    }

    /// Dead containers are being removed.
    pub(crate) fn is_removing_containers(&self) -> bool {
        matches!(self.reclaim, Reclaim::Containers { .. })
    }

    /// The removal of dead containers is over if `removing` is false or the time is. Returns the number of the removal of images, if
    /// that is next.
    pub(crate) fn next_removal(&mut self, removing: bool, seq: &mut Seq, now: Time) -> Option<Seq> {
        let Reclaim::Containers { signal, images, until } = self.reclaim else { return None };
        if removing && now < until {
            return None;
        }
        if images {
            let seq = seq.draw();
            self.reclaim = Reclaim::Images { signal, seq };
            return Some(seq);
        }
        self.reclaim = Reclaim::Done { signal };
        self.read_soon(now);
        None
    }

    /// Unused images were removed: the node is read again.
    pub(crate) fn images_removed(&mut self, seq: Seq, now: Time) {
        if let Reclaim::Images { signal, seq: expected } = self.reclaim
            && seq == expected
        {
            self.reclaim = Reclaim::Done { signal };
            self.read_soon(now);
        }
    }

    /// Files are measured now: sizes from before the removal, or from before a pod filled the disk, would end the wrong pod.
    fn read_soon(&mut self, now: Time) {
        (self.pods, self.due) = (PodReading::Fresh, now);
    }

    /// Something was read since a pod was evicted for it.
    fn is_new(&self, threshold: &Threshold, readings: &SignalReadings) -> bool {
        let read = readings.get(&threshold.signal).map(|reading| reading.at);
        read.is_some_and(|at| self.acted.get(&threshold.signal).is_none_or(|acted| at > *acted))
    }

    /// Something is being done against this pressure already: the end of a pod frees bytes and inodes. A hard threshold does not wait
    /// for the end of a pod that was evicted for a soft one.
    fn must_wait(&self, threshold: &Threshold) -> bool {
        let pressure = threshold.signal.pressure();
        let reclaiming = match self.reclaim {
            Reclaim::Containers { signal, .. } | Reclaim::Images { signal, .. } => signal.pressure() == pressure,
            Reclaim::Idle | Reclaim::Done { .. } => false,
        };
        let ends = |awaited: &AwaitedEnd| awaited.pressure == pressure && (awaited.hard || !threshold.is_hard());
        reclaiming || self.awaited.values().any(ends)
    }
}

/// Whether dead containers and unused images are removed for a signal; `None`: neither (Go kubelet:
/// `buildSignalToNodeReclaimFuncs`).
fn removals(signal: Signal, layout: DiskLayout) -> Option<(bool, bool)> {
    if signal.pressure() != NodePressure::Disk {
        return None;
    }
    let of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    let of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    match layout {
        DiskLayout::Shared => Some((true, true)),
        DiskLayout::SeparateImages => (!of_node).then_some((true, true)),
        DiskLayout::SplitLayers => Some((!of_images, of_images)),
    }
}

#[cfg(test)]
mod tests;
