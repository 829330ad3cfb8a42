//! Entry points for the fuzz targets in `fuzz/`, for what is not public.

pub use crate::perform::match_credentials;
