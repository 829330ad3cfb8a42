//! The Node object: heartbeats, events, and registration without permission to create.

use std::time::Duration;

use crate::fake::{FakeApiServer, ReceivedRequest, Reply, status, wait_until};
use crate::pod_objects::facts;
use jiff::Timestamp;
use podwright_api::node::{self, NodeRegistration};
use podwright_core::node_status::{RuntimeFacts, initial};
use serde_json::json;
use tokio::sync::{mpsc, watch};

/// A server that has the node, and canonicalises quantities as real ones do.
async fn with_canonical_node() -> FakeApiServer {
    let mut facts = facts();
    (facts.capacity.memory, facts.allocatable.memory) = (1 << 30, 1 << 30);
    let mut node = initial(&facts, &RuntimeFacts::default(), Timestamp::now());
    (node.metadata.uid, node.metadata.resource_version) = (Some("node-uid".into()), Some("7".into()));
    let mut node = serde_json::to_value(node).unwrap();
    assert_eq!(node["status"]["capacity"]["memory"], "1048576Ki");
    node["status"]["capacity"]["memory"] = json!("1Gi");
    node["status"]["allocatable"]["memory"] = json!("1Gi");
    FakeApiServer::start(move |seen: &ReceivedRequest| match seen.method.as_str() {
        "POST" => status(409, "AlreadyExists", "nodes \"n\" already exists"),
        _ if seen.path.contains("watch=true") => Reply::Hang,
        _ => Reply::Json(200, node.clone()),
    })
    .await
}

#[tokio::test]
async fn an_unchanged_status_is_sent_as_a_heartbeat_every_five_minutes_only() {
    let server = with_canonical_node().await;
    let (_facts, runtime) = watch::channel(RuntimeFacts::default());
    let (sender, _object) = watch::channel(None);
    let mut facts = facts();
    (facts.capacity.memory, facts.allocatable.memory) = (1 << 30, 1 << 30);
    let (event_sender, mut events) = mpsc::channel(8);
    let registration = NodeRegistration { events: Some(event_sender), ..NodeRegistration::new(facts, true) };
    tokio::spawn(node::run(server.client(), registration, runtime, sender));
    let of_status = || server.requests("PATCH", "/api/v1/nodes/n/status");
    wait_until("the first status", || of_status().len() == 1).await;
    // Paused time advances at once while no task is ready.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(280)).await;
    assert_eq!(of_status().len(), 1, "nothing differs: {:?}", of_status().last());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(of_status().len(), 2, "a heartbeat");
    assert_eq!(of_status()[1].body["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
    assert!(events.try_recv().is_err(), "no event for a restart of the agent alone");
}

#[tokio::test]
async fn changes_of_the_node_are_reported_as_events() {
    let server = FakeApiServer::start(|seen: &ReceivedRequest| {
        let mut node = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
        (node.metadata.uid, node.metadata.resource_version) = (Some("node-uid".into()), Some("7".into()));
        node.spec.as_mut().unwrap().unschedulable = Some(true);
        node.status.as_mut().unwrap().node_info.as_mut().unwrap().boot_id = "another".into();
        match seen.method.as_str() {
            "POST" => status(409, "AlreadyExists", "nodes \"n\" already exists"),
            _ if seen.path.contains("watch=true") => Reply::Hang,
            _ => Reply::Json(200, serde_json::to_value(node).unwrap()),
        }
    })
    .await;
    let (_facts, runtime) = watch::channel(RuntimeFacts { network: Some("none".into()), ..RuntimeFacts::default() });
    let (sender, _object) = watch::channel(None);
    let (event_sender, mut events) = mpsc::channel(8);
    let registration = NodeRegistration { events: Some(event_sender), ..NodeRegistration::new(facts(), true) };
    tokio::spawn(node::run(server.client(), registration, runtime, sender));
    for wanted in ["NodeNotSchedulable", "Rebooted", "NodeNotReady"] {
        let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.expect(wanted).unwrap();
        assert_eq!((event.reason, event.warning), (wanted, wanted == "Rebooted"), "{event:?}");
    }
}

#[tokio::test]
async fn an_existing_node_is_used_if_creating_is_forbidden() {
    let mut node = initial(&facts(), &RuntimeFacts::default(), Timestamp::now());
    node.metadata.uid = Some("node-uid".into());
    let node = serde_json::to_value(node).unwrap();
    for exists in [true, false] {
        let node = node.clone();
        let server = FakeApiServer::start(move |seen: &ReceivedRequest| match (seen.method.as_str(), exists) {
            ("POST", _) => status(403, "Forbidden", "nodes is forbidden"),
            (_, true) => Reply::Json(200, node.clone()),
            (_, false) => status(404, "NotFound", "nodes \"n\" not found"),
        })
        .await;
        let (_facts, runtime) = watch::channel(RuntimeFacts::default());
        let (sender, mut object) = watch::channel(None);
        tokio::spawn(node::run(server.client(), NodeRegistration::new(facts(), true), runtime, sender));
        let soon = Duration::from_secs(2);
        let found = tokio::time::timeout(soon, object.wait_for(Option::is_some)).await;
        assert_eq!(found.is_ok(), exists);
        assert!(!server.requests("GET", "/api/v1/nodes/n").is_empty());
    }
}
