//! Requests to the API server, and how its responses are interpreted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::{FakeApiServer, ReceivedRequest, Reply, pod, status, wait_until};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use podwright_api::client::request;
use podwright_api::events::{self, Occurrence};
use podwright_api::node::{self, NodeRegistration, RegisteredNode};
use podwright_api::pod_objects::PodObjects;
use podwright_api::{ApiClient, lease};
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
async fn a_status_patch_has_the_uid_and_returns_the_pod() {
    let server = FakeApiServer::start(|_| Reply::Json(200, pod("u1", 7))).await;
    let objects = PodObjects::new(server.client());
    let answer = objects.request(patch("a", false)).await.unwrap().unwrap();
    assert_eq!(answer.metadata.resource_version.as_deref(), Some("7"));
    let seen = &server.requests("PATCH", "/api/v1/namespaces/ns/pods/a/status")[0];
    assert_eq!(seen.content_type, "application/strategic-merge-patch+json");
    assert_eq!(seen.body, json!({"metadata": {"uid": "u1"}, "status": {"phase": "Running"}}));
    // Equal statuses: no request.
    let same =
        ObjectRequest::PatchStatus { object: object("b"), base: Arc::default(), status: Arc::default(), urgent: true };
    assert_eq!(objects.request(same).await, Ok(None));
    assert_eq!(server.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_delete_has_grace_period_zero_and_the_uid() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| match seen.path.ends_with("/other") {
        true => status(409, "Conflict", "Precondition failed: UID in precondition: u1, UID in object meta: u2"),
        false if seen.path.ends_with("/gone") => status(404, "NotFound", "pods \"gone\" not found"),
        false => Reply::Json(200, pod("u1", 7)),
    })
    .await;
    let objects = PodObjects::new(server.client());
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
async fn urgent_requests_are_not_delayed_by_ordinary_ones() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| match seen.path.contains("/slow") {
        true => Reply::Hang,
        false => Reply::Json(200, pod("u1", 7)),
    })
    .await;
    let objects = Arc::new(PodObjects::new(server.client()));
    for n in 0..40 {
        let objects = Arc::clone(&objects);
        tokio::spawn(async move { objects.request(patch(&format!("slow{n}"), false)).await });
    }
    wait_until("the slow requests use all permits", || server.requests("PATCH", "/").len() >= 16).await;
    let soon = Duration::from_secs(1);
    tokio::time::timeout(soon, objects.request(patch("a", false)))
        .await
        .expect_err("no permit for an ordinary request");
    tokio::time::timeout(soon, objects.request(patch("a", true))).await.expect("in time").unwrap();
    tokio::time::timeout(soon, objects.request(ObjectRequest::Delete { object: object("a") }))
        .await
        .expect("in time")
        .unwrap();
    assert_eq!(server.requests("PATCH", "/api/v1/namespaces/ns/pods/slow").len(), 16);
}

#[tokio::test]
async fn a_success_without_the_pod_is_an_error() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| match seen.path.contains("/empty") {
        true => Reply::Json(200, json!({})),
        false if seen.path.contains("/page") => Reply::Text(200, vec![], "<html>a proxy's page</html>".into()),
        false => Reply::Json(200, pod("another", 7)),
    })
    .await;
    let objects = PodObjects::new(server.client());
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
async fn slow_throttling_and_unreachable_servers_are_unavailable() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| match seen.path.contains("/busy") {
        true => Reply::Text(429, vec![("retry-after", "3".into())], String::new()),
        false => Reply::Hang,
    })
    .await;
    let client = server.client();
    let timed_out = client.call(request(Method::GET, "/hang", None), Duration::from_millis(200)).await;
    assert_eq!(timed_out, Err(podwright_api::ApiError::Timeout(Duration::from_millis(200))));
    let busy = PodObjects::new(client).request(patch("busy", true)).await;
    assert!(
        matches!(busy, Err(ObjectError::Unavailable { after: Some(after), .. }) if after.as_secs() == 3),
        "{busy:?}"
    );

    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (from, _) = text.split_once("server: '").unwrap();
    let (_, rest) = text.split_once("'}}]").unwrap();
    std::fs::write(server.kubeconfig(), format!("{from}server: 'http://{unused}'}}}}]{rest}")).unwrap();
    let unreachable = PodObjects::new(ApiClient::open(&server.kubeconfig()).unwrap()).request(patch("a", true)).await;
    assert!(
        matches!(&unreachable, Err(ObjectError::Unavailable { message, .. }) if message.contains("refused")),
        "{unreachable:?}"
    );
}

