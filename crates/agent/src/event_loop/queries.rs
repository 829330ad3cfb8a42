//! Queries to the event loop, and the state it publishes for readers that do not wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use podwright_core::Node;
use podwright_core::model::{Event, FullName, KubeEvent, Now, Pod, PodSnapshot, PodUid, Transition};
use podwright_core::node::{runtime_pending, static_pod_name};
use podwright_core::node_status::RuntimeFacts;
use podwright_core::pod::{History, State, Wait};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::event_correlator::{CorrelatedEvent, EventCorrelator, EventFeed};
use crate::feed::{PodFeed, PodView};
use crate::metrics::Metrics;

/// A question that the event loop answers from core's state.
pub(super) enum Query {
    /// Every pod with its status, and the manifests that can't be used.
    Pods(oneshot::Sender<PodsResponse>),
    /// The name of the static pod whose mirror pod has this UID.
    StaticPodName { mirror: PodUid, answer: oneshot::Sender<Option<FullName>> },
    /// The histories of the pods of this name, including pods that no longer exist.
    Explain {
        /// `name` or `namespace/name`; the node's name at the end of a static pod's name may be left out.
        pod: String,
        /// One entry per pod UID, the oldest first.
        answer: oneshot::Sender<Vec<Explanation>>,
    },
}

/// What is known of one pod instance.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Namespace and name.
    pub full_name: FullName,
    /// Tells instances of the same name apart.
    pub uid: PodUid,
    /// Its lifecycle state; `None`: the pod is gone.
    pub state: Option<State>,
    /// The pod with its status; `None`: the pod is gone.
    pub pod: Option<Pod>,
    /// The file or URL of its manifest.
    pub origin: Option<String>,
    /// Its transitions, oldest first.
    pub history: Vec<Transition>,
    /// Number of older transitions that were dropped.
    pub forgotten: u64,
    /// What it is waiting for now.
    pub waits: Vec<Wait>,
    /// The container runtime answers.
    pub runtime_up: bool,
    /// The agent was just started: no check of the container runtime has ended yet.
    pub runtime_pending: bool,
}

/// The answer to `Query::Pods`.
#[derive(Debug, Default)]
pub struct PodsResponse {
    /// All pods, each with its published status.
    pub pods: Vec<Pod>,
    /// Manifests that can't be used: path or URL, and the error.
    pub broken: Vec<(String, String)>,
    /// The container runtime answers.
    pub runtime_up: bool,
    /// The agent was just started: no check of the container runtime has ended yet.
    pub runtime_pending: bool,
}

/// Sends events and queries to the event loop, and reads its published state.
#[derive(Clone)]
pub struct Handle {
    events: mpsc::Sender<Event>,
    queries: mpsc::Sender<Query>,
    state: Arc<AgentState>,
}

impl Handle {
    pub(super) fn new(events: mpsc::Sender<Event>, queries: mpsc::Sender<Query>, state: Arc<AgentState>) -> Self {
        Self { events, queries, state }
    }

    /// Of no event loop: a test receives the events.
    #[cfg(test)]
    pub(crate) fn detached(events: mpsc::Sender<Event>, state: Arc<AgentState>) -> Self {
        Self::new(events, mpsc::channel(1).0, state)
    }

    /// Queues an event; waits while the queue is full.
    pub async fn send(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// All pods. `None` while the agent shuts down.
    pub async fn pods(&self) -> Option<PodsResponse> {
        let (answer, response) = oneshot::channel();
        self.queries.send(Query::Pods(answer)).await.ok()?;
        response.await.ok()
    }

    /// The name of the static pod whose mirror pod has this UID.
    pub async fn static_pod_name(&self, mirror: PodUid) -> Option<FullName> {
        let (answer, name) = oneshot::channel();
        self.queries.send(Query::StaticPodName { mirror, answer }).await.ok()?;
        name.await.ok().flatten()
    }

    /// The histories of the pods of this name. `None` while the agent shuts down.
    pub async fn explain(&self, pod: String) -> Option<Vec<Explanation>> {
        let (answer, explanations) = oneshot::channel();
        self.queries.send(Query::Explain { pod, answer }).await.ok()?;
        explanations.await.ok()
    }

    /// The published state.
    pub fn state(&self) -> &Arc<AgentState> {
        &self.state
    }
}

/// The state that the event loop publishes: events, pods, metrics, health.
#[derive(Default)]
pub struct AgentState {
    events: Mutex<EventCorrelator>,
    event_feed: EventFeed,
    heartbeat: Mutex<Option<Now>>,
    runtime_up: AtomicBool,
    observation: Mutex<Option<Now>>,
    journal: Mutex<Option<String>>,
    runtime: watch::Sender<Option<RuntimeFacts>>,
    allowed_shutdown: watch::Sender<Option<u64>>,
    feed: Arc<PodFeed>,
    metrics: Metrics,
}

impl AgentState {
    /// The stored events, oldest first.
    pub fn events(&self) -> Vec<CorrelatedEvent> {
        self.events.lock().expect("no panic under this lock").all()
    }

    /// Every event from now on, as it is stored.
    pub fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.event_feed.0.subscribe()
    }

    /// Facts reported by the container runtime; `None` until its first answer.
    pub fn follow_runtime(&self) -> watch::Receiver<Option<RuntimeFacts>> {
        self.runtime.subscribe()
    }

