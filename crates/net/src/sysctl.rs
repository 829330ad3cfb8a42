//! Kernel settings of the calling thread's network namespace.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::model::NetworkError;

/// Writes a setting unless it has the value already (`/proc/sys` may be read-only where nothing is to be changed).
pub(crate) fn set(key: &str, value: &str) -> Result<(), NetworkError> {
    if get(key).as_deref() == Some(value) {
        return Ok(());
    }
    fs::write(Path::new("/proc/sys").join(key), value).map_err(|source| NetworkError::Sysctl {
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    })
}

/// Writes a setting that a kernel without the feature does not have.
pub(crate) fn set_if_present(key: &str, value: &str) -> Result<(), NetworkError> {
    match set(key, value) {
        Err(NetworkError::Sysctl { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// `None` if it does not exist or cannot be read.
pub(crate) fn get(key: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new("/proc/sys").join(key)).ok()?.trim().to_owned())
}
