//! The parts of the comparisons with the Go kubelet: the pods, their fields, and the rules for accepted differences.

pub(crate) mod accepted;
pub(crate) mod cases;
pub(crate) mod difference;
pub(crate) mod downward;
pub(crate) mod fields;
pub(crate) mod in_cluster;
pub(crate) mod messages;
pub(crate) mod objects;
pub(crate) mod pair;
pub(crate) mod served_runtime;
pub(crate) mod stable;
pub(crate) mod standalone;
pub(crate) mod stats;
pub(crate) mod turns;