    /// The last shutdown of the host that may continue.
    pub(crate) fn follow_allowed_shutdowns(&self) -> watch::Receiver<Option<u64>> {
        self.allowed_shutdown.subscribe()
    }

    /// The pressure conditions of the node that hold: `MemoryPressure`, …
    pub fn pressures(&self) -> Vec<&'static str> {
        let facts = self.runtime.borrow();
        facts.iter().flat_map(|facts| &facts.pressures).map(|pressure| pressure.condition()).collect()
    }

    /// When the event loop last finished a batch.
    pub fn last_heartbeat(&self) -> Option<Now> {
        *self.heartbeat.lock().expect("no panic under this lock")
    }

    /// The container runtime answered its last check.
    pub fn runtime_up(&self) -> bool {
        self.runtime_up.load(Ordering::Relaxed)
    }

    /// When the runtime was last listed or a pod last observed, successfully.
    pub fn last_observation(&self) -> Option<Now> {
        *self.observation.lock().expect("no panic under this lock")
    }

    /// Why records can't be written to the journal; `None`: they can.
    pub fn journal_error(&self) -> Option<String> {
        self.journal.lock().expect("no panic under this lock").clone()
    }

    /// All pods as the API shows them, with their recent changes.
    pub fn feed(&self) -> &Arc<PodFeed> {
        &self.feed
    }

    /// Counters and gauges for `/metrics`.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Stores an event that is not about a pod of the event loop, such as an event of the node.
    pub fn record_event(&self, event: &KubeEvent, now: Now) {
        self.record_pod_event(event, None, now);
    }

    /// Stores an event about this pod; the spec says which kind of container it is about.
    pub(super) fn record_pod_event(&self, event: &KubeEvent, pod: Option<&Pod>, now: Now) {
        let stored = self.events.lock().expect("no panic under this lock").add(event, pod, now);
        // Fails only if there is no subscriber.
        let _ = self.event_feed.0.send(stored);
    }

    pub(super) fn set_runtime_facts(&self, facts: &RuntimeFacts) {
        self.runtime.send_replace(Some(facts.clone()));
    }

    pub(crate) fn allow_shutdown(&self, request: u64) {
        self.allowed_shutdown.send_replace(Some(request));
    }

    pub(super) fn heartbeat(&self, now: Now) {
        *self.heartbeat.lock().expect("no panic under this lock") = Some(now);
    }

    pub(super) fn observed(&self, now: Now) {
        *self.observation.lock().expect("no panic under this lock") = Some(now);
    }

    pub(super) fn set_runtime_up(&self, up: bool) {
        match (self.runtime_up.swap(up, Ordering::Relaxed), up) {
            (true, false) => tracing::warn!("container runtime does not respond, pods stay as they are"),
            (false, true) => tracing::info!("container runtime responds"),
            _ => {}
        }
    }

    pub(super) fn set_journal_error(&self, error: Option<String>) {
        *self.journal.lock().expect("no panic under this lock") = error;
    }
}

/// Answers from core's state. The receiver may be gone by now.
pub(super) fn answer(node: &Node, query: Query, now: Now) {
    match query {
        Query::Pods(answer) => {
            let broken = node.broken().map(|(file, why)| (file.to_owned(), why.to_owned())).collect();
            let pods = node
                .workers()
                .iter()
                .map(|(_, machine)| PodView::of(&PodSnapshot::of(machine.record())).pod())
                .collect();
            let (runtime_up, runtime_pending) = (node.runtime_up(), runtime_pending(node));
            let _ = answer.send(PodsResponse { pods, broken, runtime_up, runtime_pending });
        }
        Query::StaticPodName { mirror, answer } => drop(answer.send(static_pod_name(node, &mirror).cloned())),
        Query::Explain { pod, answer } => {
            let _ = answer.send(explain(node, &pod, now));
        }
    }
}

fn explain(node: &Node, pod: &str, now: Now) -> Vec<Explanation> {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    let static_name = format!("{name}-{}", node.config().node_name);
    let matches = |full: &FullName| {
        namespace.is_none_or(|namespace| *full.namespace == *namespace)
            && (*full.name == *name || *full.name == *static_name)
    };
    let (runtime_up, runtime_pending) = (node.runtime_up(), runtime_pending(node));
    let explanation = |full_name: &FullName, uid: &PodUid, history: &History| Explanation {
        full_name: full_name.clone(),
        uid: uid.clone(),
        state: None,
        pod: None,
        origin: None,
        history: history.lines().cloned().collect(),
        forgotten: history.forgotten(),
        waits: vec![],
        runtime_up,
        runtime_pending,
    };
    let gone = node.gone().filter(|gone| matches(&gone.full_name));
    let present = node.workers().iter().filter(|(_, machine)| matches(machine.full_name()));
    let mut present: Vec<_> = present.collect();
    present.sort_by_key(|(_, machine)| machine.record().first_seen);
    let gone = gone.map(|gone| explanation(&gone.full_name, &gone.uid, &gone.history));
    let present = present.into_iter().map(|(uid, machine)| Explanation {
        state: Some(machine.state()),
        pod: Some(PodView::of(&PodSnapshot::of(machine.record())).pod()),
        origin: machine.record().origin.clone(),
        waits: node.workers().machine(uid).map_or(vec![], |machine| machine.waits(now)),
        ..explanation(machine.full_name(), uid, machine.history())
    });
    gone.chain(present).collect()
}
