//! Commits records off the core's task, in order, many turns at a time.

use std::collections::BTreeMap;

use podwright_core::model::{Effect, Out, PodUid, Record};
use tokio::sync::mpsc;

use crate::journal::Journal;

/// Turns on their way to disk. Core is never held back by a slow disk: the queue's turns are committed together.
pub(super) struct Committer {
    turns: Option<mpsc::UnboundedSender<Out>>,
    committed: mpsc::UnboundedReceiver<Committed>,
    /// Turns that were sent and have not come back: what follows must queue behind them.
    under_way: usize,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Turns that are on disk.
pub(super) struct Committed {
    pub(super) effects: Vec<Effect>,
    /// The journal began to fail (`Some(Some)`), or works again (`Some(None)`).
    pub(super) changed: Option<Option<String>>,
    turns: usize,
}

impl Committer {
    pub(super) fn start(journal: Option<Journal>) -> Self {
        let (turns, received) = mpsc::unbounded_channel();
        let (done, committed) = mpsc::unbounded_channel();
        let thread = journal.map(|journal| {
            let run = move || write(journal, received, &done);
            std::thread::Builder::new()
                .name("journal".into())
                .spawn(run)
                .expect("a thread can be started at the beginning")
        });
        let turns = thread.is_some().then_some(turns);
        Self { turns, committed, under_way: 0, thread }
    }

    /// Hand a turn over. Returns its effects if they may be performed at once.
    pub(super) fn commit(&mut self, out: Out) -> Option<Vec<Effect>> {
        match &self.turns {
            Some(turns) if !out.records.is_empty() || self.under_way > 0 => {
                self.under_way += 1;
                turns.send(out).ok();
                None
            }
            _ => Some(out.effects),
        }
    }

    /// The next turns that are on disk. Never ends if nothing is under way.
    pub(super) async fn committed(&mut self) -> Committed {
        match self.committed.recv().await {
            Some(done) => {
                self.under_way -= done.turns;
                done
            }
            None => std::future::pending().await,
        }
    }

    /// Everything handed over is on disk before this returns.
    pub(super) async fn finish(mut self) {
        drop(self.turns.take());
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// The thread: take all turns that wait, commit them together, give their effects back.
fn write(mut journal: Journal, mut turns: mpsc::UnboundedReceiver<Out>, done: &mpsc::UnboundedSender<Committed>) {
    // What a failed commit left: the newest record of each pod.
    let mut owed: BTreeMap<PodUid, Record> = BTreeMap::new();
    let mut failing = false;
    while let Some(first) = turns.blocking_recv() {
        let mut batch = vec![first];
        while let Ok(more) = turns.try_recv() {
            batch.push(more);
        }
        let (count, mut effects) = (batch.len(), vec![]);
        for out in batch {
            effects.extend(out.effects);
            owed.extend(out.records.into_iter().map(|record| (uid(&record), record)));
        }
        let records: Vec<Record> = owed.values().cloned().collect();
        let result = if records.is_empty() { Ok(()) } else { journal.commit(&records) };
        let changed = match result {
            Ok(()) => {
                owed.clear();
                std::mem::take(&mut failing).then_some(None)
            }
            // Unprotected is better than stopped: kills in particular are never held back by a full disk.
            Err(error) => (!std::mem::replace(&mut failing, true)).then(|| Some(error.to_string())),
        };
        if done.send(Committed { effects, changed, turns: count }).is_err() {
            break;
        }
    }
}

fn uid(record: &Record) -> PodUid {
    match record {
        Record::Put(put) => put.uid.clone(),
        Record::Forget(uid) => uid.clone(),
    }
}
