//! Commits records off the core's task, in order, many turns at a time.
//!
//! The journal's thread takes the newest record of each pod, whatever piled up, and says up to which turn everything is on disk;
//! the effects of those turns are then free. A disk that fails or hangs is told of and holds nothing back: unprotected is better than
//! stopped, for kills above all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use podwright_core::model::{Effect, Out, PodUid, Record};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::journal::Journal;

/// A commit that takes longer than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A disk that failed is tried again this often.
const RETRY: Duration = Duration::from_secs(2);

/// Turns on their way to disk.
pub(super) struct Committer {
    /// `None`: nothing has to survive.
    shared: Option<Arc<Shared>>,
    progress: watch::Receiver<Progress>,
    turn: u64,
    /// Effects that wait for their turn's records. Bounded by patience: nothing waits longer.
    waiting: VecDeque<(u64, Instant, Vec<Effect>)>,
    /// What was last told of the journal.
    error: Option<String>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Where records lie for the thread: one per pod at most.
#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    more: Condvar,
}

#[derive(Default)]
struct Pending {
    records: BTreeMap<PodUid, Record>,
    /// The last turn whose records are in the pending.
    turn: u64,
    closed: bool,
}

/// How far the thread came, and what is wrong.
#[derive(Clone, Debug, Default)]
struct Progress {
    turn: u64,
    error: Option<String>,
}

/// Effects that may be performed now.
pub(super) struct Committed {
    pub(super) effects: Vec<Effect>,
    /// The journal began to fail (`Some(Some)`), or works again (`Some(None)`).
    pub(super) changed: Option<Option<String>>,
}

impl Committer {
    pub(super) fn start(journal: Option<Journal>) -> Self {
        let (done, progress) = watch::channel(Progress::default());
        let shared = journal.is_some().then(|| Arc::new(Shared::default()));
        let thread = journal.zip(shared.clone()).map(|(journal, shared)| {
            let run = move || write(journal, &shared, &done);
            std::thread::Builder::new()
                .name("journal".into())
                .spawn(run)
                .expect("a thread can be started at the beginning")
        });
        Self { shared, progress, turn: 0, waiting: VecDeque::new(), error: None, thread }
    }

    /// Hand a turn over. Returns its effects if they may be performed at once.
    pub(super) fn commit(&mut self, out: Out) -> Option<Vec<Effect>> {
        let Some(shared) = &self.shared else { return Some(out.effects) };
        if !out.records.is_empty() {
            self.turn += 1;
            let mut pending = shared.pending.lock().expect("no panic under this lock");
            pending.records.extend(out.records.into_iter().map(|record| (uid(&record), record)));
            pending.turn = self.turn;
            shared.more.notify_one();
        } else if self.waiting.is_empty() {
            return Some(out.effects);
        }
        if self.hangs() {
            // What was asked for before goes out before.
            let before = self.waiting.drain(..).flat_map(|(_, _, effects)| effects);
            return Some(before.chain(out.effects).collect());
        }
        self.waiting.push_back((self.turn, Instant::now() + PATIENCE, out.effects));
        None
    }

    /// The next effects that are free. Never ends if none waits.
    pub(super) async fn committed(&mut self) -> Committed {
        let patience = self.waiting.front().map(|(_, until, _)| *until);
        let progress = tokio::select! {
            Ok(()) = self.progress.changed() => self.progress.borrow_and_update().clone(),
            () = async { match patience { Some(until) => sleep_until(until).await, None => std::future::pending().await } } => {
                let error = Some(format!("the disk does not answer for {} s", PATIENCE.as_secs()));
                Progress { turn: u64::MAX, error }
            }
        };
        let mut effects = vec![];
        while self.waiting.front().is_some_and(|(turn, ..)| *turn <= progress.turn) {
            effects.extend(self.waiting.pop_front().into_iter().flat_map(|(_, _, effects)| effects));
        }
        let changed = (self.error.is_some() != progress.error.is_some()).then(|| progress.error.clone());
        self.error = progress.error;
        Committed { effects, changed }
    }

    /// The thread is known to be stuck: nothing waits for it until it moves.
    fn hangs(&self) -> bool {
        self.error.is_some() && self.progress.borrow().turn + 1 < self.turn
    }

    /// Everything handed over is on disk before this returns, if the disk answers.
    pub(super) async fn finish(mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join());
            if tokio::time::timeout(PATIENCE, joined).await.is_err() {
                tracing::warn!("the last records are not on disk: it does not answer");
            }
        }
    }
}

impl Committer {
    /// The thread writes what lies there, and ends.
    fn close(&self) {
        if let Some(shared) = &self.shared {
            shared.pending.lock().expect("no panic under this lock").closed = true;
            shared.more.notify_one();
        }
    }
}

