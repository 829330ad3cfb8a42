//! What listens: the local API on a socket of its own, and health and pods for monitors on the address of `--listen`.
//!
//! The binary starts these and hands them what they show. Here the agent is asked and told; nothing is decided.

pub mod listen;
pub mod local;
mod log;
mod serve;

use podwright_cri::BoxFuture;
