//! Commits records to the journal outside of core's task, in order, many batches at a time.
//!
//! The journal thread takes the newest record of each pod that is pending and reports up to which batch everything is on disk; the
//! effects of those batches may then be performed. It is better to run without the protection of the journal than to stop:
//!
//! - A disk that fails is reported and delays nothing.
//! - A panic of the thread ends the process: [`Committer::take_thread`] is supervised.
//! - On a disk that hangs, each effect waits [`COMMIT_TIME_MAX`] and is then performed.
//! - Stops wait [`STOP_TIME_MAX`] only, which a working disk does not need, and not at all once the journal is known to be broken.
//!   They may overtake other effects: core never stops what a call under way may still start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use podwright_core::model::{Effect, Out, PodUid, Record};
use podwright_tasks::ThreadEnd;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::journal::Journal;

/// An effect whose records are not on disk after this time is performed without them.
const COMMIT_TIME_MAX: Duration = Duration::from_secs(5);
/// The same for stops: many times what a commit takes on a working disk.
const STOP_TIME_MAX: Duration = Duration::from_millis(100);
/// Interval between attempts to write to a disk that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Holds back the effects of each batch until its records are on disk.
pub(super) struct Committer {
    /// `None`: there is no journal.
    shared: Option<Arc<Shared>>,
    progress: watch::Receiver<Progress>,
    /// `None`: there is no thread, or its end is supervised.
    thread: Option<ThreadEnd>,
    batch: u64,
    waiting: VecDeque<Waiting>,
    /// Stops, which wait for a shorter time.
    waiting_stops: VecDeque<Waiting>,
    /// The last reported error of the journal.
    error: Option<String>,
}

