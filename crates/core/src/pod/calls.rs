//! The calls of one pod: under way, in doubt, or waiting for their next try.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::bounded;
use crate::model::{Call, CallId, CallKey, RuntimeCall, Time, jitter};

/// Kubernetes: the worker's backoff period after a failed sync.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// Interval of observations for a call in doubt: 100 ms, doubled up to this.
const OBSERVE_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Delay before a call that succeeded is repeated for the second time; grows by the same amount with each repetition, up to ten
/// times.
const REPEATED_SUCCESS_DELAY: Duration = Duration::from_secs(1);
/// Successes that are further apart than this are not counted as repetitions.
const REPEATED_SUCCESS_WINDOW: Duration = Duration::from_secs(60);

/// The calls of one pod.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Calls {
    in_flight: BTreeMap<CallId, Sent>,
    #[serde(with = "crate::model::pairs")]
    retries: BTreeMap<CallKey, PendingRetry>,
    #[serde(with = "crate::model::pairs")]
    doubts: BTreeMap<CallKey, Doubt>,
    failures: u64,
    /// The last successful runtime call of each key, its time, and the number of successes in a row.
    #[serde(with = "crate::model::pairs")]
    done: BTreeMap<CallKey, (Call, Time, u32)>,
    /// The node's number of outages of the runtime at the last step.
    outages: u64,
}

/// A call under way.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sent {
    pub(crate) call: Call,
    pub(crate) at: Time,
    pub(crate) limit: Duration,
    pub(crate) cancelled: bool,
}

/// A call that failed and is not tried again before `at`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct PendingRetry {
    pub(crate) at: Time,
    count: u32,
    /// The last failure; `None` if the runtime was unavailable or busy each time.
    pub(crate) message: Option<String>,
}

/// A call with an unknown result: the runtime may have performed it, or may still do so.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Doubt {
    pub(crate) call: Call,
    /// The wait ends at this time: a container or sandbox that appears later is removed as unwanted.
    until: Time,
    next_observation: Time,
    wait: Duration,
    /// The connection to the runtime was lost: the first observation after its return resolves the call.
    lost: bool,
    /// `until` has passed, and one last observation was requested.
    overdue: bool,
}

impl Calls {
    pub(crate) fn sent(&mut self, id: CallId, call: Call, at: Time, limit: Duration) {
        self.in_flight.insert(id, Sent { call, at, limit, cancelled: false });
    }

    /// A call returned. `None`: it is not a call of this pod.
    pub(crate) fn returned(&mut self, id: CallId) -> Option<Sent> {
        self.in_flight.remove(&id)
    }

    /// Nothing with this key is under way, in doubt, or waiting for its time.
    pub(crate) fn may_send(&self, key: &CallKey, now: Time) -> bool {
        !self.busy(key) && !self.doubts.contains_key(key) && self.retries.get(key).is_none_or(|r| r.at <= now)
    }

    pub(crate) fn busy(&self, key: &CallKey) -> bool {
        self.in_flight.values().any(|s| s.call.key() == *key)
    }

    /// Under way or in doubt.
    pub(crate) fn unsettled(&self, key: &CallKey) -> bool {
        self.busy(key) || self.doubts.contains_key(key)
    }

    pub(crate) fn any(&self, test: impl Fn(&Call) -> bool) -> bool {
        self.in_flight.values().any(|s| test(&s.call))
    }

    /// A sandbox or container may still start: the result of that call is awaited.
    pub(crate) fn starting(&self) -> bool {
        self.any(Call::is_start)
    }

    /// Marks the matching calls as cancelled; returns those that were not before.
    pub(crate) fn cancel(&mut self, test: impl Fn(&Call) -> bool) -> Vec<CallId> {
        let hit = self.in_flight.iter_mut().filter(|(_, s)| !s.cancelled && test(&s.call));
        hit.map(|(id, s)| {
            s.cancelled = true;
            *id
        })
        .collect()
    }

    /// A call succeeded. Returns how often the same call has succeeded in a row: if the runtime reports success without a lasting
    /// effect, the repetition is delayed.
    pub(crate) fn succeeded(&mut self, call: &Call, now: Time, uid: &str) -> u32 {
        let key = call.key();
        self.retries.remove(&key);
        self.doubts.remove(&key);
        if !call.changes_runtime() {
            return 1;
        }
        self.done.retain(|_, (_, at, _)| now < *at + REPEATED_SUCCESS_WINDOW);
        let before = self.done.get(&key).filter(|(before, ..)| is_same(before, call));
        let times = before.map_or(0, |(.., times)| *times) + 1;
        self.done.insert(key.clone(), (call.clone(), now, times));
        if times > 1 {
            self.failed(key, now, REPEATED_SUCCESS_DELAY * (times - 1).min(10), None, uid);
        }
        times
    }

