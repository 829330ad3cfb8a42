//! What others may ask of the loop, and what they may see without asking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use podwright_core::Node;
use podwright_core::model::{Event, FullName, KubeEvent, Now, Pod, PodUid, Transition};
use podwright_core::node_status::RuntimeFacts;
use podwright_core::pod::{History, State, Wait};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::event_correlator::{CorrelatedEvent, EventCorrelator, EventFeed};
use crate::feed::{PodFeed, PodView};
use crate::metrics::Metrics;

/// A question to the loop.
pub enum Query {
    /// Every pod with its status, and the manifests that are broken.
    Pods(oneshot::Sender<PodsResponse>),
    /// All that is known of the pods of this name, those that are gone included.
    Explain {
        /// `name` or `namespace/name`; static pods may go without the node's name at the end.
        pod: String,
        /// One for each life, the oldest first.
        answer: oneshot::Sender<Vec<Explanation>>,
    },
}

/// The life of one pod, told.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Its name.
    pub full_name: FullName,
    /// Its UID.
    pub uid: PodUid,
    /// Where it is in its life; `None`: it is gone.
    pub state: Option<State>,
    /// The pod with its status, while it is here.
    pub pod: Option<Pod>,
    /// The file or URL it came from.
    pub origin: Option<String>,
    /// What happened, oldest first.
    pub history: Vec<Transition>,
    /// Older lines that are not kept.
    pub forgotten: u64,
    /// What it waits for now.
    pub waits: Vec<Wait>,
    /// The runtime answers.
    pub runtime_up: bool,
}

/// The answer to [`Query::Pods`].
#[derive(Debug, Default)]
pub struct PodsResponse {
    /// The pods.
    pub pods: Vec<Pod>,
    /// Files and what is wrong with them.
    pub broken: Vec<(String, String)>,
    /// The runtime answers.
    pub runtime_up: bool,
}

/// The way to the loop.
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

    /// Tell the loop what happened; waits for a place in its queue.
    pub async fn send(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// All pods. `None` while the agent ends.
    pub async fn pods(&self) -> Option<PodsResponse> {
        let (answer, shown) = oneshot::channel();
        self.queries.send(Query::Pods(answer)).await.ok()?;
        shown.await.ok()
    }

    /// The lives of the pods of this name.
    pub async fn explain(&self, pod: String) -> Option<Vec<Explanation>> {
        let (answer, told) = oneshot::channel();
        self.queries.send(Query::Explain { pod, answer }).await.ok()?;
        told.await.ok()
    }

    /// What can be seen without asking.
    pub fn state(&self) -> &Arc<AgentState> {
        &self.state
    }
}

/// What the loop shows of itself.
#[derive(Default)]
pub struct AgentState {
    events: Mutex<EventCorrelator>,
    event_feed: EventFeed,
    heartbeat: Mutex<Option<Now>>,
    observation: Mutex<Option<Now>>,
    journal: Mutex<Option<String>>,
    waiters: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    runtime: watch::Sender<Option<RuntimeFacts>>,
    feed: Arc<PodFeed>,
    metrics: Metrics,
}

impl AgentState {
    /// The events kept, oldest first.
    pub fn events(&self) -> Vec<CorrelatedEvent> {
        self.events.lock().expect("no panic under this lock").all()
    }

    /// Every event from now on, as it is kept.
    pub fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.event_feed.0.subscribe()
    }

    /// What the runtime says of itself, from its first answer on.
    pub fn follow_runtime(&self) -> watch::Receiver<Option<RuntimeFacts>> {
        self.runtime.subscribe()
    }

    /// When the loop last did something.
    pub fn last_heartbeat(&self) -> Option<Now> {
        *self.heartbeat.lock().expect("no panic under this lock")
    }

    /// When the runtime last showed what it has, all of it or one pod.
    pub fn last_observation(&self) -> Option<Now> {
        *self.observation.lock().expect("no panic under this lock")
    }

    /// Why records are not on disk, if so.
    pub fn journal_error(&self) -> Option<String> {
        self.journal.lock().expect("no panic under this lock").clone()
    }

    /// Every pod as it is shown, and what changed.
    pub fn feed(&self) -> &Arc<PodFeed> {
        &self.feed
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Keep an event that is about no pod of the loop's: the node's own.
    pub fn record_event(&self, event: &KubeEvent, now: Now) {
        self.record_pod_event(event, None, now);
    }

    /// Keep an event about this pod; the spec tells which part of it is meant.
    pub(super) fn record_pod_event(&self, event: &KubeEvent, pod: Option<&Pod>, now: Now) {
        let kept = self.events.lock().expect("no panic under this lock").add(event, pod, now);
        // Nobody may be listening.
        let _ = self.event_feed.0.send(kept);
    }

    pub(super) fn set_runtime_facts(&self, facts: &RuntimeFacts) {
        self.runtime.send_replace(Some(facts.clone()));
    }

    pub(super) fn heartbeat(&self, now: Now) {
        *self.heartbeat.lock().expect("no panic under this lock") = Some(now);
    }

    pub(super) fn observed(&self, now: Now) {
        *self.observation.lock().expect("no panic under this lock") = Some(now);
    }

    pub(super) fn set_journal_error(&self, error: Option<String>) {
        *self.journal.lock().expect("no panic under this lock") = error;
    }

    pub(super) fn notify_waiter(&self, waiter: u64) {
        if let Some(waiter) = self.waiters.lock().expect("no panic under this lock").remove(&waiter) {
            let _ = waiter.send(());
        }
    }
}

/// Answer from what core knows. Whoever asked may have gone away.
pub(super) fn answer(node: &Node, query: Query, now: Now) {
    match query {
        Query::Pods(answer) => {
            let broken = node.broken().map(|(file, why)| (file.to_owned(), why.to_owned())).collect();
            let pods = node.workers().iter().map(|(_, machine)| PodView::of(machine.record()).pod()).collect();
            let _ = answer.send(PodsResponse { pods, broken, runtime_up: node.runtime_up() });
        }
        Query::Explain { pod, answer } => {
            let _ = answer.send(explain(node, &pod, now));
        }
    }
}

fn explain(node: &Node, pod: &str, now: Now) -> Vec<Explanation> {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    let in_full = format!("{name}-{}", node.config().node_name);
    let matches = |full: &FullName| {
        namespace.is_none_or(|wanted| *full.namespace == *wanted) && (*full.name == *name || *full.name == *in_full)
    };
    let runtime_up = node.runtime_up();
    let tell = |full_name: &FullName, uid: &PodUid, history: &History| Explanation {
        full_name: full_name.clone(),
        uid: uid.clone(),
        state: None,
        pod: None,
        origin: None,
        history: history.lines().cloned().collect(),
        forgotten: history.forgotten(),
        waits: vec![],
        runtime_up,
    };
    let gone = node.gone().filter(|gone| matches(&gone.full_name));
    let here = node.workers().iter().filter(|(_, machine)| matches(machine.full_name()));
    let mut here: Vec<_> = here.collect();
    here.sort_by_key(|(_, machine)| machine.record().first_seen);
    let gone = gone.map(|gone| tell(&gone.full_name, &gone.uid, &gone.history));
    let here = here.into_iter().map(|(uid, machine)| Explanation {
        state: Some(machine.state()),
        pod: Some(PodView::of(machine.record()).pod()),
        origin: machine.record().origin.clone(),
        waits: machine.waits(now),
        ..tell(machine.full_name(), uid, machine.history())
    });
    gone.chain(here).collect()
}
