//! The pods of a node, from an API server with rare failures.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::{FakeApiServer, ReceivedRequest, Reply, line, list, pod, status};
use bytes::Bytes;
use podwright_api::node::RegisteredNode;
use podwright_api::pods;
use podwright_core::model::{Source, SourceChange};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// Responses to lists and watches, in order; when a queue is empty, the request hangs.
#[derive(Default)]
struct Replies {
    lists: VecDeque<Reply>,
    watches: VecDeque<Reply>,
}

/// A server, and the changes of the pod source that lists and watches it.
struct PodSourceTest {
    server: FakeApiServer,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    node: watch::Sender<Option<RegisteredNode>>,
}

impl PodSourceTest {
    async fn new(lists: Vec<Reply>, watches: Vec<Reply>) -> Self {
        Self::with_records(None, lists, watches).await
    }

    async fn with_records(recorded: Option<u64>, lists: Vec<Reply>, watches: Vec<Reply>) -> Self {
        let replies = Arc::new(Mutex::new(Replies { lists: lists.into(), watches: watches.into() }));
        let server = FakeApiServer::start(move |seen: &ReceivedRequest| {
            let mut replies = replies.lock().unwrap();
            let queue = if seen.path.contains("watch=true") { &mut replies.watches } else { &mut replies.lists };
            queue.pop_front().unwrap_or(Reply::Hang)
        })
        .await;
        let (sender, changes) = mpsc::channel(16);
        let (node, known) = watch::channel(None);
        tokio::spawn(pods::run(server.client(), "n".into(), known, sender, recorded));
        Self { server, changes, node }
    }

    async fn start(lists: Vec<Reply>, watches: Vec<Reply>) -> Self {
        let test = Self::new(lists, watches).await;
        test.node.send_replace(Some(RegisteredNode::default()));
        test
    }

    /// The next change in short form.
    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(10), self.changes.recv()).await;
        let (source, change) = next.expect("a change within 10 s").unwrap();
        assert_eq!(source, Source::Api);
        let name = |pod: &podwright_core::model::Pod| {
            assert!(pod.metadata.managed_fields.is_none());
            pod.metadata.name.clone().unwrap()
        };
        match change {
            SourceChange::Set { pods, broken } => {
                let pods: Vec<String> = pods.iter().map(|manifest| name(&manifest.pod)).collect();
                let broken: Vec<String> = broken.into_iter().map(|(origin, _)| origin).collect();
                format!("set {} broken {}", pods.join(","), broken.join(",")).trim_end_matches(" broken ").into()
            }
            SourceChange::Put(manifest) => format!("put {}", name(&manifest.pod)),
            SourceChange::Remove(uid) => format!("remove {uid}"),
            SourceChange::Reconnected => "reconnected".into(),
            SourceChange::HistoryReset => "history reset".into(),
        }
    }

    async fn expect_no_change(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(300), self.changes.recv()).await;
        assert!(next.is_err(), "{next:?}");
    }

    fn watches(&self) -> Vec<String> {
        let lists = self.server.requests("GET", "/api/v1/pods");
        lists.into_iter().map(|seen| seen.path).filter(|path| path.contains("watch=true")).collect()
    }

    fn lists(&self) -> usize {
        self.server.requests("GET", "/api/v1/pods").len() - self.watches().len()
    }
}

/// A watch that sends these chunks and stays open until the sender is dropped.
fn watch_of(chunks: Vec<Bytes>) -> (mpsc::Sender<Bytes>, Reply) {
    let (sender, receiver) = mpsc::channel(64);
    for chunk in chunks {
        sender.try_send(chunk).unwrap();
    }
    (sender, Reply::Stream(receiver))
}

fn bookmark(version: u64) -> Bytes {
    line("BOOKMARK", &json!({"kind": "Pod", "metadata": {"resourceVersion": version.to_string()}}))
}

fn ok(value: Value) -> Reply {
    Reply::Json(200, value)
}

#[tokio::test]
async fn nothing_is_requested_before_the_node_exists_and_pages_are_combined() {
    let mut first = list(10, &[pod("a", 1)]);
    first["metadata"]["continue"] = json!("next/page");
    let (_keep, stream) = watch_of(vec![]);
    let mut test = PodSourceTest::new(vec![ok(first), ok(list(10, &[pod("b", 2)]))], vec![stream]).await;
    test.expect_no_change().await;
    assert!(test.server.seen.lock().unwrap().is_empty());
    test.node.send_replace(Some(RegisteredNode::default()));
    assert_eq!(test.next().await, "set a,b");
    let seen = test.server.requests("GET", "/api/v1/pods");
    assert!(seen[0].path.contains("fieldSelector=spec.nodeName%3Dn"), "{}", seen[0].path);
    assert!(seen[1].path.ends_with("&continue=next%2Fpage"), "{}", seen[1].path);
    assert_eq!(seen[0].authorization, "Bearer first");
}

