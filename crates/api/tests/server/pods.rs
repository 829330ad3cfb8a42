//! The pods of a node, from an API server that does what real ones seldom do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::{Fake, Reply, Seen, line, list, pod, status};
use bytes::Bytes;
use podwright_api::node::Registered;
use podwright_api::pods;
use podwright_core::model::{Source, SourceChange};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// Lists and watches are answered from two queues; when one is empty, the request hangs.
#[derive(Default)]
struct Answers {
    lists: VecDeque<Reply>,
    watches: VecDeque<Reply>,
}

/// A server, the source that follows it, and what it says.
struct Followed {
    server: Fake,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    node: watch::Sender<Option<Registered>>,
}

impl Followed {
    async fn new(lists: Vec<Reply>, watches: Vec<Reply>) -> Self {
        let answers = Arc::new(Mutex::new(Answers { lists: lists.into(), watches: watches.into() }));
        let server = Fake::start(move |seen: &Seen| {
            let mut answers = answers.lock().unwrap();
            let queue = if seen.path.contains("watch=true") { &mut answers.watches } else { &mut answers.lists };
            queue.pop_front().unwrap_or(Reply::Hang)
        })
        .await;
        let (sender, changes) = mpsc::channel(16);
        let (node, known) = watch::channel(None);
        tokio::spawn(pods::run(server.cluster(), "n".into(), known, sender));
        Self { server, changes, node }
    }

    async fn begun(lists: Vec<Reply>, watches: Vec<Reply>) -> Self {
        let followed = Self::new(lists, watches).await;
        followed.node.send_replace(Some(Registered::default()));
        followed
    }

    /// The next change, in short.
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
            SourceChange::Reconnected => "back".into(),
            SourceChange::HistoryReset => "anew".into(),
        }
    }

    async fn says_nothing(&mut self) {
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

/// A watch that says this and goes on until the sender is dropped.
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
async fn nothing_is_asked_before_the_node_is_there_and_pages_are_put_together() {
    let mut first = list(10, &[pod("a", 1)]);
    first["metadata"]["continue"] = json!("next/page");
    let (_keep, stream) = watch_of(vec![]);
    let mut followed = Followed::new(vec![ok(first), ok(list(10, &[pod("b", 2)]))], vec![stream]).await;
    followed.says_nothing().await;
    assert!(followed.server.seen.lock().unwrap().is_empty());
    followed.node.send_replace(Some(Registered::default()));
    assert_eq!(followed.next().await, "set a,b");
    let seen = followed.server.requests("GET", "/api/v1/pods");
    assert!(seen[0].path.contains("fieldSelector=spec.nodeName%3Dn"), "{}", seen[0].path);
    assert!(seen[1].path.ends_with("&continue=next%2Fpage"), "{}", seen[1].path);
    assert_eq!(seen[0].authorization, "Bearer first");
}

#[tokio::test]
async fn a_watch_that_is_cut_goes_on_where_it_was() {
    let cut = line("MODIFIED", &pod("a", 13)).slice(..20);
    let (keep, stream) = watch_of(vec![line("ADDED", &pod("b", 11)), bookmark(12), cut]);
    let (_keep, second) = watch_of(vec![line("MODIFIED", &pod("a", 13)), line("DELETED", &pod("b", 14))]);
    let mut followed = Followed::begun(vec![ok(list(10, &[pod("a", 5)]))], vec![stream, second]).await;
    assert_eq!(followed.next().await, "set a");
    assert_eq!(followed.next().await, "put b");
    drop(keep);
    assert_eq!(followed.next().await, "back");
    assert_eq!(followed.next().await, "put a");
    assert_eq!(followed.next().await, "remove b");
    let watches = followed.watches();
    assert!(watches[0].contains("resourceVersion=10&") || watches[0].ends_with("resourceVersion=10"), "{watches:?}");
    assert!(watches[1].ends_with("resourceVersion=12"), "{watches:?}");
    assert_eq!(followed.lists(), 1);
}

#[tokio::test]
async fn gone_means_a_new_list_and_one_that_is_older_is_not_believed() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let (_keep, stream) = watch_of(vec![line("ADDED", &pod("b", 20)), line("ERROR", &gone)]);
    let old = list(15, &[pod("a", 5)]);
    let new = list(21, &[pod("a", 5), pod("b", 20), pod("c", 21)]);
    let (_keep2, second) = watch_of(vec![line("MODIFIED", &pod("b", 19)), line("MODIFIED", &pod("c", 22))]);
    let lists = vec![ok(list(10, &[pod("a", 5)])), ok(old), ok(new)];
    let mut followed = Followed::begun(lists, vec![stream, second]).await;
    assert_eq!(followed.next().await, "set a");
    assert_eq!(followed.next().await, "put b");
    assert_eq!(followed.next().await, "set a,b,c");
    // The word of version 19 is old news.
    assert_eq!(followed.next().await, "put c");
    assert_eq!(followed.lists(), 3);
}

