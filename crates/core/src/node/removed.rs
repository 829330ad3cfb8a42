//! Histories of removed pods, for later queries.

use std::collections::VecDeque;

use crate::model::{FullName, PodUid};
use crate::pod::{History, PodFacts};

/// Number of histories; the oldest is dropped.
const REMOVED_MAX: usize = 200;

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct RemovedPods(VecDeque<Gone>);

/// The history of a removed pod.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Gone {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name and namespace of the pod.
    pub full_name: FullName,
    /// The last transitions before the removal.
    pub history: History,
}

impl RemovedPods {
    pub(super) fn add(&mut self, uid: &PodUid, pod: &PodFacts) {
        if self.0.len() == REMOVED_MAX {
            self.0.pop_front();
        }
        let (full_name, history) = (pod.full_name().clone(), pod.history().clone());
        self.0.push_back(Gone { uid: uid.clone(), full_name, history });
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Gone> {
        self.0.iter()
    }
}
