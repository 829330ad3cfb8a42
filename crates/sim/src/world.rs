//! The simulated world: the agent process with core and its journal, the runtime, the host, the sources and the object store
//! around it, and the scheduler that runs them in order of time.
//!
//! ```text
//!  queue ─▶ step ─▶ event for core ─▶ records ─▶ commit ─▶ effects ─▶ calls ─▶ models change, results are queued
//!             └───▶ something else: a process exits, the agent dies, a file changes, a fault begins
//! ```
//!
//! The effects of an event are performed after its records were committed, in order, as in the agent's event loop. After every
//! step the checkers compare the whole state with the rules.

use std::collections::BTreeSet;
use std::time::Duration;

use podwright_core::NodeConfig;
use podwright_core::model::{Event, Manifest, Source};

use crate::agent::Agent;
use crate::calls::{CallContext, Calls};
use crate::check::{self, Checks, RuntimeView, Truth, Violation};
use crate::container_script::ContainerScript;
use crate::env::{Env, Scheduled};
use crate::faults::Faults;
use crate::host::Host;
use crate::object_store::ObjectStore;
use crate::runtime::Runtime;
use crate::sources::ManifestSources;
use crate::workload::{self, Workload};

/// All parts of one simulation.
#[derive(Clone, Debug)]
pub struct World {
    /// Time, randomness, faults and the queue.
    pub env: Env,
    /// The agent process: core and its journal.
    pub agent: Agent,
    /// The container runtime.
    pub runtime: Runtime,
    /// The node's cgroups, directories, volumes and logs.
    pub host: Host,
    /// The sources of pods.
    pub sources: ManifestSources,
    /// The API server, or the store behind the local API.
    pub store: ObjectStore,
    /// Calls of core that are under way.
    pub(crate) calls: Calls,
    /// The state of the checkers.
    pub checks: Checks,
    /// What users do to the node.
    pub workload: Workload,
}

impl World {
    /// A world with nothing in it. The agent starts with [`World::boot`].
    pub fn new(seed: u64, faults: Faults) -> Self {
        let env = Env::new(seed, faults);
        let config = NodeConfig {
            sources: BTreeSet::from([Source::File, Source::Url]),
            runtime_request_timeout: Duration::from_secs(10),
            backoff_max: Duration::from_secs(20),
            boot_id: env.clock.boot_id(),
            ..NodeConfig::default()
        };
        Self {
            sources: ManifestSources::new(&config.sources),
            env,
            agent: Agent::new(config),
            runtime: Runtime::new(vec![ContainerScript::default()]),
            host: Host::default(),
            store: ObjectStore::default(),
            calls: Calls::default(),
            checks: Checks::default(),
            workload: Workload::default(),
        }
    }

    /// The agent process starts now.
    pub fn boot(&mut self) {
        self.env.after(Duration::ZERO, Scheduled::AgentStarts);
    }

    /// The node gets its pods from an API server, too.
    pub fn join_cluster(&mut self) {
        self.enable_store(Source::Api);
    }

    /// Pods can be submitted to the node's local API.
    pub fn enable_local_api(&mut self) {
        self.enable_store(Source::Local);
    }

    fn enable_store(&mut self, source: Source) {
        self.store.enable(source);
        self.agent.config.sources.insert(source);
        self.sources.add(source);
    }

    /// Writes a manifest file with this pod alone.
    pub fn put_manifest(&mut self, source: Source, manifest: Manifest) {
        self.sources.put(&mut self.env, source, manifest);
    }

    /// Removes a manifest file.
    pub fn remove_manifest(&mut self, source: Source, path: &str) {
        self.sources.remove(&mut self.env, source, path);
    }

    /// The first broken rule.
    pub fn violation(&self) -> Option<&Violation> {
        self.checks.violation.as_ref()
    }

    /// Performs all steps within this time. False once a rule is broken.
    pub fn run_for(&mut self, time: Duration) -> bool {
        let until = self.env.clock.now + time;
        while self.violation().is_none() && self.env.has_item_until(until) {
            self.step();
        }
        if self.violation().is_none() {
            self.env.clock.now = self.env.clock.now.max(until);
        }
        self.violation().is_none()
    }

