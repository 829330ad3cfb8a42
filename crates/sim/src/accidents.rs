//! Accidents of the runtime, the host and the API server, and the recovery from them.

use std::time::Duration;

use jiff::SignedDuration;
use podwright_core::model::{Event, SandboxId};

use crate::calls::CallStep;
use crate::env::{Scheduled, trace};
use crate::faults::Faults;
use crate::world::World;

/// Something that goes wrong at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accident {
    /// The runtime stops answering. Containers keep running.
    RuntimeDown,
    /// The host reboots.
    Reboot,
    /// The wall clock is set to another time.
    ClockJump,
    /// A sandbox dies while its pod runs.
    SandboxDies,
    /// Another process on the host removes the cgroup of a running pod.
    CgroupRemoved,
    /// Observations of one pod find the runtime unavailable, which answers everything else.
    PodUnobservable,
    /// The journal's disk is full.
    DiskFull,
    /// The API server can't be reached.
    ApiDown,
}

/// The end of an accident that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    RuntimeUp,
    PodObservable,
    DiskFreed,
    ApiUp,
}

impl Accident {
    pub(crate) fn happen(self, world: &mut World) {
        match self {
            Self::RuntimeDown => runtime_down(world),
            Self::Reboot => reboot(world),
            Self::ClockJump => clock_jump(world),
            Self::SandboxDies => sandbox_dies(world),
            Self::CgroupRemoved => cgroup_removed(world),
            Self::PodUnobservable => pod_unobservable(world),
            Self::DiskFull => {
                trace!(world.env, "== disk full");
                world.agent.journal.disk_full = true;
            }
            Self::ApiDown => {
                trace!(world.env, "== API server down");
                world.store.unreachable = true;
                let delay = world.env.rng.millis(100, 40_000);
                world.env.after(delay, Scheduled::Recovery(Recovery::ApiUp));
            }
        }
    }
}

impl Recovery {
    pub(crate) fn happen(self, world: &mut World) {
        match self {
            Self::RuntimeUp if world.runtime.down => {
                trace!(world.env, "== runtime up");
                world.runtime.down = false;
                if !world.env.faults.no_stream {
                    let delay = world.env.rng.millis(1, 500);
                    world.env.send(delay, Event::EventStream { up: true });
                }
            }
            Self::RuntimeUp => {}
            Self::PodObservable => {
                if let Some(uid) = world.runtime.unobservable.take() {
                    trace!(world.env, "== {uid} can be observed again");
                }
            }
            Self::DiskFreed => {
                trace!(world.env, "== disk has free space");
                world.agent.journal.disk_full = false;
                world.agent.retry_commit(&mut world.env);
            }
            Self::ApiUp => {
                if std::mem::take(&mut world.store.unreachable) {
                    trace!(world.env, "== API server up");
                    let delay = world.env.rng.millis(0, 2000);
                    world.sources.announce(&mut world.env, world.store.source(), delay);
                }
            }
        }
    }
}

fn runtime_down(world: &mut World) {
    trace!(world.env, "== runtime down");
    world.checks.disturb_all();
    let (calls, mut cx) = world.call_parts();
    calls.runtime_dies(&mut cx);
    world.runtime.down = true;
    if !world.env.faults.no_stream {
        world.env.send(Duration::from_millis(1), Event::EventStream { up: false });
    }
    let delay = world.env.rng.millis(100, 30_000);
    world.env.after(delay, Scheduled::Recovery(Recovery::RuntimeUp));
}

fn pod_unobservable(world: &mut World) {
    let Some(id) = draw_ready_sandbox(world) else { return };
    let uid = world.runtime.sandboxes[&id].uid.clone();
    trace!(world.env, "== {uid} can't be observed");
    world.checks.disturb(&uid);
    world.env.hint(&uid);
    world.runtime.unobservable = Some(uid);
    let delay = world.env.rng.millis(100, 60_000);
    world.env.after(delay, Scheduled::Recovery(Recovery::PodObservable));
}

fn reboot(world: &mut World) {
    let wiped = world.env.rng.chance(500);
    trace!(world.env, "== reboot, the runtime's state is {}", if wiped { "lost" } else { "kept" });
    world.crash_agent("with the host");
    world.calls.discard_all(&mut world.runtime);
    world.env.retain(|item| !matches!(item, Scheduled::Exit { .. } | Scheduled::Call(_, CallStep::KillTimer)));
    world.env.clock.now += Duration::from_secs(20);
    world.checks.reboot(&world.runtime, wiped);
    world.runtime.reboot(wiped, world.env.clock.wall());
    world.host.reboot();
    world.env.clock.reboot();
    world.runtime.down = false;
}

fn clock_jump(world: &mut World) {
    let seconds = i64::try_from(world.env.rng.below(200_000)).unwrap_or(0) - 100_000;
    trace!(world.env, "== wall clock jumps by {seconds} s");
    world.env.clock.jump(SignedDuration::from_secs(seconds));
}

fn sandbox_dies(world: &mut World) {
    let Some(id) = draw_ready_sandbox(world) else { return };
    trace!(world.env, "== sandbox {id} dies");
    let uid = world.runtime.sandboxes[&id].uid.clone();
    world.checks.disturb(&uid);
    if let Some(sandbox) = world.runtime.sandboxes.get_mut(&id) {
        sandbox.ready = false;
    }
    world.env.hint(&uid);
}

/// A running agent notices it when it makes the next sandbox, a new one when it starts.
fn cgroup_removed(world: &mut World) {
    let Some(id) = draw_ready_sandbox(world) else { return };
    let uid = world.runtime.sandboxes[&id].uid.clone();
    if world.host.get(&uid).is_none_or(|host| !host.cgroup) {
        return;
    }
    trace!(world.env, "== the cgroup of {uid} is removed");
    world.host.change(&uid, |host| host.cgroup = false);
    world.checks.cgroup_removed(uid, world.env.epoch());
    if world.env.rng.chance(500) {
        world.crash_agent("after a cgroup was removed");
    }
}

fn draw_ready_sandbox(world: &mut World) -> Option<SandboxId> {
    let ready = world.runtime.sandboxes.iter().filter(|(_, s)| s.ready);
    let ready: Vec<_> = ready.map(|(id, _)| id.clone()).collect();
    (!ready.is_empty()).then(|| world.env.rng.pick(&ready).clone())
}

impl World {
    /// All faults end: nothing new goes wrong, every file parses, what hangs completes, and every source reports again.
    pub fn calm_down(&mut self) {
        trace!(self.env, "== calm");
        self.env.calm = true;
        self.env.faults = Faults::default();
        self.agent.journal.disk_full = false;
        self.agent.retry_commit(&mut self.env);
        Recovery::RuntimeUp.happen(self);
        Recovery::PodObservable.happen(self);
        Recovery::ApiUp.happen(self);
        self.env
            .retain(|item| !matches!(item, Scheduled::Accident(_) | Scheduled::AgentCrashes | Scheduled::UserAction));
        let (calls, mut cx) = self.call_parts();
        calls.end_hangs(&mut cx);
        if !self.agent.is_running() {
            self.env.after(Duration::from_millis(10), Scheduled::AgentStarts);
        }
        self.env.send(Duration::from_millis(20), Event::EventStream { up: true });
        self.sources.repair(&mut self.env);
    }
}
