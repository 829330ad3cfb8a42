//! HTTP/2 connections for watches, opened on demand.
//!
//! A server limits the concurrent streams of a connection; a request beyond the limit waits in the client until another stream
//! ends, and watches do not end. So each connection gets fewer watches than the limit, and then the next one is opened.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::ApiClient;

/// The pool of watch connections. Clones share it.
#[derive(Clone)]
pub(super) struct WatchConnections {
    inner: Arc<Inner>,
}

struct Inner {
    client: ApiClient,
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    client: ApiClient,
    free: Arc<Semaphore>,
}

/// A permit for one watch on one of the connections; dropping it frees the permit.
pub(super) struct WatchConnection {
    /// Sends on the connection of this permit.
    pub(super) client: ApiClient,
    _permit: OwnedSemaphorePermit,
}

impl WatchConnections {
    /// Opens no connection yet.
    pub(super) fn new(client: &ApiClient) -> Self {
        Self { inner: Arc::new(Inner { client: client.clone(), connections: Mutex::default() }) }
    }

    /// A permit on the first connection with a free one; `None`: all connections are full.
    pub(super) fn take(&self) -> Option<WatchConnection> {
        let mut all = self.inner.connections.lock().expect("no panic under this lock");
        if let Some(permit) = all.iter().find_map(Connection::take) {
            return Some(permit);
        }
        if all.len() == CONNECTIONS_MAX {
            return None;
        }
        let connection =
            Connection { client: self.inner.client.new_connection(), free: Arc::new(Semaphore::new(WATCHES_MAX)) };
        let permit = connection.take();
        all.push(connection);
        permit
    }
}

impl Connection {
    fn take(&self) -> Option<WatchConnection> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(WatchConnection { client: self.client.clone(), _permit: permit })
    }
}

/// Watches per connection. An API server allows 100 streams by default (`--http2-max-streams-per-connection`); streams that have
/// just ended may count for a moment longer.
const WATCHES_MAX: usize = 80;
/// 640 watches suffice for the objects that a few hundred pods refer to. Objects beyond that are polled.
const CONNECTIONS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_filled_one_after_the_other_and_permits_are_reused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(
            &file,
            "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}], \
             contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}",
        )
        .unwrap();
        let pool = WatchConnections::new(&ApiClient::open(&file).unwrap());
        let connections = || pool.inner.connections.lock().unwrap().len();
        let mut taken: Vec<WatchConnection> = (0..WATCHES_MAX).map_while(|_| pool.take()).collect();
        assert_eq!((taken.len(), connections()), (WATCHES_MAX, 1));
        let last = pool.take().unwrap();
        assert_eq!(connections(), 2);
        drop(last);
        taken.extend((0..WATCHES_MAX * CONNECTIONS_MAX).map_while(|_| pool.take()));
        assert_eq!((taken.len(), connections()), (WATCHES_MAX * CONNECTIONS_MAX, CONNECTIONS_MAX));
        assert!(pool.take().is_none());
        taken.remove(3);
        assert!(pool.take().is_some());
    }
}
