//! Readings of the node for eviction: its signals, its file systems, and what pods use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::signal::{Signal, StarvedResource};
use super::{PodUid, Time};
use crate::quantity::Amount;

/// One reading of the node for eviction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReading {
    /// Signals that could be read.
    pub signals: SignalReadings,
    /// Where images and writable layers are; `None`: not known yet.
    pub layout: Option<DiskLayout>,
    /// What pods use; `None`: not requested, or unknown.
    pub pods: Option<BTreeMap<PodUid, PodUsage>>,
}

/// The value of a signal at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalReading {
    /// Bytes, inodes or processes.
    pub available: i64,
    /// The same, in total.
    pub capacity: i64,
    /// When it was read.
    pub at: Time,
}

/// Signals that could be read.
pub type SignalReadings = BTreeMap<Signal, SignalReading>;

/// The file systems of images and writable layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskLayout {
    /// Everything is on the file system of the root directory.
    #[default]
    Shared,
    /// Images and writable layers are on another one.
    SeparateImages,
    /// Only images are: writable layers are on that of the root directory.
    SplitLayers,
}

/// The pod data in a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodReading {
    /// The pods are not read: [`NodeReading::pods`] is `None`.
    #[default]
    None,
    /// Working sets of pods and containers; no walk over files.
    Memory,
    /// Also processes, and sizes of files as last measured.
    All,
    /// The same, with all files measured now.
    Fresh,
}

/// What one pod uses. Unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodUsage {
    /// Working set in bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// All local storage in bytes: writable layers, logs, volumes on disk and the pod's own files.
    pub ephemeral_storage: Option<u64>,
    /// Running containers.
    pub containers: Vec<ContainerUsage>,
    /// Volumes on local disk.
    pub volumes: DiskAmount,
}

/// What one container uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUsage {
    /// Name of the container.
    pub name: String,
    /// Working set in bytes.
    pub memory: Option<u64>,
    /// The writable layer.
    pub rootfs: Option<DiskAmount>,
    /// Its log files.
    pub logs: Option<DiskAmount>,
}

/// Space on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAmount {
    /// In use; of a writable layer as the runtime reports it.
    pub bytes: u64,
    /// In use; 0 if the runtime does not report them.
    pub inodes: u64,
}

impl SignalReading {
    /// The available amount as it is printed: bytes with binary suffixes.
    pub fn amount(&self, signal: Signal) -> Amount {
        match signal.resource() {
            StarvedResource::Memory | StarvedResource::EphemeralStorage => Amount::from_bytes(self.available),
            StarvedResource::Inodes | StarvedResource::Pids => Amount::from_whole(self.available),
        }
    }
}

impl DiskAmount {
    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), inodes: self.inodes.saturating_add(other.inodes) }
    }
}
