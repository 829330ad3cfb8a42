//! A pod's data directories: created before its volumes, removed after everything else.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use podwright_linux::beneath;

use super::io::{HostIo, pod_key};
use super::{HostCause, HostError};

/// The pods' data directories.
#[derive(Clone, Debug)]
pub(crate) struct PodDirs {
    io: HostIo,
}

impl PodDirs {
    pub(super) fn new(io: HostIo) -> Self {
        Self { io }
    }

    /// Creates the pod's data directories.
    pub(crate) async fn create(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        let done = self.io.run(pod_key(uid), limit, move |config| {
            let paths = &config.paths;
            create_dir_all(&paths.root_dir, 0o755).map_err(HostCause::io("create", &paths.root_dir))?;
            let pod_dirs = [paths.pod_dir(&owned), paths.volumes_dir(&owned), paths.plugins_dir(&owned)];
            for dir in [paths.pods_dir()].iter().chain(&pod_dirs) {
                create_dir_all(dir, 0o750).map_err(HostCause::io("create", dir))?;
            }
            Ok(())
        });
        done.await.map_err(HostError::CreateDirs)
    }

    /// Removes the pod's data directories. A mount below them is an error, and is not touched.
    pub(crate) async fn remove(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        let done =
            self.io.run(pod_key(uid), limit, move |config| Ok(beneath::remove_path(&config.paths.pod_dir(&owned))?));
        done.await.map_err(HostError::RemoveDirs)
    }
}

/// Creates a directory and its parents, the new ones with this mode. An existing directory is success.
pub(super) fn create_dir_all(dir: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Creates a directory with exactly this mode regardless of the umask, its parents with 0755.
pub(super) fn create_dir_exact(dir: &Path, mode: u32) -> io::Result<()> {
    create_dir_all(dir, 0o755)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}
