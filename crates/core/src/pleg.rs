//! When to look at everything in the runtime: the safety list.
//!
//! Hints and the ends of our own calls make a pod looked at at once; the list is the net below them. It runs rarely where
//! the runtime has an event stream, each second where it hasn't, less often when every container has a pidfd.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Listing, PodListed, PodSeen, PodUid, Seq, Time};

/// Without events, every running container watched by a pidfd.
const WITH_PIDFDS: Duration = Duration::from_secs(5);
/// Without events, as the Go kubelet's relist.
const WITHOUT: Duration = Duration::from_secs(1);
/// So long the return of the event stream says nothing again.
const STREAM_PAUSE: Duration = Duration::from_secs(10);

/// The last list, and when the next one is due.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pleg {
    pub(crate) listing: Listing,
    /// When the newest complete list was asked for.
    pub(crate) as_of: Option<Seq>,
    under_way: Option<Seq>,
    last: Time,
    wanted: bool,
    stream_up: bool,
    /// When the event stream last came back.
    #[serde(default)]
    back_at: Time,
    /// How often it runs beside a working event stream: `syncFrequency`, because every pod is planned anew then.
    safety: Duration,
    covered: BTreeMap<PodUid, bool>,
}

impl Pleg {
    pub(crate) fn new(safety: Duration) -> Self {
        Self { safety, ..Self::default() }
    }

    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// The event stream came or went. True if the runtime has a new chance: it is back. One that comes and goes all the time is
    /// no sign of that.
    pub(crate) fn stream(&mut self, up: bool, now: Time) -> bool {
        let was_up = std::mem::replace(&mut self.stream_up, up);
        let back = up && !was_up && self.back_at + STREAM_PAUSE <= now;
        if back {
            self.back_at = now;
        }
        // What happened while nobody listened is found by one list.
        self.wanted = true;
        back
    }

    pub(crate) fn covered(&mut self, uid: &PodUid, covered: bool) {
        self.covered.insert(uid.clone(), covered);
    }

    pub(crate) fn forget(&mut self, uid: &PodUid) {
        self.covered.remove(uid);
        self.listing.pods.remove(uid);
    }

    fn due(&self) -> Time {
        let every = match self.stream_up {
            true => self.safety,
            false if self.covered.values().all(|c| *c) => WITH_PIDFDS.min(self.safety),
            false => WITHOUT,
        };
        if self.wanted { Time::ZERO } else { self.last + every }
    }

    /// Draw a number for a list, if one is due.
    pub(crate) fn begin(&mut self, seq: &mut Seq, now: Time) -> Option<Seq> {
        if self.under_way.is_some() || self.due() > now {
            return None;
        }
        self.wanted = false;
        self.last = now;
        self.under_way = Some(seq.draw());
        self.under_way
    }

    /// A list came back. `None`: it failed, and is repeated in its time.
    pub(crate) fn listed(&mut self, seq: Seq, listing: Option<Listing>) {
        if self.under_way == Some(seq) {
            self.under_way = None;
        }
        if let Some(listing) = listing {
            self.listing = listing;
            self.as_of = Some(seq);
        }
    }

    pub(crate) fn wake(&self) -> Option<Time> {
        self.under_way.is_none().then(|| self.due())
    }
}

/// Does the outline say something else than the last look?
pub(crate) fn differs(listed: &PodListed, seen: &PodSeen) -> bool {
    let sandboxes = seen.sandboxes.iter().map(|s| (&s.id, s.ready));
    let containers = seen.containers.iter().map(|c| (&c.id, c.state));
    let listed_sandboxes: BTreeMap<_, _> = listed.sandboxes.iter().map(|(id, ready)| (id, *ready)).collect();
    let listed_containers: BTreeMap<_, _> = listed.containers.iter().map(|(id, (_, state))| (id, *state)).collect();
    sandboxes.collect::<BTreeMap<_, _>>() != listed_sandboxes
        || containers.collect::<BTreeMap<_, _>>() != listed_containers
}
