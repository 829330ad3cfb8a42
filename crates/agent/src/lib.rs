//! The executors of the agent: each performs one kind of effect and reports its result. Decisions are made in `podwright-core`.

pub mod empty_dirs;
pub mod event_loop;
pub mod feed;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
pub mod host;
pub mod images_gc;
pub mod journal;
pub mod local;
pub mod memory_watch;
mod metrics;
pub(crate) mod name_lookup;
pub mod node_executor;
pub mod object_store;
pub mod objects;
pub mod observe;
pub mod perform;
pub mod pod_spec;
pub mod recorder;
pub mod resource_state;
pub mod rotate;
pub mod shutdown;
pub mod sources;
pub mod stats;
pub mod suspects;
pub mod translate;
