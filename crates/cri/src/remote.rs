//! The client of a runtime behind a unix socket: containerd, CRI-O, or our own `serve`.
//!
//! One HTTP/2 connection carries all calls. The first call opens it, and the next call reopens it after it broke. A call fails at
//! once while the socket has no listener; the caller decides when to retry. Each call has its timeout twice, here and as the
//! protocol's `grpc-timeout`, so that the runtime gives up as well.

mod endpoint;
mod images;
mod runtime;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, time::Instant};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};
use tracing::{Instrument, debug_span};

use crate::{
    Code, CriError,
    v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient},
};

pub use endpoint::EndpointError;

/// A runtime behind a unix socket. Cheap to clone; clones share the connection. One method per RPC of the protocol.
#[derive(Debug, Clone)]
pub struct RemoteRuntime {
    endpoint: Arc<str>,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl RemoteRuntime {
    /// A client for `unix:///path` or `/path`. Does not connect yet: the runtime may start later.
    ///
    /// # Panics
    /// Outside a tokio runtime, on which the connection's task runs.
    pub fn connect(endpoint: &str) -> Result<Self, EndpointError> {
        let path = Arc::new(endpoint::socket_path(endpoint)?);
        // The URI only sets `:authority`, which the runtimes require to be a host name.
        let channel = Endpoint::from_static("http://localhost")
            .user_agent(concat!("podwright/", env!("CARGO_PKG_VERSION")))
            .expect("a plain ASCII user agent")
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .connect_with_connector_lazy(tower::service_fn(move |_| {
                let path = path.clone();
                async move {
                    let stream = UnixStream::connect(&*path).await.map_err(|error| {
                        io::Error::new(error.kind(), format!("connect to unix://{}: {error}", path.display()))
                    })?;
                    Ok::<_, io::Error>(TokioIo::new(stream))
                }
            }));
        Ok(Self {
            endpoint: endpoint.into(),
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            images: ImageServiceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX),
        })
    }

    /// The endpoint as passed to `connect`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// The message with its `grpc-timeout`.
fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout.min(TIMEOUT_MAX));
    request
}

/// Waits for one call, at most `timeout`.
async fn within<T>(
    call: &'static str,
    timeout: Duration,
    rpc: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    let timeout = timeout.min(TIMEOUT_MAX);
    let timed_out = || CriError::new(Code::DeadlineExceeded, call, format!("no response within {timeout:?}"));
    let started = Instant::now();
    let result = async {
        tracing::trace!(target: TRACE, call, "sent");
        let result = tokio::time::timeout(timeout, rpc).await;
        tracing::trace!(target: TRACE, call, "returned");
        tracing::debug!(elapsed_ms = started.elapsed().as_millis(), ok = matches!(result, Ok(Ok(_))), "runtime call");
        result
    };
    match result.instrument(debug_span!("cri", method = call)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => {
            let error = CriError::from_status(call, &status);
            // A peer whose own timer fires first reports the same timeout as cancelled.
            let expired = error.code == Code::Cancelled && started.elapsed() + WIRE_ROUNDING >= timeout;
            Err(if expired { timed_out() } else { error })
        }
        Err(_) => Err(timed_out()),
    }
}

/// The response must have an id, which later calls use.
fn require_id(call: &'static str, id: String) -> Result<String, CriError> {
    if id.is_empty() { Err(CriError::malformed(call, "the runtime's response is without an id")) } else { Ok(id) }
}

/// The response must have this part.
fn require<T>(call: &'static str, what: &str, part: Option<T>) -> Result<T, CriError> {
    part.ok_or_else(|| CriError::malformed(call, format!("the runtime's response is without {what}")))
}

/// Marks the start and end of a call; the benchmark subtracts the runtime's time from the total.
const TRACE: &str = "podwright::trace";

/// The Go client accepts 16 MiB, which one list of a node with many long annotations can exceed.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Enough for one list of a full node without waiting for window updates.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// An event stream that is not read for a while must not block the other calls.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Error messages are sent in a header, and those of runtimes can be long; beyond this limit the error would appear as a broken
/// stream instead.
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// Upper bound of a timeout: `grpc-timeout` has eight digits.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a timeout may lose when it is encoded as `grpc-timeout`.
const WIRE_ROUNDING: Duration = Duration::from_millis(2);
