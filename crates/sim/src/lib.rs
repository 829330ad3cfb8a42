//! The world in a box: the shipped core on virtual time, around it a runtime, a machine, a journal and people that fail and
//! act by seed, and checkers that know the truth. A seed replays its run exactly: `sim --seed N --trace`.
//!
//! Three ways to look at core: seeds at random ([`schedule`]), every placement of a few deviations ([`explore`]), and every
//! way a pod can end ([`termination`]). `rig` puts the whole agent in the box.

pub mod agent;
mod arrival;
pub mod behaviour;
pub mod check;
pub mod clock;
pub mod explore;
pub mod faults;
pub mod files;
pub mod flight;
pub mod host;
pub mod journal;
pub mod keeper;
pub mod manifest;
#[cfg(feature = "mutants")]
mod mutants;
mod perform;
mod process;
#[cfg(feature = "rig")]
pub mod rig;
pub mod rng;
pub mod runtime;
mod scenarios;
pub mod schedule;
pub mod termination;
mod trace;
mod turn;
pub mod workload;
pub mod world;
