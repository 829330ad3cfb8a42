//! The loop stays fair under load, and ends in order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_core::NodeConfig;
use podwright_core::model::{CallId, RuntimeCall};

use super::*;

/// A node without pods, whose runtime does not answer. Calls take `delay`.
#[derive(Default)]
struct Idle {
    delay: Duration,
    /// Calls that have returned.
    returned: Arc<AtomicUsize>,
}

impl Executor for Idle {
    fn call(&self, _: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        let (delay, returned) = (self.delay, Arc::clone(&self.returned));
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            returned.fetch_add(1, Ordering::SeqCst);
            Ok(Answer::Done)
        })
    }

    fn observe(&self, _: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>> {
        Box::pin(async { Err(CallError::failed("nothing there".to_owned())) })
    }

    fn list(&self) -> BoxFuture<'static, Result<Listing, CallError>> {
        Box::pin(async { Ok(Listing::default()) })
    }

    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>> {
        Box::pin(async { Err(CallError::failed("no runtime".to_owned())) })
    }

    fn find_leftovers(&self) -> BoxFuture<'static, Result<BTreeSet<PodUid>, CallError>> {
        Box::pin(async { Ok(BTreeSet::new()) })
    }

    fn sweep(&self, _: PodUid) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn save_quarantined_record(&self, _: Box<PodRecord>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn request(&self, _: Source, _: ObjectRequest, _: Duration) -> BoxFuture<'static, ObjectResult> {
        Box::pin(async { Ok(None) })
    }

    fn event(&self, _: &KubeEvent, _: Now) {}
}

fn event_loop() -> (EventLoop, Handle, mpsc::Sender<(Source, SourceChange)>) {
    event_loop_of(Idle::default())
}

fn event_loop_of(executor: Idle) -> (EventLoop, Handle, mpsc::Sender<(Source, SourceChange)>) {
    let (changes, changed) = mpsc::channel(16);
    let node = Node::new(NodeConfig::default(), vec![]);
    let clock = Arc::new(crate::node_executor::SystemClock);
    let (event_loop, handle) = EventLoop::new(LoopInputs::new(changed), node, None, Arc::new(executor), clock);
    (event_loop, handle, changes)
}

/// A manifest that can't be used, which shows in the answer to a query.
fn broken(file: &str) -> (Source, SourceChange) {
    (Source::File, SourceChange::Set { pods: vec![], broken: vec![(file.into(), "broken".into())] })
}

#[tokio::test]
async fn one_turn_handles_queries_events_sources_and_the_timer() {
    let (mut event_loop, handle, changes) = event_loop();
    event_loop.turn(vec![Event::Wake]);
    let queries = (0..64).map(|_| handle.pods());
    let mut queries: Vec<_> = queries.map(Box::pin).collect();
    for query in &mut queries {
        assert!(futures::poll!(query).is_pending(), "it is queued");
    }
    let heartbeat = || handle.state().last_heartbeat().map(|now| now.boot);
    let before = heartbeat();
    handle.send(Event::Wake).await;
    changes.send(broken("a.yaml")).await.unwrap();
    event_loop.wake = Some(event_loop.clock.now().boot);
    assert!(event_loop.step(&CancellationToken::new()).await);
    assert_eq!(event_loop.node.broken().count(), 1, "the change of the source");
    assert!(event_loop.inputs.events.is_empty(), "the event");
    assert!(event_loop.wake.is_none_or(|at| at > event_loop.clock.now().boot), "the timer");
    assert!(heartbeat() > before);
    assert_eq!(event_loop.queries.len(), 63, "and one query");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_in_a_tight_loop_hold_back_no_source() {
    let (event_loop, handle, changes) = event_loop();
    let stop = CancellationToken::new();
    let running = tokio::spawn(event_loop.run(stop.clone()));
    for _ in 0..64 {
        let handle = handle.clone();
        tokio::spawn(async move { while handle.pods().await.is_some() {} });
    }
    for n in 0..20 {
        let file = format!("{n}.yaml");
        changes.send(broken(&file)).await.unwrap();
        let shown = async { while handle.pods().await.unwrap().broken.iter().all(|(name, _)| *name != file) {} };
        tokio::time::timeout(Duration::from_secs(2), shown).await.expect("within two seconds");
    }
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_journal_thread_is_a_failure_that_names_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (journal, _, _) = Journal::open(dir.path()).expect("opened");
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    let (_, changed) = mpsc::channel(16);
    let node = Node::new(NodeConfig::default(), vec![]);
    let clock = Arc::new(crate::node_executor::SystemClock);
    let (event_loop, _) =
        EventLoop::new(LoopInputs::new(changed), node, Some(journal), Arc::new(Idle::default()), clock);
    // The thread ends with the loop; nobody has requested a stop.
    drop(event_loop.supervised_by(&tasks));
    let failure = tokio::time::timeout(Duration::from_secs(10), supervisor.failed()).await.expect("it is reported");
    assert_eq!(failure.to_string(), "task journal ended unexpectedly");
}

/// How long a stop takes while a sandbox is run, a container created and one started, each within `delay`, and how many of the three
/// have returned.
async fn stop_during_starts(delay: Duration) -> (Duration, usize) {
    let returned = Arc::default();
    let (mut event_loop, _handle, _changes) = event_loop_of(Idle { delay, returned: Arc::clone(&returned) });
    let create = RuntimeCall::CreateContainer {
        sandbox: "s".into(),
        sandbox_attempt: 0,
        name: "c".into(),
        attempt: 0,
        image_id: "i".into(),
        ips: vec![],
    };
    let start = RuntimeCall::StartContainer { name: "c".into(), id: "1".into() };
    for (id, call) in (1..).zip([RuntimeCall::RunSandbox { attempt: 0 }, create, start]) {
        let uid = PodUid::from(format!("u{id}"));
        event_loop.in_flight.call(CallId(id), uid, Arc::default(), Call::Runtime(call), Duration::from_secs(60));
    }
    let stop = CancellationToken::new();
    stop.cancel();
    let begun = tokio::time::Instant::now();
    event_loop.run(stop).await;
    (begun.elapsed(), returned.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_runs_creates_and_starts_under_way_finish_for_a_few_seconds() {
    let (lasted, returned) = stop_during_starts(Duration::from_secs(2)).await;
    assert_eq!((lasted.as_secs(), returned), (2, 3));
    let (lasted, returned) = stop_during_starts(Duration::from_secs(3600)).await;
    assert_eq!((lasted.as_secs(), returned), (5, 0), "calls that hang do not hold up the stop");
}
