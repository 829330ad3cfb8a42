//! The world in a box: the shipped core on virtual time, around it a runtime, a machine, a journal and people that fail and
//! act by seed, and checkers that know the truth. A seed replays its run exactly: `sim --seed N --trace`.

pub mod agent;
pub mod behaviour;
pub mod check;
pub mod clock;
pub mod faults;
pub mod flight;
pub mod host;
pub mod journal;
pub mod manifest;
#[cfg(feature = "mutants")]
mod mutants;
pub mod rig;
pub mod rng;
pub mod runtime;
mod scenarios;
pub mod schedule;
pub mod termination;
mod trace;
pub mod workload;
pub mod world;
