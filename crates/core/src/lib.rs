//! Every decision of the node agent: `handle(event, now) → records, effects`.
//!
//! Synchronous, without files, clocks or random numbers: input comes in as [`model::Event`], work goes out as [`model::Effect`],
//! and what must survive a restart of the agent as [`model::Record`]. The agent's executors perform the effects and report back.

mod actions;
pub mod admission;
pub mod backoff;
pub mod certificates;
pub mod concurrency;
mod config;
pub mod decoded_size;
pub mod defaults;
pub mod eviction;
pub mod expansion;
mod fields;
pub mod gc;
pub mod hash;
mod health;
pub mod image_access;
pub mod kubelet_api;
mod mirror;
pub mod model;
pub mod mutate;
pub mod node;
pub mod node_status;
mod pleg;
pub mod pod;
mod preemption;
mod probe;
pub mod qos;
pub mod quantity;
pub mod record;
mod resize;
pub mod resource_state;
pub mod shutdown;
pub mod sources;
pub mod static_pod;
pub mod status;
pub mod status_sync;
pub mod strategic_merge;
pub mod suspects;
pub mod takeover;
pub mod validate;
mod workers;

pub use config::NodeConfig;
pub use node::Node;