#[tokio::test]
async fn a_list_is_used_only_if_it_is_complete() {
    let unfinished = |pods: &[Value]| {
        let mut page = list(10, pods);
        page["metadata"]["continue"] = json!("more");
        ok(page)
    };
    let endless = (0..21).map(|_| unfinished(&[]));
    let many: Vec<Value> = (0..20_000).map(|n| pod(&format!("p{n}"), 1)).collect();
    let after_empty = [unfinished(&[]), unfinished(&[pod("a", 1)]), unfinished(&[]), ok(list(10, &[pod("b", 2)]))];
    let lists = endless.chain([unfinished(&many)]).chain(after_empty).collect();
    let (_keep, stream) = watch_of(vec![]);
    let mut test = PodSourceTest::start(lists, vec![stream]).await;
    assert_eq!(test.next().await, "set a,b", "pods that are missing in a list are terminated");
    assert_eq!(test.lists(), 26);
}

#[tokio::test]
async fn the_first_list_is_cached_and_not_used_if_it_is_older_than_the_records() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let (_keep, stream) = watch_of(vec![line("ERROR", &gone)]);
    let (_keep2, second) = watch_of(vec![]);
    let lists = vec![ok(list(9, &[])), ok(list(12, &[pod("a", 11)])), ok(list(13, &[pod("a", 11)]))];
    let mut test = PodSourceTest::with_records(Some(11), lists, vec![stream, second]).await;
    test.node.send_replace(Some(RegisteredNode::default()));
    assert_eq!(test.next().await, "set a", "the list of version 9 would have removed the pod");
    assert_eq!(test.next().await, "set a");
    let lists = test.server.requests("GET", "/api/v1/pods").into_iter().map(|seen| seen.path);
    let lists: Vec<_> = lists.filter(|path| !path.contains("watch=true")).collect();
    let cached: Vec<_> = lists.iter().map(|path| path.contains("&resourceVersion=0")).collect();
    assert_eq!(cached, [true, false, false], "{lists:?}");
}

#[tokio::test]
async fn without_records_the_first_list_is_consistent() {
    let (_keep, stream) = watch_of(vec![]);
    let mut test = PodSourceTest::start(vec![ok(list(10, &[pod("a", 5)]))], vec![stream]).await;
    assert_eq!(test.next().await, "set a");
    let lists = test.server.requests("GET", "/api/v1/pods").into_iter().map(|seen| seen.path);
    let lists: Vec<_> = lists.filter(|path| !path.contains("watch=true")).collect();
    assert!(!lists[0].contains("resourceVersion=0"), "an old list would stop pods that run: {lists:?}");
}

#[tokio::test]
async fn a_disconnected_watch_resumes_at_its_last_version() {
    let cut = line("MODIFIED", &pod("a", 13)).slice(..20);
    let (keep, stream) = watch_of(vec![line("ADDED", &pod("b", 11)), bookmark(12), cut]);
    let (_keep, second) = watch_of(vec![line("MODIFIED", &pod("a", 13)), line("DELETED", &pod("b", 14))]);
    let mut test = PodSourceTest::start(vec![ok(list(10, &[pod("a", 5)]))], vec![stream, second]).await;
    assert_eq!(test.next().await, "set a");
    assert_eq!(test.next().await, "put b");
    drop(keep);
    assert_eq!(test.next().await, "reconnected");
    assert_eq!(test.next().await, "put a");
    assert_eq!(test.next().await, "remove b");
    let watches = test.watches();
    assert!(watches[0].contains("resourceVersion=10&") || watches[0].ends_with("resourceVersion=10"), "{watches:?}");
    assert!(watches[1].ends_with("resourceVersion=12"), "{watches:?}");
    assert_eq!(test.lists(), 1);
}

#[tokio::test]
async fn gone_causes_a_new_list_and_an_older_list_is_ignored() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let (_keep, stream) = watch_of(vec![line("ADDED", &pod("b", 20)), line("ERROR", &gone)]);
    let old = list(15, &[pod("a", 5)]);
    let new = list(21, &[pod("a", 5), pod("b", 20), pod("c", 21)]);
    let (_keep2, second) = watch_of(vec![line("MODIFIED", &pod("b", 19)), line("MODIFIED", &pod("c", 22))]);
    let lists = vec![ok(list(10, &[pod("a", 5)])), ok(old), ok(new)];
    let mut test = PodSourceTest::start(lists, vec![stream, second]).await;
    assert_eq!(test.next().await, "set a");
    assert_eq!(test.next().await, "put b");
    assert_eq!(test.next().await, "set a,b,c");
    // The event of version 19 is stale.
    assert_eq!(test.next().await, "put c");
    assert_eq!(test.lists(), 3);
}

#[tokio::test]
async fn a_server_whose_lists_are_always_too_old_to_watch_is_not_listed_in_a_loop() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let lists = (0..1000).map(|_| ok(list(10, &[pod("a", 5)]))).collect();
    let (_keep, watches): (Vec<_>, Vec<_>) = (0..1000).map(|_| watch_of(vec![line("ERROR", &gone)])).unzip();
    let mut test = PodSourceTest::start(lists, watches).await;
    let changes = async { while test.changes.recv().await.is_some() {} };
    assert!(tokio::time::timeout(Duration::from_secs(2), changes).await.is_err());
    let lists = test.lists();
    assert!((2..10).contains(&lists), "{lists} lists in two seconds");
}

