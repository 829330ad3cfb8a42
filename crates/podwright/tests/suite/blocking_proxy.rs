//! A TCP proxy in front of a server that holds every connection until the test unblocks it.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Accepts on loopback, and forwards to the server once it is unblocked.
pub(crate) struct BlockingProxy {
    state: Arc<State>,
    address: String,
}

#[derive(Default)]
struct State {
    unblocked: Mutex<bool>,
    changed: Condvar,
    connections: Mutex<usize>,
}

impl BlockingProxy {
    /// A blocked proxy to `server`.
    pub(crate) fn new(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        let (state, server) = (Arc::new(State::default()), server.to_owned());
        let shared = Arc::clone(&state);
        // Ends with the test's process: an accept can't be interrupted.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, server) = (Arc::clone(&shared), server.clone());
                thread::spawn(move || state.forward(&client, &server));
            }
        });
        Self { state, address }
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        *self.state.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards all connections from now on, waiting and new.
    pub(crate) fn unblock(&self) {
        *self.state.unblocked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.state.changed.notify_all();
    }
}

impl State {
    fn forward(&self, client: &TcpStream, server: &str) {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let unblocked = self.unblocked.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(unblocked, |unblocked| !*unblocked));
        let Ok(upstream) = TcpStream::connect(server) else { return };
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = copy(&mut &*client, &mut &upstream);
                let _ = upstream.shutdown(Shutdown::Write);
            });
            let _ = copy(&mut &upstream, &mut &*client);
            let _ = client.shutdown(Shutdown::Write);
        });
    }
}
