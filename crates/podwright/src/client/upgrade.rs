//! Requests whose connection becomes a SPDY connection to the streaming server of the runtime.

use http::{Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{Client, ClientError, RESPONSE_MAX};

/// Sends the request, and returns the upgraded connection. `protocol` is that of the streams.
pub(super) async fn upgrade(client: &Client, path: &str, protocol: &str) -> Result<TokioIo<Upgraded>, ClientError> {
    let opened = client.request(Method::POST, path, None, |request| {
        request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "SPDY/3.1")
            .header("x-stream-protocol-version", protocol)
    });
    let response = timeout(RESPONSE_MAX, opened).await.map_err(|_| client.no_response())??;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), ERROR_MAX).collect();
        let body = timeout(RESPONSE_MAX, body).await.map_err(|_| client.no_response())?;
        return Err(ClientError::from_response(status, &body.map_err(|error| client.failed(error))?.to_bytes()));
    }
    hyper::upgrade::on(response).await.map(TokioIo::new).map_err(|error| client.failed(error))
}

/// Bytes of an error response.
const ERROR_MAX: usize = 1 << 20;
