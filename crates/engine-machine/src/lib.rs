//! The decisions of the engine: one state machine per sandbox and per container, in one ordered map that one task owns.
//!
//! ```text
//!  CRI call ──▶ event + waiter ─┐                      ┌─▶ effects: steps, signals, records, published events
//!  results of effects ──────────┼─▶ Machines::handle ──┤
//!  exits, lost shims, timers ───┘                      └─▶ Answer(waiter)
//! ```
//!
//! Nothing here waits, opens files or reads a clock. A CRI call is an event with a waiter; the future of the call only waits for its
//! `MachineEffect::Answer`. Dropping that future sends `Abandon` and nothing else: runs, creates, starts and removals continue to their
//! end, and a stop that lost its caller never kills.
//!
//! Rules for the driver:
//! - The effects of one event are begun in order, and `Persist` is complete before the next one begins.
//! - Each step ([`SandboxStep`], `Create`, `Launch`, `Cleanup`, `Watch`) has exactly one result. Signals have none: a process that no
//!   longer exists is a success, because its exit is on the way.
//! - The results of one shim connection come in order, and none comes after its `ShimLost`: what was in flight is lost.
//! - Every step can be repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub mod container;
pub mod exit;
mod mutate;
pub mod names;
pub mod sandbox;
pub mod stop;
#[cfg(test)]
mod tests;

pub use container::{Container, ContainerEffect, ContainerEvent, ContainerRecordState, Found, ShownContainer};
pub use exit::{ExitReason, ExitRecord};
pub use names::{ContainerKey, Names, SandboxKey};
pub use sandbox::{
    AdoptError, Sandbox, SandboxEffect, SandboxEvent, SandboxRecordState, SandboxResources, SandboxStep,
};
pub use stop::Stop;

use container::Gate;

/// Time since boot, suspended time included.
pub type MachineTime = Duration;

/// The time of an event: boot time for deadlines, wall time for what users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time since boot.
    pub boot: MachineTime,
    /// Nanoseconds since 1970.
    pub wall_ns: i64,
}

/// The id of a sandbox: 64 hexadecimal digits, drawn by the verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(pub String);

/// The id of a container: 64 hexadecimal digits, drawn by the verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub String);

/// One CRI call that waits for its answer. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A step that failed, in the text for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// At most 4 KiB; the driver cuts it.
    pub message: String,
}

impl Failure {
    /// A failure with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// Why a call is answered with an error. The agent recognises the texts of `NameReserved` and `AlreadyStarting`
/// (`cri/src/error.rs`), which are those of containerd.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No sandbox has this id.
    #[error("sandbox \"{0}\" not found")]
    NoSandbox(SandboxId),
    /// No container has this id, or its creation is not complete.
    #[error("container \"{0}\" not found")]
    NoContainer(ContainerId),
    /// Another object has the name.
    #[error("name {name:?} is reserved for {id:?}")]
    NameReserved {
        /// The reserved name, as containerd writes it.
        name: String,
        /// The object that has it.
        id: String,
    },
    /// An earlier start is under way.
    #[error("container is already in starting state")]
    AlreadyStarting,
    /// The container was started before, or is being removed.
    #[error("container must be in created state, but is {0}")]
    NotCreated(ShownContainer),
    /// The sandbox is not, or no longer, ready.
    #[error("sandbox \"{0}\" is not ready")]
    SandboxNotReady(SandboxId),
    /// The shim was lost and its replacement is not connected yet. A later call may succeed.
    #[error("the shim of sandbox \"{0}\" is being replaced")]
    ShimReplaced(SandboxId),
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MachineEvent {
    /// RunPodSandbox. The id is new.
    Run {
        /// The id of the new sandbox.
        id: SandboxId,
        /// The caller.
        waiter: WaiterId,
        /// The name that the sandbox reserves.
        key: SandboxKey,
        /// Everything that the sandbox will have: no network for hostNetwork, a pause process for a shared PID namespace.
        planned: SandboxResources,
    },
    /// CreateContainer. The id is new.
    Create {
        /// The id of the new container.
        id: ContainerId,
        /// The caller.
        waiter: WaiterId,
        /// The sandbox, name and attempt.
        key: ContainerKey,
    },
    /// For an existing sandbox.
    Sandbox(SandboxId, SandboxEvent),
    /// For an existing container.
    Container(ContainerId, ContainerEvent),
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MachineEffect {
    /// For a sandbox.
    Sandbox(SandboxId, SandboxEffect),
    /// For a container.
    Container(ContainerId, ContainerEffect),
    /// The call is over.
    Answer(WaiterId, Result<(), Refusal>),
}

/// An event of the CRI's event stream. It is published after the lists show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    /// CONTAINER_CREATED_EVENT.
    Created,
    /// CONTAINER_STARTED_EVENT.
    Started,
    /// CONTAINER_STOPPED_EVENT.
    Stopped,
    /// CONTAINER_DELETED_EVENT.
    Deleted,
}

/// Every sandbox and container of this engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machines {
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    containers: BTreeMap<ContainerId, Container>,
    names: Names,
}

