//! Errors of CNI operations.

use std::io;
use std::path::PathBuf;

/// Why a CNI operation failed.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The directory has no valid configuration.
    #[error("no CNI configuration in {dir}{reason}")]
    NoConfig {
        /// The directory.
        dir: PathBuf,
        /// Empty, or which files were refused and why.
        reason: String,
    },
    /// No directory of plugins has the plugin.
    #[error("no CNI plugin {plugin} in {dirs:?}")]
    NoPlugin {
        /// Type of the plugin.
        plugin: String,
        /// The directories.
        dirs: Vec<PathBuf>,
    },
    /// The plugin could not be run.
    #[error("CNI plugin {plugin}")]
    Run {
        /// Type of the plugin.
        plugin: String,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
    /// The plugin was killed at its deadline.
    #[error("CNI plugin {plugin} did not end within its deadline at {command} and was killed")]
    Deadline {
        /// Type of the plugin.
        plugin: String,
        /// The CNI command.
        command: &'static str,
    },
    /// The plugin reported an error.
    #[error("CNI plugin {plugin} failed at {command}: {message} (code {code})")]
    Failed {
        /// Type of the plugin.
        plugin: String,
        /// The CNI command.
        command: &'static str,
        /// CNI's error code; 0 if the plugin gave none.
        code: u64,
        /// The plugin's message, at most 4 KiB.
        message: String,
    },
    /// The plugin's result is no result.
    #[error("CNI plugin {plugin} returned a malformed result: {reason}")]
    Malformed {
        /// Type of the plugin.
        plugin: String,
        /// What is wrong.
        reason: String,
    },
    /// A result could not be kept or read.
    #[error("cached CNI result {path}")]
    Cache {
        /// The file.
        path: PathBuf,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
}
