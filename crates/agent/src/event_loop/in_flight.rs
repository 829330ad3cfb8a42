//! Effects in flight: one task each, which sends exactly one event when it is done.
//!
//! A panic in an executor is answered like a failure: core waits for every call it sent, and a lost answer would leave the pod
//! waiting until the agent restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, CallId, Event, NodeReading, ObjectError, ObjectRequest, Pod, PodReading, PodRecord,
    PodUid, RequestId, RuntimeCall, Seq, Source,
};
use podwright_cri::BoxFuture;
use podwright_tasks::{Panicked, Work, WorkLabel, WorkLog, catch, spawn};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{AgentState, Executor, Order};
use crate::metrics;

/// A runtime call that takes longer is a reason to observe its pod: its effect may be visible before its answer.
const SLOW: Duration = Duration::from_secs(5);
/// At the stop, calls that start something get this long to return: a runtime kills what it is starting when its client goes away.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Performs effects and sends their results to the loop.
pub(super) struct InFlight {
    executor: Arc<dyn Executor>,
    events: mpsc::Sender<Event>,
    state: Arc<AgentState>,
    /// Calls that have not returned, to be cancelled by their id.
    calls: BTreeMap<CallId, CancellationToken>,
    /// Calls among them that may start a sandbox or a container.
    starts: TaskTracker,
    /// Removals of leftovers; each token is cancelled when its removal has ended.
    sweeps: BTreeMap<PodUid, CancellationToken>,
    /// Marks calls while they run; `None`: they are not marked.
    work_log: Option<Arc<WorkLog>>,
}

impl InFlight {
    pub(super) fn new(executor: Arc<dyn Executor>, events: mpsc::Sender<Event>, state: Arc<AgentState>) -> Self {
        let (calls, starts, sweeps) = (BTreeMap::new(), TaskTracker::new(), BTreeMap::new());
        Self { executor, events, state, calls, starts, sweeps, work_log: None }
    }

    pub(super) fn mark_work(&mut self, log: Arc<WorkLog>) {
        self.work_log = Some(log);
    }

    fn work(&self, uid: &PodUid, work: &str, pod: String) -> Option<Work> {
        let label = || WorkLabel { uid: uid.to_string(), work: work.to_owned(), pod };
        self.work_log.as_ref().map(|log| log.work(label()))
    }

    pub(super) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    pub(super) fn cancel(&self, id: CallId) {
        if let Some(token) = self.calls.get(&id) {
            token.cancel();
        }
    }

    /// The call's event has arrived.
    pub(super) fn returned(&mut self, id: CallId) {
        self.calls.remove(&id);
    }

