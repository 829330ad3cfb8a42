//! The shipped agent with its event loop, executors, observer, journal and core, over a runtime and a host in memory, on tokio's
//! time. With paused time, minutes of hangs and waits take milliseconds.
//!
//! ```text
//!   test ─▶ AgentHarness ─▶ EventLoop + core ─▶ CallExecutor, Observer ─▶ FakeRuntime   rules, rates, outages, corruption
//!                                │                    └────────────────▶ FakeHost      hung volumes
//!                                └─▶ Journal (not with paused time: it has a thread, and paused time does not wait for threads)
//! ```

mod clock;
mod corrupt;
mod executor;
mod faults;
mod host;
mod runtime;
mod service;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use podwright_agent::event_loop::{Clock, CorrelatedEvent, EventLoop, Handle, LoopInputs, PodsResponse};
use podwright_agent::host::{Pool, PoolLimits};
use podwright_agent::journal::Journal;
use podwright_agent::observe::Observer;
use podwright_agent::perform::{self, CallExecutorConfig, PullConfig, SharedFeatures};
use podwright_agent::translate::NodeSettings;
use podwright_core::model::{Event, Manifest, PodRecord, Source, SourceChange};
use podwright_core::{Node, NodeConfig, static_pod};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use clock::HarnessClock;
pub use executor::Counts;
pub use faults::{Corruption, EventFaults, FaultRates, Reaction, Rule};
pub use host::FakeHost;
pub use runtime::FakeRuntime;
pub use state::{Program, ReceivedCall};

/// An agent, its runtime and its host.
pub struct AgentHarness {
    /// What CRI calls reach.
    pub runtime: FakeRuntime,
    /// What host calls change.
    pub host: FakeHost,
    /// The clocks that the agent reads.
    pub clock: HarnessClock,
    config: NodeConfig,
    journal: Option<PathBuf>,
    manifests: Vec<Manifest>,
    agent: Option<Agent>,
}

/// One agent process.
struct Agent {
    handle: Handle,
    counts: Arc<Counts>,
    dead: CancellationToken,
    tasks: Vec<AbortHandle>,
}

