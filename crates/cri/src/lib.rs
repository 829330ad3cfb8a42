//! The seam to a container runtime: what the agent asks of any of them, and how it is asked.
//!
//! ```text
//!   agent ──▶ dyn RuntimeService, dyn ImageService ◀── sim's fake, the embedded engine (in process)
//!                        ▲              │
//!                     remote          serve
//!                        │              ▼
//!               containerd, CRI-O    a unix socket, for crictl and tests
//! ```
//!
//! The traits carry the protocol's own messages ([`v1`]): one method a call, a time limit on each, and errors that say
//! whether the effect may have happened all the same ([`CriError::in_doubt`]). Nothing here decides or retries.

pub mod error;
pub mod labels;
pub mod remote;
pub mod serve;
pub mod service;

mod redact;

/// The messages of CRI v1, with tonic's client and server, generated from `proto/runtime/v1/api.proto`.
///
/// Maps are ordered, so that the same answers give the same run.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::cast_possible_wrap)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

pub use error::{Code, CriError};
pub use remote::{EndpointError, RemoteRuntime};
pub use service::{Answer, BoxFuture, EventStream, ImageService, RuntimeService};
