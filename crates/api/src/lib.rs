//! The API server as the node uses it: authentication, the pods assigned to this node, the objects we write, the objects pods refer to.
//!
//! ```text
//!  kubeconfig ─▶ ApiClient (one HTTP/2 connection) ─┬─ pods: list and watch ─▶ SourceChange
//!                                                   ├─ pod_objects: ObjectRequest ─▶ patch, delete, create
//!                                                   ├─ node: the Node object and its status
//!                                                   └─ events
//!                  a connection of its own ──────────── lease
//!                  certificates: requested, stored, rotated; connections follow
//!                  up to eight for watches ──────────── objects: ConfigMaps, Secrets, services, tokens, claims
//! ```
//!
//! This crate makes no decision about a pod. Every call has a deadline, every retry a cap, every queue a bound: a server that is
//! unreachable, throttles, or sends malformed responses only causes delay.

pub mod authorities;
pub mod certificates;
pub mod client;
mod error;
pub mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
mod kubeconfig;
pub mod lease;
pub mod node;
mod objects;
pub mod pod_objects;
pub mod pods;
pub mod reviews;
mod services;
pub mod token;

mod backoff;
mod certificate;
mod certificate_pair;
mod connect;
mod credential_plugin;
mod object_read;
mod server_verifier;
mod staleness;
mod trimmed;
mod watch_cache;
mod watch_stream;
mod watched_body;

pub use client::ApiClient;
pub use error::ApiError;
pub use kubeconfig::{ClientCertificateSource, Kubeconfig, KubeconfigError};
pub use objects::ReferencedObjects;
