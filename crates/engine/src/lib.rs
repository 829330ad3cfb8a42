//! The embedded container engine: the verbs of the CRI on images, shims and networks of our own.
//!
//! ```text
//!  CRI call ──▶ verbs ──▶ driver: machine (decides) ──▶ effects ──▶ spec, plan (what to run) ──▶ shims, net, images
//!                                                               └─▶ store (records)
//! ```

mod cgroup_limits;
mod context;
mod device_rules;
mod driver;
mod engine;
mod events;
mod exec_output;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
mod handlers;
pub mod images;
mod metrics;
mod objects;
pub mod plan;
mod pod_network;
mod recover;
mod settings;
mod shims;
mod signals;
mod spec;
mod stats;
pub mod store;
pub mod streaming;
mod sweep;
mod unreadable;
mod unwritten;
mod verbs;
mod views;

/// The decisions of the engine.
pub use podwright_engine_machine as machine;

pub use engine::{Engine, EngineError, OverlayProbeError};
pub use settings::{EngineSettings, NetworkSettings, OciRuntime, default_pod_range};
