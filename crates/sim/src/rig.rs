//! The shipped agent in a box: its loop, hands, observer and journal, and core, over a runtime and a machine in memory, on tokio's
//! time. Paused, that makes minutes of hangs and waits a matter of milliseconds.
//!
//! ```text
//!   test ─▶ Rig ─▶ EventLoop + core ─▶ perform::CallExecutor, Observer ─▶ FakeRuntime   rules, dice, outages, garbage
//!                      │                    └───────────────▶ FakeHost      hung volumes
//!                      └─▶ Journal (only on running time: its thread is real, and paused time does not wait for threads)
//! ```

mod clock;
mod executor;
mod faults;
mod garbage;
mod host;
mod runtime;
mod service;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use podwright_agent::event_loop::{Clock, CorrelatedEvent, EventLoop, Handle, Inputs, PodsResponse};
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

pub use clock::RigClock;
pub use executor::Counts;
pub use faults::{Dice, EventFaults, Fate, Garbage, Rule};
pub use host::FakeHost;
pub use runtime::FakeRuntime;
pub use state::{Asked, Program};

/// An agent and its world.
pub struct Rig {
    /// The runtime.
    pub runtime: FakeRuntime,
    /// The machine.
    pub host: FakeHost,
    /// Its clocks.
    pub clock: RigClock,
    config: NodeConfig,
    journal: Option<PathBuf>,
    manifests: Vec<Manifest>,
    agent: Option<Agent>,
}

/// One process of the agent.
struct Agent {
    handle: Handle,
    counts: Arc<Counts>,
    dead: CancellationToken,
    tasks: Vec<AbortHandle>,
}