#[tokio::test]
async fn a_renewed_token_is_used_after_a_401() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| match seen.authorization == "Bearer second" {
        true => Reply::Json(200, pod("u1", 7)),
        false => status(401, "Unauthorized", "Unauthorized"),
    })
    .await;
    let objects = PodObjects::new(server.client());
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

fn registered(uid: &str) -> RegisteredNode {
    RegisteredNode { uid: uid.into(), ..RegisteredNode::default() }
}

pub(crate) fn facts() -> NodeFacts {
    let labels = [("kubernetes.io/os".to_owned(), "linux".to_owned())].into();
    NodeFacts { name: "n".into(), labels, ..NodeFacts::default() }
}

#[tokio::test]
async fn an_existing_node_is_corrected_and_its_status_sent_on_change_only() {
    let mut there = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
    there.metadata.uid = Some("node-uid".into());
    there.metadata.labels = None;
    let there = serde_json::to_value(there).unwrap();
    let server = FakeApiServer::start(move |seen: &ReceivedRequest| match seen.method.as_str() {
        "POST" => status(409, "AlreadyExists", "nodes \"n\" already exists"),
        _ => Reply::Json(200, there.clone()),
    })
    .await;
    let (runtime_facts, runtime) = watch::channel(RuntimeFacts::default());
    let (sender, mut object) = watch::channel(None);
    let registration = NodeRegistration::new(facts(), true);
    tokio::spawn(node::run(server.client(), registration, runtime, sender));
    let known = tokio::time::timeout(Duration::from_secs(5), object.wait_for(Option::is_some)).await.unwrap().unwrap();
    assert_eq!(known.as_ref().map(|object| object.uid.as_str()), Some("node-uid"));
    drop(known);
    let corrections: Vec<ReceivedRequest> = server.requests("PATCH", "/api/v1/nodes/n");
    assert_eq!(corrections[0].body, json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}));

    let of_status = || server.requests("PATCH", "/api/v1/nodes/n/status");
    // The first one is the heartbeat after the start.
    wait_until("the first status", || of_status().len() == 1).await;
    runtime_facts.send_replace(RuntimeFacts { network: Some("no network".into()), ..RuntimeFacts::default() });
    wait_until("the change", || of_status().len() == 2).await;
    let ready = of_status()[1].body["status"]["conditions"][3].clone();
    assert_eq!((&ready["status"], &ready["message"]), (&json!("False"), &json!("no network")));
    runtime_facts.send_replace(RuntimeFacts::default());
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Equal to the server's unchanged object: no patch.
    assert_eq!(of_status().len(), 2);
}

/// A server that has the node, or accepts its creation, and serves these lines as a watch.
async fn server_with_node(exists: bool, lines: mpsc::Receiver<Bytes>) -> FakeApiServer {
    let mut node = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
    (node.metadata.uid, node.metadata.resource_version) = (Some("node-uid".into()), Some("7".into()));
    let (node, lines) = (serde_json::to_value(node).unwrap(), Mutex::new(Some(lines)));
    FakeApiServer::start(move |seen: &ReceivedRequest| match seen.method.as_str() {
        "POST" if exists => status(409, "AlreadyExists", "nodes \"n\" already exists"),
        "GET" if seen.path.contains("watch=true") => lines.lock().unwrap().take().map_or(Reply::Hang, Reply::Stream),
        _ => Reply::Json(200, node.clone()),
    })
    .await
}

