//! More watched objects than a connection has streams.

use super::*;

const MANY: usize = 170;

fn path(n: usize) -> String {
    format!("/api/v1/namespaces/n/configmaps/c{n}")
}

/// Each object is requested by a different pod.
async fn request_all(objects: &ReferencedObjects) {
    let requests = (0..MANY).map(|n| async move {
        objects.config_map(&format!("p{n}").as_str().into(), "n", &format!("c{n}")).await.unwrap();
    });
    futures::future::join_all(requests).await;
}

#[tokio::test]
async fn all_objects_are_watched_and_a_change_of_any_is_seen_at_once() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    for n in 0..MANY {
        server.put(&path(n), Some(json!({"data": {"k": "1"}})));
    }
    request_all(&objects).await;
    for n in 0..MANY {
        server.is_watched(&path(n)).await;
    }
    assert_eq!(server.0.lock().unwrap().connections, 4, "one for lists, three for the watches");
    for n in 0..MANY {
        server.put(&path(n), Some(json!({"data": {"k": "2"}})));
    }
    let mut pods = std::collections::BTreeSet::new();
    for _ in 0..MANY {
        pods.insert(notified_pod(&mut events).await);
    }
    assert_eq!(pods.len(), MANY);
    let status = request(Method::PATCH, "/api/v1/namespaces/n/pods/x/status", Some(("application/json", vec![])));
    objects.inner.client.call(status, Duration::from_secs(1)).await.expect("a status patch is not delayed");
}

#[tokio::test]
async fn many_slow_lists_do_not_delay_a_status_patch() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    server.0.lock().unwrap().lists_hang = true;
    let client = objects.inner.client.clone();
    tokio::spawn(async move { request_all(&objects).await });
    wait_until(async || server.received("GET") >= 20).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let status = request(Method::PATCH, "/api/v1/namespaces/n/pods/x/status", Some(("application/json", vec![])));
    client.call(status, Duration::from_secs(1)).await.expect("a status patch is not delayed");
}

#[tokio::test]
async fn an_object_whose_watch_does_not_open_is_polled() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    server.0.lock().unwrap().watches_hang = true;
    objects.config_map(&"p".into(), "n", "c").await.unwrap();
    wait_until(async || server.received("watch") == 1).await;
    server.put(MAP, Some(json!({"data": {"k": "2"}})));
    // Paused time advances at once while no task is ready.
    tokio::time::pause();
    let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await.expect("within a minute");
    assert!(matches!(event, Some(Event::ObjectsChanged { .. })));
    assert_eq!(value(&objects.config_map(&"p".into(), "n", "c").await.unwrap()), "2");
}

#[tokio::test]
async fn a_server_whose_lists_are_always_too_old_to_watch_is_not_listed_in_a_loop() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    server.0.lock().unwrap().watches_gone = true;
    objects.config_map(&"p".into(), "n", "c").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let watches = server.received("watch");
    assert!((2..10).contains(&watches), "{watches} watches in two seconds");
}

#[tokio::test]
async fn a_pod_with_too_many_references_does_not_affect_the_objects_of_other_pods() {
    use crate::watch_cache::SELECTIONS_PER_POD_MAX;
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    let (greedy, other) = ("greedy".into(), "other".into());
    for n in 0..=SELECTIONS_PER_POD_MAX {
        server.put(&path(n), Some(json!({"data": {"k": "1"}})));
    }
    let requests = (0..SELECTIONS_PER_POD_MAX).map(|n| {
        let (objects, greedy) = (&objects, &greedy);
        async move { objects.config_map(greedy, "n", &format!("c{n}")).await.unwrap() }
    });
    futures::future::join_all(requests).await;
    let one_more = format!("c{SELECTIONS_PER_POD_MAX}");
    let error = objects.config_map(&greedy, "n", &one_more).await.unwrap_err();
    assert!(error.to_string().contains("refers to more than"), "{error}");
    objects.config_map(&greedy, "n", "c0").await.expect("an object that it has");
    objects.config_map(&other, "n", &one_more).await.expect("another pod");
    objects.release(&greedy);
    objects.config_map(&greedy, "n", &one_more).await.expect("after its release");
}
