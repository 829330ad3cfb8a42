//! Everything a container needs on the node before it is created.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_core::model::Pod;

use super::io::pod_key;
use super::{Host, HostCause, HostConfig, HostError, dirs, hosts};
use crate::pod_spec::{SubPath, pod_uid};

impl Host {
    /// Creates the log directory, the termination message file and the hosts file, binds the subPaths, and restores the pod's cgroup.
    pub(crate) async fn prepare_container(
        &self,
        pod: &Arc<Pod>,
        container: &str,
        attempt: u32,
        ips: &[String],
        sub_paths: Vec<SubPath>,
        limit: Duration,
    ) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let (owned_pod, ips, name) = (pod.clone(), ips.to_vec(), container.to_owned());
        let done = self
            .io
            .run(pod_key(pod_uid(pod)), limit, move |config| create_files(config, &owned_pod, &name, attempt, &ips));
        done.await.map_err(HostError::PrepareContainer)?;
        for sub_path in sub_paths {
            let remaining = deadline.saturating_duration_since(Instant::now());
            self.volumes.bind_sub_path(pod, container, sub_path, remaining).await?;
        }
        // Last: the container is created next.
        self.cgroups().restore(pod, deadline.saturating_duration_since(Instant::now())).await
    }
}

fn create_files(
    config: &HostConfig,
    pod: &Pod,
    container: &str,
    attempt: u32,
    ips: &[String],
) -> Result<(), HostCause> {
    let (paths, uid) = (&config.paths, pod_uid(pod));
    // The pod's directory first: it tells that the logs are ours.
    for (dir, mode) in [(paths.container_dir(uid, container), 0o750), (paths.container_logs(pod, container), 0o755)] {
        dirs::create_dir_all(&dir, mode).map_err(HostCause::io("create", &dir))?;
    }
    let termination_log = paths.termination_log(uid, container, attempt);
    create_termination_log(&termination_log).map_err(HostCause::io("create", &termination_log))?;
    hosts::write(config, pod, ips, &paths.etc_hosts(uid)).map_err(HostCause::HostsFile)
}

/// Creates an empty file that any user of the container may write to. An existing file of the same attempt is left from a
/// creation that failed, and is replaced.
fn create_termination_log(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o666))
}
