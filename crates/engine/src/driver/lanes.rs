//! The lane of a pod: its effects in their order. The writing of a record holds up what follows it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use podwright_cri::v1;
use tokio::time::Instant;

use crate::context::EngineContext;
use crate::machine::{
    ContainerEffect, ContainerId, MachineEffect, Refusal, SandboxEffect, SandboxId, SandboxStep, WaiterId,
};
use crate::objects::Objects;
use crate::shims::ShimLink;
use crate::store::{ContainerRecord, SandboxRecord};
use crate::views;

/// The lanes of all pods.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: BTreeMap<SandboxId, Lane>,
    /// Records that could not be written; tried again.
    unwritten: BTreeSet<RecordKey>,
    retry_at: Instant,
}

/// The effects of a pod that wait.
#[derive(Debug, Default)]
struct Lane {
    items: VecDeque<LaneItem>,
    /// The record that was at the head is being written.
    writing: bool,
}

/// An object whose record could not be written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordKey {
    Sandbox(SandboxId),
    Container(ContainerId),
}

/// One piece of work of a lane.
#[derive(Debug)]
pub(super) enum LaneItem {
    WriteSandbox(SandboxId, Box<SandboxRecord>),
    WriteContainer(ContainerId, Box<ContainerRecord>),
    Step(SandboxId, SandboxStep),
    AdoptAfter(SandboxId, Duration),
    Container(ContainerId, ContainerEffect),
    Publish(Box<v1::ContainerEventResponse>),
    Answer(WaiterId, Result<(), Refusal>),
    /// The event is recorded: the shim may forget it.
    Acknowledge(ShimLink, u64),
}

/// What an effect is in a lane, and in which. Records and events are made now, while the objects are as the effect means them.
pub(super) fn item(
    context: &EngineContext,
    objects: &mut Objects,
    current: &SandboxId,
    effect: MachineEffect,
) -> (SandboxId, Option<LaneItem>) {
    match effect {
        MachineEffect::Answer(waiter, result) => (current.clone(), Some(LaneItem::Answer(waiter, result))),
        MachineEffect::Sandbox(id, effect) => {
            let item = match effect {
                SandboxEffect::Step(step) => Some(LaneItem::Step(id.clone(), step)),
                SandboxEffect::AdoptAfter(pause) => Some(LaneItem::AdoptAfter(id.clone(), pause)),
                SandboxEffect::Persist(state) => objects.sandboxes.get_mut(&id).map(|entry| {
                    entry.record.state = state;
                    LaneItem::WriteSandbox(id.clone(), Box::new(entry.record.clone()))
                }),
                SandboxEffect::Publish(kind) if context.events.has_subscribers() => {
                    Some(LaneItem::Publish(Box::new(views::event(objects, &id, &id.0, kind))))
                }
                SandboxEffect::Publish(_) => None,
            };
            (id, item)
        }
        MachineEffect::Container(id, effect) => {
            let of = objects.containers.get(&id).map(|entry| SandboxId(entry.record.sandbox_id.clone()));
            let of = of.unwrap_or_else(|| current.clone());
            let item = match effect {
                ContainerEffect::Persist(state) => objects.containers.get_mut(&id).map(|entry| {
                    entry.record.state = state;
                    LaneItem::WriteContainer(id, Box::new(entry.record.clone()))
                }),
                ContainerEffect::Publish(kind) if context.events.has_subscribers() => {
                    Some(LaneItem::Publish(Box::new(views::event(objects, &of, &id.0, kind))))
                }
                ContainerEffect::Publish(_) => None,
                other => Some(LaneItem::Container(id, other)),
            };
            (of, item)
        }
    }
}

