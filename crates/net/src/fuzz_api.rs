//! Entry points for the fuzz targets in `fuzz/`, for what is not public.

pub use crate::cni::fuzz_inputs::{attachment, configuration, failure, result};
