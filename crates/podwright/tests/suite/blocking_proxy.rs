//! A TCP proxy in front of a server that holds every connection, or the responses after some bytes, until the test unblocks it.

use std::io::{Read, copy};
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
    /// Bytes of responses that are forwarded before the test unblocks it; `None`: connections wait for that.
    allowance: Option<Mutex<usize>>,
}

impl BlockingProxy {
    /// A blocked proxy to `server`.
    pub(crate) fn new(server: &str) -> Self {
        Self::with(server, None)
    }

    /// A proxy that forwards so many bytes of responses, over all connections, and is blocked then.
    pub(crate) fn after(server: &str, bytes: usize) -> Self {
        Self::with(server, Some(Mutex::new(bytes)))
    }

    fn with(server: &str, allowance: Option<Mutex<usize>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(State { allowance, ..State::default() });
        let server = server.to_owned();
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

    /// All bytes that are forwarded before it is unblocked were forwarded.
    pub(crate) fn is_exhausted(&self) -> bool {
        let allowance = self.state.allowance.as_ref();
        allowance.is_some_and(|left| *left.lock().unwrap_or_else(PoisonError::into_inner) == 0)
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
        if self.allowance.is_none() {
            self.wait_unblocked();
        }
        let Ok(upstream) = TcpStream::connect(server) else { return };
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = copy(&mut &*client, &mut &upstream);
                let _ = upstream.shutdown(Shutdown::Write);
            });
            let _ = copy(&mut Allowed { stream: &upstream, state: self }, &mut &*client);
            let _ = client.shutdown(Shutdown::Write);
        });
    }

    fn wait_unblocked(&self) {
        let unblocked = self.unblocked.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(unblocked, |unblocked| !*unblocked));
    }
}

/// Responses, read as far as they may be forwarded.
struct Allowed<'a> {
    stream: &'a TcpStream,
    state: &'a State,
}

impl Read for Allowed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(allowance) = &self.state.allowance else { return self.stream.read(buffer) };
        let left = *allowance.lock().unwrap_or_else(PoisonError::into_inner);
        if left == 0 {
            self.state.wait_unblocked();
            return self.stream.read(buffer);
        }
        let count = buffer.len().min(left);
        let count = self.stream.read(&mut buffer[..count])?;
        let mut left = allowance.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(count);
        Ok(count)
    }
}
