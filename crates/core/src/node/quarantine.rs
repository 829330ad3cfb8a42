//! Pods in which the former agent died: they are quarantined when this one meets them (`suspects`).

use std::collections::{BTreeMap, BTreeSet};

use super::pods::Pods;
use crate::model::{Now, Out, PodUid, Suspect};
use crate::pod::Quarantine;

/// The suspects of the start. A pod may be delivered by its source later: then it has no record yet.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Suspects(BTreeMap<PodUid, Suspect>);

impl Suspects {
    /// Its quarantine, if it has one at this time.
    pub(super) fn quarantine(&self, uid: &PodUid, now: Now) -> Option<Quarantine> {
        let suspect = self.0.get(uid).filter(|suspect| suspect.is_quarantined(now.boot))?;
        let times = if suspect.deaths == 1 { "once".to_owned() } else { format!("{} times", suspect.deaths) };
        let why = format!("the agent died {times} during {} of this pod", suspect.work);
        Some(Quarantine { why, until: suspect.until, is_hold: suspect.quarantines == 0 })
    }

    /// The quarantine of the pod has ended: a later instance under its UID has none.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.0.remove(uid);
    }
}

/// Of several kinds of work on one pod, the one with the longest quarantine counts.
pub(super) fn on_suspects(pods: &mut Pods, suspects: Vec<Suspect>, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
    for suspect in suspects.into_iter().filter(|suspect| suspect.is_quarantined(now.boot)) {
        let longest = pods.suspects.0.get(&suspect.uid).is_none_or(|other| other.until < suspect.until);
        if longest {
            pods.suspects.0.insert(suspect.uid.clone(), suspect);
        }
    }
    let uids: BTreeSet<PodUid> = pods.suspects.0.keys().cloned().collect();
    for uid in &uids {
        apply(pods, uid, now, out);
    }
    uids
}

/// Quarantines a pod that is a suspect.
pub(super) fn apply(pods: &mut Pods, uid: &PodUid, now: Now, out: &mut Out) {
    if let Some(quarantine) = pods.suspects.quarantine(uid, now) {
        pods.quarantine(uid, quarantine, now, out);
    }
}