impl Machines {
    /// Takes up the records of an earlier agent. Sandboxes that were being created are undone; ready ones are adopted; containers
    /// that may have a process are asked for.
    pub fn restore(
        sandboxes: Vec<(SandboxId, SandboxKey, SandboxRecordState)>,
        containers: Vec<(ContainerId, ContainerKey, ContainerRecordState)>,
        now: Moment,
        out: &mut Vec<MachineEffect>,
    ) -> Self {
        let mut machines = Self::default();
        for (id, key, state) in sandboxes {
            machines.names.restore_sandbox(&key, &id);
            machines.sandboxes.insert(id.clone(), Sandbox::restored(id, key, state, out));
        }
        for (id, key, state) in containers {
            machines.names.restore_container(&key, &id);
            let adopting = machines.sandboxes.get(&key.sandbox).is_some_and(Sandbox::is_adopting);
            machines.containers.insert(id.clone(), Container::restored(id, key, state, adopting, out));
        }
        let ids: Vec<SandboxId> = machines.sandboxes.keys().cloned().collect();
        for id in ids {
            machines.settle(&id, now, out);
        }
        machines
    }

    /// Advances by one event. The only entry point.
    pub fn handle(&mut self, event: MachineEvent, now: Moment, out: &mut Vec<MachineEffect>) {
        match event {
            MachineEvent::Run { id, waiter, key, planned } => self.run(id, waiter, key, planned, out),
            MachineEvent::Create { id, waiter, key } => self.create(id, waiter, key, out),
            MachineEvent::Sandbox(id, event) => self.sandbox_event(&id, event, now, out),
            MachineEvent::Container(id, event) => self.container_event(&id, event, now, out),
        }
    }

    /// A sandbox by its id.
    pub fn sandbox(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.sandboxes.get(id)
    }