impl AgentHarness {
    /// A running agent without a journal.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, None)
    }

    /// A running agent. A journal does not work with paused time.
    pub fn with(seed: u64, journal: Option<&Path>) -> Self {
        let clock = HarnessClock::start();
        let boot_id = "boot".to_owned();
        let mut harness = Self {
            runtime: FakeRuntime::new(seed, clock.clone()),
            host: FakeHost::default(),
            clock,
            config: NodeConfig { boot_id, max_pods: 250, ..NodeConfig::default() },
            journal: journal.map(Path::to_owned),
            manifests: vec![],
            agent: None,
        };
        harness.start();
        harness
    }

    /// Starts an agent process with the records of the journal.
    pub fn start(&mut self) {
        let (journal, records) = match &self.journal {
            Some(dir) => {
                let (journal, records, _) = Journal::open(dir).expect("the journal opens");
                (Some(journal), records)
            }
            None => (None, vec![]),
        };
        self.start_from(journal, records);
    }

    fn start_from(&mut self, journal: Option<Journal>, records: Vec<PodRecord>) {
        let runtime = Arc::new(self.runtime.clone());
        let features = SharedFeatures::default();
        let pool = Pool::new(PoolLimits::default());
        let limit = self.config.runtime_request_timeout;
        let inputs = LoopInputs::new(mpsc::channel(1).1);
        let paths = NodeSettings::default().paths;
        let observer = Observer::new(runtime.clone(), features.clone(), pool.clone(), paths, limit, inputs.sender());
        let observer = Arc::new(observer);
        let perform = perform::CallExecutor::new(CallExecutorConfig {
            runtime: runtime.clone(),
            images: runtime,
            // Files are read on threads, and paused time does not wait for threads.
            settings: Arc::new(NodeSettings { resolv_conf: None, ..NodeSettings::default() }),
            host: Arc::new(self.host.clone()),
            features,
            pool,
            pulls: PullConfig { parallel: 5, parallel_per_host: 5, rate: None, credential_dirs: vec![], records: None },
            sandbox_parallel: self.config.sandbox_parallel,
            max_pods: self.config.max_pods,
        });
        let (dead, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
        let executor = executor::HarnessExecutor {
            perform: Arc::new(perform),
            observer: observer.clone(),
            host: self.host.clone(),
            dead: dead.clone(),
            counts: counts.clone(),
        };
        let node = Node::new(self.config.clone(), records);
        let (event_loop, handle) =
            EventLoop::new(inputs, node, journal, Arc::new(executor), Arc::new(self.clock.clone()));
        let stop = CancellationToken::new();
        let follow = tokio::spawn({
            let stop = stop.clone();
            async move { observer.follow_events(stop).await }
        });
        let run = tokio::spawn(event_loop.run(stop));
        let tasks = vec![follow.abort_handle(), run.abort_handle()];
        self.agent = Some(Agent { handle, counts, dead, tasks });
    }

    /// Kills the agent process: its tasks are dropped, calls inside the runtime continue.
    pub async fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.dead.cancel();
        agent.tasks.iter().for_each(AbortHandle::abort);
        while !agent.tasks.iter().all(AbortHandle::is_finished) {
            tokio::task::yield_now().await;
        }
    }

    /// Starts a new agent process from the journal of the dead one, and sends it the manifests.
    pub async fn restart(&mut self) {
        // The thread of the dead process' journal releases the lock in real time.
        while self.journal.as_deref().is_some_and(|dir| Journal::open(dir).is_err()) {
            sleep(Duration::from_millis(1)).await;
        }
        self.start();
        self.send_manifests().await;
    }

    /// Sends requests to the event loop.
    pub fn handle(&self) -> &Handle {
        &self.agent.as_ref().expect("the agent runs").handle
    }

    /// The effects of the agent process since its start.
    pub fn counts(&self) -> &Counts {
        &self.agent.as_ref().expect("the agent runs").counts
    }

    /// The node's configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    // --- manifests ---

    /// Adds manifests.
    pub async fn add(&mut self, manifests: Vec<Manifest>) {
        self.manifests.extend(manifests);
        self.send_manifests().await;
    }

    /// Removes the manifests of these UIDs.
    pub async fn remove(&mut self, uids: &[&str]) {
        self.manifests.retain(|m| m.pod.metadata.uid.as_deref().is_none_or(|uid| !uids.contains(&uid)));
        self.send_manifests().await;
    }

    async fn send_manifests(&self) {
        let change = SourceChange::Set { pods: self.manifests.clone(), broken: vec![] };
        self.handle().send(Event::Source { source: Source::File, change }).await;
    }

    // --- queries ---

    /// All pods with their statuses.
    pub async fn shown(&self) -> PodsResponse {
        self.handle().pods().await.expect("the event loop runs")
    }

    /// One pod; `None` if the agent does not know it.
    pub async fn pod(&self, uid: &str) -> Option<Pod> {
        self.shown().await.pods.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// The phase of a pod; empty if the agent does not know it.
    pub async fn phase(&self, uid: &str) -> String {
        self.pod(uid).await.and_then(|pod| pod.status?.phase).unwrap_or_default()
    }

    /// Warning events of a pod.
    pub fn warnings(&self, uid: &str) -> Vec<CorrelatedEvent> {
        let all = self.handle().state().events().into_iter();
        all.filter(|kept| kept.event.uid.as_ref().is_some_and(|of| of.as_str() == uid) && kept.event.warning).collect()
    }

    /// The agent's boot clock.
    pub fn now(&self) -> Duration {
        self.clock.now().boot
    }

    /// Waits until the condition holds. Returns how long that took; fails the test after `limit`.
    pub async fn until(&self, what: &str, limit: Duration, mut condition: impl AsyncFnMut(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !condition(self).await {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}\n{}", self.diagnosis().await);
            sleep(POLL_INTERVAL).await;
        }
        began.elapsed()
    }

    /// Waits until every pod of the manifests has this phase.
    pub async fn until_all(&self, phase: &str, limit: Duration) -> Duration {
        let wanted = self.manifests.len();
        let condition = async |harness: &Self| {
            let pods = harness.shown().await.pods;
            let phase_of = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
            pods.len() == wanted && pods.iter().all(|pod| phase_of(pod).as_deref() == Some(phase))
        };
        self.until(&format!("all {phase}"), limit, condition).await
    }

    /// Waits until nothing is left of any pod.
    pub async fn until_empty(&self, limit: Duration) -> Duration {
        let condition = async |harness: &Self| harness.shown().await.pods.is_empty() && harness.leftovers().is_empty();
        self.until("nothing left", limit, condition).await
    }

    /// Everything in the runtime and on the host.
    pub fn leftovers(&self) -> Vec<String> {
        let sandboxes = self.runtime.sandboxes().into_iter().map(|s| format!("sandbox {}", s.id));
        let containers = self.runtime.containers().into_iter().map(|c| format!("container {}", c.id));
        sandboxes
            .chain(containers)
            .chain(self.host.resources().into_iter().map(|(uid, what)| format!("{uid} {what}")))
            .collect()
    }

    /// The state of all pods, for the message of a failed test.
    async fn diagnosis(&self) -> String {
        let mut text = format!("leftovers: {:?}\n", self.leftovers());
        let pods = self.shown().await.pods;
        for pod in &pods {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            text.push_str(&format!("{:?} {phase:?}; ", pod.metadata.uid.as_deref()));
        }
        // Pods that do not run come first.
        let running = |pod: &&Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let (running, others): (Vec<_>, Vec<_>) = pods.iter().partition(running);
        for pod in others.into_iter().chain(running).take(3) {
            let name = pod.metadata.name.clone().unwrap_or_default();
            for explained in self.handle().explain(name).await.unwrap_or_default() {
                text.push_str(&format!("{} {:?} waits {:?}\n", explained.uid, explained.state, explained.waits));
                for line in explained.history.iter().rev().take(25).rev() {
                    text.push_str(&format!("  {:?} {}: {}\n", line.at.boot, line.what, line.cause));
                }
            }
        }
        let calls = self.runtime.received_calls();
        for call in calls.iter().rev().take(25).rev() {
            text.push_str(&format!("  {:?} {} {:?} {}\n", call.at, call.call, call.uid, call.subject));
        }
        text
    }
}

impl Drop for AgentHarness {
    fn drop(&mut self) {
        if let Some(agent) = &self.agent {
            agent.dead.cancel();
            agent.tasks.iter().for_each(AbortHandle::abort);
        }
    }
}

/// A pod with one container that runs the program of this index.
pub fn simple(uid: &str, program: usize) -> Manifest {
    pod(uid, json!({"containers": [{"name": "app", "image": "app:1", "command": [program.to_string()]}]}))
}

/// A pod of this spec, parsed as a manifest file; its name is its UID.
pub fn pod(uid: &str, spec: Value) -> Manifest {
    let document = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid}, "spec": spec});
    let made = static_pod::from_value(document, Source::File, &format!("/manifests/{uid}.yaml"), "node", seen());
    made.expect("a valid pod").remove(0)
}

fn seen() -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000).expect("in range")
}

const POLL_INTERVAL: Duration = Duration::from_millis(20);
