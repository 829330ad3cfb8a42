//! What a container needs on the host before it is created.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_core::model::Pod;

use super::{Host, HostError, SubPath, dirs, hosts, paths, pod_key, subpath, volume_host_path};

impl Host {
    /// Makes the log directory, the file for the last words and the hosts file, and pins the subPaths.
    pub async fn prepare_container(
        &self,
        pod: &Arc<Pod>,
        container: &str,
        attempt: u32,
        ips: &[String],
        sub_paths: Vec<SubPath>,
        limit: Duration,
    ) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let uid = paths::uid(pod).to_owned();
        let (owned_pod, ips, name) = (pod.clone(), ips.to_vec(), container.to_owned());
        self.run(&pod_key(&uid), limit, FAILED, move |config| {
            let paths = &config.paths;
            let pod = &*owned_pod;
            let told = |(path, e): (String, io::Error)| failed(format!("make {path}: {e}"));
            dirs::make_all(&paths.container_logs(pod, &name), 0o755).map_err(told)?;
            dirs::make_all(&paths.container_dir(paths::uid(pod), &name), 0o750).map_err(told)?;
            let termination_message = paths.termination_log(paths::uid(pod), &name, attempt);
            make_last_words(&termination_message).map_err(|e| told((termination_message.display().to_string(), e)))?;
            hosts::write(config, pod, &ips, &paths.etc_hosts(paths::uid(pod)))
                .map_err(|e| failed(format!("hosts file: {e}")))
        })
        .await?;
        for sub_path in sub_paths {
            self.pin(pod, container, sub_path, deadline.saturating_duration_since(Instant::now())).await?;
        }
        Ok(())
    }

    async fn pin(&self, pod: &Pod, container: &str, sub_path: SubPath, limit: Duration) -> Result<(), HostError> {
        let SubPath { index, volume, path } = sub_path;
        let told = |e: String| {
            failed(format!(
                "failed to prepare subPath {path:?} for volumeMount {volume:?} of container {container:?}: {e}"
            ))
        };
        let source = volume_host_path(self.paths(), pod, &volume).map_err(|e| told(e.message))?;
        let key = self.volume_key(pod, &volume, limit).await?;
        let target = self.paths().subpath(paths::uid(pod), &volume, container, index);
        let inside = path.clone();
        let result = self.run(&key, limit, FAILED, move |_| Ok(subpath::pin(&source, &inside, &target))).await?;
        result.map_err(told)
    }
}

/// A new, empty file any user of the container may write to. One of the same attempt can only be from a try that failed.
fn make_last_words(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o666))
}

fn failed(message: String) -> HostError {
    HostError::new(FAILED, message)
}

/// The reason users see in the container's status.
const FAILED: &str = "CreateContainerConfigError";
