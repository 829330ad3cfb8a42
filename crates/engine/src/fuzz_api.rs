//! Entry points for the fuzz targets in `fuzz/`, for what is not public.

pub use crate::plan::seccomp_program;
pub use crate::streaming::fuzz_inputs::spdy;
