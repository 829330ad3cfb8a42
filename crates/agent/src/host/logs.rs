//! The places of containers' logs: their directories, and the links that log collectors follow.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use podwright_core::model::Pod;
use podwright_linux::beneath;

use super::{Host, HostConfig, HostError, chain, dirs, paths};

impl Host {
    /// Links a container's log under its runtime id, once it has been started.
    pub async fn link_log(
        &self,
        pod: &Pod,
        container: &str,
        attempt: u32,
        id: &str,
        limit: Duration,
    ) -> Result<(), HostError> {
        let log = self.paths().log_file(pod, container, attempt);
        let link = self.paths().log_link(pod, container, id);
        self.run(&key(paths::uid(pod)), limit, "", move |config| {
            let failed = |e: io::Error| HostError::new("", format!("link {}: {e}", link.display()));
            dirs::make_all(&config.paths.container_logs_dir, 0o755).map_err(|e| failed(e.1))?;
            match symlink(&log, &link) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if fs::read_link(&link).is_ok_and(|old| old == log) {
                        return Ok(());
                    }
                    fs::remove_file(&link).and_then(|()| symlink(&log, &link)).map_err(failed)
                }
                result => result.map_err(failed),
            }
        })
        .await
    }

    /// Removes the link to a container's log.
    pub async fn unlink_log(&self, pod: &Pod, container: &str, id: &str, limit: Duration) -> Result<(), HostError> {
        let link = self.paths().log_link(pod, container, id);
        self.run(&key(paths::uid(pod)), limit, "", move |_| match fs::remove_file(&link) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(HostError::new("", format!("remove {}: {e}", link.display())))
            }
            _ => Ok(()),
        })
        .await
    }

    /// Removes the pod's logs and the links to them.
    pub async fn remove_logs(&self, pod: &Pod, limit: Duration) -> Result<(), HostError> {
        let dir = self.paths().pod_logs(pod);
        self.run(&key(paths::uid(pod)), limit, "", move |config| remove_dir(config, &dir)).await
    }

    /// The same for a pod of which only the UID is known.
    pub(super) async fn remove_logs_of(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let owned = uid.to_owned();
        self.run(&key(uid), limit, "", move |config| {
            for entry in entries(&config.paths.pod_logs_dir)? {
                if uid_of(&entry) == Some(&owned) {
                    remove_dir(config, &config.paths.pod_logs_dir.join(entry))?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// Removing large logs takes a while, which only their own pod waits for.
fn key(uid: &str) -> String {
    format!("logs {uid}")
}

/// The pod's UID in the name of its log directory: `<namespace>_<name>_<uid>`.
pub(super) fn uid_of(directory: &str) -> Option<&str> {
    let mut parts = directory.rsplitn(3, '_');
    let uid = parts.next().filter(|uid| !uid.is_empty())?;
    parts.nth(1).map(|_| uid)
}

/// The names in a directory of ours; none if it isn't there.
pub(super) fn entries(dir: &Path) -> Result<Vec<String>, HostError> {
    let failed = |e: io::Error| HostError::new("", format!("read {}: {e}", dir.display()));
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
        Ok(found) => {
            let names: io::Result<Vec<_>> = found.map(|e| Ok(e?.file_name())).collect();
            // A name that is not UTF-8 is not of our making.
            Ok(names.map_err(failed)?.into_iter().filter_map(|n| n.into_string().ok()).collect())
        }
    }
}

fn remove_dir(config: &HostConfig, dir: &Path) -> Result<(), HostError> {
    let links = &config.paths.container_logs_dir;
    for entry in entries(links)? {
        let link = links.join(entry);
        // By where they lead: their own names are cut when they are long.
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(dir)) {
            match fs::remove_file(&link) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(HostError::new("", format!("remove {}: {e}", link.display())));
                }
                _ => {}
            }
        }
    }
    beneath::remove_path(dir).map_err(|e| HostError::new("", chain(&e)))
}
