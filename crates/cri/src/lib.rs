//! The container runtime interface: the traits through which the agent uses any runtime, a client and a server for them.
//!
//! ```text
//!   agent ──▶ dyn RuntimeService, dyn ImageService ◀── sim's fake, the embedded engine (in process)
//!                        ▲              │
//!                     remote          serve
//!                        │              ▼
//!               containerd, CRI-O    a unix socket, for crictl and tests
//! ```
//!
//! The traits use the protocol's own messages ([`v1`]): one method per call, a timeout on each, and errors that state whether the
//! effect may have happened nevertheless ([`CriError::in_doubt`]). Nothing here decides or retries.

pub mod error;
pub mod labels;
pub mod remote;
pub mod serve;
pub mod service;

mod redact;
mod shared;

/// The messages of CRI v1, with tonic's client and server, generated from `proto/runtime/v1/api.proto`.
///
/// Maps are ordered, so that equal responses give equal runs.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::cast_possible_wrap)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

pub use error::{Code, CriError};
pub use remote::RemoteRuntime;
pub use service::{BoxFuture, CriFuture, EventStream, ImageService, RuntimeService};