/// Effects that wait for the records of their batch. The queues are bounded by `COMMIT_TIME_MAX`.
struct Waiting {
    batch: u64,
    /// When they are performed regardless.
    until: Instant,
    effects: Vec<Effect>,
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
        let thread = journal.zip(shared.clone()).map(|(journal, shared)| {
            let run = move || write(journal, &shared, &done);
            podwright_tasks::spawn_thread("journal", run).expect("a thread can be started when the agent starts").1
        });
        Self::new(shared, progress, thread)
    }

    fn new(shared: Option<Arc<Shared>>, progress: watch::Receiver<Progress>, thread: Option<ThreadEnd>) -> Self {
        let (waiting, waiting_stops) = (VecDeque::new(), VecDeque::new());
        Self { shared, progress, thread, batch: 0, waiting, waiting_stops, error: None }
    }

    /// The end of the journal thread, to be supervised: without the thread each effect would wait for [`COMMIT_TIME_MAX`].
    pub(super) fn take_thread(&mut self) -> Option<ThreadEnd> {
        self.thread.take()
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
        } else if self.waiting.is_empty() && self.waiting_stops.is_empty() {
            return Some(out.effects);
        }
        let (stops, effects): (Vec<_>, Vec<_>) = out.effects.into_iter().partition(is_stop);
        let now = Instant::now();
        if !effects.is_empty() {
            self.waiting.push_back(Waiting { batch: self.batch, until: now + COMMIT_TIME_MAX, effects });
        }
        if stops.is_empty() {
            return None;
        }
        if self.error.is_some() {
            // Earlier ones first.
            let before = self.waiting_stops.drain(..).flat_map(|waiting| waiting.effects);
            return Some(before.chain(stops).collect());
        }
        self.waiting_stops.push_back(Waiting { batch: self.batch, until: now + STOP_TIME_MAX, effects: stops });
        None
    }

    /// The next effects that may be performed. Pending forever if none waits.
    pub(super) async fn committed(&mut self) -> Committed {
        let fronts = [self.waiting.front(), self.waiting_stops.front()];
        let give_up_at = fronts.into_iter().flatten().map(|waiting| waiting.until).min();
        let given_up = async {
            match give_up_at {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let (batch, error) = tokio::select! {
            Ok(()) = self.progress.changed() => {
                let progress = self.progress.borrow_and_update();
                (progress.batch, progress.error.clone())
            }
            () = given_up => {
                let expired = self.waiting.front().is_some_and(|waiting| waiting.until <= Instant::now());
                let hangs = || format!("no answer from the disk for {} s", COMMIT_TIME_MAX.as_secs());
                (0, if expired { Some(hangs()) } else { self.error.clone() })
            }
        };
        // Stops first: among effects of the same batch they are the ones that can't wait.
        let mut effects = release(&mut self.waiting_stops, batch);
        effects.append(&mut release(&mut self.waiting, batch));
        let health_change = (self.error.is_some() != error.is_some()).then(|| error.clone());
        self.error = error;
        Committed { effects, health_change }
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

/// The effects whose records are on disk, and those that have waited for long enough.
fn release(waiting: &mut VecDeque<Waiting>, batch: u64) -> Vec<Effect> {
    let now = Instant::now();
    let mut effects = vec![];
    while let Some(front) = waiting.pop_front_if(|front| front.batch <= batch || front.until <= now) {
        effects.extend(front.effects);
    }
    effects
}

fn is_stop(effect: &Effect) -> bool {
    matches!(effect, Effect::Call { call, .. } if call.is_stop())
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
    use podwright_core::model::{Call, CallId, Effect, Pod, PodRecord, RuntimeCall, Source};

    use super::*;

    fn batch(uid: Option<&str>, call: u64) -> Out {
        let records = uid.map(|uid| Record::Forget(uid.into())).into_iter().collect();
        Out { records, effects: vec![Effect::Cancel { id: CallId(call) }], wake_at: None }
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

    /// A committer whose disk makes progress only when the test says so.
    fn hung() -> (watch::Sender<Progress>, Committer) {
        let (done, progress) = watch::channel(Progress::default());
        (done, Committer::new(Some(Arc::new(Shared::default())), progress, None))
    }

    fn stop(uid: &str, call: u64) -> Out {
        let id = CallId(call);
        let stopped = RuntimeCall::StopSandbox { id: "s".into() };
        let limit = Duration::from_secs(9);
        let effect = Effect::Call { id, uid: uid.into(), pod: Arc::default(), call: Call::Runtime(stopped), limit };
        Out { records: vec![Record::Forget(uid.into())], effects: vec![effect], wake_at: None }
    }

    fn ids(effects: &[Effect]) -> Vec<u64> {
        let id = |effect: &Effect| match effect {
            Effect::Cancel { id } | Effect::Call { id, .. } => id.0,
            other => panic!("{other:?}"),
        };
        effects.iter().map(id).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_reported_and_delays_each_effect_by_its_own_time_only() {
        let (done, mut committer) = hung();
        let begun = Instant::now();
        assert!(committer.commit(batch(Some("a"), 1)).is_none());
        tokio::time::sleep(COMMIT_TIME_MAX - Duration::from_millis(1)).await;
        assert!(committer.commit(batch(Some("b"), 2)).is_none());
        let freed = committer.committed().await;
        assert_eq!(ids(&freed.effects), [1], "the second has waited for a millisecond");
        assert!(freed.health_change.flatten().is_some_and(|why| why.contains("no answer")));
        assert_eq!(begun.elapsed().as_secs(), COMMIT_TIME_MAX.as_secs());
        assert!(committer.commit(batch(Some("c"), 3)).is_none());
        let freed = committer.committed().await;
        assert_eq!((ids(&freed.effects), freed.health_change), (vec![2], None));
        assert_eq!(begun.elapsed().as_secs(), 2 * COMMIT_TIME_MAX.as_secs() - 1);
        // A disk that fails is not waited for.
        done.send_replace(Progress { batch: 3, error: Some("it failed".into()) });
        assert_eq!(ids(&committer.committed().await.effects), [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_a_disk_that_hangs() {
        let (_done, mut committer) = hung();
        let begun = Instant::now();
        assert!(committer.commit(batch(Some("a"), 1)).is_none());
        assert!(committer.commit(stop("b", 2)).is_none(), "a working disk is quicker than its limit");
        let freed = committer.committed().await;
        assert_eq!((ids(&freed.effects), freed.health_change), (vec![2], None));
        assert!(begun.elapsed() <= 2 * STOP_TIME_MAX);
        assert_eq!(ids(&committer.committed().await.effects), [1]);
        let at_once = committer.commit(stop("c", 3)).expect("the journal is known to be broken");
        assert_eq!(ids(&at_once), [3]);
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