impl Drop for Committer {
    /// Without its loop the thread would wait for ever, and hold the journal's lock.
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread: take what lies there, commit it together, say so.
fn write(mut journal: Journal, shared: &Shared, done: &watch::Sender<Progress>) {
    // What a failed commit left: the newest record of each pod.
    let mut owed: BTreeMap<PodUid, Record> = BTreeMap::new();
    loop {
        let (turn, closed) = {
            let mut pending = shared.pending.lock().expect("no panic under this lock");
            while pending.records.is_empty() && !pending.closed {
                if owed.is_empty() {
                    pending = shared.more.wait(pending).expect("no panic under this lock");
                } else {
                    // What could not be written is tried again, also when nothing new comes.
                    pending = shared.more.wait_timeout(pending, RETRY).expect("no panic under this lock").0;
                    break;
                }
            }
            owed.append(&mut pending.records);
            (pending.turn, pending.closed)
        };
        if !owed.is_empty() {
            let error = commit(&mut journal, &mut owed);
            done.send_replace(Progress { turn, error });
        }
        if closed {
            return;
        }
    }
}

/// Commit what is owed. A record that can't be written costs its own pod's protection, and nobody else's.
fn commit(journal: &mut Journal, owed: &mut BTreeMap<PodUid, Record>) -> Option<String> {
    let mut told = None;
    loop {
        let records: Vec<Record> = owed.values().cloned().collect();
        let Err(error) = journal.commit(&records) else {
            owed.clear();
            return told;
        };
        let Some(uid) = error.unwritable() else { return Some(error.to_string()) };
        owed.remove(uid);
        told = Some(error.to_string());
    }
}

fn uid(record: &Record) -> PodUid {
    match record {
        Record::Put(put) => put.uid.clone(),
        Record::Forget(uid) => uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::model::{CallId, Effect, Pod, PodRecord, Source};

    use super::*;

    fn turn(uid: Option<&str>, call: u64) -> Out {
        let records = uid.map(|uid| Record::Forget(uid.into())).into_iter().collect();
        Out { records, effects: vec![Effect::Cancel { id: CallId(call) }] }
    }

    #[tokio::test]
    async fn effects_wait_for_their_records_and_keep_their_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, _, _) = Journal::open(dir.path()).expect("opened");
        let mut committer = Committer::start(Some(journal));
        assert!(committer.commit(turn(None, 1)).is_some(), "nothing to wait for");
        assert!(committer.commit(turn(Some("a"), 2)).is_none());
        assert!(committer.commit(turn(None, 3)).is_none(), "behind the one before");
        let mut ids = vec![];
        while ids.len() < 2 {
            for effect in committer.committed().await.effects {
                let Effect::Cancel { id } = effect else { panic!("{effect:?}") };
                ids.push(id.0);
            }
        }
        assert_eq!(ids, [2, 3]);
        committer.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_told_of_and_holds_nothing_back() {
        let (done, progress) = watch::channel(Progress::default());
        let shared = Some(Arc::new(Shared::default()));
        let mut committer =
            Committer { shared, progress, turn: 0, waiting: VecDeque::new(), error: None, thread: None };
        assert!(committer.commit(turn(Some("a"), 1)).is_none());
        let freed = committer.committed().await;
        assert_eq!(freed.effects.len(), 1);
        assert!(freed.changed.flatten().is_some_and(|why| why.contains("does not answer")));
        done.send_replace(Progress { turn: 1, error: Some("it failed".into()) });
        assert!(committer.commit(turn(Some("a"), 2)).is_none(), "it moves");
        let freed = committer.commit(turn(Some("b"), 3)).expect("it is not waited for again");
        let ids: Vec<u64> =
            freed.iter().filter_map(|e| if let Effect::Cancel { id } = e { Some(id.0) } else { None }).collect();
        assert_eq!(ids, [2, 3], "turns keep their order");
    }

    #[test]
    fn a_record_that_can_t_be_written_costs_its_own_pod_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut journal, _, _) = Journal::open(dir.path()).expect("opened");
        let record = |uid: &str, size: usize| {
            let mut pod = Pod::default();
            pod.metadata.labels = Some([("a".to_owned(), "x".repeat(size))].into());
            let seen = jiff::Timestamp::UNIX_EPOCH;
            Record::Put(Box::new(PodRecord::new(uid.into(), Source::File, Arc::new(pod), seen)))
        };
        let owed = [record("a", 1), record("huge", 65 << 20), record("z", 1)];
        let mut owed: BTreeMap<_, _> = owed.map(|record| (uid(&record), record)).into();
        let told = commit(&mut journal, &mut owed).expect("it is told of");
        assert!(told.contains("huge") && owed.is_empty(), "{told}");
        drop(journal);
        let (_, records, _) = Journal::open(dir.path()).expect("opened");
        assert_eq!(records.iter().map(|r| r.uid.as_str()).collect::<Vec<_>>(), ["a", "z"]);
    }
}
