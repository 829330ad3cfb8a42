//! More objects than a connection has streams.

use super::*;

const MANY: usize = 170;

fn path(n: usize) -> String {
    format!("/api/v1/namespaces/n/configmaps/c{n}")
}

/// Every object is asked for by a pod of its own.
async fn ask_for_all(objects: &Objects) {
    let asks = (0..MANY).map(|n| async move {
        objects.config_map(&format!("p{n}").as_str().into(), "n", &format!("c{n}")).await.unwrap();
    });
    futures::future::join_all(asks).await;
}

#[tokio::test]
async fn all_are_watched_and_an_edit_of_any_is_seen_at_once() {
    let server = Server::default();
    let (objects, mut heard, _dir) = server.start().await;
    for n in 0..MANY {
        server.put(&path(n), Some(json!({"data": {"k": "1"}})));
    }
    ask_for_all(&objects).await;
    for n in 0..MANY {
        server.is_watched(&path(n)).await;
    }
    assert_eq!(server.0.lock().unwrap().connections, 4, "one for reads, and three for as many watches");
    for n in 0..MANY {
        server.put(&path(n), Some(json!({"data": {"k": "2"}})));
    }
    let mut pods = std::collections::BTreeSet::new();
    for _ in 0..MANY {
        pods.insert(told(&mut heard).await);
    }
    assert_eq!(pods.len(), MANY);
    let status = request(Method::PATCH, "/api/v1/namespaces/n/pods/x/status", Some(("application/json", vec![])));
    objects.inner.cluster.call(status, Duration::from_secs(1)).await.expect("a status is not held up");
}

#[tokio::test]
async fn a_crowd_of_slow_reads_leaves_room_for_a_status() {
    let server = Server::default();
    let (objects, _heard, _dir) = server.start().await;
    server.0.lock().unwrap().slow_lists = true;
    let cluster = objects.inner.cluster.clone();
    tokio::spawn(async move { ask_for_all(&objects).await });
    until(async || server.asked("GET") >= 20).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let status = request(Method::PATCH, "/api/v1/namespaces/n/pods/x/status", Some(("application/json", vec![])));
    cluster.call(status, Duration::from_secs(1)).await.expect("a status is not held up");
}

#[tokio::test]
async fn what_has_no_watch_that_opens_is_read_from_time_to_time() {
    let server = Server::default();
    let (objects, mut heard, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    server.0.lock().unwrap().no_watches = true;
    objects.config_map(&"p".into(), "n", "c").await.unwrap();
    until(async || server.asked("watch") == 1).await;
    server.put(MAP, Some(json!({"data": {"k": "2"}})));
    // Time that nothing happens in passes at once.
    tokio::time::pause();
    let told = tokio::time::timeout(Duration::from_secs(60), heard.recv()).await.expect("within a minute");
    assert!(matches!(told, Some(Event::ObjectsChanged { .. })));
    assert_eq!(value(&objects.config_map(&"p".into(), "n", "c").await.unwrap()), "2");
}
