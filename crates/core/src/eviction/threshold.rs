//! Thresholds of signals, and which of them are met.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{DiskLayout, Signal, SignalReadings};
use crate::quantity::Amount;

/// Pods are evicted while less than `value` is available.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// The least that must be available.
    pub value: ThresholdValue,
    /// `evictionMinimumReclaim`: once met, this much more must be available.
    pub min_reclaim: Option<ThresholdValue>,
    /// How long it must be met before a pod is evicted; zero: a hard threshold.
    pub grace: Duration,
}

/// An amount, or a part of the observed capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ThresholdValue {
    /// Bytes, inodes or processes.
    Quantity(Amount),
    /// Above 0, at most 1. In single precision, so that the result is the Go kubelet's.
    Fraction(f32),
}

impl ThresholdValue {
    /// The amount, of this capacity (Go kubelet: `GetThresholdQuantity`).
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as the Go kubelet computes it")]
    pub fn of(self, capacity: i64) -> Amount {
        match self {
            Self::Quantity(amount) => amount,
            Self::Fraction(fraction) => Amount::from_bytes((capacity as f64 * f64::from(fraction)) as i64),
        }
    }
}

impl Threshold {
    /// Pods are evicted at once, with a grace period of one second.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// `to_reclaim`: also if the minimum reclaim is not reached. False for a signal that could not be read.
    pub fn is_met(&self, readings: &SignalReadings, to_reclaim: bool) -> bool {
        let Some(reading) = readings.get(&self.signal) else { return false };
        let more = self.min_reclaim.filter(|_| to_reclaim).map(|more| more.of(reading.capacity));
        let needed = more.into_iter().fold(self.value.of(reading.capacity), Amount::plus);
        needed > Amount::from_whole(reading.available)
    }
}

/// The configured thresholds with those of the file system of writable layers, which are those of the file system it is on
/// (Go kubelet: `UpdateContainerFsThresholds`). It has none while its place is not known.
pub fn with_container_fs(configured: &[Threshold], layout: Option<DiskLayout>) -> Vec<Threshold> {
    let copied = |signal: Signal| match (layout, signal) {
        (Some(DiskLayout::SeparateImages), Signal::ImageFsAvailable)
        | (Some(DiskLayout::Shared | DiskLayout::SplitLayers), Signal::NodeFsAvailable) => {
            Some(Signal::ContainerFsAvailable)
        }
        (Some(DiskLayout::SeparateImages), Signal::ImageFsInodesFree)
        | (Some(DiskLayout::Shared | DiskLayout::SplitLayers), Signal::NodeFsInodesFree) => {
            Some(Signal::ContainerFsInodesFree)
        }
        _ => None,
    };
    let is_configurable =
        |t: &&Threshold| !matches!(t.signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree);
    let own = configured.iter().filter(is_configurable).cloned();
    let container_fs = configured.iter().filter_map(|t| Some(Threshold { signal: copied(t.signal)?, ..t.clone() }));
    own.chain(container_fs).collect()
}

/// The thresholds that are met, and those met earlier whose minimum reclaim is not reached.
pub fn thresholds_met(all: &[Threshold], before: &[Threshold], readings: &SignalReadings) -> Vec<Threshold> {
    let is_met = |t: &&Threshold| t.is_met(readings, false) || (before.contains(t) && t.is_met(readings, true));
    all.iter().filter(is_met).cloned().collect()
}

#[cfg(test)]
mod tests;
