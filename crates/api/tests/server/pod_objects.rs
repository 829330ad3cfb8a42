//! What is asked of an API server, and what its answers come to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::{Fake, Reply, Seen, pod, status, until};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use podwright_api::client::request;
use podwright_api::events::{self, Occurrence};
use podwright_api::node::{self, Registered, Registration};
use podwright_api::pod_objects::PodObjects;
use podwright_api::{Cluster, lease};
use podwright_core::model::{FullName, KubeEvent, ObjectError, ObjectRef, ObjectRequest, PodStatus};
use podwright_core::node_status::{NodeFacts, RuntimeFacts, initial};
use serde_json::json;
use tokio::sync::{mpsc, watch};

fn object(name: &str) -> ObjectRef {
    ObjectRef { full_name: FullName { namespace: "ns".into(), name: name.into() }, uid: "u1".into() }
}

fn patch(name: &str, urgent: bool) -> ObjectRequest {
    let status = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
    ObjectRequest::PatchStatus { object: object(name), base: Arc::default(), status: Arc::new(status), urgent }
}

#[tokio::test]
async fn a_status_is_patched_with_its_uid_and_the_answer_comes_back() {
    let server = Fake::start(|_| Reply::Json(200, pod("u1", 7))).await;
    let objects = PodObjects::new(server.cluster());
    let answer = objects.request(patch("a", false)).await.unwrap().unwrap();
    assert_eq!(answer.metadata.resource_version.as_deref(), Some("7"));
    let seen = &server.requests("PATCH", "/api/v1/namespaces/ns/pods/a/status")[0];
    assert_eq!(seen.content_type, "application/strategic-merge-patch+json");
    assert_eq!(seen.body, json!({"metadata": {"uid": "u1"}, "status": {"phase": "Running"}}));
    // Nothing to change, nothing sent.
    let same =
        ObjectRequest::PatchStatus { object: object("b"), base: Arc::default(), status: Arc::default(), urgent: true };
    assert_eq!(objects.request(same).await, Ok(None));
    assert_eq!(server.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_delete_has_grace_zero_and_the_uid() {
    let server = Fake::start(|seen: &Seen| match seen.path.ends_with("/other") {
        true => status(409, "Conflict", "Precondition failed: UID in precondition: u1, UID in object meta: u2"),
        false if seen.path.ends_with("/gone") => status(404, "NotFound", "pods \"gone\" not found"),
        false => Reply::Json(200, pod("u1", 7)),
    })
    .await;
    let objects = PodObjects::new(server.cluster());
    assert_eq!(objects.request(ObjectRequest::Delete { object: object("a") }).await, Ok(None));
    assert_eq!(
        objects.request(ObjectRequest::DeleteMirror { object: object("other") }).await,
        Err(ObjectError::OtherUid)
    );
    assert_eq!(objects.request(ObjectRequest::Delete { object: object("gone") }).await, Err(ObjectError::NotFound));
    let options = &server.requests("DELETE", "/api/v1/namespaces/ns/pods/a")[0].body;
    assert_eq!((&options["gracePeriodSeconds"], &options["preconditions"]["uid"]), (&json!(0), &json!("u1")));
}

#[tokio::test]
async fn urgent_asks_pass_a_crowd_that_waits() {
    let server = Fake::start(|seen: &Seen| match seen.path.contains("/slow") {
        true => Reply::Hang,
        false => Reply::Json(200, pod("u1", 7)),
    })
    .await;
    let objects = Arc::new(PodObjects::new(server.cluster()));
    for n in 0..40 {
        let objects = Arc::clone(&objects);
        tokio::spawn(async move { objects.request(patch(&format!("slow{n}"), false)).await });
    }
    until("the crowd fills its places", || server.requests("PATCH", "/").len() >= 16).await;
    let soon = Duration::from_secs(1);
    tokio::time::timeout(soon, objects.request(patch("a", false))).await.expect_err("no place for what is not urgent");
    tokio::time::timeout(soon, objects.request(patch("a", true))).await.expect("in time").unwrap();
    tokio::time::timeout(soon, objects.request(ObjectRequest::Delete { object: object("a") }))
        .await
        .expect("in time")
        .unwrap();
    assert_eq!(server.requests("PATCH", "/api/v1/namespaces/ns/pods/slow").len(), 16);
}

#[tokio::test]
async fn a_success_that_is_no_pod_is_none() {
    let server = Fake::start(|seen: &Seen| match seen.path.contains("/empty") {
        true => Reply::Json(200, json!({})),
        false if seen.path.contains("/page") => Reply::Text(200, vec![], "<html>a proxy's page</html>".into()),
        false => Reply::Json(200, pod("another", 7)),
    })
    .await;
    let objects = PodObjects::new(server.cluster());
    for name in ["empty", "page", "other"] {
        let answer = objects.request(patch(name, true)).await;
        assert!(matches!(answer, Err(ObjectError::Unavailable { .. })), "{name}: {answer:?}");
    }
    for name in ["empty", "page"] {
        let answer = objects.request(ObjectRequest::Delete { object: object(name) }).await;
        assert!(matches!(answer, Err(ObjectError::Unavailable { .. })), "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn slow_busy_and_absent_servers_are_unavailable() {
    let server = Fake::start(|seen: &Seen| match seen.path.contains("/busy") {
        true => Reply::Text(429, vec![("retry-after", "3".into())], String::new()),
        false => Reply::Hang,
    })
    .await;
    let cluster = server.cluster();
    let late = cluster.call(request(Method::GET, "/hang", None), Duration::from_millis(200)).await;
    assert_eq!(late, Err(podwright_api::ApiError::Timeout(Duration::from_millis(200))));
    let busy = PodObjects::new(cluster).request(patch("busy", true)).await;
    assert!(
        matches!(busy, Err(ObjectError::Unavailable { after: Some(after), .. }) if after.as_secs() == 3),
        "{busy:?}"
    );

    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (from, _) = text.split_once("server: '").unwrap();
    let (_, rest) = text.split_once("'}}]").unwrap();
    std::fs::write(server.kubeconfig(), format!("{from}server: 'http://{nobody}'}}}}]{rest}")).unwrap();
    let away = PodObjects::new(Cluster::open(&server.kubeconfig()).unwrap()).request(patch("a", true)).await;
    assert!(matches!(&away, Err(ObjectError::Unavailable { message, .. }) if message.contains("refused")), "{away:?}");
}

#[tokio::test]
async fn a_token_that_was_renewed_is_used_after_a_refusal() {
    let server = Fake::start(|seen: &Seen| match seen.authorization == "Bearer second" {
        true => Reply::Json(200, pod("u1", 7)),
        false => status(401, "Unauthorized", "Unauthorized"),
    })
    .await;
    let objects = PodObjects::new(server.cluster());
    assert!(matches!(objects.request(patch("a", true)).await, Err(ObjectError::Unavailable { .. })));
    std::fs::write(server.dir.path().join("token"), "second\n").unwrap();
    for _ in 0..100 {
        if objects.request(patch("a", true)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the new token was not read");
}

fn registered(uid: &str) -> Registered {
    Registered { uid: uid.into(), ..Registered::default() }
}

pub(crate) fn facts() -> NodeFacts {
    let labels = [("kubernetes.io/os".to_owned(), "linux".to_owned())].into();
    NodeFacts { name: "n".into(), labels, ..NodeFacts::default() }
}

#[tokio::test]
async fn a_node_that_is_there_is_mended_and_its_status_sent_on_change_only() {
    let mut there = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
    there.metadata.uid = Some("node-uid".into());
    there.metadata.labels = None;
    let there = serde_json::to_value(there).unwrap();
    let server = Fake::start(move |seen: &Seen| match seen.method.as_str() {
        "POST" => status(409, "AlreadyExists", "nodes \"n\" already exists"),
        _ => Reply::Json(200, there.clone()),
    })
    .await;
    let (looks, runtime) = watch::channel(RuntimeFacts::default());
    let (sender, mut object) = watch::channel(None);
    let registration = Registration::new(facts(), true);
    tokio::spawn(node::run(server.cluster(), registration, runtime, sender));
    let known = tokio::time::timeout(Duration::from_secs(5), object.wait_for(Option::is_some)).await.unwrap().unwrap();
    assert_eq!(known.as_ref().map(|object| object.uid.as_str()), Some("node-uid"));
    drop(known);
    let mended: Vec<Seen> = server.requests("PATCH", "/api/v1/nodes/n");
    assert_eq!(mended[0].body, json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}));

    let of_status = || server.requests("PATCH", "/api/v1/nodes/n/status");
    // The first one is the sign of life of this start.
    until("the first status", || of_status().len() == 1).await;
    looks.send_replace(RuntimeFacts { network: Some("no network".into()), ..RuntimeFacts::default() });
    until("the change", || of_status().len() == 2).await;
    let ready = of_status()[1].body["status"]["conditions"][3].clone();
    assert_eq!((&ready["status"], &ready["message"]), (&json!("False"), &json!("no network")));
    looks.send_replace(RuntimeFacts::default());
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The server has never said anything else than this.
    assert_eq!(of_status().len(), 2);
}

/// A server that has this object, or gets it made, and a watch on it.
async fn keeping(there: bool, lines: mpsc::Receiver<Bytes>) -> Fake {
    let mut node = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
    (node.metadata.uid, node.metadata.resource_version) = (Some("node-uid".into()), Some("7".into()));
    let (node, lines) = (serde_json::to_value(node).unwrap(), Mutex::new(Some(lines)));
    Fake::start(move |seen: &Seen| match seen.method.as_str() {
        "POST" if there => status(409, "AlreadyExists", "nodes \"n\" already exists"),
        "GET" if seen.path.contains("watch=true") => lines.lock().unwrap().take().map_or(Reply::Hang, Reply::Stream),
        _ => Reply::Json(200, node.clone()),
    })
    .await
}

#[tokio::test]
async fn a_node_is_there_at_once_and_one_that_was_ready_waits_for_the_runtimes_word() {
    let words = "container runtime status check may not have completed yet";
    for there in [false, true] {
        let (_keep, lines) = mpsc::channel(1);
        let server = keeping(there, lines).await;
        let (looks, runtime) = watch::channel(RuntimeFacts::unknown());
        let (sender, mut object) = watch::channel(None);
        let registration = Registration::new(facts(), true);
        tokio::spawn(node::run(server.cluster(), registration, runtime, sender));
        let soon = Duration::from_secs(2);
        tokio::time::timeout(soon, object.wait_for(Option::is_some)).await.expect("registered at once").unwrap();
        let made = &server.requests("POST", "/api/v1/nodes")[0].body["status"]["conditions"][3];
        assert_eq!((&made["status"], &made["message"]), (&json!("False"), &json!(words)));
        let of_status = || server.requests("PATCH", "/api/v1/nodes/n/status");
        if there {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(of_status().is_empty(), "it was Ready, and nobody knows better: {:?}", of_status());
        }
        looks.send_replace(RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() });
        until("its word is told", || {
            let last =
                of_status().last().map(|seen| seen.body["status"]["nodeInfo"]["containerRuntimeVersion"].clone());
            last == Some(json!("containerd://2"))
        })
        .await;
    }
}

#[tokio::test]
async fn what_others_do_to_the_node_is_heard_of_at_once() {
    let (watched, lines) = mpsc::channel(4);
    let server = keeping(true, lines).await;
    let facts_now = RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() };
    let (_looks, runtime) = watch::channel(facts_now);
    let (sender, mut object) = watch::channel(None);
    let registration = Registration::new(facts(), true);
    tokio::spawn(node::run(server.cluster(), registration, runtime, sender));
    let changed = |version: &str, label: &str, more: serde_json::Value| {
        let mut metadata =
            json!({"name": "n", "uid": "node-uid", "resourceVersion": version, "labels": {"disk": label}});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        crate::fake::line("MODIFIED", &json!({"metadata": metadata}))
    };
    watched.send(changed("6", "old", json!({}))).await.unwrap();
    watched.send(changed("9", "ssd", json!({}))).await.unwrap();
    let soon = Duration::from_secs(5);
    let has_label = |object: &Option<Registered>| object.as_ref().is_some_and(|o| o.labels.contains_key("disk"));
    let found = tokio::time::timeout(soon, object.wait_for(has_label)).await.expect("heard of").unwrap().clone();
    let found = found.unwrap();
    assert_eq!((found.labels["disk"].as_str(), found.is_going), ("ssd", false), "the past was believed");
    watched.send(changed("10", "ssd", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))).await.unwrap();
    let is_going = |object: &Option<Registered>| object.as_ref().is_some_and(|o| o.is_going);
    tokio::time::timeout(soon, object.wait_for(is_going)).await.expect("heard of").unwrap();
}

#[tokio::test]
async fn a_lease_is_made_once_and_then_renewed() {
    let made = Arc::new(AtomicBool::new(false));
    let server = Fake::start(move |seen: &Seen| match seen.method.as_str() {
        "POST" => {
            made.store(true, Ordering::SeqCst);
            Reply::Json(201, json!({}))
        }
        _ if made.load(Ordering::SeqCst) => Reply::Json(200, json!({})),
        _ => status(404, "NotFound", "leases \"n\" not found"),
    })
    .await;
    let (sender, uid) = watch::channel(Some(registered("node-uid")));
    tokio::spawn(lease::run(server.cluster(), "n".into(), Duration::from_secs(40), uid));
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    until("the lease", || server.requests("POST", path).len() == 1).await;
    let lease = &server.requests("POST", path)[0].body;
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]), (&json!("n"), &json!(40)));
    // Another object of the same name: renewed at once.
    sender.send_replace(Some(registered("other-uid")));
    until("the renewal", || server.requests("PATCH", path).len() == 2).await;
    assert_eq!(server.requests("POST", path).len(), 1);
}

