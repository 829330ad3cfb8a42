//! Serves any implementation of the traits on a unix socket: for crictl, critest, and our own client in tests.

mod adapter;
mod socket;

use std::{path::Path, sync::Arc, time::Duration};

use futures::stream;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::{
    ImageService, RuntimeService,
    v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};

pub use socket::BindError;

/// A socket that is bound and not yet served. Dropping it removes the file.
///
/// The file is dropped before the listener: while the listener accepts, no other server takes the path, so the removed file is
/// never another server's.
#[derive(Debug)]
pub struct CriSocket {
    file: socket::SocketFile,
    listener: UnixListener,
}

/// The server failed.
#[derive(Debug, thiserror::Error)]
#[error("serve {path}")]
pub struct ServeError {
    path: String,
    #[source]
    source: tonic::transport::Error,
}

impl CriSocket {
    /// Binds `path` with mode 0600. The socket of a server that has exited is replaced; that of a running one is an error.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let (listener, file) = socket::bind(path)?;
        Ok(Self { file, listener })
    }

    /// Serves until `shutdown`, then ends the event streams and gives running calls [`DRAIN`] to finish.
    pub async fn serve(
        self,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let path = self.file.path().display().to_string();
        // Dropping this future must abandon the calls as well: they run in separate tasks.
        let (closing, closed) = (CancellationToken::new(), CancellationToken::new());
        let _abandon = [closing.clone().drop_guard(), closed.clone().drop_guard()];
        let adapter = adapter::Adapter { runtime, images, closing: closing.clone(), closed: closed.clone() };

        let runtime = RuntimeServiceServer::new(adapter.clone()).max_decoding_message_size(REQUEST_BYTES_MAX);
        let images = ImageServiceServer::new(adapter).max_decoding_message_size(REQUEST_BYTES_MAX);
        let server = Server::builder()
            .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
            .add_service(runtime)
            .add_service(images)
            .serve_with_incoming_shutdown(connections(self), async {
                shutdown.await;
                closing.cancel();
            });
        let drained = async {
            closing.cancelled().await;
            tokio::time::sleep(DRAIN).await;
            closed.cancel();
            // Time to send the errors of the abandoned calls; a peer that does not read can't block the shutdown.
            tokio::time::sleep(ABANDON_GRACE).await;
        };
        tokio::select! {
            ended = server => ended.map_err(|source| ServeError { path, source }),
            () = drained => Ok(()),
        }
    }
}

/// Accepts for ever. A failed accept is retried after a pause: without free descriptors it would fail again immediately.
fn connections(socket: CriSocket) -> impl futures::Stream<Item = std::io::Result<tokio::net::UnixStream>> {
    stream::unfold(socket, |socket| async {
        loop {
            match socket.listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), socket)),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    })
}

/// How long running calls may take to finish after `shutdown`.
pub const DRAIN: Duration = Duration::from_secs(5);

/// How long the errors of abandoned calls may take to be sent.
const ABANDON_GRACE: Duration = Duration::from_millis(500);

/// The limit of the Go runtimes.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// A stop may take a pod's whole grace period: a full node that is drained has hundreds of them running.
const CALLS_PER_CONNECTION_MAX: u32 = 2048;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
