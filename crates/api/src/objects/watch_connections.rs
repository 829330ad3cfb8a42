//! WatchConnections for watches, on connections that are made when they are needed.
//!
//! A server grants each connection so many streams at once; one more waits in the client until another ends, which a watch does
//! not. So no connection is filled, and the next one is begun.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Cluster;

/// All places. Clones share them.
#[derive(Clone)]
pub(super) struct WatchConnections {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: Cluster,
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    cluster: Cluster,
    free: Arc<Semaphore>,
}

/// Room for one watch; dropped, it is free again.
pub(super) struct WatchConnection {
    /// The connection it is on.
    pub(super) cluster: Cluster,
    _permit: OwnedSemaphorePermit,
}

impl WatchConnections {
    /// On connections of their own; none is made yet.
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self { inner: Arc::new(Inner { cluster: cluster.clone(), connections: Mutex::default() }) }
    }

    /// The first free one; `None`: there are too many watches.
    pub(super) fn take(&self) -> Option<WatchConnection> {
        let mut all = self.inner.connections.lock().expect("nobody panics with it");
        if let Some(place) = all.iter().find_map(Connection::take) {
            return Some(place);
        }
        if all.len() == CONNECTIONS_MAX {
            return None;
        }
        let connection =
            Connection { cluster: self.inner.cluster.another(), free: Arc::new(Semaphore::new(WATCHES_MAX)) };
        let place = connection.take();
        all.push(connection);
        place
    }
}

impl Connection {
    fn take(&self) -> Option<WatchConnection> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(WatchConnection { cluster: self.cluster.clone(), _permit: permit })
    }
}

/// Watches of one connection. An API server grants 100 streams unless it is told otherwise
/// (`--http2-max-streams-per-connection`); streams that have just ended may count for a moment longer.
const WATCHES_MAX: usize = 80;
/// With 640 watches a node of a few hundred pods has all it refers to. What is beyond is read from time to time.
const CONNECTIONS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_filled_one_after_the_other_and_places_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(
            &file,
            "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}], \
             contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}",
        )
        .unwrap();
        let places = WatchConnections::new(&Cluster::open(&file).unwrap());
        let connections = || places.inner.connections.lock().unwrap().len();
        let mut taken: Vec<WatchConnection> = (0..WATCHES_MAX).map_while(|_| places.take()).collect();
        assert_eq!((taken.len(), connections()), (WATCHES_MAX, 1));
        let last = places.take().unwrap();
        assert_eq!(connections(), 2);
        drop(last);
        taken.extend((0..WATCHES_MAX * CONNECTIONS_MAX).map_while(|_| places.take()));
        assert_eq!((taken.len(), connections()), (WATCHES_MAX * CONNECTIONS_MAX, CONNECTIONS_MAX));
        assert!(places.take().is_none());
        taken.remove(3);
        assert!(places.take().is_some());
    }
}
