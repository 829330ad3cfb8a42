//! Log directories of pods, and the links to container logs that log collectors follow.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use podwright_core::model::Pod;
use podwright_linux::beneath;

use super::io::HostIo;
use super::{HostCause, HostConfig, HostError, dirs};
use crate::pod_spec::pod_uid;

/// The pods' log directories and the links to their logs.
#[derive(Clone, Debug)]
pub(crate) struct PodLogs {
    io: HostIo,
}

impl PodLogs {
    pub(super) fn new(io: HostIo) -> Self {
        Self { io }
    }

    /// Links the log of a container by its runtime id, after the container is created.
    pub(crate) async fn link(
        &self,
        pod: &Pod,
        container: &str,
        attempt: u32,
        id: &str,
        limit: Duration,
    ) -> Result<(), HostError> {
        let log = self.io.paths().log_file(pod, container, attempt);
        let link = self.io.paths().log_link(pod, container, id);
        let done = self.io.run(key(pod_uid(pod)), limit, move |config| {
            let failed = HostCause::io("link", &link);
            dirs::create_dir_all(&config.paths.container_logs_dir, 0o755).map_err(&failed)?;
            match symlink(&log, &link) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if fs::read_link(&link).is_ok_and(|old| old == log) {
                        return Ok(());
                    }
                    fs::remove_file(&link).and_then(|()| symlink(&log, &link)).map_err(failed)
                }
                result => result.map_err(failed),
            }
        });
        done.await.map_err(HostError::LinkLog)
    }

    /// Removes the link to a container's log.
    pub(crate) async fn unlink(&self, pod: &Pod, container: &str, id: &str, limit: Duration) -> Result<(), HostError> {
        let link = self.io.paths().log_link(pod, container, id);
        let done = self.io.run(key(pod_uid(pod)), limit, move |_| remove_link(&link));
        done.await.map_err(HostError::LinkLog)
    }

    /// Removes the pod's logs and the links to them.
    pub(crate) async fn remove(&self, pod: &Pod, limit: Duration) -> Result<(), HostError> {
        let dir = self.io.paths().pod_logs(pod);
        let done = self.io.run(key(pod_uid(pod)), limit, move |config| remove_dir(config, &dir));
        done.await.map_err(HostError::RemoveLogs)
    }

    /// Removes the logs of a pod of which only the UID is known.
    pub(super) async fn remove_by_uid(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        let done = self.io.run(key(uid), limit, move |config| {
            for entry in list_dir(&config.paths.pod_logs_dir)? {
                if uid_of(&entry) == Some(&owned) {
                    remove_dir(config, &config.paths.pod_logs_dir.join(entry))?;
                }
            }
            Ok(())
        });
        done.await.map_err(HostError::RemoveLogs)
    }
}

/// The pool's key: per pod, because removing large logs takes a while.
fn key(uid: &str) -> String {
    format!("logs {uid}")
}

/// The pod's UID in the name of its log directory: `<namespace>_<name>_<uid>`.
fn uid_of(directory: &str) -> Option<&str> {
    let mut parts = directory.rsplitn(3, '_');
    let uid = parts.next().filter(|uid| !uid.is_empty())?;
    parts.nth(1).map(|_| uid)
}

/// The names in a directory; none if it does not exist.
pub(super) fn list_dir(dir: &Path) -> Result<Vec<String>, HostCause> {
    let failed = HostCause::io("read", dir);
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
        Ok(found) => {
            let names: io::Result<Vec<_>> = found.map(|e| Ok(e?.file_name())).collect();
            // The agent creates no names that are not UTF-8.
            Ok(names.map_err(failed)?.into_iter().filter_map(|n| n.into_string().ok()).collect())
        }
    }
}

fn remove_link(link: &Path) -> Result<(), HostCause> {
    match fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HostCause::io("remove", link)(e)),
        _ => Ok(()),
    }
}

/// Removes a pod's log directory and all links into it.
fn remove_dir(config: &HostConfig, dir: &Path) -> Result<(), HostCause> {
    let links = &config.paths.container_logs_dir;
    for entry in list_dir(links)? {
        let link = links.join(entry);
        // By target: the names of links are truncated when they are long.
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(dir)) {
            remove_link(&link)?;
        }
    }
    Ok(beneath::remove_path(dir)?)
}
