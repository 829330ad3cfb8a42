//! A proxy between the agent and the runtime that can corrupt the runtime's responses.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// How the runtime's responses are corrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corruption {
    /// They are forwarded unchanged.
    None,
    /// Some bytes are changed.
    FlippedBytes,
    /// Random bytes are sent instead.
    Garbage,
}

/// Listens on its own socket.
pub(crate) struct CorruptingProxy {
    socket: PathBuf,
    corruption: Arc<AtomicU8>,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl CorruptingProxy {
    /// Listens on `socket` and forwards to `runtime`.
    pub(crate) fn new(socket: PathBuf, runtime: PathBuf) -> Self {
        let listener = UnixListener::bind(&socket).expect("bound");
        let corruption = Arc::new(AtomicU8::new(Corruption::None as u8));
        let open = Arc::<Mutex<Vec<UnixStream>>>::default();
        let (current, clients) = (Arc::clone(&corruption), Arc::clone(&open));
        // Ends with the test's process: an accept can't be interrupted.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                clients.lock().unwrap_or_else(PoisonError::into_inner).extend(client.try_clone());
                let (current, runtime) = (Arc::clone(&current), runtime.clone());
                thread::spawn(move || serve(client, &runtime, current.load(Ordering::SeqCst)));
            }
        });
        Self { socket, corruption, open }
    }

    /// As in `--container-runtime-endpoint`.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Applies to new connections; open ones are closed, so that clients have to reconnect.
    pub(crate) fn set(&self, corruption: Corruption) {
        self.corruption.store(corruption as u8, Ordering::SeqCst);
        for client in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

fn serve(mut client: UnixStream, runtime: &Path, corruption: u8) {
    if corruption == Corruption::Garbage as u8 {
        let garbage: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let _ = client.write_all(&garbage);
        return;
    }
    let Ok(upstream) = UnixStream::connect(runtime) else { return };
    let flip_bytes = corruption == Corruption::FlippedBytes as u8;
    thread::scope(|scope| {
        scope.spawn(|| forward(&client, &upstream, false));
        forward(&upstream, &client, flip_bytes);
    });
}

fn forward(mut from: &UnixStream, mut to: &UnixStream, flip_bytes: bool) {
    let (mut part, mut count) = ([0u8; 4096], 0usize);
    while let Ok(length @ 1..) = from.read(&mut part) {
        for byte in part.iter_mut().take(length).filter(|_| flip_bytes) {
            count += 1;
            // The connection preface stays valid, so that responses are corrupted and not the handshake.
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
