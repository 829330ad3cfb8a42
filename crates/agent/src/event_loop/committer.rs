//! Commits records to the journal outside of core's task, in order, many batches at a time.
//!
//! The journal thread takes the newest record of each pod that is pending and reports up to which batch everything is on disk; the
//! effects of those batches may then be performed. A disk that fails or hangs is reported and delays nothing any further: it is
//! better to run without the protection of the journal than to stop, above all for kills.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use podwright_core::model::{Effect, Out, PodUid, Record};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::journal::Journal;

/// A commit that takes longer than this is no longer waited for.
const COMMIT_TIME_MAX: Duration = Duration::from_secs(5);
/// Interval between attempts to write to a disk that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Holds back the effects of each batch until its records are on disk.
pub(super) struct Committer {
    /// `None`: there is no journal.
    shared: Option<Arc<Shared>>,
    progress: watch::Receiver<Progress>,
    batch: u64,
    /// Effects that wait for the records of their batch, with the time at which they stop waiting. Bounded by `COMMIT_TIME_MAX`.
    waiting: VecDeque<(u64, Instant, Vec<Effect>)>,
    /// The last reported error of the journal.
    error: Option<String>,
}

/// Records for the journal thread: at most one per pod.
#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    more: Condvar,
}

#[derive(Default)]
struct Pending {
    records: BTreeMap<PodUid, Record>,
    /// The last batch whose records are in `records`.
    batch: u64,
    closed: bool,
}

/// The last batch that the thread committed, and its error.
#[derive(Clone, Debug, Default)]
struct Progress {
    batch: u64,
    error: Option<String>,
}

/// Effects that may be performed now, and a change of the journal's health.
pub(super) struct Committed {
    pub(super) effects: Vec<Effect>,
    /// The journal began to fail (`Some(Some)`), or works again (`Some(None)`).
    pub(super) health_change: Option<Option<String>>,
}

impl Committer {
    pub(super) fn start(journal: Option<Journal>) -> Self {
        let (done, progress) = watch::channel(Progress::default());
        let shared = journal.is_some().then(|| Arc::new(Shared::default()));
        if let Some((journal, shared)) = journal.zip(shared.clone()) {
            let run = move || write(journal, &shared, &done);
            std::thread::Builder::new()
                .name("journal".into())
                .spawn(run)
                .expect("a thread can be started when the agent starts");
        }
        Self { shared, progress, batch: 0, waiting: VecDeque::new(), error: None }
    }

    /// Queues the records of a batch. Returns its effects if they may be performed at once.
    pub(super) fn commit(&mut self, out: Out) -> Option<Vec<Effect>> {
        let Some(shared) = &self.shared else { return Some(out.effects) };
        if !out.records.is_empty() {
            self.batch += 1;
            let mut pending = shared.pending.lock().expect("no panic under this lock");
            pending.records.extend(out.records.into_iter().map(|record| (uid(&record), record)));
            pending.batch = self.batch;
            shared.more.notify_one();
        } else if self.waiting.is_empty() {
            return Some(out.effects);
        }
        if self.hangs() {
            // Earlier effects go out first.
            let before = self.waiting.drain(..).flat_map(|(_, _, effects)| effects);
            return Some(before.chain(out.effects).collect());
        }
        self.waiting.push_back((self.batch, Instant::now() + COMMIT_TIME_MAX, out.effects));
        None
    }

    /// The next effects that may be performed. Pending forever if none waits.
    pub(super) async fn committed(&mut self) -> Committed {
        let give_up_at = self.waiting.front().map(|(_, until, _)| *until);
        let progress = tokio::select! {
            Ok(()) = self.progress.changed() => self.progress.borrow_and_update().clone(),
            () = async { match give_up_at { Some(until) => sleep_until(until).await, None => std::future::pending().await } } => {
                let error = Some(format!("no answer from the disk for {} s", COMMIT_TIME_MAX.as_secs()));
                Progress { batch: u64::MAX, error }
            }
        };
        let mut effects = vec![];
        while self.waiting.front().is_some_and(|(batch, ..)| *batch <= progress.batch) {
            effects.extend(self.waiting.pop_front().into_iter().flat_map(|(_, _, effects)| effects));
        }
        let health_change = (self.error.is_some() != progress.error.is_some()).then(|| progress.error.clone());
        self.error = progress.error;
        Committed { effects, health_change }
    }

    /// The thread is known to be stuck: nothing waits for it until it makes progress.
    fn hangs(&self) -> bool {
        self.error.is_some() && self.progress.borrow().batch + 1 < self.batch
    }

    /// Waits until everything queued is on disk, for at most `COMMIT_TIME_MAX`.
    pub(super) async fn finish(mut self) {
        self.close();
        // The channel closes when the thread ends.
        let ended = async { while self.progress.changed().await.is_ok() {} };
        if tokio::time::timeout(COMMIT_TIME_MAX, ended).await.is_err() {
            tracing::warn!("journal not flushed at shutdown: no answer from the disk");
        }
    }
}

