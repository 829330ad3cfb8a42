//! The journal: the records on disk, and those that could not be written yet.

use std::collections::BTreeMap;

use podwright_core::model::{PodRecord, PodUid, Record};

/// As the agent's journal: what a failed commit could not write is written with the next commit that succeeds.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    disk: BTreeMap<PodUid, PodRecord>,
    unwritten: BTreeMap<PodUid, Record>,
    /// Commits fail.
    pub disk_full: bool,
    /// Core was sent the error.
    error_sent: bool,
}

impl Journal {
    /// Writes records. Returns what core has to be sent if the journal began to fail (`Some(error)`) or works again (`None`).
    pub fn commit(&mut self, records: Vec<Record>) -> Option<Option<String>> {
        for record in records {
            let uid = match &record {
                Record::Put(put) => put.uid.clone(),
                Record::Forget(uid) => uid.clone(),
            };
            self.unwritten.insert(uid, record);
        }
        if self.disk_full {
            return (!std::mem::replace(&mut self.error_sent, true)).then(|| Some("no space left on device".into()));
        }
        for (uid, record) in std::mem::take(&mut self.unwritten) {
            match record {
                Record::Put(put) => self.disk.insert(uid, *put),
                Record::Forget(_) => self.disk.remove(&uid),
            };
        }
        std::mem::take(&mut self.error_sent).then_some(None)
    }

    /// The agent died: records that were not written are lost. Returns the pods they belonged to.
    pub fn crash(&mut self) -> Vec<PodUid> {
        self.error_sent = false;
        std::mem::take(&mut self.unwritten).into_keys().collect()
    }

    /// What a new agent process reads.
    pub fn records(&self) -> Vec<PodRecord> {
        self.disk.values().cloned().collect()
    }

    /// The record of one pod on disk.
    pub fn get(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.disk.get(uid)
    }

    /// The pods that have a record on disk.
    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.disk.keys()
    }

    /// Some records are not on disk yet.
    pub fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }
}