#[tokio::test]
async fn a_node_registers_at_once_and_a_ready_one_stays_so_until_the_runtime_answers() {
    let message = "container runtime status check may not have completed yet";
    for exists in [false, true] {
        let (_keep, lines) = mpsc::channel(1);
        let server = server_with_node(exists, lines).await;
        let (runtime_facts, runtime) = watch::channel(RuntimeFacts::unknown());
        let (sender, mut object) = watch::channel(None);
        let registration = NodeRegistration::new(facts(), true);
        tokio::spawn(node::run(server.client(), registration, runtime, sender));
        let soon = Duration::from_secs(2);
        tokio::time::timeout(soon, object.wait_for(Option::is_some)).await.expect("registered at once").unwrap();
        let made = &server.requests("POST", "/api/v1/nodes")[0].body["status"]["conditions"][3];
        assert_eq!((&made["status"], &made["message"]), (&json!("False"), &json!(message)));
        let of_status = || server.requests("PATCH", "/api/v1/nodes/n/status");
        if exists {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(of_status().is_empty(), "it was Ready, and the runtime has not answered yet: {:?}", of_status());
        }
        runtime_facts.send_replace(RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() });
        wait_until("the runtime version is reported", || {
            let last =
                of_status().last().map(|seen| seen.body["status"]["nodeInfo"]["containerRuntimeVersion"].clone());
            last == Some(json!("containerd://2"))
        })
        .await;
    }
}

#[tokio::test]
async fn changes_of_the_node_by_others_are_seen_at_once() {
    let (watched, lines) = mpsc::channel(4);
    let server = server_with_node(true, lines).await;
    let facts_now = RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() };
    let (_runtime_facts, runtime) = watch::channel(facts_now);
    let (sender, mut object) = watch::channel(None);
    let registration = NodeRegistration::new(facts(), true);
    tokio::spawn(node::run(server.client(), registration, runtime, sender));
    let changed = |version: &str, label: &str, more: serde_json::Value| {
        let mut metadata =
            json!({"name": "n", "uid": "node-uid", "resourceVersion": version, "labels": {"disk": label}});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        crate::fake::line("MODIFIED", &json!({"metadata": metadata}))
    };
    watched.send(changed("6", "old", json!({}))).await.unwrap();
    watched.send(changed("9", "ssd", json!({}))).await.unwrap();
    let soon = Duration::from_secs(5);
    let has_label = |object: &Option<RegisteredNode>| object.as_ref().is_some_and(|o| o.labels.contains_key("disk"));
    let found = tokio::time::timeout(soon, object.wait_for(has_label)).await.expect("in time").unwrap().clone();
    let found = found.unwrap();
    assert_eq!((found.labels["disk"].as_str(), found.deleting), ("ssd", false), "the stale event was accepted");
    watched.send(changed("10", "ssd", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))).await.unwrap();
    let deleting = |object: &Option<RegisteredNode>| object.as_ref().is_some_and(|o| o.deleting);
    tokio::time::timeout(soon, object.wait_for(deleting)).await.expect("in time").unwrap();
}

#[tokio::test]
async fn a_lease_is_created_once_and_then_renewed() {
    let made = Arc::new(AtomicBool::new(false));
    let server = FakeApiServer::start(move |seen: &ReceivedRequest| match seen.method.as_str() {
        "POST" => {
            made.store(true, Ordering::SeqCst);
            Reply::Json(201, json!({}))
        }
        _ if made.load(Ordering::SeqCst) => Reply::Json(200, json!({})),
        _ => status(404, "NotFound", "leases \"n\" not found"),
    })
    .await;
    let (sender, uid) = watch::channel(Some(registered("node-uid")));
    tokio::spawn(lease::run(server.client(), "n".into(), Duration::from_secs(40), uid));
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    wait_until("the lease", || server.requests("POST", path).len() == 1).await;
    let lease = &server.requests("POST", path)[0].body;
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]), (&json!("n"), &json!(40)));
    // Another object of the same name: renewed at once.
    sender.send_replace(Some(registered("other-uid")));
    wait_until("the renewal", || server.requests("PATCH", path).len() == 2).await;
    assert_eq!(server.requests("POST", path).len(), 1);
}

