//! Blocking file access of calls.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use podwright_core::model::CallError;

use crate::host::Pool;

/// Runs blocking work in the pool; work that hangs fails only its own call. `key` groups work that may block each other.
pub(super) async fn blocking<T: Send + 'static, E: Display + Send + 'static>(
    pool: &Pool,
    key: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, CallError> {
    match pool.run(key, limit, work).await {
        Ok(result) => result.map_err(|error| CallError::failed(error.to_string())),
        Err(error) => Err(CallError::failed(error.to_string())),
    }
}

/// The content of a file; fails if it is larger than `max` bytes.
pub(super) fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(content)
}
