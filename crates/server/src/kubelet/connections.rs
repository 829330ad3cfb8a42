//! The connections of the server: how many there may be, and which one is closed when there are too many.
//!
//! A connection counts as unauthorized until its first authorized request: a valid credential without permissions reserves nothing.
//! When there are too many of those, the oldest one of the address that has the most is closed: clients that only open connections
//! displace their own. Authorized connections are not closed; a user has a share of them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::client_ip;
use super::connection::serve_connection;
use super::state::ServerState;
use super::tls::ServerTls;

/// Accepts connections until `stop` is cancelled.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Arc<ServerTls>,
    state: Arc<ServerState>,
    stop: CancellationToken,
) {
    let table = ConnectionTable::default();
    loop {
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Mostly EMFILE, which passes when other descriptors are closed.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let slot = Arc::new(table.open(client_ip(peer)));
        let (config, state, stop) = (tls.config(), Arc::clone(&state), stop.clone());
        podwright_tasks::spawn("https-connection", async move {
            tokio::select! {
                () = serve_connection(stream, peer, config, Arc::clone(&slot), state) => {}
                () = slot.closed.cancelled() => tracing::debug!(address = %peer, "connection closed in favour of a newer one"),
                () = async { stop.cancelled().await; tokio::time::sleep(DRAIN_TIMEOUT).await } => {}
            }
        });
    }
}

/// All connections.
#[derive(Clone, Default)]
pub(super) struct ConnectionTable(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next_id: u64,
    /// Oldest first.
    unauthorized: BTreeMap<u64, (IpAddr, CancellationToken)>,
    /// The number of connections by user; none is zero.
    authorized: HashMap<String, usize>,
}

/// One connection; dropped with it.
pub(super) struct ConnectionSlot {
    table: ConnectionTable,
    id: u64,
    /// The user of the first authorized request.
    user: Mutex<Option<String>>,
    /// Cancelled in order to close the connection.
    pub(super) closed: CancellationToken,
}

impl ConnectionTable {
    /// A slot for a new connection; closes another one if there is none.
    pub(super) fn open(&self, ip: IpAddr) -> ConnectionSlot {
        let mut table = self.lock();
        if table.unauthorized.len() >= UNAUTHORIZED_MAX {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            table.unauthorized.values().for_each(|(ip, _)| *counts.entry(*ip).or_default() += 1);
            let most = counts.values().copied().max().unwrap_or(0);
            let victim = table.unauthorized.iter().find(|(_, (ip, _))| counts[ip] == most).map(|(id, _)| *id);
            if let Some((_, closed)) = victim.and_then(|id| table.unauthorized.remove(&id)) {
                closed.cancel();
            }
        }
        let (id, closed) = (table.next_id, CancellationToken::new());
        table.next_id += 1;
        table.unauthorized.insert(id, (ip, closed.clone()));
        drop(table);
        ConnectionSlot { table: self.clone(), id, user: Mutex::default(), closed }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    /// Called with every authorized request. `false`: there are too many authorized connections, of this user or of all.
    pub(super) fn authorize(&self, user: &str) -> bool {
        let mut first = self.user.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some() {
            return true;
        }
        let mut table = self.table.lock();
        let own = table.authorized.get(user).copied().unwrap_or(0);
        if own >= USER_MAX || table.authorized.values().sum::<usize>() >= AUTHORIZED_MAX {
            return false;
        }
        table.unauthorized.remove(&self.id);
        table.authorized.insert(user.to_owned(), own + 1);
        *first = Some(user.to_owned());
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let user = self.user.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut table = self.table.lock();
        let Some(user) = user else { return drop(table.unauthorized.remove(&self.id)) };
        if let Some(count) = table.authorized.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                table.authorized.remove(&user);
            }
        }
    }
}

/// Together 704.
const UNAUTHORIZED_MAX: usize = 64;
const AUTHORIZED_MAX: usize = 640;
/// Authorized connections of one user: more than it may have streams, which take one each, so that the API server finds a free one
/// for all else.
const USER_MAX: usize = 512;
/// For open connections after `stop`.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_only_open_connections_displace_their_own() {
        let table = ConnectionTable::default();
        let (good, bad): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = table.open(good);
        let flood: Vec<_> = (0..1000).map(|_| table.open(bad)).collect();
        assert!(!first.closed.is_cancelled());
        let open = flood.iter().filter(|slot| !slot.closed.is_cancelled()).count();
        assert_eq!(open, UNAUTHORIZED_MAX - 1);
        assert!(!flood[999].closed.is_cancelled() && flood[0].closed.is_cancelled());
    }

    #[test]
    fn authorized_connections_have_a_limit_of_their_own_and_are_not_displaced() {
        let table = ConnectionTable::default();
        let ip: IpAddr = [10, 0, 0, 1].into();
        let mut all: Vec<_> = (0..AUTHORIZED_MAX).map(|_| table.open(ip)).collect();
        // Unauthorized ones were displaced meanwhile; authorization is per connection.
        let user = |n: usize| if n.is_multiple_of(2) { "jane" } else { "joe" };
        all.iter().enumerate().for_each(|(n, slot)| assert!(slot.authorize(user(n)) && slot.authorize(user(n))));
        let more = table.open(ip);
        assert!(!more.authorize("admin"));
        let _flood: Vec<_> = (0..200).map(|_| table.open([10, 0, 0, 2].into())).collect();
        drop(all.pop());
        assert!(more.authorize("admin"));
        assert_eq!(table.lock().authorized.values().sum::<usize>(), AUTHORIZED_MAX);
        drop((all, more));
        assert!(table.lock().authorized.is_empty());
    }

    #[test]
    fn one_user_cannot_take_all_authorized_connections() {
        let table = ConnectionTable::default();
        let ip: IpAddr = [10, 0, 0, 1].into();
        let all: Vec<_> = (0..AUTHORIZED_MAX).map(|_| table.open(ip)).collect();
        assert_eq!(all.iter().filter(|slot| slot.authorize("jane")).count(), USER_MAX);
        assert!(table.open(ip).authorize("admin"));
    }
}
