//! The agent process: core, its journal, its timer, and the state that remains when it dies.

mod deliver;
mod effects;

use std::time::Duration;

use podwright_core::NodeConfig;
use podwright_core::model::{Event, Now, Out, PodUid, Record, Time};
use podwright_core::node::Node;
use podwright_core::record;

use crate::env::{Env, Scheduled, trace};
use crate::journal::Journal;
use crate::world::World;

/// The agent process and its disk.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The configuration the next process starts with.
    pub config: NodeConfig,
    /// Survives the process.
    pub journal: Journal,
    /// Every event and its output in the format of the agent's recorder; `None`: not recorded.
    pub recording: Option<Vec<String>>,
    /// How many events core has handled.
    pub events: u64,
    /// How long the agent stays dead; `None`: random.
    pub restart_after: Option<Duration>,
    /// Panics of core are caught as in the agent's event loop, and quarantine one pod. Otherwise they end the run.
    pub catch_panics: bool,
    node: Option<Node>,
    wake: Option<u64>,
    last_commit: Duration,
}

impl Agent {
    /// An agent that does not run yet and has an empty journal.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            journal: Journal::default(),
            recording: None,
            events: 0,
            restart_after: None,
            catch_panics: false,
            node: None,
            wake: None,
            last_commit: Duration::ZERO,
        }
    }

    /// Core; `None` while the process is dead.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The process is alive.
    pub fn is_running(&self) -> bool {
        self.node.is_some()
    }

    /// UIDs of all pods that core knows.
    pub fn pod_uids(&self) -> Vec<PodUid> {
        self.node.iter().flat_map(|n| n.workers().iter().map(|(uid, _)| uid.clone())).collect()
    }

    fn start(&mut self, env: &Env) {
        self.config.boot_id = env.clock.boot_id();
        let node = Node::new(self.config.clone(), self.journal.records());
        if self.recording.is_some() {
            self.record(record::begin(&node, env.clock.read()));
        }
        self.node = Some(node);
        self.last_commit = env.clock.now;
        self.wake = None;
    }

    /// The process dies. Returns the pods whose records did not reach the disk; `None` if it was dead already.
    fn die(&mut self) -> Option<Vec<PodUid>> {
        self.node.take().map(|_| self.journal.crash())
    }

    fn handle(&mut self, event: Event, now: Now) -> Out {
        let mut out = Out::default();
        // Recorded before it is handled: an event that makes core panic is the one to inspect.
        let recorded = self.recording.is_some().then(|| event.clone());
        if let Some(event) = &recorded {
            self.record(record::step(now, event, &out));
        }
        match &mut self.node {
            Some(node) if self.catch_panics => drop(node.handle_guarded(event, now, &mut out)),
            Some(node) => node.handle(event, now, &mut out),
            None => {}
        }
        if let Some(event) = recorded {
            self.recording.as_mut().and_then(Vec::pop);
            self.record(record::step(now, &event, &out));
        }
        out
    }

    fn record(&mut self, line: serde_json::Result<String>) {
        if let Some(lines) = &mut self.recording {
            lines.push(line.expect("events and outputs serialize"));
        }
    }

    /// The records and effects of one event go to the disk together, after those of earlier events.
    fn commit_later(&mut self, env: &mut Env, out: Out) {
        if out == Out::default() {
            return;
        }
        let at = if out.records.is_empty() { env.clock.now } else { env.clock.now + env.rng.millis(0, 4) };
        let at = at.max(self.last_commit);
        self.last_commit = at;
        let epoch = env.epoch();
        env.after(at - env.clock.now, Scheduled::Commit { epoch, out });
    }

    /// Writes what earlier commits could not write.
    pub(crate) fn retry_commit(&mut self, env: &mut Env) {
        if self.is_running() && self.journal.has_unwritten() {
            self.write_records(env, vec![]);
        }
    }

    fn write_records(&mut self, env: &mut Env, records: Vec<Record>) {
        if let Some(error) = self.journal.commit(records) {
            trace!(env, "== journal: {}", error.as_deref().unwrap_or("works again"));
            env.send(Duration::ZERO, Event::Journal { error });
        }
    }

    fn wake_at(&mut self, env: &mut Env, at: Time) {
        let delay = env.clock.at_boot_time(at).saturating_sub(env.clock.now);
        let (epoch, token) = (env.epoch(), env.next_number());
        env.after(delay, Scheduled::Wake { epoch, token });
        self.wake = Some(token);
    }

    /// True if this is the time of the last `Out::wake_at`.
    pub(crate) fn take_wake(&mut self, token: u64) -> bool {
        let latest = self.wake == Some(token);
        if latest {
            self.wake = None;
        }
        latest
    }
}

impl World {
    /// A new agent process reads the journal and starts.
    pub(crate) fn start_agent(&mut self) {
        if self.agent.is_running() {
            return;
        }
        self.env.next_epoch();
        let records = self.agent.journal.records();
        trace!(self.env, "== agent {} starts with {} records", self.env.epoch(), records.len());
        self.checks.agent_starts(&records);
        self.agent.start(&self.env);
        self.env.send(Duration::ZERO, Event::Wake);
        if !self.env.faults.no_stream && !self.runtime.down {
            let delay = self.env.rng.millis(0, 50);
            self.env.send(delay, Event::EventStream { up: true });
        }
        for source in self.sources.all() {
            let late = self.env.rng.chance(self.env.faults.source_late);
            let delay = if late { self.env.rng.millis(1_000, 20_000) } else { self.env.rng.millis(0, 200) };
            self.sources.announce(&mut self.env, source, delay);
        }
    }

    /// The agent process dies. Results on their way to it are lost. Calls inside the runtime continue, except stops: containerd
    /// gives up a stop when its caller disconnects.
    pub(crate) fn crash_agent(&mut self, how: &str) {
        let Some(lost) = self.agent.die() else { return };
        trace!(self.env, "== agent dies {how}");
        self.env.next_epoch();
        self.checks.agent_dies(lost);
        self.store.agent_dies();
        self.sources.agent_dies();
        let (calls, mut cx) = self.call_parts();
        calls.agent_dies(&mut cx);
        let random = if self.env.calm { Duration::from_millis(100) } else { self.env.rng.millis(50, 15_000) };
        let delay = self.agent.restart_after.unwrap_or(random);
        self.env.after(delay, Scheduled::AgentStarts);
    }
}
