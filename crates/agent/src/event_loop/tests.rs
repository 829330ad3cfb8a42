//! The loop stays fair under load.

use std::collections::BTreeSet;

use podwright_core::NodeConfig;

use super::*;

/// A node without pods, whose runtime does not answer.
struct Idle;

impl Executor for Idle {
    fn call(&self, _: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        Box::pin(async { Ok(Answer::Done) })
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

    fn keep_aside(&self, _: Box<PodRecord>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn request(&self, _: Source, _: ObjectRequest, _: Duration) -> BoxFuture<'static, ObjectResult> {
        Box::pin(async { Ok(None) })
    }

    fn event(&self, _: &KubeEvent, _: Now) {}
}

fn event_loop() -> (EventLoop, Handle, mpsc::Sender<(Source, SourceChange)>) {
    let (changes, changed) = mpsc::channel(16);
    let node = Node::new(NodeConfig::default(), vec![]);
    let clock = Arc::new(crate::node_executor::SystemClock);
    let (event_loop, handle) = EventLoop::new(LoopInputs::new(changed), node, None, Arc::new(Idle), clock);
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