    /// A container by its id.
    pub fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.get(id)
    }

    fn run(
        &mut self,
        id: SandboxId,
        waiter: WaiterId,
        key: SandboxKey,
        planned: SandboxResources,
        out: &mut Vec<MachineEffect>,
    ) {
        if let Err(refusal) = self.names.reserve_sandbox(&key, &id) {
            return out.push(MachineEffect::Answer(waiter, Err(refusal)));
        }
        self.sandboxes.insert(id.clone(), Sandbox::run(id, key, planned, waiter, out));
    }

    fn create(&mut self, id: ContainerId, waiter: WaiterId, key: ContainerKey, out: &mut Vec<MachineEffect>) {
        let refusal = match self.sandboxes.get(&key.sandbox) {
            None => Some(Refusal::NoSandbox(key.sandbox.clone())),
            Some(sandbox) if !sandbox.is_ready() => Some(Refusal::SandboxNotReady(key.sandbox.clone())),
            Some(_) => self.names.reserve_container(&key, &id).err(),
        };
        if let Some(refusal) = refusal {
            return out.push(MachineEffect::Answer(waiter, Err(refusal)));
        }
        self.containers.insert(id.clone(), Container::create(id, key, waiter, out));
    }

    fn sandbox_event(&mut self, id: &SandboxId, event: SandboxEvent, now: Moment, out: &mut Vec<MachineEffect>) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            // StopPodSandbox and RemovePodSandbox of an unknown id succeed.
            if let SandboxEvent::Stop(waiter) | SandboxEvent::Remove(waiter) = event {
                out.push(MachineEffect::Answer(waiter, Ok(())));
            }
            return;
        };
        let (shim_lost, adopted) = match &event {
            SandboxEvent::ShimLost => (true, None),
            SandboxEvent::Adopted(Ok(found)) => (false, Some(found.clone())),
            _ => (false, None),
        };
        let was_adopting = sandbox.is_adopting();
        sandbox.handle(event, now.boot, out);
        let adopting = sandbox.is_adopting();
        if shim_lost {
            self.each_container(id, now, out, |_| Some(ContainerEvent::ShimLost { adopting }));
        }
        for (container, found) in adopted.into_iter().flatten() {
            self.one_container(&container, ContainerEvent::Adopted(found), now, out);
        }
        if was_adopting && !adopting {
            self.each_container(id, now, out, |_| Some(ContainerEvent::AdoptionEnded));
        }
        self.settle(id, now, out);
    }

    fn container_event(&mut self, id: &ContainerId, event: ContainerEvent, now: Moment, out: &mut Vec<MachineEffect>) {
        let Some(container) = self.containers.get(id) else {
            match event {
                ContainerEvent::Start(waiter) => {
                    out.push(MachineEffect::Answer(waiter, Err(Refusal::NoContainer(id.clone()))));
                }
                // StopContainer and RemoveContainer of an unknown id succeed.
                ContainerEvent::Stop(waiter, _) | ContainerEvent::Remove(waiter) => {
                    out.push(MachineEffect::Answer(waiter, Ok(())));
                }
                _ => {}
            }
            return;
        };
        let sandbox = container.key().sandbox.clone();
        if let (ContainerEvent::Cleaned(Err(failure)), Some(owner)) = (&event, self.sandboxes.get_mut(&sandbox)) {
            owner.container_not_removed(failure, out);
        }
        self.one_container(id, event, now, out);
        self.settle(&sandbox, now, out);
    }

    /// Handles an event of a container, and forgets the container when it is gone.
    fn one_container(&mut self, id: &ContainerId, event: ContainerEvent, now: Moment, out: &mut Vec<MachineEffect>) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let gate = self.sandboxes.get(&container.key().sandbox).map_or(Gate::NotReady, Sandbox::gate);
        container.handle(event, gate, now, out);
        if container.is_gone() {
            self.names.release_container(container.key());
            self.containers.remove(id);
        }
    }

    fn each_container(
        &mut self,
        sandbox: &SandboxId,
        now: Moment,
        out: &mut Vec<MachineEffect>,
        event: impl Fn(&Container) -> Option<ContainerEvent>,
    ) {
        let of = self.containers.values().filter(|c| c.key().sandbox == *sandbox);
        let events: Vec<_> = of.filter_map(|c| Some((c.id().clone(), event(c)?))).collect();
        for (id, event) in events {
            self.one_container(&id, event, now, out);
        }
    }

    /// Passes a stop or removal of the sandbox on to its containers, and moves the sandbox on when they have followed.
    fn settle(&mut self, id: &SandboxId, now: Moment, out: &mut Vec<MachineEffect>) {
        loop {
            let Some(sandbox) = self.sandboxes.get(id) else { return };
            let (stops, removes) = (sandbox.stops_containers(), sandbox.removes_containers());
            if stops {
                self.each_container(id, now, out, |c| c.needs_forced_stop().then_some(ContainerEvent::ForceStop));
            }
            if removes {
                self.each_container(id, now, out, |c| c.needs_forced_removal().then_some(ContainerEvent::ForceRemove));
            }
            let of = || self.containers.values().filter(|c| c.key().sandbox == *id);
            let (running, present) = (of().any(Container::may_run), of().next().is_some());
            let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
            let moved = sandbox.containers_changed(running, present, out);
            if sandbox.is_gone() {
                self.names.release_sandbox(sandbox.key());
                self.sandboxes.remove(id);
                return;
            }
            if !moved {
                return;
            }
        }
    }
}
