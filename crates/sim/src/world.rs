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
use podwright_core::model::{
    CallId, ContainerId, Event, Manifest, Out, PodUid, Record, SandboxId, Seq, Source, SourceChange,
};
use podwright_core::node::Node;
use podwright_core::record;

use crate::behaviour::Behaviour;
use crate::check::{Checks, Violation};
use crate::clock::Clock;
use crate::faults::{Fate, Faults};
use crate::flight::Flight;
use crate::host::Host;
use crate::journal::Journal;
use crate::keeper::{ApiServer, Wire};
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
    pub api: ApiServer,
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

/// The files of one source.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// By path.
    pub files: BTreeMap<String, File>,
    /// What the agent was told in the last SET: by UID.
    pub told: BTreeMap<PodUid, Manifest>,
    /// The agent that runs now has heard from it.
    pub reported: bool,
}

/// One file.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Its pods.
    pub pods: Vec<Manifest>,
    /// It can't be parsed now.
    pub broken: bool,
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
            api: ApiServer::default(),
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

    /// Change a source's files; the agent hears of it after a while.
    pub fn write(&mut self, source: Source, change: impl FnOnce(&mut BTreeMap<String, File>)) {
        change(&mut self.sources.entry(source).or_default().files);
        let delay = if self.calm { Duration::from_millis(1) } else { self.rng.millis(0, 300) };
        self.announce(source, delay);
    }

    /// A source speaks after this time, unless it is about to.
    pub(crate) fn announce(&mut self, source: Source, delay: Duration) {
        if self.pending_sets.insert(source) {
            self.after(delay, Item::Set(source));
        }
    }

    /// Put one pod into its file, alone.
    pub fn put(&mut self, source: Source, manifest: Manifest) {
        let origin = manifest.origin.clone();
        self.write(source, |files| {
            files.insert(origin, File { pods: vec![manifest], broken: false });
        });
    }

    /// Remove a file.
    pub fn remove(&mut self, source: Source, origin: &str) {
        let origin = origin.to_owned();
        self.write(source, |files| {
            files.remove(&origin);
        });
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
            Item::Act => self.act(),
            Item::Crash => self.crash("asked for"),
            Item::Wire(wire) => self.wire(wire),
        }
        self.check_world();
    }

    /// Core handles one event.
    pub(crate) fn turn(&mut self, event: Event) {
        if self.node.is_none() {
            return;
        }
        if self.tracing {
            self.trace_event(&event);
        }
        self.turns += 1;
        self.check_event(&event);
        let mut out = Out::default();
        let (now, catch) = (self.clock.read(), self.catch_panics);
        // Before it is handled: an event that makes core panic is the one people want to see.
        let recorded = self.recording.is_some().then(|| event.clone());
        if let Some(event) = &recorded {
            self.record(record::step(now, event, &out));
        }
        match &mut self.node {
            Some(node) if catch => drop(node.handle_guarded(event, now, &mut out)),
            Some(node) => node.handle(event, now, &mut out),
            None => {}
        }
        if let Some(event) = recorded {
            self.recording.as_mut().and_then(Vec::pop);
            self.record(record::step(now, &event, &out));
        }
        self.checks.after_handling(self.turns);
        if self.tracing {
            self.trace_out(&out);
        }
        self.check_turn(&out);
        if self.rng.chance(self.faults.crash) && self.rng.chance(300) {
            return self.crash("before its records were written");
        }
        self.commit_later(out);
    }

    pub(crate) fn record(&mut self, line: serde_json::Result<String>) {
        if let Some(lines) = &mut self.recording {
            lines.push(line.expect("everything core is told can be written down"));
        }
    }

    /// Records and effects of a turn go to the disk together, behind those of the turns before.
    pub(crate) fn commit_later(&mut self, out: Out) {
        if out == Out::default() {
            return;
        }
        let at = if out.records.is_empty() { self.clock.now } else { self.clock.now + self.rng.millis(0, 4) };
        let at = at.max(self.last_commit);
        self.last_commit = at;
        let epoch = self.epoch;
        self.after(at - self.clock.now, Item::Commit { epoch, out });
    }

    pub(crate) fn retry_commit(&mut self) {
        if self.node.is_some() && self.journal.owes() {
            self.write_records(vec![]);
        }
    }

    fn write_records(&mut self, records: Vec<Record>) {
        if let Some(error) = self.journal.commit(records) {
            trace!(self, "== journal: {}", error.as_deref().unwrap_or("works again"));
            self.send(Duration::ZERO, Event::Journal { error });
        }
    }

    fn commit(&mut self, out: Out) {
        if !out.records.is_empty() {
            self.write_records(out.records);
        }
        let mut performed =
            if self.rng.chance(self.faults.crash) { self.rng.index(out.effects.len() + 1) } else { usize::MAX };
        let dies = performed != usize::MAX;
        for effect in out.effects {
            if performed == 0 {
                break;
            }
            performed = performed.saturating_sub(1);
            self.perform(effect);
        }
        if dies {
            self.crash("after its records were written");
        }
    }

    /// A source says everything it has.
    fn say_set(&mut self, source: Source) {
        self.pending_sets.remove(&source);
        if self.node.is_none() {
            return;
        }
        if source == Source::Api {
            return self.say_objects();
        }
        let files = self.sources.entry(source).or_default();
        let pods: Vec<Manifest> = files.files.values().filter(|f| !f.broken).flat_map(|f| f.pods.clone()).collect();
        let broken: Vec<(String, String)> = files
            .files
            .iter()
            .filter(|(_, f)| f.broken)
            .map(|(path, _)| (path.clone(), "did not parse".to_owned()))
            .collect();
        self.turn(Event::Source { source, change: SourceChange::Set { pods, broken } });
    }

    /// Sandboxes of a pod in no particular order.
    pub(crate) fn any_ready_sandbox(&mut self) -> Option<SandboxId> {
        let ready: Vec<_> = self.runtime.sandboxes.iter().filter(|(_, s)| s.ready).map(|(id, _)| id.clone()).collect();
        (!ready.is_empty()).then(|| self.rng.pick(&ready).clone())
    }
}
