//! The driver of core: takes events, lets core decide, commits the records and performs the effects.
//!
//! ```text
//!  sources ─┐                       records ──▶ committer (own thread) ──┐
//!  results ─┼─▶ events ─▶ Node::handle ┤                                  ├─▶ perform: one task per effect ─▶ events
//!  timer  ──┘                       effects ─────────────────────────────┘
//! ```
//!
//! No effect of a turn is performed before the records of that turn are on disk; turns keep their order. One task owns core.

mod committer;
mod event_correlator;
mod in_flight;
mod queries;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_core::Node;
use podwright_core::model::{
    Answer, Call, CallError, Effect, Event, KubeEvent, Listing, NodeReading, Now, ObjectRequest, ObjectResult, Out,
    Pod, PodReading, PodRecord, PodSeen, PodSnapshot, PodUid, RuntimeReady, Source, SourceChange, Suspect, Time,
};
use podwright_core::node::Caught;
use podwright_cri::BoxFuture;
use podwright_tasks::{Tasks, WorkLabel, WorkLog};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::journal::Journal;
use crate::recorder::Recorder;
use committer::Committer;
use in_flight::InFlight;

pub use event_correlator::CorrelatedEvent;
pub use queries::{AgentState, Explanation, Handle, PodsResponse};

use queries::Query;

/// Events queued for core. Senders wait while the queue is full, so nothing is lost.
const EVENTS_MAX: usize = 1024;
/// Events handled before their records are committed together.
const BATCH_MAX: usize = 64;

/// Time, on both clocks.
pub trait Clock: Send + Sync + 'static {
    /// This moment.
    fn now(&self) -> Now;
}

/// Performs effects. The agent uses `NodeExecutor`; a simulation brings its own.
pub trait Executor: Send + Sync + 'static {
    /// Performs one call on the runtime or the host.
    fn call(&self, call: Order) -> BoxFuture<'static, Result<Answer, CallError>>;
    /// Observes one pod. The flag: all its running containers are watched by pidfds.
    fn observe(&self, uid: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>>;
    /// Lists all pods of the runtime.
    fn list(&self) -> BoxFuture<'static, Result<Listing, CallError>>;
    /// Checks the runtime's status.
    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>>;
    /// Pods that have cgroups, directories or logs on this host.
    fn find_leftovers(&self) -> BoxFuture<'static, Result<std::collections::BTreeSet<PodUid>, CallError>>;
    /// Reads the node for eviction. Without an implementation nothing is known, and nothing evicted.
    fn read_node(&self, _pods: PodReading) -> BoxFuture<'static, NodeReading> {
        Box::pin(std::future::ready(NodeReading::default()))
    }
    /// Removes the images that no container and no pod uses.
    fn remove_unused_images(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Removes the leftovers of a pod.
    fn sweep(&self, uid: PodUid) -> BoxFuture<'static, ()>;
    /// Saves the record of a pod in quarantine.
    fn save_quarantined_record(&self, record: Box<PodRecord>) -> BoxFuture<'static, ()>;
    /// Sends one request to the object store of a source.
    fn request(&self, store: Source, request: ObjectRequest, limit: Duration) -> BoxFuture<'static, ObjectResult>;
    /// Reports a Kubernetes event.
    fn event(&self, event: &KubeEvent, now: Now);
}

/// One call to perform.
#[derive(Clone, Debug)]
pub struct Order {
    /// UID of the pod.
    pub uid: PodUid,
    /// The spec to use.
    pub pod: Arc<Pod>,
    /// The call.
    pub call: Call,
    /// How long it may take.
    pub limit: Duration,
    /// Cancelled when core no longer needs the call.
    pub cancel: CancellationToken,
}

/// The loop, before it runs.
pub struct EventLoop {
    node: Node,
    in_flight: InFlight,
    clock: Arc<dyn Clock>,
    committer: Committer,
    inputs: LoopInputs,
    queries: mpsc::Receiver<Query>,
    wake: Option<Time>,
    state: Arc<AgentState>,
    recorder: Option<Recorder>,
    /// Handled before all other events.
    first: Vec<Event>,
}

/// What the loop receives: results of effects and hints, and the changes of the sources.
pub struct LoopInputs {
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    sources: mpsc::Receiver<(Source, SourceChange)>,
}

