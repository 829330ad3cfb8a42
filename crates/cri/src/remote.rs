//! The client of a runtime behind a unix socket: containerd, CRI-O, or our own `serve`.
//!
//! One HTTP/2 connection carries all calls. It is made at the first call and made anew after it broke, by the next call
//! that needs it: a call fails at once while nobody listens, and how soon to try again is the caller's business. Each
//! call has its time limit twice, here and as the protocol's `grpc-timeout`, so that the runtime gives up as well.

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

/// A runtime behind a unix socket. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct RemoteRuntime {
    endpoint: Arc<str>,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl RemoteRuntime {
    /// A client for `unix:///path` or `/path`. Nothing is dialled yet: the runtime may come later.
    ///
    /// # Panics
    /// Outside a tokio runtime, which the connection lives on.
    pub fn connect(endpoint: &str) -> Result<Self, EndpointError> {
        let path = Arc::new(endpoint::socket_path(endpoint)?);
        // The URI only fills `:authority`, which the runtimes want to be a host name.
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
                        io::Error::new(
                            error.kind(),
                            format!("no runtime answers at unix://{}: {error}", path.display()),
                        )
                    })?;
                    Ok::<_, io::Error>(TokioIo::new(stream))
                }
            }));
        Ok(Self {
            endpoint: endpoint.into(),
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            images: ImageServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
        })
    }

    /// The endpoint as it was given.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// The message with its time limit on the wire.
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
    let late = || CriError::new(Code::DeadlineExceeded, call, format!("no answer within {timeout:?}"));
    let started = Instant::now();
    let answer = async {
        tracing::trace!(target: TRACE, call, "sent");
        let answer = tokio::time::timeout(timeout, rpc).await;
        tracing::trace!(target: TRACE, call, "returned");
        answer
    };
    match answer.instrument(debug_span!("cri", method = call)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => {
            let error = CriError::from_status(call, &status);
            // A peer whose own timer is the first to go off calls the same thing cancelled.
            let expired = error.code == Code::Cancelled && started.elapsed() + WIRE_ROUNDING >= timeout;
            Err(if expired { late() } else { error })
        }
        Err(_) => Err(late()),
    }
}

/// An id that later calls will name must be there.
fn id_given(call: &'static str, id: String) -> Result<String, CriError> {
    if id.is_empty() { Err(CriError::malformed(call, "the runtime answered without an id")) } else { Ok(id) }
}

/// The one part of an answer that was asked for must be there.
fn given<T>(call: &'static str, what: &str, part: Option<T>) -> Result<T, CriError> {
    part.ok_or_else(|| CriError::malformed(call, format!("the runtime answered without {what}")))
}

/// Where the runtime's time begins and ends: whoever measures ours takes it off.
const TRACE: &str = "podwright::trace";

/// The Go client takes 16 MiB, which a node full of long annotations can exceed in one list.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Room for one list of a full node without waiting for window updates.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// An event stream that nobody reads for a while must not hold the other calls up.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// A failure's message travels in a header, and runtimes put whole stories in it; past this the failure would reach us
/// as a broken stream instead.
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// Longer is not sent: the wire form has eight digits.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a time limit may lose in its wire form.
const WIRE_ROUNDING: Duration = Duration::from_millis(2);
