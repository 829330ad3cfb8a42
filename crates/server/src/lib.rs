//! The HTTP servers of the agent: the local API on a Unix socket, the kubelet's API on port 10250, and health, pods and metrics on the
//! address of `--listen`.
//!
//! The binary starts the servers and passes in the data they serve. This crate queries the agent and sends it events; it
//! makes no decisions about pods.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
pub mod health_server;
pub mod kubelet;
pub mod local;
mod log;
pub mod loopback_proxy;
mod query;
mod serve;
mod status_error;
mod stream_target;
mod streaming_proxy;

pub use streaming_proxy::StreamingRuntime;
