//! A pod's data directories: made before its volumes, removed after everything else.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use podwright_linux::beneath;

use super::{Host, HostError, HostPaths, chain, pod_key};

impl Host {
    /// Makes the pod's data directories.
    pub async fn make_dirs(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        self.run(&pod_key(uid), limit, MAKE_FAILED, move |config| {
            let HostPaths { root_dir, .. } = &config.paths;
            let failed = |e: (String, io::Error)| HostError::new(MAKE_FAILED, format!("make {}: {}", e.0, e.1));
            make_all(root_dir, 0o755).map_err(failed)?;
            for dir in [
                config.paths.pods_dir(),
                config.paths.pod_dir(&owned),
                config.paths.volumes_dir(&owned),
                config.paths.plugins_dir(&owned),
            ] {
                make_all(&dir, 0o750).map_err(failed)?;
            }
            Ok(())
        })
        .await
    }

    /// Unmounts and removes all volumes of the pod, subPaths included. What lies behind a mount is never touched.
    pub async fn remove_volumes(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        self.unmount_all(self.paths().pod_dir(uid), deadline).await?;
        let owned = uid.to_owned();
        let left = deadline.saturating_duration_since(Instant::now());
        self.run(&pod_key(uid), left, "", move |config| {
            let paths = &config.paths;
            for dir in [paths.subpaths_dir(&owned), paths.volumes_dir(&owned), paths.plugins_dir(&owned)] {
                beneath::remove_path(&dir).map_err(|e| HostError::new("", chain(&e)))?;
            }
            Ok(())
        })
        .await
    }

    /// Removes the pod's data directories. Something still mounted there is an error, and stays.
    pub async fn remove_dirs(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        self.run(&pod_key(uid), limit, "", move |config| {
            beneath::remove_path(&config.paths.pod_dir(&owned)).map_err(|e| HostError::new("", chain(&e)))
        })
        .await
    }
}

/// Makes a directory of our own with its parents, the new ones with this mode. There already is success.
pub(super) fn make_all(dir: &Path, mode: u32) -> Result<(), (String, io::Error)> {
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(|e| (dir.display().to_string(), e))
}

/// Makes a directory of our own, its parents with 0755, itself with this very mode whatever the umask.
pub(super) fn make_exactly(dir: &Path, mode: u32) -> Result<(), (String, io::Error)> {
    make_all(dir, 0o755)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(|e| (dir.display().to_string(), e))
}

/// The Go kubelet's event reason for this.
const MAKE_FAILED: &str = "Failed";
