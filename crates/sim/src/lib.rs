//! Deterministic simulation: the shipped core on virtual time, with a container runtime, a host, a journal, an API server and
//! users that act and fail as a seed decides, and checkers that see the true state. The same seed always gives the same run:
//! `sim --seed N --trace`.
//!
//! Three ways to test core: random seeds ([`schedule`]), every placement of a few deviations ([`explore`]), and every way a
//! pod can terminate ([`termination`]); and scenarios such as [`pressure`]. `agent_harness` runs the whole agent over a fake runtime.

mod accidents;
pub mod agent;
#[cfg(feature = "agent-harness")]
pub mod agent_harness;
mod calls;
pub mod check;
pub mod clock;
pub mod container_script;
pub mod env;
pub mod explore;
pub mod faults;
pub mod host;
pub mod journal;
pub mod manifest;
#[cfg(feature = "mutants")]
mod mutants;
pub mod object_store;
pub mod pressure;
pub mod rng;
pub mod runtime;
mod scenarios;
pub mod schedule;
pub mod sources;
pub mod termination;
mod trace;
pub mod workload;
pub mod world;
