//! What all parts of the simulation share: virtual time, randomness, the faults in force, the queue of what happens next, and
//! the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_core::model::{ContainerId, Event, Out, PodUid, Seq, Source};

use crate::accidents::{Accident, Recovery};
use crate::calls::CallStep;
use crate::clock::Clock;
use crate::faults::Faults;
use crate::object_store::StoreEvent;
use crate::rng::Rng;

/// Time, randomness, faults and the queue.
#[derive(Clone, Debug)]
pub struct Env {
    /// The only clock of the simulation.
    pub clock: Clock,
    /// Every random decision is drawn from it, in order: a draw more or less changes the rest of a run.
    pub rng: Rng,
    /// What goes wrong now.
    pub faults: Faults,
    /// No new faults occur, and whatever hangs completes.
    pub calm: bool,
    /// Print one line per event.
    pub tracing: bool,
    epoch: u32,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    queued: u64,
}

/// Something that happens when its time comes.
#[derive(Clone, Debug)]
pub(crate) enum Scheduled {
    /// An event reaches core, if the agent process of this epoch still runs.
    Event { epoch: u32, event: Event },
    /// The time of the last `Out::wake_at`.
    Wake { epoch: u32, token: u64 },
    /// The output of one event is committed to the journal.
    Commit { epoch: u32, out: Out },
    /// A call under way makes a step.
    Call(u64, CallStep),
    /// A process exits; `unprompted`: without a signal.
    Exit { id: ContainerId, code: i32, unprompted: bool },
    /// The runtime's state of one pod is read; the result reaches core after `answer`.
    Observe { epoch: u32, uid: PodUid, seq: Seq, answer: Duration },
    /// All pods of the runtime are listed.
    List { epoch: u32, seq: Seq, answer: Duration },
    /// A source reports its pods.
    SourceReports(Source),
    /// A new agent process starts.
    AgentStarts,
    /// The agent process dies.
    AgentCrashes,
    /// Something goes wrong on the host, in the runtime or in the API server.
    Accident(Accident),
    /// What an accident broke works again.
    Recovery(Recovery),
    /// The next action of the workload.
    UserAction,
    /// Traffic to or from the object store.
    Store(StoreEvent),
}

/// Prints one line of the trace; its text is built only if the trace is on.
macro_rules! trace {
    ($env:expr, $($arg:tt)*) => {
        if $env.tracing {
            println!("{:>10.3} {}", $env.clock.now.as_secs_f64() - 1000.0, format!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl Env {
    /// An empty queue, a clock at its start and the random numbers of this seed.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            clock: Clock::default(),
            rng: Rng::new(seed),
            faults,
            calm: false,
            tracing: false,
            epoch: 0,
            queue: BTreeMap::new(),
            queued: 0,
        }
    }

    /// Time since the start of the simulation.
    pub fn now(&self) -> Duration {
        self.clock.now
    }

    /// Changes when an agent process starts and when it dies. What was scheduled for another process is dropped.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn next_epoch(&mut self) {
        self.epoch += 1;
    }

    pub(crate) fn after(&mut self, delay: Duration, item: Scheduled) {
        self.queued += 1;
        self.queue.insert((self.clock.now + delay, self.queued), item);
    }

    /// The number that the next item in the queue gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.queued + 1
    }

    /// Sends an event to the agent process that runs now.
    pub fn send(&mut self, delay: Duration, event: Event) {
        let epoch = self.epoch;
        self.after(delay, Scheduled::Event { epoch, event });
    }

    /// The agent process dies after this time.
    pub fn crash_after(&mut self, delay: Duration) {
        self.after(delay, Scheduled::AgentCrashes);
    }

    /// Takes the next item and sets the clock to its time.
    pub(crate) fn pop(&mut self) -> Option<Scheduled> {
        let ((at, _), item) = self.queue.pop_first()?;
        self.clock.now = self.clock.now.max(at);
        Some(item)
    }

    pub(crate) fn peek(&self) -> Option<&Scheduled> {
        self.queue.first_key_value().map(|(_, item)| item)
    }

    pub(crate) fn has_item_until(&self, until: Duration) -> bool {
        self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Scheduled) -> bool) {
        self.queue.retain(|_, item| keep(item));
    }

    /// Calls that will make a step other than their timeout.
    pub(crate) fn calls_in_progress(&self) -> BTreeSet<u64> {
        let step = |item: &Scheduled| match item {
            Scheduled::Call(n, step) if *step != CallStep::Timeout => Some(*n),
            _ => None,
        };
        self.queue.values().filter_map(step).collect()
    }

    /// The runtime's event stream reports a change in this pod; the event may be lost, repeated or late.
    pub(crate) fn hint(&mut self, uid: &PodUid) {
        if self.rng.chance(self.faults.hint_lost) {
            return;
        }
        let times = if self.rng.chance(self.faults.hint_twice) { 2 } else { 1 };
        for _ in 0..times {
            let late = self.rng.chance(self.faults.hint_late);
            let delay = if late { self.rng.millis(10, 10_000) } else { self.rng.millis(0, 3) };
            self.send(delay, Event::Hint { uid: uid.clone() });
        }
    }
}
