//! Eviction: pods end when the node runs out of memory, disk space, inodes or process ids, or when they exceed their own limits of
//! local storage.
//!
//! ```text
//!  reading ─▶ thresholds met ─▶ node conditions ─▶ storage limits ─▶ the most urgent threshold
//!     ▲                                                                │
//!     │          reclaim: dead containers ─▶ unused images ◀───────────┤ disk
//!     │                                          │                     │ memory, process ids
//!     └──────────── measured again ──────────────┘                     ▼
//!     └───────── the pod has ended, or 30 s ◀──────────── one pod is evicted
//! ```
//! Everything here is a function or a plain state; `node/eviction.rs` applies it to pods.

mod conditions;
mod control;
mod message;
mod rank;
mod storage_limits;
mod threshold;

pub(crate) use conditions::refusal;
pub use control::EvictionConfig;
pub(crate) use control::{Action, Eviction};
pub use message::{EVICTED, eviction_message};
pub use rank::{Candidate, rank};
pub use storage_limits::{ExceededLimit, LimitedVolume, exceeded_limit, has_storage_limits};
pub use threshold::{Threshold, ThresholdValue, thresholds_met, with_container_fs};
