//! The task that owns the machines: it turns calls, results and reports of shims into events, and effects into work.
//!
//! ```text
//!  verbs ── EngineCall ──▶┐                        ┌─▶ steps, one task each ── result ──▶ (again an event)
//!  shims ── FromShim ────▶├─▶ machines ── effects ─┤
//!  timers, abandoned ────▶┘   (one lane per pod)   └─▶ answers, signals, published events
//! ```
//! The effects of a pod pass through its lane in their order. A record is written before the next effect of that pod begins, and
//! other pods do not wait for it. Nothing in this task blocks.

mod calls;
mod container;
mod create;
mod effects;
mod exec_waiters;
mod lanes;
mod reports;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::v1;
use podwright_shim::protocol::{AckExit, request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use calls::{CallFailure, DriverHandle, EngineCall};
pub(crate) use container::{SPEC_FILE, read_plan};
pub(crate) use exec_waiters::ExecWaiters;

use crate::context::{EngineContext, now};
use crate::machine::{
    AdoptError, ContainerEffect, ContainerEvent, ContainerId, Failure, MachineEffect, MachineEvent, MachineTime,
    Machines, Refusal, SandboxEvent, SandboxId, WaiterId,
};
use crate::objects::{ContainerEntry, Objects, SandboxEntry};
use crate::shims::FromShim;
use calls::{Abandoned, AbandonedCall};
use effects::EffectExecutor;
use lanes::{LaneItem, Lanes, RecordKey, is_removing};

/// What reaches the driver besides the reports of shims.
#[derive(Debug)]
pub(crate) enum DriverInput {
    /// A call and its answer.
    Call(WaiterId, EngineCall, oneshot::Sender<Result<(), Refusal>>),
    /// The result of a step, or an exit that was observed.
    Happened(MachineEvent),
    /// The record at the head of a lane is written, or could not be, for this reason.
    Written(SandboxId, Option<(RecordKey, String)>),
}

/// The owner of the machines.
pub(crate) struct Driver {
    context: Arc<EngineContext>,
    inputs: mpsc::Receiver<DriverInput>,
    effects: EffectExecutor,
    reports: mpsc::Receiver<FromShim>,
    abandoned: Arc<Abandoned>,
    execs: Arc<ExecWaiters>,
    waiters: BTreeMap<WaiterId, oneshot::Sender<Result<(), Refusal>>>,
    lanes: Lanes,
    /// When a container has to be woken.
    wakes: BTreeMap<ContainerId, MachineTime>,
    last_created_ns: i64,
}

impl Driver {
    /// A driver and the handle for its callers.
    pub(crate) fn new(context: Arc<EngineContext>, reports: mpsc::Receiver<FromShim>) -> (Self, DriverHandle) {
        let (results, inputs) = mpsc::channel(INPUTS_MAX);
        let (abandoned, execs) = (Arc::<Abandoned>::default(), Arc::<ExecWaiters>::default());
        let handle = DriverHandle::new(results.clone(), Arc::clone(&abandoned), Arc::clone(&execs));
        let effects = EffectExecutor::new(Arc::clone(&context), results);
        let driver = Self {
            context,
            inputs,
            effects,
            reports,
            abandoned,
            execs,
            waiters: BTreeMap::new(),
            lanes: Lanes::new(),
            wakes: BTreeMap::new(),
            last_created_ns: 0,
        };
        (driver, handle)
    }

    /// Takes up the objects of an earlier agent. Their machines are made from the records.
    pub(crate) fn restore(
        &mut self,
        sandboxes: Vec<(SandboxId, SandboxEntry)>,
        containers: Vec<(ContainerId, ContainerEntry)>,
    ) {
        let mut out = vec![];
        {
            let mut objects = self.context.objects();
            let states = sandboxes.iter().map(|(id, e)| (id.clone(), calls::sandbox_key(&e.record), e.record.state));
            let of = containers.iter();
            let of = of.map(|(id, e)| (id.clone(), calls::container_key(&e.record), e.record.state.clone()));
            objects.machines = Machines::restore(states.collect(), of.collect(), now(), &mut out);
            let created = sandboxes.iter().map(|(_, e)| e.record.created_at_ns);
            let created = created.chain(containers.iter().map(|(_, e)| e.record.created_at_ns));
            self.last_created_ns = created.max().unwrap_or_default();
            objects.sandboxes = sandboxes.into_iter().collect();
            objects.containers = containers.into_iter().collect();
        }
        self.dispatch(&SandboxId(String::new()), out, vec![]);
    }

    /// Runs as long as the engine.
    pub(crate) async fn run(mut self) {
        loop {
            let wake = self.next_wake();
            tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(input) => self.input(input),
                    None => return,
                },
                Some(report) = self.reports.recv() => self.report(report),
                () = self.abandoned.changed() => self.abandon(),
                () = tokio::time::sleep_until(wake) => self.wake(),
            }
        }
    }

    fn input(&mut self, input: DriverInput) {
        match input {
            DriverInput::Call(waiter, call, answer) => {
                // Its abandonment may have been taken from the list before: nothing was known of the call then.
                let left = answer.is_closed().then(|| call.object());
                self.waiters.insert(waiter, answer);
                self.call(waiter, call);
                if let Some(of) = left {
                    self.abandon_one(waiter, of);
                }
            }
            DriverInput::Happened(event) => {
                let event = self.without_lost_adoption(event);
                self.handle(event, vec![]);
            }
            DriverInput::Written(sandbox, failed) => {
                let (failed, error) = failed.unzip();
                if let Some(id) = self.lanes.written(&sandbox, failed) {
                    let failure = Failure::new(format!("the start is not recorded: {}", error.unwrap_or_default()));
                    self.handle(MachineEvent::Container(id, ContainerEvent::LaunchFailed(failure)), vec![]);
                }
                self.drain(&sandbox);
            }
        }
    }

    /// A shim that was lost after it had adopted the pod: its loss was left to this result.
    fn without_lost_adoption(&self, event: MachineEvent) -> MachineEvent {
        match event {
            MachineEvent::Sandbox(id, SandboxEvent::Adopted(Ok(_))) if !self.has_link(&id) => {
                let failure = Failure::new("the shim was lost during its adoption");
                MachineEvent::Sandbox(id, SandboxEvent::Adopted(Err(AdoptError::Failed(failure))))
            }
            other => other,
        }
    }

    fn has_link(&self, id: &SandboxId) -> bool {
        self.context.objects().sandboxes.get(id).is_some_and(|entry| entry.link.is_some())
    }

    fn call(&mut self, waiter: WaiterId, call: EngineCall) {
        let event = match call {
            EngineCall::Run { id, key, planned, mut record } => {
                record.created_at_ns = self.created_at();
                self.context.objects().sandboxes.insert(id.clone(), SandboxEntry::new(*record));
                MachineEvent::Run { id, waiter, key, planned }
            }
            EngineCall::Create { id, key, mut record } => {
                record.created_at_ns = self.created_at();
                self.context.objects().containers.insert(id.clone(), ContainerEntry::new(*record));
                MachineEvent::Create { id, waiter, key }
            }
            EngineCall::StopSandbox(id) => MachineEvent::Sandbox(id, SandboxEvent::Stop(waiter)),
            EngineCall::RemoveSandbox(id) => MachineEvent::Sandbox(id, SandboxEvent::Remove(waiter)),
            EngineCall::Start(id) => MachineEvent::Container(id, ContainerEvent::Start(waiter)),
            EngineCall::Stop(id, timeout) => MachineEvent::Container(id, ContainerEvent::Stop(waiter, timeout)),
            EngineCall::Remove(id) => MachineEvent::Container(id, ContainerEvent::Remove(waiter)),
            EngineCall::SetResources(id, resources) => return self.set_resources(waiter, id, *resources),
        };
        self.handle(event, vec![]);
    }

    /// Advances the machines. `then` follows the effects in the lane of the pod.
    fn handle(&mut self, event: MachineEvent, then: Vec<LaneItem>) {
        // A stop whose caller has left must not kill.
        self.abandon();
        self.advance(event, then);
    }

    fn advance(&mut self, event: MachineEvent, then: Vec<LaneItem>) {
        let mut out = vec![];
        let sandbox = {
            let mut objects = self.context.objects();
            let sandbox = sandbox_of(&objects, &event);
            objects.machines.handle(event, now(), &mut out);
            sandbox
        };
        self.dispatch(&sandbox, out, then);
    }

    /// Passes effects to the lanes of their pods, and forgets what is gone.
    fn dispatch(&mut self, sandbox: &SandboxId, out: Vec<MachineEffect>, then: Vec<LaneItem>) {
        let mut touched = BTreeSet::from([sandbox.clone()]);
        {
            let mut objects = self.context.objects();
            for effect in out {
                let (of, item) = lanes::item(&self.context, &mut objects, sandbox, effect);
                self.lanes.push(&of, item);
                touched.insert(of);
            }
            touched.iter().for_each(|sandbox| forget(&mut objects, sandbox));
        }
        self.lanes.push(sandbox, then);
        for sandbox in touched {
            self.drain(&sandbox);
        }
    }

    /// Begins the effects of a pod, up to the next record to write.
    fn drain(&mut self, sandbox: &SandboxId) {
        while let Some(item) = self.lanes.next(sandbox) {
            match item {
                LaneItem::WriteSandbox(id, record) => {
                    let key = RecordKey::Sandbox(id.clone());
                    self.effects.write(sandbox.clone(), key, move |context| context.store.update_sandbox(&id, &record));
                }
                LaneItem::WriteContainer(id, record) => {
                    let key = RecordKey::Container(id.clone());
                    let write = move |context: &EngineContext| context.store.update_container(&id, &record);
                    self.effects.write(sandbox.clone(), key, write);
                }
                LaneItem::Step(id, step) => self.effects.begin_step(id, step),
                LaneItem::AdoptAfter(id, pause) => self.effects.adopt_after(id, pause),
                LaneItem::Container(id, ContainerEffect::WakeAt(at)) => drop(self.wakes.insert(id, at)),
                LaneItem::Container(id, effect) => self.effects.begin_container_effect(sandbox, id, effect),
                LaneItem::Publish(event) => self.context.events.publish(*event),
                LaneItem::Answer(waiter, result) => {
                    if let Some(answer) = self.waiters.remove(&waiter) {
                        let _ = answer.send(result);
                    }
                }
                LaneItem::Acknowledge(link, seq) => link.notify(request::RequestKind::AckExit(AckExit { seq })),
            }
        }
    }

    /// New limits in the record of a container.
    fn set_resources(&mut self, waiter: WaiterId, id: ContainerId, resources: v1::LinuxContainerResources) {
        let (sandbox, items) = {
            let mut objects = self.context.objects();
            let is_removing = is_removing(&objects, &id);
            match objects.containers.get_mut(&id).filter(|_| !is_removing) {
                Some(entry) => {
                    entry.record.config.linux.get_or_insert_default().resources = Some(resources);
                    let sandbox = SandboxId(entry.record.sandbox_id.clone());
                    let write = LaneItem::WriteContainer(id, Box::new(entry.record.clone()));
                    (sandbox, vec![write, LaneItem::Answer(waiter, Ok(()))])
                }
                None => {
                    let refusal = LaneItem::Answer(waiter, Err(Refusal::NoContainer(id)));
                    (SandboxId(String::new()), vec![refusal])
                }
            }
        };
        self.dispatch(&sandbox, vec![], items);
    }

    fn abandon(&mut self) {
        for (waiter, of) in self.abandoned.take() {
            self.abandon_one(waiter, of);
        }
    }

    fn abandon_one(&mut self, waiter: WaiterId, of: AbandonedCall) {
        self.waiters.remove(&waiter);
        let event = match of {
            AbandonedCall::Sandbox(id) => MachineEvent::Sandbox(id, SandboxEvent::Abandon(waiter)),
            AbandonedCall::Container(id) => MachineEvent::Container(id, ContainerEvent::Abandon(waiter)),
        };
        self.advance(event, vec![]);
    }

    fn next_wake(&self) -> Instant {
        let boot = now().boot;
        let first = self.wakes.values().min().map(|at| at.saturating_sub(boot));
        // Time that the host was suspended counts for deadlines, but not for a sleep: hence the limit.
        let sleep = first.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let wake = Instant::now() + sleep;
        self.lanes.retry_at().map_or(wake, |retry| wake.min(retry))
    }

    fn wake(&mut self) {
        let boot = now().boot;
        let due: Vec<ContainerId> =
            self.wakes.iter().filter(|(_, at)| **at <= boot).map(|(id, _)| id.clone()).collect();
        for id in due {
            self.wakes.remove(&id);
            self.handle(MachineEvent::Container(id, ContainerEvent::Wake), vec![]);
        }
        let retried = self.lanes.retry(&self.context);
        for sandbox in retried {
            self.drain(&sandbox);
        }
    }

    /// Strictly increasing over all objects, whatever the clock does.
    fn created_at(&mut self) -> i64 {
        self.last_created_ns = now().wall_ns.max(self.last_created_ns + 1);
        self.last_created_ns
    }
}

/// The pod that an event belongs to; that of an unknown object is the empty id.
fn sandbox_of(objects: &Objects, event: &MachineEvent) -> SandboxId {
    match event {
        MachineEvent::Run { id, .. } | MachineEvent::Sandbox(id, _) => id.clone(),
        MachineEvent::Create { key, .. } => key.sandbox.clone(),
        MachineEvent::Container(id, _) => {
            let of = objects.containers.get(id).map(|entry| entry.record.sandbox_id.clone());
            SandboxId(of.unwrap_or_default())
        }
    }
}

/// Drops the entries of a pod that have no machine any more, or never got one.
fn forget(objects: &mut Objects, sandbox: &SandboxId) {
    let Objects { machines, sandboxes, containers } = objects;
    if machines.sandbox(sandbox).is_none() {
        sandboxes.remove(sandbox);
    }
    containers.retain(|id, entry| entry.record.sandbox_id != sandbox.0 || machines.container(id).is_some());
}

/// Calls and results that wait for the driver, which never waits itself.
const INPUTS_MAX: usize = 1024;
const SLEEP_MAX: Duration = Duration::from_secs(1);
