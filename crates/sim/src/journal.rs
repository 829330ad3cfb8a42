//! The journal: what is on disk, and what a disk that can't be written still owes.

use std::collections::BTreeMap;

use podwright_core::model::{PodRecord, PodUid, Record};

/// Records on disk. As the agent's: a commit that failed is owed, and written with the next one that works.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    disk: BTreeMap<PodUid, PodRecord>,
    owed: BTreeMap<PodUid, Record>,
    /// The disk is full.
    pub broken: bool,
    told: bool,
}

impl Journal {
    /// Write. Returns the news for core, if the journal's health changed.
    pub fn commit(&mut self, records: Vec<Record>) -> Option<Option<String>> {
        for record in records {
            let uid = match &record {
                Record::Put(put) => put.uid.clone(),
                Record::Forget(uid) => uid.clone(),
            };
            self.owed.insert(uid, record);
        }
        if self.broken {
            return (!std::mem::replace(&mut self.told, true)).then(|| Some("no space left on device".into()));
        }
        for (uid, record) in std::mem::take(&mut self.owed) {
            match record {
                Record::Put(put) => self.disk.insert(uid, *put),
                Record::Forget(_) => self.disk.remove(&uid),
            };
        }
        std::mem::take(&mut self.told).then_some(None)
    }

    /// The agent died: what was only owed is lost. Returns whose records that were.
    pub fn crash(&mut self) -> Vec<PodUid> {
        self.told = false;
        std::mem::take(&mut self.owed).into_keys().collect()
    }

    /// What a new agent reads.
    pub fn records(&self) -> Vec<PodRecord> {
        self.disk.values().cloned().collect()
    }

    /// One record on disk.
    pub fn get(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.disk.get(uid)
    }

    /// Whose records are on disk.
    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.disk.keys()
    }

    /// Something is not on disk yet.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }
}
