//! Container logs, read from the files that the runtime writes, and followed across rotations.
//!
//! ```text
//! <pod logs dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log     2024-01-01T00:00:00.1Z stdout F hello
//! ```
//! The files are opened without following symlinks out of the log directory. A follower reads its open file to the end, then
//! continues with the file that has taken the name; it ends when the container has terminated and all output is read.

mod follow;
#[cfg(feature = "fuzzing")]
mod fuzz_read;
mod line;
mod options;
mod paced;
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
use podwright_agent::host::{HostPaths, Pool};
use podwright_core::kubelet_api::log_query::select_attempt;
use podwright_linux::beneath::ConfinedDir;
use rustix::fs::OFlags;
use tokio_util::sync::CancellationToken;

use crate::serve::{HttpResponse, StreamGuard, WriteTimeout, try_stream};
use crate::status_error::StatusError;
use follow::LogReader;
#[cfg(feature = "fuzzing")]
pub use fuzz_read::fuzz_read;
pub(crate) use options::LogOptions;
pub(crate) use paced::paced;

/// The log of one attempt of one container.
pub(crate) struct ContainerLog {
    path: LogPath,
    pool: Pool,
    feed: Arc<PodFeed>,
    view: Arc<PodView>,
    container: String,
    attempt: u32,
    options: LogOptions,
}

/// Where logs are, and the threads that read them.
#[derive(Clone)]
pub(crate) struct LogFiles {
    pub(crate) paths: HostPaths,
    pub(crate) pool: Pool,
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
        files: LogFiles,
        feed: Arc<PodFeed>,
        view: Arc<PodView>,
        options: LogOptions,
    ) -> Result<Self, StatusError> {
        let LogFiles { paths, pool } = files;
        let (container, status) = container_named(&view, options.container.clone())?;
        let attempt = select_attempt(view.name(), &container, status, options.previous).map_err(|error| {
            rejected(&view, &container).unwrap_or_else(|| StatusError::bad_request(error.to_string()))
        })?;
        let below = |path: &Path| path.strip_prefix(&paths.pod_logs_dir).unwrap_or(path).to_owned();
        let path = LogPath {
            dir: below(&paths.container_logs(&view.object, &container)),
            file: below(&paths.log_file(&view.object, &container, attempt)),
            root: paths.pod_logs_dir,
        };
        Ok(Self { path, pool, feed, view, container, attempt, options })
    }

    /// The response, which reads the file while the client reads the response. It ends when the client does not read for `patience`.
    pub(crate) async fn respond(
        self,
        permit: StreamGuard,
        patience: Duration,
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
        let parts = parts.map(move |part: io::Result<Bytes>| {
            let _permit = &permit;
            part
        });
        Ok(try_stream(false, paced(parts, patience), WriteTimeout::After(patience)))
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
    if !own.contains(&name.as_str()) && !init.contains(&name.as_str()) && !is_ephemeral(view, &name) {
        return Err(StatusError::bad_request(format!("container {name} is not valid for pod {}", view.name())));
    }
    let status = status_of(view, &name);
    Ok((name, status))
}

fn is_ephemeral(view: &PodView, name: &str) -> bool {
    let spec = view.object.spec.as_ref();
    spec.is_some_and(|spec| spec.ephemeral_containers.iter().flatten().any(|container| container.name == name))
}

pub(crate) fn status_of<'a>(view: &'a PodView, name: &str) -> Option<&'a ContainerStatus> {
    let status = view.status.as_deref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// The error for a container of a pod that the node does not admit: it is not about to start.
fn rejected(view: &PodView, container: &str) -> Option<StatusError> {
    let status = view.status.as_deref()?;
    let pending = status.phase.as_deref() == Some("Pending");
    let (reason, message) = (status.reason.as_deref()?, status.message.as_deref().unwrap_or_default());
    let message = match message.strip_prefix("Pod was rejected: ") {
        Some(message) => message,
        None if pending && reason != "WaitingForPredecessor" => message,
        None => return None,
    };
    let pod = view.name();
    let again = if pending { "; it starts automatically when this changes" } else { "" };
    Some(StatusError::bad_request(format!(
        "container {container:?} in pod {pod:?} has no log: the pod is rejected: {reason}: {message}{again}"
    )))
}

/// Kubernetes: the annotation with the container to use when a request names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

#[cfg(test)]
mod tests;