    /// Runs until everything is as the sources want it, then long enough for every timer, and checks again.
    pub fn settle(&mut self, within: Duration) -> bool {
        let until = self.env.clock.now + within;
        let mut quiet = None;
        while self.violation().is_none() {
            let now = self.env.clock.now;
            match self.settled() {
                Ok(()) if quiet.is_some_and(|since| now >= since + QUIET) => return true,
                Ok(()) => {
                    quiet.get_or_insert(now);
                }
                Err(why) if now >= until => {
                    self.checks.violate("6 the world settles", why);
                    self.trace_violation();
                }
                Err(_) => quiet = None,
            }
            self.run_for(Duration::from_secs(3));
        }
        false
    }

    /// What is not yet as the sources want it, if anything.
    pub fn settled(&self) -> Result<(), String> {
        check::settled(&self.checks, &self.truth())
    }

    /// Performs the next item of the queue.
    pub fn step(&mut self) {
        let Some(item) = self.env.pop() else { return };
        match item {
            Scheduled::Event { epoch, event } if epoch == self.env.epoch() => self.deliver(event),
            Scheduled::Wake { epoch, token } if epoch == self.env.epoch() && self.agent.take_wake(token) => {
                self.deliver(Event::Wake);
            }
            Scheduled::Commit { epoch, out } if epoch == self.env.epoch() => self.commit(out),
            Scheduled::Observe { epoch, uid, seq, answer } if epoch == self.env.epoch() => {
                self.observe_now(uid, seq, answer);
            }
            Scheduled::List { epoch, seq, answer } if epoch == self.env.epoch() => self.list_now(seq, answer),
            // Of an agent process that is gone.
            Scheduled::Event { .. }
            | Scheduled::Wake { .. }
            | Scheduled::Commit { .. }
            | Scheduled::Observe { .. }
            | Scheduled::List { .. } => {}
            Scheduled::Call(n, step) => {
                let (calls, mut cx) = self.call_parts();
                calls.step(&mut cx, n, step);
            }
            Scheduled::Exit { id, code, unprompted } => {
                let (calls, mut cx) = self.call_parts();
                calls.exit(&mut cx, &id, code, unprompted);
            }
            Scheduled::SourceReports(source) => self.source_reports(source),
            Scheduled::AgentStarts => self.start_agent(),
            Scheduled::AgentCrashes => self.crash_agent("on request"),
            Scheduled::Accident(accident) => accident.happen(self),
            Scheduled::Recovery(recovery) => recovery.happen(self),
            Scheduled::UserAction => workload::act(self),
            Scheduled::Store(event) => self.store_event(event),
        }
        check::check_world(
            &mut self.checks,
            &RuntimeView::new(&self.env.clock, &self.runtime, self.agent.journal.disk_full),
        );
        self.trace_violation();
    }

    /// The calls under way and the parts that they change.
    pub(crate) fn call_parts(&mut self) -> (&mut Calls, CallContext<'_>) {
        let cx = CallContext {
            env: &mut self.env,
            runtime: &mut self.runtime,
            host: &mut self.host,
            checks: &mut self.checks,
            journal_full: self.agent.journal.disk_full,
        };
        (&mut self.calls, cx)
    }

    /// The checkers' state, and what they compare core with.
    pub(crate) fn check_parts(&mut self) -> (&mut Checks, Truth<'_>) {
        let truth = Truth::new(&self.env, &self.agent, &self.runtime, &self.host, &self.sources, &self.store);
        (&mut self.checks, truth)
    }

    pub(crate) fn truth(&self) -> Truth<'_> {
        Truth::new(&self.env, &self.agent, &self.runtime, &self.host, &self.sources, &self.store)
    }

    /// Prints a newly broken rule, and what every pod waits for.
    pub(crate) fn trace_violation(&mut self) {
        let Some(violation) = self.checks.unreported_violation().filter(|_| self.env.tracing) else { return };
        let clock = &self.env.clock;
        println!("{:>10.3} !! {}: {}", clock.now.as_secs_f64() - 1000.0, violation.rule, violation.detail);
        let Some(workers) = self.agent.node().map(|node| node.workers()) else { return };
        for (uid, pod) in workers.iter() {
            let waits = workers.machine(uid).map(|machine| machine.waits(clock.read()));
            println!("           {uid} is {:?} and waits for {waits:?}", pod.state());
        }
    }
}

/// Longer than every timer of a node at rest: housekeeping, the list, the health check.
const QUIET: Duration = Duration::from_secs(66);
