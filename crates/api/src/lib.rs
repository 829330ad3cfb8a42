//! The API server seen from the node: who we are to it, the pods it wants here, what we tell it, what it keeps for pods.
//!
//! ```text
//!  kubeconfig ─▶ Cluster (one HTTP/2 connection) ─┬─ pods: list and watch ─▶ SourceChange
//!                                                 ├─ pod_objects: ObjectRequest ─▶ patch, delete, create
//!                                                 ├─ node: the Node object and its status
//!                                                 └─ events
//!                another connection of its own ───── lease
//!                and some for watches ────────────── objects: ConfigMaps, Secrets, services, tokens, claims
//! ```
//!
//! Nothing here decides what becomes of a pod. Every call has a deadline, every retry a cap, every queue a bound; a server
//! that is away, throttles or talks nonsense costs time, never more.

pub mod backoff;
pub mod client;
pub mod error;
pub mod events;
pub mod kubeconfig;
pub mod lease;
pub mod node;
pub mod objects;
pub mod pod_objects;
pub mod pods;
pub mod services;
pub mod token;
pub mod trimmed;

mod connect;
mod exec;
mod lines;
mod staleness;

pub use client::Cluster;
pub use error::ApiError;
pub use kubeconfig::{Kubeconfig, KubeconfigError};
pub use objects::Objects;