    /// Wait before the next try; `jitter` spreads pods that failed together (0…50 %). Without a message the last one stays.
    pub(crate) fn failed(&mut self, key: CallKey, now: Time, delay: Duration, message: Option<&str>, uid: &str) {
        self.failures += 1;
        let spread = delay.mul_f64(0.5 * jitter(uid, self.failures));
        let (count, last) = self.retries.remove(&key).map_or((0, None), |r| (r.count, r.message));
        let message = message.map(|message| bounded(message).to_owned()).or(last);
        self.retries.insert(key, PendingRetry { at: now + delay + spread, count: count + 1, message });
    }

    /// How often in a row this failed.
    pub(crate) fn failures(&self, key: &CallKey) -> u32 {
        self.retries.get(key).map_or(0, |r| r.count)
    }

    /// A user request or a change of the spec: all calls may be retried now.
    pub(crate) fn reset_backoff(&mut self) {
        self.retries.clear();
    }

    /// The content of volumes has changed: earlier failures to set them up do not delay the next attempt.
    pub(crate) fn reset_volume_backoff(&mut self) {
        self.retries.retain(|key, _| !matches!(key, CallKey::Volume(_)));
    }

    /// The condition that this container waits for has changed.
    pub(crate) fn reset_backoff_of(&mut self, key: &CallKey) {
        self.retries.remove(key);
    }

    /// After an outage of the runtime, failed runtime calls may be retried at once. True if there was an outage since the last
    /// step.
    pub(crate) fn runtime_is_back(&mut self, outages: u64) -> bool {
        let back = std::mem::replace(&mut self.outages, outages) != outages;
        if back {
            self.retries.retain(|key, _| !is_runtime(key));
        }
        back
    }

    pub(crate) fn doubt(&mut self, sent: Sent, now: Time, lost: bool) {
        let wait = Duration::from_millis(100);
        let until = (sent.at + sent.limit * 2).max(now + RETRY);
        self.doubts.insert(
            sent.call.key(),
            Doubt { call: sent.call, until, next_observation: now + wait, wait, lost, overdue: false },
        );
    }

    pub(crate) fn in_doubt(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Removes calls from doubt: those that `seen` resolves, those that the restart of the runtime ended, those whose time is
    /// over. Returns the last group, and whether one more observation is needed first: the call may have taken effect a moment
    /// ago.
    pub(crate) fn settle(&mut self, now: Time, fresh: bool, seen: impl Fn(&Call) -> bool) -> (Vec<Call>, bool) {
        let (mut given_up, mut last_observation) = (vec![], false);
        self.doubts.retain(|_, doubt| {
            if seen(&doubt.call) || (doubt.lost && fresh) {
                return false;
            }
            if doubt.until <= now && fresh && !std::mem::replace(&mut doubt.overdue, true) {
                last_observation = true;
            } else if doubt.until <= now && fresh {
                given_up.push(doubt.call.clone());
                return false;
            }
            true
        });
        (given_up, last_observation)
    }

    /// An observation is due for a call in doubt. Sets the time of the next one.
    pub(crate) fn observation_due(&mut self, now: Time) -> bool {
        let mut due = false;
        for doubt in self.doubts.values_mut().filter(|d| d.next_observation <= now) {
            due = true;
            doubt.wait = (doubt.wait * 2).min(OBSERVE_INTERVAL_MAX);
            doubt.next_observation = now + doubt.wait;
        }
        due
    }

    /// The next moment at which something may be tried.
    pub(crate) fn wake(&self, now: Time) -> Option<Time> {
        let retries = self.retries.values().map(|r| r.at).filter(|at| *at > now);
        let doubts = self.doubts.values().flat_map(|d| [d.next_observation, d.until]).filter(|at| *at > now);
        retries.chain(doubts).min()
    }

    /// Calls under way, with the moment each was sent.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (&Call, Time)> {
        self.in_flight.values().map(|sent| (&sent.call, sent.at))
    }

    /// Calls that failed and are to be sent again.
    pub(crate) fn retries(&self) -> impl Iterator<Item = (&CallKey, &PendingRetry)> {
        self.retries.iter()
    }

    pub(crate) fn pending_retry(&self, key: &CallKey) -> Option<&PendingRetry> {
        self.retries.get(key)
    }

    /// Calls in doubt.
    pub(crate) fn doubts(&self) -> impl Iterator<Item = &Call> {
        self.doubts.values().map(|doubt| &doubt.call)
    }

    pub(crate) fn idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

/// The same call, regardless of the attempt of a sandbox and of the remaining time of a stop.
fn is_same(a: &Call, b: &Call) -> bool {
    match (a, b) {
        (Call::Runtime(RuntimeCall::RunSandbox { .. }), Call::Runtime(RuntimeCall::RunSandbox { .. })) => true,
        (
            Call::Runtime(RuntimeCall::StopContainer { id: a, .. }),
            Call::Runtime(RuntimeCall::StopContainer { id: b, .. }),
        ) => a == b,
        _ => a == b,
    }
}

/// Calls of this key go to the runtime.
fn is_runtime(key: &CallKey) -> bool {
    matches!(
        key,
        CallKey::RunSandbox | CallKey::Sandbox(_) | CallKey::Container(_) | CallKey::Instance(_) | CallKey::Stop(_)
    )
}
