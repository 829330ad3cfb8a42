//! Search for cgroups, directories and logs of unknown pods on the host.

use std::collections::BTreeSet;
use std::time::Duration;

use super::pods::Pods;
use crate::model::{CallError, Effect, Out, PodUid, Seq, Time};

/// Interval without a request.
const PERIOD: Duration = Duration::from_secs(60);
/// Interval with a request.
const REQUESTED_PERIOD: Duration = Duration::from_secs(2);

/// When the next search is due.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Housekeeping {
    last: Time,
    requested: bool,
    in_flight: Option<Seq>,
}

impl Housekeeping {
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    fn due(&self) -> Time {
        self.last + if self.requested { REQUESTED_PERIOD } else { PERIOD }
    }

    /// Starts a search if one is due, and returns its sequence number.
    pub(super) fn begin(&mut self, seq: &mut Seq, now: Time) -> Option<Seq> {
        if self.in_flight.is_some() || self.due() > now {
            return None;
        }
        (self.last, self.requested) = (now, false);
        self.in_flight = Some(seq.draw());
        self.in_flight
    }

    /// A search finished: what belongs to no known pod is removed.
    pub(super) fn on_leftovers(
        &mut self,
        seq: Seq,
        found: Result<BTreeSet<PodUid>, CallError>,
        pods: &Pods,
        out: &mut Out,
    ) {
        if self.in_flight == Some(seq) {
            self.in_flight = None;
        }
        // An older list may lack a pod that was created since.
        if let (Ok(found), true, true) = (found, pods.runtime.is_listed(), pods.all_synced()) {
            let unknown = found.into_iter().filter(|uid| !pods.is_known(uid));
            out.effects.extend(unknown.map(|uid| Effect::Sweep { uid }));
        }
    }

    pub(super) fn wake(&self) -> Option<Time> {
        self.in_flight.is_none().then(|| self.due())
    }
}