impl LoopInputs {
    /// With the changes of the sources. Their senders wait while the loop is busy.
    pub fn new(sources: mpsc::Receiver<(Source, SourceChange)>) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        Self { sender, events, sources }
    }

    /// Sends events to the loop.
    pub fn sender(&self) -> mpsc::Sender<Event> {
        self.sender.clone()
    }
}

impl EventLoop {
    /// A loop around this node. `journal` is `None` only where nothing has to survive.
    pub fn new(
        inputs: LoopInputs,
        node: Node,
        journal: Option<Journal>,
        executor: Arc<dyn Executor>,
        clock: Arc<dyn Clock>,
    ) -> (Self, Handle) {
        Self::with_state(inputs, Arc::default(), node, journal, executor, clock)
    }

    /// As [`Self::new`], publishing to a state that readers already have.
    pub fn with_state(
        inputs: LoopInputs,
        state: Arc<AgentState>,
        node: Node,
        journal: Option<Journal>,
        executor: Arc<dyn Executor>,
        clock: Arc<dyn Clock>,
    ) -> (Self, Handle) {
        let (query_sender, queries) = mpsc::channel(64);
        let mut known: Vec<_> = node.workers().iter().map(|(_, machine)| machine.record()).collect();
        known.sort_by_key(|record| record.first_seen);
        known.into_iter().for_each(|record| state.feed().publish(&PodSnapshot::of(record)));
        let handle = Handle::new(inputs.sender(), query_sender, Arc::clone(&state));
        let committer = Committer::start(journal);
        let in_flight = InFlight::new(executor, inputs.sender(), Arc::clone(&state));
        (
            Self {
                node,
                in_flight,
                clock,
                committer,
                inputs,
                queries,
                wake: None,
                state,
                recorder: None,
                first: vec![],
            },
            handle,
        )
    }

    /// The journal's thread ends the process if it panics.
    pub fn supervised_by(mut self, tasks: &Tasks) -> Self {
        if let Some(thread) = self.committer.take_thread() {
            tasks.service("journal", thread.wait());
        }
        self
    }

    /// Every input of core is written to this recording too.
    pub fn recorded_by(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Pods in which former agents died are quarantined.
    pub fn with_suspects(mut self, suspects: Vec<Suspect>) -> Self {
        self.first = vec![Event::Suspects { suspects }];
        self
    }

    /// Work on pods is marked in this log.
    pub fn with_work_log(mut self, log: &Arc<WorkLog>) -> Self {
        self.in_flight.mark_work(Arc::clone(log));
        let (log, handled) = (Arc::clone(log), Mutex::new(None));
        self.node.observe_current(Arc::new(move |uid: Option<&PodUid>| {
            let label = |uid: &PodUid| WorkLabel { uid: uid.to_string(), work: "planning".into(), pod: String::new() };
            *handled.lock().expect("no panic under this lock") = uid.map(|uid| log.mark(&label(uid)));
        }));
        self
    }

    /// Runs until `stop` is cancelled. Containers keep running; what core decided until then is committed, and starts in flight get
    /// a few seconds to return.
    pub async fn run(mut self, stop: CancellationToken) {
        self.state.observed(self.clock.now());
        let first = std::mem::take(&mut self.first).into_iter().chain([Event::Wake]).collect();
        self.turn(first);
        while self.step(&stop).await {}
        self.in_flight.drain().await;
        self.committer.finish().await;
        if let Some(recorder) = self.recorder.take() {
            recorder.finish().await;
        }
    }

    /// Waits for inputs and handles them. False: the agent stops.
    async fn step(&mut self, stop: &CancellationToken) -> bool {
        let wake = self.wake.map(|at| at.saturating_sub(self.clock.now().boot));
        let mut query = None;
        let mut batch = vec![];
        tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            // Cancel-safe: a received item is handled in this very turn.
            effects = self.committer.committed() => self.committed(effects),
            Some(received) = self.queries.recv() => query = Some(received),
            Some(event) = self.inputs.events.recv() => batch.push(event),
            Some((source, change)) = self.inputs.sources.recv() => batch.push(Event::Source { source, change }),
            () = tokio::time::sleep(wake.unwrap_or(Duration::from_secs(3600))) => {}
        }
        self.take_waiting(&mut batch);
        if !batch.is_empty() {
            self.turn(batch);
        }
        if let Some(query) = query.or_else(|| self.queries.try_recv().ok()) {
            queries::answer(&self.node, query, self.clock.now());
        }
        true
    }

