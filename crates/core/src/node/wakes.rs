//! When pods want to be woken.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{PodUid, Time};

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Wakes {
    at: BTreeMap<PodUid, Time>,
    queue: BTreeSet<(Time, PodUid)>,
    /// The time of the last [`crate::model::Out::wake_at`], until it has passed.
    requested: Option<Time>,
}

impl Wakes {
    pub(super) fn set(&mut self, uid: &PodUid, at: Option<Time>) {
        if let Some(old) = self.at.remove(uid) {
            self.queue.remove(&(old, uid.clone()));
        }
        if let Some(at) = at {
            self.at.insert(uid.clone(), at);
            self.queue.insert((at, uid.clone()));
        }
    }

    /// The pods whose time has come.
    pub(super) fn due(&mut self, now: Time) -> BTreeSet<PodUid> {
        let due: BTreeSet<PodUid> =
            self.queue.iter().take_while(|(at, _)| *at <= now).map(|(_, uid)| uid.clone()).collect();
        for uid in &due {
            self.set(uid, None);
        }
        self.requested = None;
        due
    }

    /// The time to request, if it is not the one requested last. `others`: the next time of everything except pods.
    pub(super) fn schedule(&mut self, others: Option<Time>, now: Time) -> Option<Time> {
        let first = self.queue.first().map(|(at, _)| *at);
        let wake = first.into_iter().chain(others).min().map(|at| at.max(now))?;
        (self.requested.replace(wake) != Some(wake)).then_some(wake)
    }
}
