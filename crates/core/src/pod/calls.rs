//! The calls of one pod: under way, in doubt, or waiting for their next try.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::bounded;
use crate::model::{Call, CallId, CallKey, Name, RuntimeCall, Time, jitter};

/// Kubernetes: the worker's backoff period after a failed sync.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// The next look at a call in doubt: 100 ms, doubled up to this.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Calls that succeed again and again: the first wait; it grows by as much each time, ten times at most.
const REPEATED_SUCCESS_DELAY: Duration = Duration::from_secs(1);
/// Later than this it is another story.
const REPEATED_SUCCESS_WINDOW: Duration = Duration::from_secs(60);

/// What this pod has asked the hands for.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Calls {
    in_flight: BTreeMap<CallId, Sent>,
    #[serde(with = "crate::record::pairs")]
    retries: BTreeMap<CallKey, PendingRetry>,
    #[serde(with = "crate::record::pairs")]
    doubts: BTreeMap<CallKey, Doubt>,
    failures: u64,
    /// The last runtime call of each key that was said to be done, when, and how often in a row.
    #[serde(with = "crate::record::pairs")]
    done: BTreeMap<CallKey, (Call, Time, u32)>,
    /// How often the runtime was away, as last heard.
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

/// A call whose fate is unknown: the runtime may have done it, or may do it yet.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Doubt {
    pub(crate) call: Call,
    /// Given up then: what surfaces later is removed as a stranger.
    until: Time,
    next_look: Time,
    wait: Duration,
    /// The runtime went away: the first look after its return settles it.
    lost: bool,
    /// Its time is over: one last look was asked for.
    overdue: bool,
}

impl Calls {
    pub(crate) fn sent(&mut self, id: CallId, call: Call, at: Time, limit: Duration) {
        self.in_flight.insert(id, Sent { call, at, limit, cancelled: false });
    }

    /// A call came back. `None`: it was none of ours.
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

    /// A sandbox or container may come up yet: its fate is waited for, never guessed.
    pub(crate) fn starting(&self) -> bool {
        self.any(Call::is_start)
    }

    /// Calls that a change of mind interrupts; each is named once.
    pub(crate) fn cancel(&mut self, test: impl Fn(&Call) -> bool) -> Vec<CallId> {
        let hit = self.in_flight.iter_mut().filter(|(_, s)| !s.cancelled && test(&s.call));
        hit.map(|(id, s)| {
            s.cancelled = true;
            *id
        })
        .collect()
    }

    /// A call is said to be done. How often in a row the very same one was: the runtime says yes and does nothing, or what it does
    /// does not last, and is not asked again at once.
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

    /// A person or a change of the spec wants it tried now.
    pub(crate) fn reset_backoff(&mut self) {
        self.retries.clear();
    }

    /// What volumes show has changed: what failed before says little about it now.
    pub(crate) fn reset_volume_backoff(&mut self) {
        self.retries.retain(|key, _| !matches!(key, CallKey::Volume(_)));
    }

    /// What this container waits for has changed.
    pub(crate) fn reset_container_backoff(&mut self, name: &Name) {
        self.retries.remove(&CallKey::Container(name.clone()));
    }

    /// A runtime that returned from an outage is asked again at once: earlier failures say little about it now. True if it did.
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
            Doubt { call: sent.call, until, next_look: now + wait, wait, lost, overdue: false },
        );
    }

    pub(crate) fn in_doubt(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Settle doubts: those that `seen` answers, those the runtime's restart ended, those given up. Returns what was given up,
    /// and whether a last look is needed before that: the call may have had its effect a moment ago.
    pub(crate) fn settle(&mut self, now: Time, fresh: bool, seen: impl Fn(&Call) -> bool) -> (Vec<Call>, bool) {
        let (mut given_up, mut last_look) = (vec![], false);
        self.doubts.retain(|_, doubt| {
            if seen(&doubt.call) || (doubt.lost && fresh) {
                return false;
            }
            if doubt.until <= now && fresh && !std::mem::replace(&mut doubt.overdue, true) {
                last_look = true;
            } else if doubt.until <= now && fresh {
                given_up.push(doubt.call.clone());
                return false;
            }
            true
        });
        (given_up, last_look)
    }

    /// Is a look due because of a doubt? Draws the next, later look.
    pub(crate) fn look_due(&mut self, now: Time) -> bool {
        let mut due = false;
        for doubt in self.doubts.values_mut().filter(|d| d.next_look <= now) {
            due = true;
            doubt.wait = (doubt.wait * 2).min(LOOK_MAX);
            doubt.next_look = now + doubt.wait;
        }
        due
    }

    /// The next moment at which something may be tried.
    pub(crate) fn wake(&self, now: Time) -> Option<Time> {
        let retries = self.retries.values().map(|r| r.at).filter(|at| *at > now);
        let doubts = self.doubts.values().flat_map(|d| [d.next_look, d.until]).filter(|at| *at > now);
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

    /// Calls whose fate is unknown.
    pub(crate) fn doubts(&self) -> impl Iterator<Item = &Call> {
        self.doubts.values().map(|doubt| &doubt.call)
    }

    pub(crate) fn idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

/// They ask for the same. A sandbox after another is the same wish; a stop with less time left is the same stop.
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

/// It is the runtime that has to be asked again.
fn is_runtime(key: &CallKey) -> bool {
    matches!(
        key,
        CallKey::RunSandbox | CallKey::Sandbox(_) | CallKey::Container(_) | CallKey::Instance(_) | CallKey::Stop(_)
    )
}
