//! The world: one agent's core, a runtime, a machine and a journal around it, and everything that is to happen, in order.
//!
//! ```text
//!  queue ─▶ step ─▶ an event for core ─▶ records ─▶ commit ─▶ effects ─▶ flights ─▶ models change, answers come back
//!              └──▶ something in the world: a process ends, the agent dies, a file changes, a fault begins
//! ```
//!
//! Effects of a turn are performed when its records are committed, in order, as the agent's loop does. After every step the
//! checkers look at the whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_core::NodeConfig;
use podwright_core::model::{CallId, ContainerId, Event, Out, PodUid, SandboxId, Seq, Source};
use podwright_core::node::Node;

use crate::behaviour::Behaviour;
use crate::check::{Checks, Violation};
use crate::clock::Clock;
use crate::faults::{Fate, Faults};
use crate::files::Files;
use crate::flight::Flight;
use crate::host::Host;
use crate::journal::Journal;
use crate::keeper::{Keeper, Wire};
use crate::rng::Rng;
use crate::runtime::Runtime;
use crate::workload::Workload;

/// Everything there is.
#[derive(Clone, Debug)]
pub struct World {
    /// Time.
    pub clock: Clock,
    /// Chance.
    pub rng: Rng,
    /// The container runtime.
    pub runtime: Runtime,
    /// The machine.
    pub host: Host,
    /// The journal.
    pub journal: Journal,
    /// What goes wrong now.
    pub faults: Faults,
    /// How containers behave.
    pub behaviours: Vec<Behaviour>,
    /// The manifests.
    pub sources: BTreeMap<Source, Files>,
    /// The API server, if the world has joined one.
    pub keeper: Keeper,
    /// The agent; `None` while it is dead.
    pub node: Option<Node>,
    /// The agent's settings.
    pub config: NodeConfig,
    /// What the checkers know.
    pub checks: Checks,
    /// The first broken rule.
    pub violation: Option<Violation>,
    /// Print one line per event.
    pub tracing: bool,
    /// What core is told is kept here, as the agent's flight recorder writes it, if anyone wants it.
    pub recording: Option<Vec<String>>,
    /// Events that core handled.
    pub turns: u64,
    /// Nothing new goes wrong; what hangs ends.
    pub calm: bool,
    /// The actions still to come.
    pub workload: Workload,
    /// How long the agent stays dead; by chance if not told.
    pub restart_after: Option<Duration>,
    /// What becomes of the next runtime call, whatever the dice would say.
    pub next_fate: Option<Fate>,
    /// Panics of core are caught as the agent's loop does, and cost one pod. Else they end the run.
    pub catch_panics: bool,
    pub(crate) epoch: u32,
    pub(crate) queue: BTreeMap<(Duration, u64), Item>,
    pub(crate) queued: u64,
    pub(crate) flights: BTreeMap<u64, Flight>,
    pub(crate) by_call: BTreeMap<CallId, u64>,
    pub(crate) flown: u64,
    pub(crate) wake: Option<u64>,
    pub(crate) last_commit: Duration,
    pub(crate) pending_sets: BTreeSet<Source>,
}

/// What is to happen.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// An event reaches the agent, if it is still the same agent.
    Event { epoch: u32, event: Event },
    /// The time the agent asked for.
    Wake { epoch: u32, token: u64 },
    /// A turn's records reach the disk.
    Commit { epoch: u32, out: Out },
    /// A call has its effect.
    Apply(u64),
    /// A call fails.
    Fail(u64),
    /// A call's time is over.
    Timeout(u64),
    /// A stop's patience is over.
    KillTimer(u64),
    /// A hook ends.
    HookEnds(u64),
    /// A process ends.
    Exit { id: ContainerId, code: i32, by_itself: bool },
    /// A look is taken; the answer goes out after a while.
    Look { epoch: u32, uid: PodUid, seq: Seq, answer: Duration },
    /// A list is taken.
    List { epoch: u32, seq: Seq, answer: Duration },
    /// A source speaks.
    Set(Source),
    /// A new agent starts.
    AgentStarts,
    /// The runtime goes away.
    RuntimeDown,
    /// The runtime is back.
    RuntimeUp,
    /// The disk fills up, or has room again.
    Disk { full: bool },
    /// The machine starts anew.
    Reboot,
    /// The wall clock is set.
    Jump,
    /// A sandbox dies by itself.
    SandboxDies,
    /// Somebody removes a cgroup under what runs in it.
    CgroupGoes,
    /// The next action of the workload.
    Act,
    /// The agent dies now.
    Crash,
    /// To or from the API server.
    Wire(Wire),
}