    /// The executor keeps the limit, counted from when the call left its queue.
    ///
    /// A pod may come back while its leftovers are removed (the UID of a static pod follows from its manifest): its calls wait for the
    /// end of that, or it would remove what they create.
    pub(super) fn call(&mut self, id: CallId, uid: PodUid, pod: Arc<Pod>, call: Call, limit: Duration) {
        let cancel = CancellationToken::new();
        self.calls.insert(id, cancel.clone());
        let span = span(id, &uid, &pod, &call);
        tracing::debug!(parent: &span, limit_ms = limit.as_millis(), "call sent");
        let slow = call.changes_runtime().then(|| (uid.clone(), self.events.clone()));
        self.state.metrics().record_call_start(&call, &pod);
        let metered = metrics::operation(&call).map(|kind| (kind, Arc::clone(&self.state)));
        let probed = metrics::probe(&call).map(|probe| (probe, Arc::clone(&pod), Arc::clone(&self.state)));
        let swept = self.sweeps.get(&uid).cloned();
        let starts = is_start(&call).then(|| self.starts.token());
        let executor = Arc::clone(&self.executor);
        let work = self.work(&uid, call.kind(), podwright_core::model::full_name(&pod).to_string());
        let mut done: BoxFuture<'static, Result<Answer, CallError>> = Box::pin(async move {
            let began = Instant::now();
            let performed = async move {
                if let Some(swept) = swept {
                    tokio::select! {
                        () = swept.cancelled() => {}
                        () = cancel.cancelled() => return Err(CallError::Cancelled),
                    }
                }
                executor.call(Order { uid, pod, call, limit, cancel }).await
            };
            let result = catch(marked(work, performed)).await.unwrap_or_else(|panic| Err(panicked(&panic)));
            drop(starts);
            let elapsed = began.elapsed();
            tracing::debug!(elapsed_ms = elapsed.as_millis(), ok = result.is_ok(), "call returned");
            if let Some((kind, state)) = metered {
                state.metrics().record_call_end(kind, elapsed, result.is_err());
            }
            if let (Some(((container, kind), pod, state)), Ok(Answer::Probe(verdict))) = (probed, &result) {
                state.metrics().probes().record(&pod, container.as_str(), kind, verdict, elapsed);
            }
            result
        });
        let answered = async move {
            if let Some((uid, events)) = slow {
                match tokio::time::timeout(SLOW, &mut done).await {
                    Ok(result) => return Event::Done { id, result },
                    Err(_) => drop(events.send(Event::Hint { uid }).await),
                }
            }
            Event::Done { id, result: done.await }
        };
        self.spawn("call", answered.instrument(span));
    }

    pub(super) fn observe(&self, uid: PodUid, seq: Seq) {
        let executor = Arc::clone(&self.executor);
        let span = tracing::debug_span!("observe", %uid);
        let work = self.work(&uid, "observation", String::new());
        let observed = async move {
            let pod = uid.clone();
            let observed = catch(marked(work, async move { executor.observe(pod).await })).await;
            let (result, covered) = match observed.unwrap_or_else(|panic| Err(panicked(&panic))) {
                Ok((seen, covered)) => (Ok(seen), covered),
                Err(error) => (Err(error), false),
            };
            Event::Observed { uid, seq, result, covered }
        };
        self.spawn("observe", observed.instrument(span));
    }

    pub(super) fn list(&self, seq: Seq) {
        let (executor, state) = (Arc::clone(&self.executor), Arc::clone(&self.state));
        self.spawn("list", async move {
            let began = Instant::now();
            let listed = catch(async move { executor.list().await }).await;
            state.metrics().record_relist(began.elapsed());
            Event::Listed { seq, result: listed.unwrap_or_else(|panic| Err(panicked(&panic))) }
        });
    }

    pub(super) fn check_runtime(&self) {
        let executor = Arc::clone(&self.executor);
        self.spawn("check runtime", async move {
            let checked = catch(async move { executor.check_runtime().await }).await;
            Event::Runtime { result: checked.unwrap_or_else(|panic| Err(panicked(&panic))) }
        });
    }

    pub(super) fn find_leftovers(&self, seq: Seq) {
        let executor = Arc::clone(&self.executor);
        self.spawn("find leftovers", async move {
            let found = catch(async move { executor.find_leftovers().await }).await;
            let found: Result<BTreeSet<PodUid>, CallError> = found.unwrap_or_else(|panic| Err(panicked(&panic)));
            Event::Leftovers { seq, found }
        });
    }

    pub(super) fn read_node(&self, seq: Seq, pods: PodReading) {
        let executor = Arc::clone(&self.executor);
        self.spawn("read node", async move {
            let read = catch(async move { executor.read_node(pods).await }).await;
            let reading = read.unwrap_or_else(|panic| {
                tracing::error!(error = %panic, "reading the node panicked");
                NodeReading::default()
            });
            Event::NodeRead { seq, reading }
        });
    }

    pub(super) fn remove_unused_images(&self, seq: Seq) {
        let executor = Arc::clone(&self.executor);
        self.spawn("remove unused images", async move {
            if let Err(panic) = catch(async move { executor.remove_unused_images().await }).await {
                tracing::error!(error = %panic, "the removal of unused images panicked");
            }
            Event::ImagesRemoved { seq }
        });
    }

    pub(super) fn request(&self, id: RequestId, store: Source, request: ObjectRequest, limit: Duration) {
        let executor = Arc::clone(&self.executor);
        self.spawn("request object", async move {
            let answered = catch(async move { executor.request(store, request, limit).await }).await;
            let panicked = |panic: Panicked| {
                let message = format!("internal error: the request panicked: {panic}");
                Err(ObjectError::Unavailable { message, after: None })
            };
            Event::ObjectAnswered { id, result: answered.unwrap_or_else(panicked) }
        });
    }

    /// No event follows: the next search for leftovers shows the result.
    pub(super) fn sweep(&mut self, uid: PodUid) {
        self.sweeps.retain(|_, ended| !ended.is_cancelled());
        // A search that began before its end finds the same leftovers again.
        if self.sweeps.contains_key(&uid) {
            return;
        }
        let ended = CancellationToken::new();
        self.sweeps.insert(uid.clone(), ended.clone());
        let sweep = self.executor.sweep(uid);
        spawn("sweep", async move {
            let _end = ended.drop_guard();
            sweep.await;
        });
    }

    /// No event follows: nothing depends on it.
    pub(super) fn save_quarantined_record(&self, record: Box<PodRecord>) {
        spawn("quarantined-record", self.executor.save_quarantined_record(record));
    }

    /// Waits for the calls that start something. Their events are not handled any more: the next agent observes the result.
    pub(super) async fn drain(&self) {
        self.starts.close();
        if self.starts.is_empty() {
            return;
        }
        tracing::info!(count = self.starts.len(), "waiting for starts in flight");
        if tokio::time::timeout(DRAIN_MAX, self.starts.wait()).await.is_err() {
            tracing::warn!(count = self.starts.len(), "starts in flight did not return in time");
        }
    }

    fn spawn(&self, name: &'static str, event: impl Future<Output = Event> + Send + 'static) {
        let events = self.events.clone();
        spawn(name, async move {
            // The channel is closed only after the loop has ended.
            let _ = events.send(event.await).await;
        });
    }
}

async fn marked<F: Future>(work: Option<Work>, future: F) -> F::Output {
    match work {
        Some(work) => work.follow(future).await,
        None => future.await,
    }
}

fn span(id: CallId, uid: &PodUid, pod: &Pod, call: &Call) -> tracing::Span {
    let pod = podwright_core::model::full_name(pod);
    tracing::info_span!("call", %pod, %uid, call = ?call.key(), call_id = id.0)
}

/// It may start a sandbox or a container.
fn is_start(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::RunSandbox { .. } | RuntimeCall::CreateContainer { .. } | RuntimeCall::StartContainer { .. }
        )
    )
}

/// The error of a call whose executor panicked: its result is unknown.
fn panicked(panic: &Panicked) -> CallError {
    CallError::InDoubt { reason: None, message: format!("internal error: the call panicked: {panic}") }
}

#[cfg(test)]
mod tests;