impl Committer {
    /// The thread writes the pending records and ends.
    fn close(&self) {
        if let Some(shared) = &self.shared {
            shared.pending.lock().expect("no panic under this lock").closed = true;
            shared.more.notify_one();
        }
    }
}

impl Drop for Committer {
    /// Otherwise the thread would wait forever and hold the journal's lock.
    fn drop(&mut self) {
        self.close();
    }
}

/// The journal thread: takes the pending records, commits them together, publishes its progress.
fn write(mut journal: Journal, shared: &Shared, done: &watch::Sender<Progress>) {
    // Records of failed commits: the newest one of each pod.
    let mut unwritten: BTreeMap<PodUid, Record> = BTreeMap::new();
    loop {
        let (batch, closed) = {
            let mut pending = shared.pending.lock().expect("no panic under this lock");
            while pending.records.is_empty() && !pending.closed {
                if unwritten.is_empty() {
                    pending = shared.more.wait(pending).expect("no panic under this lock");
                } else {
                    // Retried even if no new record comes.
                    pending = shared.more.wait_timeout(pending, RETRY_INTERVAL).expect("no panic under this lock").0;
                    break;
                }
            }
            unwritten.append(&mut pending.records);
            (pending.batch, pending.closed)
        };
        if !unwritten.is_empty() {
            let error = commit(&mut journal, &mut unwritten);
            done.send_replace(Progress { batch, error });
        }
        if closed {
            return;
        }
    }
}

/// Commits the records. A record that can't be encoded is dropped; those of other pods are still written.
fn commit(journal: &mut Journal, unwritten: &mut BTreeMap<PodUid, Record>) -> Option<String> {
    let mut failure = None;
    loop {
        let records: Vec<Record> = unwritten.values().cloned().collect();
        let Err(error) = journal.commit(&records) else {
            unwritten.clear();
            return failure;
        };
        let Some(uid) = error.unwritable() else { return Some(error.to_string()) };
        unwritten.remove(uid);
        failure = Some(error.to_string());
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

    fn batch(uid: Option<&str>, call: u64) -> Out {
        let records = uid.map(|uid| Record::Forget(uid.into())).into_iter().collect();
        Out { records, effects: vec![Effect::Cancel { id: CallId(call) }] }
    }

    #[tokio::test]
    async fn effects_wait_for_their_records_and_keep_their_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, _, _) = Journal::open(dir.path()).expect("opened");
        let mut committer = Committer::start(Some(journal));
        assert!(committer.commit(batch(None, 1)).is_some(), "no records to wait for");
        assert!(committer.commit(batch(Some("a"), 2)).is_none());
        assert!(committer.commit(batch(None, 3)).is_none(), "after the effects of the batch before");
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
    async fn a_disk_that_hangs_is_reported_and_does_not_delay_effects() {
        let (done, progress) = watch::channel(Progress::default());
        let shared = Some(Arc::new(Shared::default()));
        let mut committer = Committer { shared, progress, batch: 0, waiting: VecDeque::new(), error: None };
        assert!(committer.commit(batch(Some("a"), 1)).is_none());
        let freed = committer.committed().await;
        assert_eq!(freed.effects.len(), 1);
        assert!(freed.health_change.flatten().is_some_and(|why| why.contains("no answer")));
        done.send_replace(Progress { batch: 1, error: Some("it failed".into()) });
        assert!(committer.commit(batch(Some("a"), 2)).is_none(), "the thread made progress");
        let freed = committer.commit(batch(Some("b"), 3)).expect("the stuck thread is not waited for");
        let ids: Vec<u64> =
            freed.iter().filter_map(|e| if let Effect::Cancel { id } = e { Some(id.0) } else { None }).collect();
        assert_eq!(ids, [2, 3], "batches keep their order");
    }

    #[test]
    fn a_record_that_can_not_be_written_is_dropped_and_others_are_committed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut journal, _, _) = Journal::open(dir.path()).expect("opened");
        let record = |uid: &str, size: usize| {
            let mut pod = Pod::default();
            pod.metadata.labels = Some([("a".to_owned(), "x".repeat(size))].into());
            let seen = jiff::Timestamp::UNIX_EPOCH;
            Record::Put(Box::new(PodRecord::new(uid.into(), Source::File, Arc::new(pod), seen)))
        };
        let unwritten = [record("a", 1), record("huge", 65 << 20), record("z", 1)];
        let mut unwritten: BTreeMap<_, _> = unwritten.map(|record| (uid(&record), record)).into();
        let failure = commit(&mut journal, &mut unwritten).expect("it is reported");
        assert!(failure.contains("huge") && unwritten.is_empty(), "{failure}");
        drop(journal);
        let (_, records, _) = Journal::open(dir.path()).expect("opened");
        assert_eq!(records.iter().map(|r| r.uid.as_str()).collect::<Vec<_>>(), ["a", "z"]);
    }
}