/// One line of trace, only built when someone reads it.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.tracing {
            println!("{:>10.3} {}", $world.clock.now.as_secs_f64() - 1000.0, format!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl World {
    /// An empty world with these faults. The agent starts with [`World::boot`].
    pub fn new(seed: u64, faults: Faults) -> Self {
        let clock = Clock::default();
        let config = NodeConfig {
            sources: BTreeSet::from([Source::File, Source::Url]),
            runtime_request_timeout: Duration::from_secs(10),
            backoff_max: Duration::from_secs(20),
            boot_id: clock.boot_id(),
            ..NodeConfig::default()
        };
        let sources = config.sources.iter().map(|s| (*s, Files::default())).collect();
        Self {
            clock,
            rng: Rng::new(seed),
            runtime: Runtime::default(),
            host: Host::default(),
            journal: Journal::default(),
            faults,
            behaviours: vec![Behaviour::default()],
            sources,
            keeper: Keeper::default(),
            node: None,
            config,
            checks: Checks::default(),
            violation: None,
            tracing: false,
            recording: None,
            turns: 0,
            calm: false,
            workload: Workload::default(),
            restart_after: None,
            next_fate: None,
            catch_panics: false,
            epoch: 0,
            queue: BTreeMap::new(),
            queued: 0,
            flights: BTreeMap::new(),
            by_call: BTreeMap::new(),
            flown: 0,
            wake: None,
            last_commit: Duration::ZERO,
            pending_sets: BTreeSet::new(),
        }
    }

    /// The agent starts, now.
    pub fn boot(&mut self) {
        self.after(Duration::ZERO, Item::AgentStarts);
    }

    pub(crate) fn after(&mut self, delay: Duration, item: Item) {
        self.queued += 1;
        self.queue.insert((self.clock.now + delay, self.queued), item);
    }

    /// An event for the agent that runs now.
    pub fn send(&mut self, delay: Duration, event: Event) {
        let epoch = self.epoch;
        self.after(delay, Item::Event { epoch, event });
    }

    /// The agent dies after this time.
    pub fn crash_after(&mut self, delay: Duration) {
        self.after(delay, Item::Crash);
    }

    /// Let everything happen that happens within this time. False once a rule is broken.
    pub fn run_for(&mut self, time: Duration) -> bool {
        let until = self.clock.now + time;
        while self.violation.is_none() && self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.step();
        }
        if self.violation.is_none() {
            self.clock.now = self.clock.now.max(until);
        }
        self.violation.is_none()
    }

    /// The next thing happens.
    pub fn step(&mut self) {
        let Some(((at, _), item)) = self.queue.pop_first() else { return };
        self.clock.now = self.clock.now.max(at);
        match item {
            Item::Event { epoch, event } => {
                if epoch == self.epoch {
                    self.turn(event);
                }
            }
            Item::Wake { epoch, token } => {
                if epoch == self.epoch && self.wake == Some(token) {
                    self.wake = None;
                    self.turn(Event::Wake);
                }
            }
            Item::Commit { epoch, out } => {
                if epoch == self.epoch {
                    self.commit(out);
                }
            }
            Item::Apply(flight) => self.apply(flight),
            Item::Fail(flight) => self.fail_flight(flight),
            Item::Timeout(flight) => self.time_out(flight),
            Item::KillTimer(flight) => self.patience_over(flight),
            Item::HookEnds(flight) => self.hook_ends(flight),
            Item::Exit { id, code, by_itself } => self.exit(&id, code, by_itself),
            Item::Look { epoch, uid, seq, answer } => self.look(epoch, uid, seq, answer),
            Item::List { epoch, seq, answer } => self.list(epoch, seq, answer),
            Item::Set(source) => self.say_set(source),
            Item::AgentStarts => self.start_agent(),
            Item::RuntimeDown => self.runtime_down(),
            Item::RuntimeUp => self.runtime_up(),
            Item::Disk { full } => {
                trace!(self, "== disk {}", if full { "full" } else { "has room" });
                self.journal.broken = full;
                if !full {
                    // The agent tries again what it owes.
                    self.retry_commit();
                }
            }
            Item::Reboot => self.reboot(),
            Item::Jump => self.jump(),
            Item::SandboxDies => self.sandbox_dies(),
            Item::CgroupGoes => self.cgroup_goes(),
            Item::Act => self.act(),
            Item::Crash => self.crash("asked for"),
            Item::Wire(wire) => self.wire(wire),
        }
        self.check_world();
    }

    /// Sandboxes of a pod in no particular order.
    pub(crate) fn any_ready_sandbox(&mut self) -> Option<SandboxId> {
        let ready: Vec<_> = self.runtime.sandboxes.iter().filter(|(_, s)| s.ready).map(|(id, _)| id.clone()).collect();
        (!ready.is_empty()).then(|| self.rng.pick(&ready).clone())
    }
}