#[tokio::test]
async fn one_pod_that_makes_too_many_events_does_not_hold_up_the_others() {
    let server = Fake::start(|_: &Seen| Reply::Json(201, json!({}))).await;
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(events::run(server.cluster(), "n".into(), receiver));
    let begin = Timestamp::now();
    let occurrence = |uid: &str, n: u64| {
        let pod = FullName { namespace: "ns".into(), name: uid.into() };
        let (uid, message, first) = (uid.into(), format!("try {n}"), begin + Duration::from_nanos(n));
        let event = KubeEvent { uid, pod, container: None, warning: true, reason: "FailedMount", message };
        Occurrence { event, field_path: None, first, last: first, count: 1 }
    };
    for n in 0..60 {
        sender.send(occurrence("noisy", n)).await.unwrap();
    }
    sender.send(occurrence("quiet", 60)).await.unwrap();
    let path = "/api/v1/namespaces/ns/events";
    let of = |name: &str| {
        let all = server.requests("POST", path);
        all.iter().filter(|request| request.body["involvedObject"]["name"] == name).count()
    };
    until("the quiet one's is sent", || of("quiet") == 1).await;
    assert_eq!(of("noisy"), 25);
}

#[tokio::test]
async fn events_are_made_counted_up_and_made_again_when_forgotten() {
    let patches = Arc::new(AtomicUsize::new(0));
    let server = Fake::start(move |seen: &Seen| match seen.method.as_str() {
        "PATCH" if patches.fetch_add(1, Ordering::SeqCst) == 1 => status(404, "NotFound", "events \"x\" not found"),
        _ => Reply::Json(201, json!({})),
    })
    .await;
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(events::run(server.cluster(), "n".into(), receiver));
    let pod = FullName { namespace: "ns".into(), name: "web".into() };
    let event = KubeEvent {
        uid: "u".into(),
        pod,
        container: None,
        warning: true,
        reason: "BackOff",
        message: "Back-off".into(),
    };
    let first = Timestamp::now();
    let path = "/api/v1/namespaces/ns/events";
    for (count, posts, counted) in [(1, 1, 0), (2, 1, 1), (3, 2, 2)] {
        let occurrence = Occurrence { event: event.clone(), field_path: None, first, last: first, count };
        sender.send(occurrence).await.unwrap();
        until("it is sent", || {
            (server.requests("POST", path).len(), server.requests("PATCH", path).len()) == (posts, counted)
        })
        .await;
    }
    assert_eq!(server.requests("PATCH", path)[0].body["count"], 2);
    assert_eq!(server.requests("POST", path)[1].body["count"], 3);
}

