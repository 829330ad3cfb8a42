//! The parts that both comparisons with the Go kubelet share: the pods, their fields, and the rules for accepted differences.

pub(crate) mod accepted;
pub(crate) mod cases;
pub(crate) mod difference;
pub(crate) mod downward;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod objects;
pub(crate) mod stable;
pub(crate) mod stats;