    /// Adds what else is waiting. The select takes one input and prefers some: a steady stream of queries or events must hold back
    /// neither the others nor the timer, so each turn handles some of everything.
    fn take_waiting(&mut self, batch: &mut Vec<Event>) {
        while batch.len() < BATCH_MAX
            && let Ok(event) = self.inputs.events.try_recv()
        {
            batch.push(event);
        }
        if let Ok((source, change)) = self.inputs.sources.try_recv() {
            batch.push(Event::Source { source, change });
        }
        if self.wake.is_some_and(|at| at <= self.clock.now().boot) {
            self.wake = None;
            batch.push(Event::Wake);
        }
    }

    /// One turn: every event of the batch is handled, then everything goes out together.
    fn turn(&mut self, batch: Vec<Event>) {
        let mut out = Out::default();
        for event in batch {
            if let Event::Done { id, .. } = &event {
                self.in_flight.returned(*id);
            }
            let now = self.clock.now();
            if matches!(&event, Event::Listed { result: Ok(_), .. } | Event::Observed { result: Ok(_), .. }) {
                self.state.observed(now);
            }
            let mut own = Out::default();
            let recorded = self.recorder.as_mut().and_then(|recorder| recorder.before(&self.node, &event, now));
            for Caught { uid, why } in self.node.handle_guarded(event, now, &mut own) {
                tracing::error!(?uid, error = %why, "internal error, pod quarantined");
            }
            if let (Some(recorder), Some(event)) = (&mut self.recorder, recorded) {
                recorder.step(now, event, &own);
            }
            out.records.append(&mut own.records);
            out.effects.append(&mut own.effects);
            self.wake = own.wake_at.or(self.wake);
        }
        self.state.heartbeat(self.clock.now());
        self.state.set_runtime_up(self.node.runtime_up());
        if let Some(effects) = self.committer.commit(out) {
            self.perform(effects);
        }
    }

    fn committed(&mut self, done: committer::Committed) {
        self.perform(done.effects);
        if let Some(error) = done.health_change {
            tracing::warn!(error = error.as_deref().unwrap_or("none"), "the journal's health changed");
            self.state.set_journal_error(error.clone());
            self.turn(vec![Event::Journal { error }]);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Call { id, uid, pod, call, limit } => self.in_flight.call(id, uid, pod, call, limit),
                Effect::Cancel { id } => self.in_flight.cancel(id),
                Effect::Observe { uid, seq } => self.in_flight.observe(uid, seq),
                Effect::List { seq } => self.in_flight.list(seq),
                Effect::CheckRuntime => self.in_flight.check_runtime(),
                Effect::FindLeftovers { seq } => self.in_flight.find_leftovers(seq),
                Effect::ReadNode { seq, pods } => self.in_flight.read_node(seq, pods),
                Effect::RemoveUnusedImages { seq } => self.in_flight.remove_unused_images(seq),
                Effect::Evicted { signal } => self.state.metrics().record_eviction(signal),
                Effect::Sweep { uid } => self.in_flight.sweep(uid),
                Effect::SaveQuarantinedRecord { record } => self.in_flight.save_quarantined_record(record),
                Effect::RequestObject { id, store, request, limit } => {
                    self.in_flight.request(id, store, request, limit);
                }
                Effect::Event(event) => {
                    let now = self.clock.now();
                    let machine = event.uid.as_ref().and_then(|uid| self.node.workers().get(uid));
                    let pod = machine.map(|machine| &*machine.record().pod);
                    self.state.record_pod_event(&event, pod, now);
                    self.in_flight.executor().event(&event, now);
                }
                Effect::StatusChanged(pod) => {
                    self.state.feed().publish(&pod);
                    self.state.metrics().record_status(&pod);
                    tracing::trace!(target: "podwright::trace", uid = %pod.uid, "status");
                }
                Effect::PodRemoved { uid } => {
                    self.state.feed().unpublish(&uid);
                    self.state.metrics().pod_removed(&uid);
                    tracing::trace!(target: "podwright::trace", %uid, "pod removed");
                }
                Effect::AllowShutdown { request } => self.state.allow_shutdown(request),
                Effect::RuntimeChanged => self.state.set_runtime_facts(&self.node.runtime_facts()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
