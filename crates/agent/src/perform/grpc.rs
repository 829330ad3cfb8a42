//! Client of the gRPC health check (`grpc.health.v1.Health/Check`).
//!
//! Its two messages have one field each and are written by hand, to keep another generated protocol out of the build.

use std::time::Duration;

use podwright_tasks::error_chain;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::http::KUBERNETES_VERSION;

/// `service` is empty for the server as a whole.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(super) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// Why a health check failed. Messages as in the Go kubelet (`pkg/probe/grpc`).
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthCheckError {
    #[error("timeout: failed to connect service {authority:?} within {limit:?}")]
    ConnectTimeout { authority: String, limit: Duration },
    #[error("error: failed to connect service at {authority:?}: {}", error_chain(.source))]
    Connect { authority: String, source: tonic::transport::Error },
    #[error("error: health rpc probe failed: {0}")]
    NotReady(tonic::transport::Error),
    #[error("error: health rpc probe failed: {0}")]
    Rpc(tonic::Status),
    #[error("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    Unimplemented(String),
    #[error("service unhealthy (responded with {:?})", name(*.0))]
    Unhealthy(ServingStatus),
}

/// Sends one health check, without TLS.
pub(super) async fn check(authority: &str, service: &str, limit: Duration) -> Result<(), HealthCheckError> {
    let channel = tokio::time::timeout(limit, connect(authority)).await;
    let channel = channel
        .map_err(|_| HealthCheckError::ConnectTimeout { authority: authority.to_owned(), limit })?
        .map_err(|source| HealthCheckError::Connect { authority: authority.to_owned(), source })?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    client.ready().await.map_err(HealthCheckError::NotReady)?;
    let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    match client.unary(request, path, codec).await {
        Ok(response) => match response.get_ref().status() {
            ServingStatus::Serving => Ok(()),
            other => Err(HealthCheckError::Unhealthy(other)),
        },
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            Err(HealthCheckError::Unimplemented(status.message().to_owned()))
        }
        Err(status) => Err(HealthCheckError::Rpc(status)),
    }
}

async fn connect(authority: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?;
    endpoint.user_agent(format!("kube-probe/{KUBERNETES_VERSION}"))?.connect().await
}

/// The name of a status in the protocol.
fn name(status: ServingStatus) -> &'static str {
    match status {
        ServingStatus::Unknown => "UNKNOWN",
        ServingStatus::Serving => "SERVING",
        ServingStatus::NotServing => "NOT_SERVING",
        ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
    }
}

/// A valid response has two bytes.
const RESPONSE_BYTES_MAX: usize = 4096;