#[tokio::test]
async fn malformed_responses_throttling_and_errors_only_cause_delay() {
    let lists = vec![
        Reply::Text(200, vec![], "<html>a proxy's page</html>".into()),
        Reply::Text(429, vec![("retry-after", "1".into())], "slow down".into()),
        status(500, "InternalError", "etcd is away"),
        ok(json!({"kind": "PodList", "items": [{"metadata": {}}], "metadata": {"resourceVersion": "9"}})),
        ok(json!({"kind": "PodList", "items": []})),
        ok(json!({"items": [], "metadata": {"resourceVersion": "9"}})),
        ok(list(10, &[pod("a", 5)])),
        ok(list(11, &[pod("a", 5)])),
    ];
    let (_keep, nonsense) = watch_of(vec![Bytes::from_static(b"{\"type\": \"DANCED\", \"object\": {}}\n")]);
    let (_keep2, second) = watch_of(vec![line("ADDED", &pod("b", 12))]);
    let watches = vec![status(503, "ServiceUnavailable", "later"), nonsense, second];
    let begun = tokio::time::Instant::now();
    let mut test = PodSourceTest::start(lists, watches).await;
    assert_eq!(test.next().await, "set a");
    assert!(begun.elapsed() >= Duration::from_secs(1), "Retry-After was one second");
    assert_eq!(test.next().await, "reconnected");
    // The unknown event may have been a change: list.
    assert_eq!(test.next().await, "set a");
    assert_eq!(test.next().await, "put b");
}

#[tokio::test]
async fn a_server_that_refuses_watches_is_polled_with_lists() {
    let lists = vec![ok(list(10, &[pod("a", 5)])), ok(list(12, &[pod("a", 5), pod("b", 12)]))];
    let watches = (0..4).map(|_| status(500, "InternalError", "watch is not available"));
    let (_keep, nowhere) = watch_of(vec![line("ADDED", &json!({"metadata": {"name": "c", "uid": "c"}}))]);
    let lists = lists.into_iter().chain([ok(list(13, &[pod("b", 12)]))]).collect();
    let mut test = PodSourceTest::start(lists, watches.chain([nowhere]).collect()).await;
    assert_eq!(test.next().await, "set a");
    assert_eq!(test.next().await, "set a,b");
    // An event without version can't be ordered: list.
    assert_eq!(test.next().await, "set b");
}

#[tokio::test]
async fn large_pods_and_unknown_fields_are_accepted_and_malformed_and_foreign_pods_ignored() {
    let mut large = pod("large", 11);
    large["metadata"]["annotations"] = json!({"much": "x".repeat(1_500_000)});
    let mut strange = pod("strange", 12);
    strange["spec"]["fieldOfNextYear"] = json!({"deep": [{"er": 1}]});
    let mut broken = pod("broken", 13);
    broken["spec"]["containers"] = json!("none");
    let mut foreign = pod("foreign", 14);
    foreign["spec"]["nodeName"] = json!("elsewhere");
    let all = [line("ADDED", &large), line("ADDED", &strange), line("ADDED", &broken), line("ADDED", &foreign)];
    let (_keep, stream) = watch_of(all.into_iter().chain([line("ADDED", &pod("last", 15))]).collect());
    let mut in_list = pod("known", 9);
    in_list["spec"]["containers"] = json!(7);
    let mut test = PodSourceTest::start(vec![ok(list(10, &[in_list, pod("a", 3)]))], vec![stream]).await;
    assert_eq!(test.next().await, "set a broken api:ns/known");
    assert_eq!(test.next().await, "put large");
    assert_eq!(test.next().await, "put strange");
    assert_eq!(test.next().await, "put last");
}

#[tokio::test]
async fn a_history_reset_is_accepted_after_the_replica_lag() {
    let (_keep, silent) = watch_of(vec![]);
    let (_keep2, second) = watch_of(vec![line("MODIFIED", &pod("b", 11)), line("DELETED", &pod("b", 12))]);
    let restored = (0..1000).map(|_| ok(list(10, &[pod("b", 5)])));
    let lists = [ok(list(1000, &[pod("a", 900), pod("b", 800)]))].into_iter().chain(restored).collect();
    let mut test = PodSourceTest::start(lists, vec![silent, second]).await;
    assert_eq!(test.next().await, "set a,b");
    let begun = tokio::time::Instant::now();
    // Paused time advances at once while no task is ready.
    tokio::time::pause();
    let next = tokio::time::timeout(Duration::from_secs(1200), test.changes.recv()).await;
    assert!(matches!(next, Ok(Some((_, SourceChange::HistoryReset)))), "{next:?}");
    let waited = begun.elapsed().as_secs();
    assert!(
        (750..800).contains(&waited),
        "a silent watch is given up after 150 s, the list accepted 600 s later: {waited} s"
    );
    tokio::time::resume();
    assert_eq!(test.next().await, "set b");
    assert_eq!(test.next().await, "put b");
    assert_eq!(test.next().await, "remove b");
    assert!(test.watches()[1].ends_with("resourceVersion=10"), "{:?}", test.watches());
}
