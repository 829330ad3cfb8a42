//! Container logs, read from the files that the runtime writes, and followed across rotations.
//!
//! ```text
//! <pod logs dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log     2024-01-01T00:00:00.1Z stdout F hello
//! ```
//! The files are opened without following symlinks out of the log directory. A follower reads its open file to the end, then
//! continues with the file that has taken the name; it ends when the container has terminated and all output is read.

mod follow;
mod line;
mod options;
mod tail;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::unfold;
use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_agent::feed::{PodFeed, PodView};
use podwright_agent::host::HostPaths;
use podwright_linux::beneath::ConfinedDir;
use rustix::fs::OFlags;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::serve::{HttpResponse, WriteTimeout, stream};
use crate::status_error::StatusError;
use follow::LogReader;
pub(crate) use options::LogOptions;

/// The log of one attempt of one container.
pub(crate) struct ContainerLog {
    path: LogPath,
    feed: Arc<PodFeed>,
    view: Arc<PodView>,
    container: String,
    attempt: u32,
    options: LogOptions,
}

/// The location of a log file.
#[derive(Clone, Debug)]
struct LogPath {
    /// The directory of all pod logs; trusted, unlike everything below it.
    root: PathBuf,
    /// The container's directory, relative to `root`.
    dir: PathBuf,
    /// The file, relative to `root`.
    file: PathBuf,
}

impl LogPath {
    /// Opens the file that has this name now.
    fn open(&self) -> io::Result<File> {
        let fd = ConfinedDir::open(&self.root)?
            .open_beneath(&self.file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
        let file = File::from(fd);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl ContainerLog {
    /// Selects container and attempt; fails if the container can't have a log yet.
    pub(crate) fn new(
        paths: HostPaths,
        feed: Arc<PodFeed>,
        view: Arc<PodView>,
        options: LogOptions,
    ) -> Result<Self, StatusError> {
        let (container, status) = container_named(&view, options.container.clone())?;
        let attempt = attempt(view.name(), &container, status, options.previous)?;
        let below = |path: &Path| path.strip_prefix(&paths.pod_logs_dir).unwrap_or(path).to_owned();
        let path = LogPath {
            dir: below(&paths.container_logs(&view.object, &container)),
            file: below(&paths.log_file(&view.object, &container, attempt)),
            root: paths.pod_logs_dir,
        };
        Ok(Self { path, feed, view, container, attempt, options })
    }

    /// The response, which reads the file while the client reads the response.
    pub(crate) async fn respond(
        self,
        permit: OwnedSemaphorePermit,
        stop: CancellationToken,
    ) -> Result<HttpResponse, StatusError> {
        let (name, pod) = (self.container.clone(), self.view.name().to_owned());
        let reader = LogReader::open(self).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StatusError::bad_request(format!(
                "the log of container {name:?} in pod {pod:?} does not exist (it may have been removed)"
            )),
            _ => StatusError::internal(format!("the log of container {name:?} in pod {pod:?} can't be read: {error}")),
        })?;
        let parts = unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
        let parts = parts.take_until(async move { stop.cancelled().await });
        let parts = parts.map(move |part: Bytes| {
            let _permit = &permit;
            part
        });
        Ok(stream(false, parts, WriteTimeout::After(LOG_WRITE_TIMEOUT)))
    }
}

/// The container of a request and its status: the requested one, the default of the pod's annotation, or the only one.
pub(crate) fn container_named(
    view: &PodView,
    container: Option<String>,
) -> Result<(String, Option<&ContainerStatus>), StatusError> {
    let spec = view.object.spec.as_ref();
    let own: Vec<&str> = spec.into_iter().flat_map(|s| s.containers.iter().map(|c| c.name.as_str())).collect();
    let init: Vec<&str> =
        spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().map(|c| c.name.as_str())).collect();
    let default = view.object.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER)).cloned();
    let name = match (container.or(default), own.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => (*only).to_owned(),
        (None, _) => {
            let pod = view.name();
            let or = if init.is_empty() {
                String::new()
            } else {
                format!(" or one of the init containers: [{}]", init.join(" "))
            };
            let message =
                format!("a container name must be specified for pod {pod}, choose one of: [{}]{or}", own.join(" "));
            return Err(StatusError::bad_request(message));
        }
    };
    if !own.contains(&name.as_str()) && !init.contains(&name.as_str()) {
        return Err(StatusError::bad_request(format!("container {name} is not valid for pod {}", view.name())));
    }
    let status = status_of(view, &name);
    Ok((name, status))
}

fn status_of<'a>(view: &'a PodView, name: &str) -> Option<&'a ContainerStatus> {
    let status = view.status.as_deref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// The attempt whose log to read (the Go kubelet's `validateContainerLogStatus`): each restart has its own file.
fn attempt(pod: &str, name: &str, status: Option<&ContainerStatus>, previous: bool) -> Result<u32, StatusError> {
    let not_started =
        |why: &str| StatusError::bad_request(format!("container {name:?} in pod {pod:?} is waiting to start: {why}"));
    let status = status.ok_or_else(|| not_started("no logs yet"))?;
    let newest = u32::try_from(status.restart_count).unwrap_or_default();
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let ran_before = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    match (previous, waiting) {
        (true, _) if !ran_before => {
            Err(StatusError::bad_request(format!("previous terminated container {name:?} in pod {pod:?} not found")))
        }
        // A container that waits for its restart has no new file yet.
        (true, None) => Ok(newest.saturating_sub(1)),
        (false, Some(waiting)) if !ran_before => Err(not_started(waiting.reason.as_deref().unwrap_or("no logs yet"))),
        _ => Ok(newest),
    }
}

/// Kubernetes: the annotation with the container to use when a request names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// A user may read slowly, in a pager.
const LOG_WRITE_TIMEOUT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
