//! What containers wrote: read from the files the runtime writes, and followed across their rotation.
//!
//! ```text
//! <pod logs dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log     2024-01-01T00:00:00.1Z stdout F hello
//! ```
//! The files are opened without following anything out of their directory. A follower reads on in the file it has until that
//! is at its end and another one has its name; it ends when the container has ended and everything of it is read.

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
use podwright_linux::beneath::Root;
use rustix::fs::OFlags;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::local::Failure;
use crate::serve::{Answer, Stall, stream};
use follow::Reader;
pub(crate) use options::Options;

/// The log of one attempt of one container.
pub(crate) struct Log {
    place: Place,
    feed: Arc<PodFeed>,
    view: Arc<PodView>,
    container: String,
    attempt: u32,
    options: Options,
}

/// Where a log is.
#[derive(Clone, Debug)]
struct Place {
    /// The directory of all logs, which is trusted.
    root: PathBuf,
    /// The container's directory in it.
    dir: PathBuf,
    /// The file.
    file: PathBuf,
}

impl Place {
    /// The file that has the name now.
    fn open(&self) -> io::Result<File> {
        let fd =
            Root::open(&self.root)?.open_beneath(&self.file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
        let file = File::from(fd);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Log {
    /// The log that is meant, if there can be one.
    pub(crate) fn new(
        paths: HostPaths,
        feed: Arc<PodFeed>,
        view: Arc<PodView>,
        options: Options,
    ) -> Result<Self, Failure> {
        let (container, status) = container_named(&view, options.container.clone())?;
        let attempt = attempt(view.name(), &container, status, options.previous)?;
        let below = |path: &Path| path.strip_prefix(&paths.pod_logs_dir).unwrap_or(path).to_owned();
        let place = Place {
            dir: below(&paths.container_logs(&view.object, &container)),
            file: below(&paths.log_file(&view.object, &container, attempt)),
            root: paths.pod_logs_dir,
        };
        Ok(Self { place, feed, view, container, attempt, options })
    }

    /// All of it, as it is read.
    pub(crate) async fn answer(self, held: OwnedSemaphorePermit, stop: CancellationToken) -> Result<Answer, Failure> {
        let (name, pod) = (self.container.clone(), self.view.name().to_owned());
        let reader = Reader::open(self).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::bad_request(format!("the log of container {name:?} in pod {pod:?} is not there (any more)"))
            }
            _ => Failure::internal(format!("the log of container {name:?} in pod {pod:?} can't be read: {error}")),
        })?;
        let parts = unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
        let parts = parts.take_until(async move { stop.cancelled().await });
        let parts = parts.map(move |part: Bytes| {
            let _held = &held;
            part
        });
        Ok(stream(false, parts, Stall(Some(STALL_MAX))))
    }
}

/// The container that is meant, and its status: the only one, the one the pod names as usual, or the one asked for.
pub(crate) fn container_named(
    view: &PodView,
    container: Option<String>,
) -> Result<(String, Option<&ContainerStatus>), Failure> {
    let spec = view.object.spec.as_ref();
    let own: Vec<&str> = spec.into_iter().flat_map(|s| s.containers.iter().map(|c| c.name.as_str())).collect();
    let init: Vec<&str> =
        spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().map(|c| c.name.as_str())).collect();
    let usual = view.object.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER)).cloned();
    let name = match (container.or(usual), own.as_slice()) {
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
            return Err(Failure::bad_request(message));
        }
    };
    if !own.contains(&name.as_str()) && !init.contains(&name.as_str()) {
        return Err(Failure::bad_request(format!("container {name} is not valid for pod {}", view.name())));
    }
    let status = status_of(view, &name);
    Ok((name, status))
}

fn status_of<'a>(view: &'a PodView, name: &str) -> Option<&'a ContainerStatus> {
    let status = view.status.as_deref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// Which attempt's log is meant (the Go kubelet's `validateContainerLogStatus`): each restart has a file of its own.
fn attempt(pod: &str, name: &str, status: Option<&ContainerStatus>, previous: bool) -> Result<u32, Failure> {
    let waits =
        |why: &str| Failure::bad_request(format!("container {name:?} in pod {pod:?} is waiting to start: {why}"));
    let status = status.ok_or_else(|| waits("no logs yet"))?;
    let newest = u32::try_from(status.restart_count).unwrap_or_default();
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let ran_before = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    match (previous, waiting) {
        (true, _) if !ran_before => {
            Err(Failure::bad_request(format!("previous terminated container {name:?} in pod {pod:?} not found")))
        }
        // What waits to be started again has not begun a file of its own.
        (true, None) => Ok(newest.saturating_sub(1)),
        (false, Some(waiting)) if !ran_before => Err(waits(waiting.reason.as_deref().unwrap_or("no logs yet"))),
        _ => Ok(newest),
    }
}

/// Kubernetes: the annotation that names the container that is meant when none is.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// A person may read slowly, in a pager.
const STALL_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
