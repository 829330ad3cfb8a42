//! What a configuration is made from: flags, file and facts of the host; and how single values of them are read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HostFacts;
use super::file::KubeletFile;
use crate::run_flags::RunFlags;

/// The flags override the file.
pub(super) struct ConfigInputs<'a> {
    pub(super) flags: &'a RunFlags,
    pub(super) file: KubeletFile,
    pub(super) facts: HostFacts,
    /// Every field with its value.
    pub(super) configz: serde_json::Value,
    /// The directory of the configuration file: relative paths in the file start here.
    pub(super) base: PathBuf,
}

impl ConfigInputs<'_> {
    /// The hostname, or `--hostname-override`, in lower case. It may not be valid as the name of a node.
    pub(super) fn hostname(&self) -> String {
        self.flags.hostname_override.as_deref().unwrap_or(&self.facts.hostname).trim().to_lowercase()
    }

    /// A path of the configuration file.
    pub(super) fn file_path(&self, path: &str) -> PathBuf {
        absolute(&self.base.join(path))
    }
}

/// The text of a field; in the Go types an empty string means unset.
pub(super) fn text(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

/// A period; in the Go types zero means the default.
pub(super) fn period(given: Option<Duration>, default: Duration) -> Duration {
    given.filter(|given| !given.is_zero()).unwrap_or(default)
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