impl Rig {
    /// A world of this seed with a running agent that keeps no journal.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, None)
    }

    /// A world of this seed with a running agent. A journal needs running time.
    pub fn with(seed: u64, journal: Option<&Path>) -> Self {
        let clock = RigClock::start();
        let boot_id = "boot".to_owned();
        let mut rig = Self {
            runtime: FakeRuntime::new(seed, clock.clone()),
            host: FakeHost::default(),
            clock,
            config: NodeConfig { boot_id, max_pods: 250, ..NodeConfig::default() },
            journal: journal.map(Path::to_owned),
            manifests: vec![],
            agent: None,
        };
        rig.start();
        rig
    }

    /// Start the agent from what its journal holds.
    pub fn start(&mut self) {
        let (journal, records) = match &self.journal {
            Some(dir) => {
                let (journal, records, _) = Journal::open(dir).expect("the directory is free");
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
        let inputs = Inputs::new(mpsc::channel(1).1);
        let observer = Observer::new(runtime.clone(), features.clone(), pool.clone(), limit, inputs.sender());
        let observer = Arc::new(observer);
        let perform = perform::CallExecutor::new(CallExecutorConfig {
            runtime: runtime.clone(),
            images: runtime,
            // Files are read on threads, which paused time does not wait for.
            facts: Arc::new(NodeSettings { resolv_conf: None, ..NodeSettings::default() }),
            host: Arc::new(self.host.clone()),
            features,
            pool,
            pulls: PullConfig { parallel: 5, parallel_per_host: 5, rate: None, credential_dirs: vec![] },
            sandbox_parallel: self.config.sandbox_parallel,
            max_pods: self.config.max_pods,
        });
        let (dead, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
        let executor = executor::RigExecutor {
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

    /// The agent dies on the spot: what it was at is dropped, what it asked of the runtime goes on there.
    pub async fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.dead.cancel();
        agent.tasks.iter().for_each(AbortHandle::abort);
        while !agent.tasks.iter().all(AbortHandle::is_finished) {
            tokio::task::yield_now().await;
        }
    }

    /// A new agent takes over from what the dead one's journal holds, and hears of the manifests again.
    pub async fn revive(&mut self) {
        // The dead one's lock is let go by its journal's thread, which is real.
        while self.journal.as_deref().is_some_and(|dir| Journal::open(dir).is_err()) {
            sleep(Duration::from_millis(1)).await;
        }
        self.start();
        self.tell_all().await;
    }

    /// The way to the loop.
    pub fn handle(&self) -> &Handle {
        &self.agent.as_ref().expect("the agent lives").handle
    }

    /// What the loop asked for since its start.
    pub fn counts(&self) -> &Counts {
        &self.agent.as_ref().expect("the agent lives").counts
    }

    /// The node's settings.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    // --- manifests ---

    /// These pods are wanted besides those that are.
    pub async fn add(&mut self, manifests: Vec<Manifest>) {
        self.manifests.extend(manifests);
        self.tell_all().await;
    }

    /// The pods with these UIDs are wanted no more.
    pub async fn remove(&mut self, uids: &[&str]) {
        self.manifests.retain(|m| m.pod.metadata.uid.as_deref().is_none_or(|uid| !uids.contains(&uid)));
        self.tell_all().await;
    }

    async fn tell_all(&self) {
        let change = SourceChange::Set { pods: self.manifests.clone(), broken: vec![] };
        self.handle().send(Event::Source { source: Source::File, change }).await;
    }

    // --- questions ---

    /// Everything the agent shows.
    pub async fn shown(&self) -> PodsResponse {
        self.handle().pods().await.expect("the loop lives")
    }

    /// One pod, while the agent knows it.
    pub async fn pod(&self, uid: &str) -> Option<Pod> {
        self.shown().await.pods.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// The phase of a pod; empty when the agent does not know it.
    pub async fn phase(&self, uid: &str) -> String {
        self.pod(uid).await.and_then(|pod| pod.status?.phase).unwrap_or_default()
    }

    /// Warnings about a pod, with their words.
    pub fn warnings(&self, uid: &str) -> Vec<CorrelatedEvent> {
        let all = self.handle().state().events().into_iter();
        all.filter(|kept| kept.event.uid.as_str() == uid && kept.event.warning).collect()
    }

    /// The moment on the clock of the agent.
    pub fn now(&self) -> Duration {
        self.clock.now().boot
    }

    /// Wait until it is so, looking often. How long it took; fails the test after `limit`.
    pub async fn until(&self, what: &str, limit: Duration, mut so: impl AsyncFnMut(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !so(self).await {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}\n{}", self.tale().await);
            sleep(LOOK_EVERY).await;
        }
        began.elapsed()
    }

    /// Wait until every pod that is wanted has this phase.
    pub async fn until_all(&self, phase: &str, limit: Duration) -> Duration {
        let wanted = self.manifests.len();
        let so = async |rig: &Self| {
            let pods = rig.shown().await.pods;
            let phase_of = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
            pods.len() == wanted && pods.iter().all(|pod| phase_of(pod).as_deref() == Some(phase))
        };
        self.until(&format!("all {phase}"), limit, so).await
    }

    /// Wait until nothing is left of any pod, anywhere.
    pub async fn until_empty(&self, limit: Duration) -> Duration {
        let so = async |rig: &Self| rig.shown().await.pods.is_empty() && rig.leftovers().is_empty();
        self.until("nothing left", limit, so).await
    }

    /// What there still is, in the runtime and on the machine.
    pub fn leftovers(&self) -> Vec<String> {
        let sandboxes = self.runtime.sandboxes().into_iter().map(|s| format!("sandbox {}", s.id));
        let containers = self.runtime.containers().into_iter().map(|c| format!("container {}", c.id));
        sandboxes
            .chain(containers)
            .chain(self.host.has().into_iter().map(|(uid, what)| format!("{uid} {what}")))
            .collect()
    }

    /// What is wrong, for whoever reads a failed test.
    async fn tale(&self) -> String {
        let mut tale = format!("leftovers: {:?}\n", self.leftovers());
        let pods = self.shown().await.pods;
        for pod in &pods {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            tale.push_str(&format!("{:?} {phase:?}; ", pod.metadata.uid.as_deref()));
        }
        // Those that are well have the least to say.
        let well = |pod: &&Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let (well, ill): (Vec<_>, Vec<_>) = pods.iter().partition(well);
        for pod in ill.into_iter().chain(well).take(3) {
            let name = pod.metadata.name.clone().unwrap_or_default();
            for told in self.handle().explain(name).await.unwrap_or_default() {
                tale.push_str(&format!("{} {:?} waits {:?}\n", told.uid, told.state, told.waits));
                for line in told.history.iter().rev().take(25).rev() {
                    tale.push_str(&format!("  {:?} {}: {}\n", line.at.boot, line.what, line.cause));
                }
            }
        }
        let asked = self.runtime.asked();
        for asked in asked.iter().rev().take(25).rev() {
            tale.push_str(&format!("  {:?} {} {:?} {}\n", asked.at, asked.call, asked.uid, asked.subject));
        }
        tale
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(agent) = &self.agent {
            agent.dead.cancel();
            agent.tasks.iter().for_each(AbortHandle::abort);
        }
    }
}

/// A pod with one container that runs this program.
pub fn simple(uid: &str, program: usize) -> Manifest {
    pod(uid, json!({"containers": [{"name": "app", "image": "app:1", "command": [program.to_string()]}]}))
}

/// A pod of this spec, read as a manifest file is; its UID is its name's too.
pub fn pod(uid: &str, spec: Value) -> Manifest {
    let document = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid}, "spec": spec});
    let made = static_pod::from_value(document, Source::File, &format!("/manifests/{uid}.yaml"), "node", seen());
    made.expect("a good pod").remove(0)
}

fn seen() -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000).expect("in range")
}

const LOOK_EVERY: Duration = Duration::from_millis(20);