#[tokio::test]
async fn a_crowd_of_pods_that_become_ready_is_told_at_once() {
    let server = Fake::start(|seen: &Seen| {
        let name = seen.path.split('/').nth(6).unwrap_or_default().to_owned();
        Reply::After(Duration::from_millis(20), pod(&name, 7))
    })
    .await;
    let objects = Arc::new(PodObjects::new(server.cluster()));
    let ask = |name: &str, ready: &str| {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        let status: PodStatus = serde_json::from_value(ready).unwrap();
        let full_name = FullName { namespace: "ns".into(), name: name.into() };
        let object = ObjectRef { full_name, uid: name.into() };
        let (objects, base) = (Arc::clone(&objects), Arc::default());
        async move {
            objects.request(ObjectRequest::PatchStatus { object, base, status: Arc::new(status), urgent: true }).await
        }
    };
    objects.request(patch("first", false)).await.expect_err("another pod answers; the connection is there");
    let begun = tokio::time::Instant::now();
    let crowd: Vec<_> = (0..500).map(|n| tokio::spawn(ask(&format!("u{n}"), "True"))).collect();
    ask("failing", "False").await.unwrap();
    let failing = begun.elapsed();
    for told in crowd {
        told.await.unwrap().unwrap();
    }
    let all = begun.elapsed();
    assert!(failing < Duration::from_secs(1) && all < Duration::from_secs(3), "{failing:?} {all:?}");
    assert_eq!(server.requests("PATCH", "/").len(), 502, "each once");
}
