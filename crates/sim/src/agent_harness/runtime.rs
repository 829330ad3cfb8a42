//! A container runtime in memory behind the agent's CRI traits. Its calls take time, fail, hang and give false answers as tests
//! configure; a call continues when its caller gave up, as in a real runtime.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use podwright_cri::v1::ContainerEventType as EventKind;
use podwright_cri::{Code, CriError, EventStream, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::clock::HarnessClock;
use super::corrupt::Corrupt;
use super::faults::{EventFaults, FaultRates, Reaction, Rule, millis};
use super::state::{CriResult, Program, ReceivedCall, State};

/// Clones share the same runtime.
#[derive(Clone)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
    /// Incremented when the runtime goes down: calls under way lose their connection.
    cut: watch::Sender<u64>,
}

/// A call under way.
pub(super) struct TakenCall {
    call: &'static str,
    pub(super) reaction: Reaction,
    epoch: u64,
    /// Cancelled when the caller gave up.
    pub(super) abandoned: CancellationToken,
}

impl FakeRuntime {
    /// An empty runtime whose random faults come from this seed.
    pub fn new(seed: u64, clock: HarnessClock) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed, clock))), cut: watch::channel(0).0 }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    // --- configuration ---

    /// Adds a rule. Earlier rules take precedence.
    pub fn rule(&self, rule: Rule) {
        self.lock().faults.rules.push(rule);
    }

    /// Removes all rules and random faults of calls.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults.rules.clear();
        state.faults.rates = FaultRates::default();
    }

    /// Random faults of calls without a rule.
    pub fn rates(&self, rates: FaultRates) {
        self.lock().faults.rates = rates;
    }

    /// Random faults of the event stream.
    pub fn event_faults(&self, events: EventFaults) {
        self.lock().faults.events = events;
    }

    /// The duration of a call without faults.
    pub fn latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Adds a program for containers. Its index is their command.
    pub fn program(&self, program: Program) -> usize {
        let mut state = self.lock();
        state.programs.push(program);
        state.programs.len() - 1
    }

    /// The runtime goes down: calls under way fail without effect; containers keep running.
    pub fn down(&self) {
        let mut state = self.lock();
        state.down = true;
        state.epoch += 1;
        let used = |s: &State| -> Vec<(String, String)> {
            let sandboxes = s.sandboxes.iter().map(|(id, s)| (s.name.clone(), id.clone()));
            sandboxes.chain(s.containers.iter().map(|(id, c)| (c.name.clone(), id.clone()))).collect()
        };
        state.names = used(&state).into_iter().collect();
        for subscriber in std::mem::take(&mut state.subscribers) {
            let _ = subscriber.send(Err(CriError::new(Code::Unavailable, "GetContainerEvents", "connection lost")));
        }
        self.cut.send_modify(|n| *n += 1);
    }

    /// The runtime answers again.
    pub fn up(&self) {
        self.lock().down = false;
    }

    /// The process of a container exits.
    pub fn crash(&self, id: &str, code: i32) {
        if self.lock().exit(id, code) {
            self.emit(id, EventKind::ContainerStoppedEvent);
        }
    }

    // --- queries ---

    /// Violations of what a node must guarantee, such as two running instances of one container.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// All calls so far.
    pub fn received_calls(&self) -> Vec<ReceivedCall> {
        self.lock().received.clone()
    }

    /// The number of calls of this name so far.
    pub fn count(&self, call: &str) -> usize {
        self.lock().received.iter().filter(|received| received.call == call).count()
    }

    /// Sandboxes, whatever their state.
    pub fn sandboxes(&self) -> Vec<v1::PodSandbox> {
        self.lock().list_sandboxes(&v1::PodSandboxFilter::default())
    }

    /// Containers, whatever their state.
    pub fn containers(&self) -> Vec<v1::Container> {
        self.lock().list_containers(&v1::ContainerFilter::default())
    }

    /// IDs and start times of running containers.
    pub fn running(&self) -> Vec<(String, i64)> {
        let state = self.lock();
        let live = |c: &super::state::Container| c.state == v1::ContainerState::ContainerRunning;
        state.containers.iter().filter(|(_, c)| live(c)).map(|(id, c)| (id.clone(), c.started_at)).collect()
    }

    // --- calls and events ---

    /// Receives a call: logs it, chooses the reaction, performs it in a task, and waits for the answer as long as the caller does.
    pub(super) async fn take<T, W>(
        &self,
        call: &'static str,
        uid: Option<String>,
        subject: String,
        timeout: Duration,
        work: impl FnOnce(Self, TakenCall) -> W + Send,
    ) -> CriResult<T>
    where
        T: Corrupt + Send + 'static,
        W: Future<Output = CriResult<T>> + Send + 'static,
    {
        let abandoned = CancellationToken::new();
        let _guard = abandoned.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let mut cut = self.cut.subscribe();
        let (order, reaction) = {
            let mut state = self.lock();
            if state.log_calls {
                state.received.push(ReceivedCall { at: Instant::now(), call, uid: uid.clone(), subject });
            }
            if state.down {
                return Err(CriError::not_sent(call, "connect: connection refused"));
            }
            let State { faults, rng, .. } = &mut *state;
            let reaction = faults.reaction(call, uid.as_deref(), rng);
            (TakenCall { call, reaction: reaction.clone(), epoch: state.epoch, abandoned }, reaction)
        };
        let work = work(self.clone(), order);
        tokio::spawn(async move {
            let result = work.await;
            match reaction {
                Reaction::AnswerLost => {
                    // The channel stays open, so that the caller waits and gets no error.
                    std::future::pending::<()>().await;
                    drop(answer);
                }
                Reaction::Corrupt(kind) => drop(answer.send(result.and_then(|answer| answer.corrupt(kind, call)))),
                _ => drop(answer.send(result)),
            }
        });
        tokio::select! {
            biased;
            Ok(result) = answered => result,
            _ = cut.changed() => Err(CriError::new(Code::Unavailable, call, "connection lost: broken pipe")),
            () = sleep(timeout) => Err(CriError::new(Code::DeadlineExceeded, call, "deadline exceeded")),
        }
    }

    /// Sends an event to all subscribers, except for random faults.
    pub(super) fn emit(&self, id: &str, kind: EventKind) {
        let mut state = self.lock();
        let sandbox = state.containers.get(id).map_or(id.to_owned(), |c| c.sandbox.clone());
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: state.nanos(),
            pod_sandbox_status: state.sandbox_status(&sandbox).ok(),
            containers_statuses: vec![],
        };
        let State { faults, rng, subscribers, .. } = &mut *state;
        let faults = faults.events;
        subscribers.retain(|subscriber| !subscriber.is_closed());
        for subscriber in subscribers.iter() {
            if rng.chance(faults.lost) {
                continue;
            }
            let copies = if rng.chance(faults.doubled) { 2 } else { 1 };
            for _ in 0..copies {
                if rng.chance(faults.late) {
                    let (wait, to, event) = (rng.millis(1, millis(faults.late_max)), subscriber.clone(), event.clone());
                    tokio::spawn(async move {
                        sleep(wait).await;
                        let _ = to.send(Ok(event));
                    });
                } else {
                    let _ = subscriber.send(Ok(event.clone()));
                }
            }
        }
    }

    pub(super) fn subscribe(&self) -> EventStream {
        let mut state = self.lock();
        let first = if state.down {
            Some(CriError::not_sent("GetContainerEvents", "connect: connection refused"))
        } else if state.faults.events.absent {
            Some(CriError::unimplemented("GetContainerEvents"))
        } else {
            None
        };
        if let Some(error) = first {
            return Box::pin(futures::stream::iter([Err(error)]));
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        state.subscribers.push(sender);
        Box::pin(futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|event| (event, receiver))
        }))
    }

    /// TERM once; KILL after the grace period, unless the caller disconnected.
    pub(super) async fn stop(&self, id: String, grace: u32, order: TakenCall) -> CriResult<()> {
        order.pass(self).await?;
        if order.reaction == Reaction::Ignored {
            return Ok(());
        }
        let (mut gone, dies_in) = {
            let mut state = self.lock();
            let not_found = || CriError::new(Code::NotFound, "StopContainer", "not found");
            let container = state.containers.get_mut(&id).ok_or_else(not_found)?;
            if container.state != v1::ContainerState::ContainerRunning {
                return Ok(());
            }
            container.terms += 1;
            (container.gone.subscribe(), container.program.exits_on_term.filter(|_| container.terms == 1))
        };
        if let Some(wait) = dies_in {
            let (runtime, id) = (self.clone(), id.clone());
            tokio::spawn(async move {
                sleep(wait).await;
                runtime.crash(&id, 143);
            });
        }
        tokio::select! {
            biased;
            _ = gone.wait_for(|gone| *gone) => return Ok(()),
            () = order.abandoned.cancelled() => return Ok(()),
            () = sleep(Duration::from_secs(u64::from(grace))) => {}
        }
        self.crash(&id, 137);
        Ok(())
    }
}

impl TakenCall {
    /// Waits until the call takes effect, or returns its failure.
    pub(super) async fn pass(&self, runtime: &FakeRuntime) -> CriResult<()> {
        let latency = runtime.lock().latency;
        sleep(latency).await;
        match &self.reaction {
            Reaction::Succeeds | Reaction::AnswerLost | Reaction::Corrupt(_) | Reaction::Ignored => {}
            Reaction::Fails(why) => return Err(CriError::new(Code::Other, self.call, why.clone())),
            Reaction::Unavailable => return Err(CriError::new(Code::Unavailable, self.call, "ttrpc: closed")),
            Reaction::Late(by) => sleep(*by).await,
            Reaction::HangsUntil(then) => sleep_until(*then).await,
            Reaction::Never => std::future::pending().await,
        }
        if runtime.lock().epoch != self.epoch {
            // The runtime process that received it is gone.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}
