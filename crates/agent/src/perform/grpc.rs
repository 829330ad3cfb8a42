//! The gRPC health check (`grpc.health.v1.Health/Check`), as a client.
//!
//! Two messages of one field each: written by hand, to keep another generated protocol out of the build.

use std::time::Duration;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::http::KUBERNETES;

/// Which service is asked about; empty is the server as a whole.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// The server's word.
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

/// Asks once, without TLS. `Err`: it does not serve, and what was seen.
pub(super) async fn check(authority: &str, service: &str, limit: Duration) -> Result<(), String> {
    let channel = tokio::time::timeout(limit, connect(authority)).await;
    let channel = channel
        .map_err(|_| format!("timeout: failed to connect service {authority:?} within {limit:?}"))?
        .map_err(|error| format!("error: failed to connect service at {authority:?}: {error}"))?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    client.ready().await.map_err(|error| format!("error: health rpc probe failed: {error}"))?;
    let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    match client.unary(request, path, codec).await {
        Ok(answer) => match answer.get_ref().status() {
            ServingStatus::Serving => Ok(()),
            other => Err(format!("service unhealthy (responded with {:?})", name(other))),
        },
        Err(status) if status.code() == tonic::Code::Unimplemented => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Err(status) => Err(format!("error: health rpc probe failed: {status}")),
    }
}

async fn connect(authority: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{authority}")).map_err(|error| error.to_string())?;
    let endpoint = endpoint.user_agent(format!("kube-probe/{KUBERNETES}")).map_err(|error| error.to_string())?;
    endpoint.connect().await.map_err(|error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(deeper) = cause {
            text = format!("{text}: {deeper}");
            cause = deeper.source();
        }
        text
    })
}

/// As the protocol spells it.
fn name(status: ServingStatus) -> &'static str {
    match status {
        ServingStatus::Unknown => "UNKNOWN",
        ServingStatus::Serving => "SERVING",
        ServingStatus::NotServing => "NOT_SERVING",
        ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
    }
}

/// The answer is two bytes; anything larger is not one.
const ANSWER_BYTES_MAX: usize = 4096;
