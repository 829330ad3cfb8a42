//! The parts that both comparisons with the Go kubelet share: the pods, their fields, and the rules for accepted differences.

pub(crate) mod accepted;
pub(crate) mod cases;
pub(crate) mod difference;
pub(crate) mod fields;
pub(crate) mod objects;
pub(crate) mod stable;
