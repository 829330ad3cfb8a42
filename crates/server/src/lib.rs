//! The HTTP servers of the agent: the local API on a Unix socket, and health, pods and metrics on the address of `--listen`.
//!
//! The binary starts both servers and passes in the data they serve. This crate queries the agent and sends it events; it
//! makes no decisions about pods.

pub mod health_server;
pub mod local;
mod log;
mod query;
mod serve;
mod status_error;