#[tokio::test]
async fn garbage_throttling_and_errors_cost_time_only() {
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
    let mut followed = Followed::begun(lists, watches).await;
    assert_eq!(followed.next().await, "set a");
    assert!(begun.elapsed() >= Duration::from_secs(1), "the server wanted a second");
    assert_eq!(followed.next().await, "back");
    // What was in the nonsense is not known: a list tells.
    assert_eq!(followed.next().await, "set a");
    assert_eq!(followed.next().await, "put b");
}

#[tokio::test]
async fn a_server_that_gives_no_watch_is_asked_for_lists() {
    let lists = vec![ok(list(10, &[pod("a", 5)])), ok(list(12, &[pod("a", 5), pod("b", 12)]))];
    let watches = (0..4).map(|_| status(500, "InternalError", "no watch to be had"));
    let (_keep, nowhere) = watch_of(vec![line("ADDED", &json!({"metadata": {"name": "c", "uid": "c"}}))]);
    let lists = lists.into_iter().chain([ok(list(13, &[pod("b", 12)]))]).collect();
    let mut followed = Followed::begun(lists, watches.chain([nowhere]).collect()).await;
    assert_eq!(followed.next().await, "set a");
    assert_eq!(followed.next().await, "set a,b");
    // What has no version has no place in the history: a list tells.
    assert_eq!(followed.next().await, "set b");
}

#[tokio::test]
async fn large_strange_and_foreign_pods_are_taken_for_what_they_are() {
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
    let mut followed = Followed::begun(vec![ok(list(10, &[in_list, pod("a", 3)]))], vec![stream]).await;
    assert_eq!(followed.next().await, "set a broken api:ns/known");
    assert_eq!(followed.next().await, "put large");
    assert_eq!(followed.next().await, "put strange");
    assert_eq!(followed.next().await, "put last");
}

#[tokio::test]
async fn a_history_that_was_set_back_is_believed_in_the_end() {
    let (_keep, deaf) = watch_of(vec![]);
    let (_keep2, second) = watch_of(vec![line("MODIFIED", &pod("b", 11)), line("DELETED", &pod("b", 12))]);
    let restored = (0..1000).map(|_| ok(list(10, &[pod("b", 5)])));
    let lists = [ok(list(1000, &[pod("a", 900), pod("b", 800)]))].into_iter().chain(restored).collect();
    let mut followed = Followed::begun(lists, vec![deaf, second]).await;
    assert_eq!(followed.next().await, "set a,b");
    let begun = tokio::time::Instant::now();
    // Time that nothing happens in passes at once.
    tokio::time::pause();
    let next = tokio::time::timeout(Duration::from_secs(1200), followed.changes.recv()).await;
    assert!(matches!(next, Ok(Some((_, SourceChange::HistoryReset)))), "{next:?}");
    let waited = begun.elapsed().as_secs();
    assert!((750..800).contains(&waited), "a silent watch is doubted while it lasts: {waited} s");
    tokio::time::resume();
    assert_eq!(followed.next().await, "set b");
    assert_eq!(followed.next().await, "put b");
    assert_eq!(followed.next().await, "remove b");
    assert!(followed.watches()[1].ends_with("resourceVersion=10"), "{:?}", followed.watches());
}
