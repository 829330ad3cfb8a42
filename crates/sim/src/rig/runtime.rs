//! A container runtime in memory, at the traits the agent sees every runtime through. Its calls take time, fail, hang and lie as
//! told; what was asked of it goes on whoever still waits, as in a real one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use podwright_cri::v1::ContainerEventType as Happened;
use podwright_cri::{Code, CriError, EventStream, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::clock::RigClock;
use super::faults::{Dice, EventFaults, Fate, Rule, millis};
use super::garbage::Spoil;
use super::state::{Asked, Done, Program, State};

/// Clones are the same runtime.
#[derive(Clone)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
    /// Grows when the runtime goes away: calls under way lose their connection.
    cut: watch::Sender<u64>,
}

/// A call that was taken.
pub(super) struct Order {
    call: &'static str,
    pub(super) fate: Fate,
    epoch: u64,
    /// Nobody waits for the answer any more.
    pub(super) abandoned: CancellationToken,
}

impl FakeRuntime {
    /// An empty runtime whose chance comes from this seed.
    pub fn new(seed: u64, clock: RigClock) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed, clock))), cut: watch::channel(0).0 }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    // --- what tests tell it ---

    /// These calls have a fate of their own from now on. Earlier rules go first.
    pub fn rule(&self, rule: Rule) {
        self.lock().faults.rules.push(rule);
    }

    /// It works as it should again.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults.rules.clear();
        state.faults.dice = Dice::default();
    }

    /// Chance for calls without a rule.
    pub fn dice(&self, dice: Dice) {
        self.lock().faults.dice = dice;
    }

    /// What happens to events.
    pub fn event_faults(&self, events: EventFaults) {
        self.lock().faults.events = events;
    }

    /// How long a call takes.
    pub fn latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// A program for containers; its place is the word for their command.
    pub fn program(&self, program: Program) -> usize {
        let mut state = self.lock();
        state.programs.push(program);
        state.programs.len() - 1
    }

    /// The runtime goes away: calls under way are cut off and not done; containers run on.
    pub fn down(&self) {
        let mut state = self.lock();
        state.away = true;
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

    /// It is back.
    pub fn up(&self) {
        self.lock().away = false;
    }

    /// A container's process ends by itself.
    pub fn crash(&self, id: &str, code: i32) {
        if self.lock().exit(id, code) {
            self.emit(id, Happened::ContainerStoppedEvent);
        }
    }

    // --- what tests ask it ---

    /// What must never be, and was.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Calls since the beginning.
    pub fn asked(&self) -> Vec<Asked> {
        self.lock().asked.clone()
    }

    /// Calls of this kind since the beginning.
    pub fn count(&self, call: &str) -> usize {
        self.lock().asked.iter().filter(|asked| asked.call == call).count()
    }

    /// Sandboxes, whatever their state.
    pub fn sandboxes(&self) -> Vec<v1::PodSandbox> {
        self.lock().list_sandboxes(&v1::PodSandboxFilter::default())
    }

    /// Containers, whatever their state.
    pub fn containers(&self) -> Vec<v1::Container> {
        self.lock().list_containers(&v1::ContainerFilter::default())
    }

    /// When each container's process began, by its id; for those that run.
    pub fn running(&self) -> Vec<(String, i64)> {
        let state = self.lock();
        let live = |c: &super::state::Container| c.state == v1::ContainerState::ContainerRunning;
        state.containers.iter().filter(|(_, c)| live(c)).map(|(id, c)| (id.clone(), c.started_at)).collect()
    }

    // --- how it works ---

    /// Take a call: write it down, give it its fate, do it in a task of its own, wait for the answer as long as the caller does.
    pub(super) async fn take<T, W>(
        &self,
        call: &'static str,
        uid: Option<String>,
        subject: String,
        timeout: Duration,
        work: impl FnOnce(Self, Order) -> W + Send,
    ) -> Done<T>
    where
        T: Spoil + Send + 'static,
        W: Future<Output = Done<T>> + Send + 'static,
    {
        let abandoned = CancellationToken::new();
        let _guard = abandoned.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let mut cut = self.cut.subscribe();
        let (order, fate) = {
            let mut state = self.lock();
            if state.keep_log {
                state.asked.push(Asked { at: Instant::now(), call, uid: uid.clone(), subject });
            }
            if state.away {
                return Err(CriError::not_sent(call, "connect: connection refused"));
            }
            let State { faults, rng, .. } = &mut *state;
            let fate = faults.fate(call, uid.as_deref(), rng);
            (Order { call, fate: fate.clone(), epoch: state.epoch, abandoned }, fate)
        };
        let work = work(self.clone(), order);
        tokio::spawn(async move {
            let result = work.await;
            match fate {
                Fate::AnswerLost => {
                    // Held, so that the caller sees silence and not an end.
                    std::future::pending::<()>().await;
                    drop(answer);
                }
                Fate::Garbage(kind) => drop(answer.send(result.and_then(|good| good.spoil(kind, call)))),
                _ => drop(answer.send(result)),
            }
        });
        tokio::select! {
            biased;
            Ok(result) = answered => result,
            _ = cut.changed() => Err(CriError::new(Code::Unavailable, call, "connection lost: broken pipe")),
            () = sleep(timeout) => Err(CriError::new(Code::DeadlineExceeded, call, "the deadline passed")),
        }
    }

    /// Tell those who listen, as far as events get through.
    pub(super) fn emit(&self, id: &str, happened: Happened) {
        let mut state = self.lock();
        let sandbox = state.containers.get(id).map_or(id.to_owned(), |c| c.sandbox.clone());
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: happened.into(),
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
        let first = if state.away {
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

    /// TERM once; KILL when the time is up, unless whoever asked has gone away.
    pub(super) async fn stop(&self, id: String, grace: u32, order: Order) -> Done<()> {
        order.pass(self).await?;
        if order.fate == Fate::Ignored {
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
            (container.gone.subscribe(), container.program.obeys.filter(|_| container.terms == 1))
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

impl Order {
    /// The time the call takes. Comes back when its effect is due, or with the failure it has instead.
    pub(super) async fn pass(&self, runtime: &FakeRuntime) -> Done<()> {
        let latency = runtime.lock().latency;
        sleep(latency).await;
        match &self.fate {
            Fate::Fine | Fate::AnswerLost | Fate::Garbage(_) | Fate::Ignored => {}
            Fate::Fails(why) => return Err(CriError::new(Code::Other, self.call, why.clone())),
            Fate::Unavailable => return Err(CriError::new(Code::Unavailable, self.call, "ttrpc: closed")),
            Fate::Late(by) => sleep(*by).await,
            Fate::HangsUntil(then) => sleep_until(*then).await,
            Fate::Never => std::future::pending().await,
        }
        if runtime.lock().epoch != self.epoch {
            // The runtime that took it is gone.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}
