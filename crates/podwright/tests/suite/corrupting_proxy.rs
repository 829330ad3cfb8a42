//! Someone between the agent and the runtime, who passes on what both say, or answers nonsense.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What is done with the runtime's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// They are passed on.
    Honest,
    /// They are passed on with errors in them.
    Slurring,
    /// Something else is said.
    Babbling,
}

/// Listens on a socket of its own.
pub(crate) struct Meddler {
    socket: PathBuf,
    manner: Arc<AtomicU8>,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Meddler {
    /// Between whoever comes to `socket` and the runtime behind `runtime`.
    pub(crate) fn new(socket: PathBuf, runtime: PathBuf) -> Self {
        let listener = UnixListener::bind(&socket).expect("bound");
        let manner = Arc::new(AtomicU8::new(Manner::Honest as u8));
        let open = Arc::<Mutex<Vec<UnixStream>>>::default();
        let (now, kept) = (Arc::clone(&manner), Arc::clone(&open));
        // Ends with the test's process: an accept can't be interrupted.
        thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(guest.try_clone());
                let (now, runtime) = (Arc::clone(&now), runtime.clone());
                thread::spawn(move || attend(guest, &runtime, now.load(Ordering::SeqCst)));
            }
        });
        Self { socket, manner, open }
    }

    /// As an agent is told it.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// From now on, also towards those who are there: they have to come again.
    pub(crate) fn turn(&self, manner: Manner) {
        self.manner.store(manner as u8, Ordering::SeqCst);
        for guest in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = guest.shutdown(Shutdown::Both);
        }
    }
}

fn attend(mut guest: UnixStream, runtime: &Path, manner: u8) {
    if manner == Manner::Babbling as u8 {
        let babble: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let _ = guest.write_all(&babble);
        return;
    }
    let Ok(inside) = UnixStream::connect(runtime) else { return };
    let slurs = manner == Manner::Slurring as u8;
    thread::scope(|scope| {
        scope.spawn(|| pass_on(&guest, &inside, false));
        pass_on(&inside, &guest, slurs);
    });
}

fn pass_on(mut from: &UnixStream, mut to: &UnixStream, slurs: bool) {
    let (mut part, mut count) = ([0u8; 4096], 0usize);
    while let Ok(length @ 1..) = from.read(&mut part) {
        for byte in part.iter_mut().take(length).filter(|_| slurs) {
            count += 1;
            // The greeting is whole, so that it is the answers that are wrong.
            if count > 200 && count.is_multiple_of(61) {
                *byte ^= 0x15;
            }
        }
        if to.write_all(part.get(..length).unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
