//! The hands of the agent: each does one kind of effect and reports what came of it. Nothing here decides.

pub mod journal;
pub mod sources;
pub mod translate;