#[tokio::test]
async fn a_pod_with_too_many_events_does_not_delay_the_events_of_others() {
    let server = FakeApiServer::start(|_: &ReceivedRequest| Reply::Json(201, json!({}))).await;
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(events::run(server.client(), "n".into(), receiver));
    let begin = Timestamp::now();
    let occurrence = |uid: &str, n: u64| {
        let pod = FullName { namespace: "ns".into(), name: uid.into() };
        let (uid, message, first) = (uid.into(), format!("try {n}"), begin + Duration::from_nanos(n));
        let event = KubeEvent {
            uid: Some(uid),
            pod,
            container: None,
            warning: true,
            reason: "FailedMount",
            message,
            annotations: vec![],
        };
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
    wait_until("the event of the quiet pod is sent", || of("quiet") == 1).await;
    assert_eq!(of("noisy"), 25);
}

#[tokio::test]
async fn events_are_created_then_patched_and_created_again_when_expired() {
    let patches = Arc::new(AtomicUsize::new(0));
    let server = FakeApiServer::start(move |seen: &ReceivedRequest| match seen.method.as_str() {
        "PATCH" if patches.fetch_add(1, Ordering::SeqCst) == 1 => status(404, "NotFound", "events \"x\" not found"),
        _ => Reply::Json(201, json!({})),
    })
    .await;
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(events::run(server.client(), "n".into(), receiver));
    let pod = FullName { namespace: "ns".into(), name: "web".into() };
    let event = KubeEvent {
        annotations: vec![],
        uid: Some("u".into()),
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
        wait_until("it is sent", || {
            (server.requests("POST", path).len(), server.requests("PATCH", path).len()) == (posts, counted)
        })
        .await;
    }
    assert_eq!(server.requests("PATCH", path)[0].body["count"], 2);
    assert_eq!(server.requests("POST", path)[1].body["count"], 3);
}

#[tokio::test]
async fn many_pods_that_become_ready_are_reported_at_once() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| {
        let name = seen.path.split('/').nth(6).unwrap_or_default().to_owned();
        Reply::After(Duration::from_millis(20), pod(&name, 7))
    })
    .await;
    let objects = Arc::new(PodObjects::new(server.client()));
    let report = |name: &str, ready: &str| {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        let status: PodStatus = serde_json::from_value(ready).unwrap();
        let full_name = FullName { namespace: "ns".into(), name: name.into() };
        let object = ObjectRef { full_name, uid: name.into() };
        let (objects, base) = (Arc::clone(&objects), Arc::default());
        async move {
            objects.request(ObjectRequest::PatchStatus { object, base, status: Arc::new(status), urgent: true }).await
        }
    };
    objects.request(patch("first", false)).await.expect_err("the response has another UID; the connection is open");
    let begun = tokio::time::Instant::now();
    let reports: Vec<_> = (0..500).map(|n| tokio::spawn(report(&format!("u{n}"), "True"))).collect();
    report("failing", "False").await.unwrap();
    let failing = begun.elapsed();
    for report in reports {
        report.await.unwrap().unwrap();
    }
    let all = begun.elapsed();
    assert!(failing < Duration::from_secs(1) && all < Duration::from_secs(3), "{failing:?} {all:?}");
    assert_eq!(server.requests("PATCH", "/").len(), 502, "each patch is sent once");
}