/// Its directory is being removed, and must not be written to.
pub(super) fn is_removing(objects: &Objects, id: &ContainerId) -> bool {
    objects.machines.container(id).is_some_and(|container| container.is_removing())
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { lanes: BTreeMap::new(), unwritten: BTreeSet::new(), retry_at: Instant::now() + RETRY }
    }

    /// Adds work to the end of a lane.
    pub(super) fn push(&mut self, sandbox: &SandboxId, items: impl IntoIterator<Item = LaneItem>) {
        for item in items {
            self.lanes.entry(sandbox.clone()).or_default().items.push_back(item);
        }
    }

    /// The next work of a pod; `None`: there is none, or a record is being written. A record holds up its lane until it is reported as
    /// written.
    pub(super) fn next(&mut self, sandbox: &SandboxId) -> Option<LaneItem> {
        let lane = self.lanes.get_mut(sandbox).filter(|lane| !lane.writing)?;
        let Some(item) = lane.items.pop_front() else {
            self.lanes.remove(sandbox);
            return None;
        };
        if let Some(record) = item.record() {
            lane.writing = true;
            self.unwritten.remove(&record);
        }
        Some(item)
    }

    /// The record of a lane is written, or could not be. Returns the container whose launch would be next and is taken out: an agent that
    /// finds the former record would not look for its process.
    pub(super) fn written(&mut self, sandbox: &SandboxId, failed: Option<RecordKey>) -> Option<ContainerId> {
        let lane = self.lanes.get_mut(sandbox);
        let launch = lane.and_then(|lane| {
            lane.writing = false;
            let is_launch = |item: &mut LaneItem| match (&failed, item) {
                (Some(RecordKey::Container(id)), LaneItem::Container(of, ContainerEffect::Launch)) => id == of,
                _ => false,
            };
            lane.items.pop_front_if(is_launch)
        });
        self.unwritten.extend(failed);
        match launch {
            Some(LaneItem::Container(id, _)) => Some(id),
            _ => None,
        }
    }

    /// When records are to be written again; `None`: all are written.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        (!self.unwritten.is_empty()).then_some(self.retry_at)
    }

    /// If it is time, adds the records that could not be written again. Returns the pods that got work.
    pub(super) fn retry(&mut self, context: &EngineContext) -> BTreeSet<SandboxId> {
        if self.retry_at > Instant::now() {
            return BTreeSet::new();
        }
        self.retry_at = Instant::now() + RETRY;
        let unwritten = std::mem::take(&mut self.unwritten);
        let objects = context.objects();
        let item = |key: RecordKey| {
            let name = key.to_string();
            let item = key.item(&objects);
            if item.is_none() {
                context.unwritten.forget(&name);
            }
            item
        };
        let items: Vec<_> = unwritten.into_iter().filter_map(item).collect();
        let touched = items.iter().map(|(sandbox, _)| sandbox.clone()).collect();
        for (sandbox, item) in items {
            self.push(&sandbox, [item]);
        }
        touched
    }
}

impl LaneItem {
    /// The record that it writes.
    fn record(&self) -> Option<RecordKey> {
        match self {
            Self::WriteSandbox(id, _) => Some(RecordKey::Sandbox(id.clone())),
            Self::WriteContainer(id, _) => Some(RecordKey::Container(id.clone())),
            _ => None,
        }
    }
}

impl std::fmt::Display for RecordKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
            Self::Container(id) => write!(f, "container {id}"),
        }
    }
}

impl RecordKey {
    /// The record as it is now, in the lane of its pod; `None`: the object is gone.
    fn item(self, objects: &Objects) -> Option<(SandboxId, LaneItem)> {
        match self {
            Self::Sandbox(id) => {
                let record = objects.sandboxes.get(&id)?.record.clone();
                Some((id.clone(), LaneItem::WriteSandbox(id, Box::new(record))))
            }
            Self::Container(id) => {
                let entry = objects.containers.get(&id).filter(|_| !is_removing(objects, &id))?;
                let sandbox = SandboxId(entry.record.sandbox_id.clone());
                Some((sandbox, LaneItem::WriteContainer(id, Box::new(entry.record.clone()))))
            }
        }
    }
}

/// Between two tries to write a record to a disk that was full.
const RETRY: Duration = Duration::from_secs(5);
