//! The hands of the agent: each does one kind of effect and reports what came of it. Nothing here decides.

pub mod empty_dirs;
pub mod feed;
pub mod hands;
pub mod host;
pub mod images_gc;
pub mod journal;
pub mod keeper;
pub mod local;
pub mod metrics;
pub mod objects;
pub mod observe;
pub mod perform;
pub mod recorder;
pub mod rotate;
pub mod sources;
pub mod the_loop;
pub mod translate;
