//! Periodic relist of all pods in the runtime (PLEG).
//!
//! Events and results of our own calls trigger observations of single pods; the relist finds what they missed. It runs rarely with
//! an event stream, every second without one, and less often if every container has a pidfd.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Listing, PodListed, PodSeen, PodUid, Seq, Time};

/// Interval without an event stream, if every running container is watched by a pidfd.
const WITH_PIDFDS: Duration = Duration::from_secs(5);
/// Interval without an event stream, as the Go kubelet's relist.
const WITHOUT: Duration = Duration::from_secs(1);
/// A stream that returns again within this time does not count as recovered.
const STREAM_PAUSE: Duration = Duration::from_secs(10);

/// The last list, and when the next one is due.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pleg {
    pub(crate) listing: Listing,
    /// Sequence number of the newest complete list.
    pub(crate) as_of: Option<Seq>,
    in_flight: Option<Seq>,
    last: Time,
    requested: bool,
    stream_up: bool,
    /// When the event stream last came back.
    #[serde(default)]
    recovered_at: Time,
    /// Interval with an event stream: `syncFrequency`, because every pod is planned again then.
    sync_frequency: Duration,
    covered: BTreeMap<PodUid, bool>,
}

impl Pleg {
    pub(crate) fn new(sync_frequency: Duration) -> Self {
        Self { sync_frequency, ..Self::default() }
    }

    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// The event stream was connected or lost. True if the runtime counts as recovered; a stream that flaps does not.
    pub(crate) fn stream(&mut self, up: bool, now: Time) -> bool {
        let was_up = std::mem::replace(&mut self.stream_up, up);
        let back = up && !was_up && self.recovered_at + STREAM_PAUSE <= now;
        if back {
            self.recovered_at = now;
        }
        // A relist finds the events missed in between.
        self.requested = true;
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
            true => self.sync_frequency,
            false if self.covered.values().all(|c| *c) => WITH_PIDFDS.min(self.sync_frequency),
            false => WITHOUT,
        };
        if self.requested { Time::ZERO } else { self.last + every }
    }

    /// Starts a relist if one is due, and returns its sequence number.
    pub(crate) fn begin(&mut self, seq: &mut Seq, now: Time) -> Option<Seq> {
        if self.in_flight.is_some() || self.due() > now {
            return None;
        }
        self.requested = false;
        self.last = now;
        self.in_flight = Some(seq.draw());
        self.in_flight
    }

    /// A relist finished. `None`: it failed and is repeated at the next interval.
    pub(crate) fn listed(&mut self, seq: Seq, listing: Option<Listing>) {
        if self.in_flight == Some(seq) {
            self.in_flight = None;
        }
        if let Some(listing) = listing {
            self.listing = listing;
            self.as_of = Some(seq);
        }
    }

    pub(crate) fn wake(&self) -> Option<Time> {
        self.in_flight.is_none().then(|| self.due())
    }
}

/// The list differs from the last observation of the pod.
pub(crate) fn differs(listed: &PodListed, seen: &PodSeen) -> bool {
    let sandboxes = seen.sandboxes.iter().map(|s| (&s.id, s.ready));
    let containers = seen.containers.iter().map(|c| (&c.id, c.state));
    let listed_sandboxes: BTreeMap<_, _> = listed.sandboxes.iter().map(|(id, ready)| (id, *ready)).collect();
    let listed_containers: BTreeMap<_, _> = listed.containers.iter().map(|(id, (_, state))| (id, *state)).collect();
    sandboxes.collect::<BTreeMap<_, _>>() != listed_sandboxes
        || containers.collect::<BTreeMap<_, _>>() != listed_containers
}
