//! The process that owns a pod's containers.
//!
//! ```text
//!  agent ── starts ──▶ zygote ── forks, one per pod ──▶ shim ── clone3 ──▶ containers, execs
//! ```
//!
//! A shim is single-threaded and outlives the agent: it is parent and reaper of the pod's processes, and owns their standard
//! streams, logs and exit records.

pub mod client;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz_api;
pub mod launch;
pub mod launcher;
mod log_writer;
pub mod plan;
pub mod protocol;
mod reap;
pub mod run_files;
mod stdio;
mod supervise;
mod threads;
pub mod zygote;

pub use zygote::is_zygote;
