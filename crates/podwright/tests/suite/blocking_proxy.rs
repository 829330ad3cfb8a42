//! A door in front of a server: who comes waits until it is opened, for ever if it never is.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Accepts on loopback and passes on to the server behind it once it is open.
pub(crate) struct Door {
    state: Arc<State>,
    address: String,
}

#[derive(Default)]
struct State {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: Mutex<usize>,
}

impl Door {
    /// A closed door to `server`.
    pub(crate) fn closed(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        let (state, server) = (Arc::new(State::default()), server.to_owned());
        let shared = Arc::clone(&state);
        // Ends with the test's process: an accept can't be interrupted.
        thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                let (state, server) = (Arc::clone(&shared), server.clone());
                thread::spawn(move || state.let_in(&guest, &server));
            }
        });
        Self { state, address }
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Connections that have come so far.
    pub(crate) fn guests(&self) -> usize {
        *self.state.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let everyone in, also those who come later.
    pub(crate) fn open(&self) {
        *self.state.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.state.opened.notify_all();
    }
}

impl State {
    fn let_in(&self, guest: &TcpStream, server: &str) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open));
        let Ok(inside) = TcpStream::connect(server) else { return };
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = copy(&mut &*guest, &mut &inside);
                let _ = inside.shutdown(Shutdown::Write);
            });
            let _ = copy(&mut &inside, &mut &*guest);
            let _ = guest.shutdown(Shutdown::Write);
        });
    }
}
