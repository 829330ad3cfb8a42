//! The flight recorder's form.
pub(crate) mod pairs;
