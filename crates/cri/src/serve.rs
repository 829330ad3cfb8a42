//! Any engine on a unix socket: what implements the traits in process can be reached by crictl, critest, and our own
//! client in tests.

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

/// A socket that is bound and not yet served. The file goes when this does.
///
/// The file goes first: as long as the listener answers, no successor takes the path, so it is not a successor's file
/// that is removed.
#[derive(Debug)]
pub struct Socket {
    file: socket::SocketFile,
    listener: UnixListener,
}

/// The server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("serve {path}")]
pub struct ServeError {
    path: String,
    #[source]
    source: tonic::transport::Error,
}

impl Socket {
    /// Binds `path`, for this user alone (mode 0600). A socket left by a dead server is replaced, a living one's is not.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let (listener, file) = socket::bind(path)?;
        Ok(Self { file, listener })
    }

    /// Serves until `shutdown`, then lets the calls under way finish for a while ([`DRAIN`]) and ends the event streams.
    pub async fn serve(
        self,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let path = self.file.path().display().to_string();
        // Dropping this future abandons the calls as well: their tasks are not its own.
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
            // The abandoned calls are told; a peer that does not even read is not waited for.
            tokio::time::sleep(FAREWELL).await;
        };
        tokio::select! {
            ended = server => ended.map_err(|source| ServeError { path, source }),
            () = drained => Ok(()),
        }
    }
}

/// Accepts for ever. A failed accept is tried again after a pause: out of descriptors, it would fail at once again.
fn connections(socket: Socket) -> impl futures::Stream<Item = std::io::Result<tokio::net::UnixStream>> {
    stream::unfold(socket, |socket| async {
        loop {
            match socket.listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), socket)),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    })
}

/// How long calls under way may take to finish once the server is told to stop.
pub const DRAIN: Duration = Duration::from_secs(5);

/// How long peers have to hear that their calls are abandoned.
const FAREWELL: Duration = Duration::from_millis(500);

/// The Go runtimes take 16 MiB.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// A stop may wait a pod's whole grace: a full node that is drained has hundreds of them under way.
const CALLS_PER_CONNECTION_MAX: u32 = 2048;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
