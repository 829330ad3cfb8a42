//! Decisions of the kubelet's API on port 10250: the access that a request needs, and the log that it reads.

pub mod access;
pub mod log_query;
