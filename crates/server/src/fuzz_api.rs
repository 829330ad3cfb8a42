//! Entry points for the fuzz targets in `fuzz/`: requests of clients, and log files that a runtime or a container wrote.

pub use crate::local::fuzz_selectors as selectors;
pub use crate::log::fuzz_read as read_log;

use crate::log::LogOptions;
use crate::query::QueryParams;

/// The query parameters of a log request.
pub fn query(query: &str) {
    let mut params = QueryParams::parse(query);
    let _ = LogOptions::parse(&mut params);
    let _ = params.dry_run();
    let _ = params.finish();
}
