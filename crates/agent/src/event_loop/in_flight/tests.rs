//! Every effect is answered, also when its executor panics; a stop waits for starts.

use std::sync::atomic::{AtomicBool, Ordering};

use podwright_core::model::{
    Call, HostCall, KubeEvent, Listing, Now, ObjectResult, PodSeen, RuntimeCall, RuntimeReady,
};

use super::*;

/// Panics in every method, or delays a call.
#[derive(Default)]
struct Broken {
    slow: bool,
    returned: Arc<AtomicBool>,
}

impl Executor for Broken {
    fn call(&self, _: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        let (slow, returned) = (self.slow, Arc::clone(&self.returned));
        Box::pin(async move {
            assert!(slow, "call is broken");
            tokio::time::sleep(Duration::from_secs(2)).await;
            returned.store(true, Ordering::SeqCst);
            Ok(Answer::Done)
        })
    }

    fn observe(&self, _: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>> {
        panic!("observe is broken")
    }

    fn list(&self) -> BoxFuture<'static, Result<Listing, CallError>> {
        Box::pin(async { panic!("list is broken") })
    }

    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>> {
        Box::pin(async { panic!("check is broken") })
    }

    fn find_leftovers(&self) -> BoxFuture<'static, Result<BTreeSet<PodUid>, CallError>> {
        Box::pin(async { panic!("find is broken") })
    }

    fn sweep(&self, _: PodUid) -> BoxFuture<'static, ()> {
        let slow = self.slow;
        Box::pin(async move {
            assert!(slow, "sweep is broken");
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
    }

    fn save_quarantined_record(&self, _: Box<PodRecord>) -> BoxFuture<'static, ()> {
        Box::pin(async { panic!("keeping is broken") })
    }

    fn request(&self, _: Source, _: ObjectRequest, _: Duration) -> BoxFuture<'static, ObjectResult> {
        Box::pin(async { panic!("request is broken") })
    }

    fn event(&self, _: &KubeEvent, _: Now) {}
}

fn in_flight(executor: Broken) -> (InFlight, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel(8);
    (InFlight::new(Arc::new(executor), sender, Arc::default()), events)
}

/// The next event; `None` if there is none, as after a lost answer.
async fn next(events: &mut mpsc::Receiver<Event>) -> Option<Event> {
    tokio::time::timeout(Duration::from_secs(60), events.recv()).await.ok().flatten()
}

fn start() -> Call {
    Call::Runtime(RuntimeCall::StartContainer { name: "c".into(), id: "1".into() })
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_answered_as_a_failure() {
    let (mut effects, mut events) = in_flight(Broken::default());
    effects.call(CallId(7), "u".into(), Arc::default(), start(), Duration::from_secs(9));
    match next(&mut events).await {
        Some(Event::Done { id: CallId(7), result: Err(error) }) => {
            assert!(error.in_doubt() && error.message().contains("call is broken"), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    effects.observe("u".into(), Seq::default());
    assert!(matches!(next(&mut events).await, Some(Event::Observed { result: Err(_), .. })));
    effects.list(Seq::default());
    assert!(matches!(next(&mut events).await, Some(Event::Listed { result: Err(_), .. })));
    effects.check_runtime();
    assert!(matches!(next(&mut events).await, Some(Event::Runtime { result: Err(_) })));
    effects.find_leftovers(Seq::default());
    assert!(matches!(next(&mut events).await, Some(Event::Leftovers { found: Err(_), .. })));
    let request = ObjectRequest::CreateMirror { pod: Arc::default() };
    effects.request(RequestId(1), Source::Api, request, Duration::from_secs(9));
    assert!(matches!(next(&mut events).await, Some(Event::ObjectAnswered { result: Err(_), .. })));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_start_in_flight() {
    let returned = Arc::new(AtomicBool::new(false));
    let (mut effects, _events) = in_flight(Broken { slow: true, returned: Arc::clone(&returned) });
    effects.call(CallId(7), "u".into(), Arc::default(), start(), Duration::from_secs(9));
    effects.drain().await;
    assert!(returned.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_other_calls() {
    let returned = Arc::new(AtomicBool::new(false));
    let (mut effects, _events) = in_flight(Broken { slow: true, returned: Arc::clone(&returned) });
    effects.call(CallId(7), "u".into(), Arc::default(), Call::Host(HostCall::RemoveLogs), Duration::from_secs(9));
    effects.drain().await;
    assert!(!returned.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_waits_for_the_removal_of_its_leftovers() {
    let (mut effects, mut events) = in_flight(Broken { slow: true, ..Broken::default() });
    let call = || Call::Host(HostCall::RemoveLogs);
    let begun = tokio::time::Instant::now();
    effects.sweep("back".into());
    effects.call(CallId(1), "back".into(), Arc::default(), call(), Duration::from_secs(9));
    effects.call(CallId(2), "other".into(), Arc::default(), call(), Duration::from_secs(9));
    effects.call(CallId(3), "back".into(), Arc::default(), call(), Duration::from_secs(9));
    effects.cancel(CallId(3));
    let mut ends = BTreeMap::new();
    for _ in 0..3 {
        let Some(Event::Done { id, result }) = next(&mut events).await else { panic!("an answer") };
        ends.insert(id.0, (begun.elapsed().as_secs(), result.is_ok()));
    }
    assert_eq!(ends, BTreeMap::from([(1, (12, true)), (2, (2, true)), (3, (0, false))]));
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_leftovers_that_panics_delays_no_call() {
    let (mut effects, mut events) = in_flight(Broken::default());
    effects.sweep("back".into());
    effects.call(CallId(1), "back".into(), Arc::default(), start(), Duration::from_secs(9));
    assert!(matches!(next(&mut events).await, Some(Event::Done { id: CallId(1), result: Err(_) })));
}
