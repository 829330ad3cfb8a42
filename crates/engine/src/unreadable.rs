//! Sandboxes and containers whose record can not be read, because of the disk: nothing is known of them but their ids.
//!
//! They are not shown and not touched: their processes run on; their files, layers and addresses stay. What may run twice because of it is refused: a
//! sandbox for the same pod, a container in the same sandbox. An engine that can read the record takes them up again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use podwright_image::GcRoots;

use crate::machine::{ContainerId, ContainerRecordState, SandboxId};
use crate::store::{ContainerRecord, RecordKind, UnreadableRecord};

/// What the engine leaves alone.
#[derive(Debug, Default)]
pub(crate) struct UnreadableObjects {
    records: Vec<UnreadableRecord>,
    sandboxes: BTreeSet<SandboxId>,
    containers: BTreeSet<ContainerId>,
    /// Containers with a record whose sandbox is unreadable.
    orphans: BTreeMap<ContainerId, ContainerRecord>,
    /// The unreadable container that may run in a sandbox.
    running_in: BTreeMap<SandboxId, ContainerId>,
}

impl UnreadableObjects {
    /// `pods` is the directory of the files of running pods. Blocks.
    pub(crate) fn new(
        records: Vec<UnreadableRecord>,
        containers_without_sandbox: Vec<(ContainerId, ContainerRecord)>,
        pods: &Path,
    ) -> Self {
        let of = |kind: RecordKind| records.iter().filter(move |record| record.kind == kind).map(|r| r.id.clone());
        let sandboxes: BTreeSet<SandboxId> = of(RecordKind::Sandbox).map(SandboxId).collect();
        let containers: BTreeSet<ContainerId> = of(RecordKind::Container).map(ContainerId).collect();
        let is_orphan = |record: &ContainerRecord| sandboxes.contains(&SandboxId(record.sandbox_id.clone()));
        let orphans = containers_without_sandbox.into_iter().filter(|(_, record)| is_orphan(record)).collect();
        let running_in = if containers.is_empty() { BTreeMap::new() } else { launched_in(pods, &containers) };
        Self { records, sandboxes, containers, orphans, running_in }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn has_sandbox(&self, id: &SandboxId) -> bool {
        self.sandboxes.contains(id)
    }

    pub(crate) fn has_container(&self, id: &ContainerId) -> bool {
        self.containers.contains(id) || self.orphans.contains_key(id)
    }

    /// Sandboxes that may have an address.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &SandboxId> {
        self.sandboxes.iter()
    }

    /// Keeps the layers of these containers: all layers, if it is not known which they have.
    pub(crate) fn keep_layers(&self, roots: &mut GcRoots) {
        roots.keep_all_layers |= !self.containers.is_empty();
        for record in self.orphans.values() {
            roots
                .container_layers
                .extend(record.chain.iter().filter_map(|id| id.parse::<podwright_image::ChainId>().ok()));
            roots.images_in_use.extend(record.image_id.parse::<podwright_image::Digest>().ok());
        }
    }

    /// Why no sandbox may be run for this pod.
    pub(crate) fn refuses_pod(&self, uid: &str) -> Option<String> {
        let may_run = |record: &ContainerRecord| {
            matches!(record.state, ContainerRecordState::Starting | ContainerRecordState::Running)
        };
        let of_pod = |record: &ContainerRecord| record.config.labels.get(POD_UID).is_some_and(|label| label == uid);
        let running = self.orphans.values().find(|record| !uid.is_empty() && of_pod(record) && may_run(record))?;
        Some(self.why(RecordKind::Sandbox, &running.sandbox_id))
    }

    /// Why no container may be made in this sandbox.
    pub(crate) fn refuses_container(&self, sandbox: &SandboxId) -> Option<String> {
        self.running_in.get(sandbox).map(|id| self.why(RecordKind::Container, &id.0))
    }

    fn why(&self, kind: RecordKind, id: &str) -> String {
        let record = self.records.iter().find(|record| record.kind == kind && record.id == id);
        let record = record.map(ToString::to_string).unwrap_or_default();
        format!("{record}. It may still run, so that nothing is started in its place")
    }

    /// For the status of the runtime; `None`: every record was read.
    pub(crate) fn message(&self) -> Option<String> {
        let first = self.records.first()?;
        let more = match self.records.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("{first}{more}. They are left alone until the agent is started and can read them"))
    }
}

/// The containers among these that were launched, by their sandbox.
fn launched_in(pods: &Path, containers: &BTreeSet<ContainerId>) -> BTreeMap<SandboxId, ContainerId> {
    let pods = fs::read_dir(pods).into_iter().flatten().flatten();
    let found = pods.filter_map(|pod| {
        let dir = pod.path().join(podwright_shim::protocol::CONTAINERS_DIR);
        let id = containers.iter().find(|id| dir.join(&id.0).exists())?;
        Some((SandboxId(pod.file_name().into_string().ok()?), id.clone()))
    });
    found.collect()
}

/// The label that every kubelet gives to the containers of a pod.
const POD_UID: &str = "io.kubernetes.pod.uid";
