//! One pidfd per running container: its exit becomes a hint if the runtime has no event stream.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use podwright_core::model::{ContainerId, Event, Listing, PodSeen, PodUid, RunState};
use podwright_linux::pidfd::PidFd;
use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Pids of the main processes of containers, as reported by the runtime.
pub(super) type Pids = BTreeMap<ContainerId, u32>;

/// The watched containers.
#[derive(Clone)]
pub(super) struct ExitWatches {
    watched: Arc<Mutex<BTreeMap<ContainerId, ExitWatch>>>,
    hints: mpsc::Sender<Event>,
}

struct ExitWatch {
    uid: PodUid,
    _task: AbortOnDropHandle<()>,
}

impl ExitWatches {
    pub(super) fn new(hints: mpsc::Sender<Event>) -> Self {
        Self { watched: Arc::default(), hints }
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.watched.lock().expect("no panic under this lock").contains_key(id)
    }

    /// Watches the running containers of this pod, and ends the watches of those that no longer run. Returns whether all running
    /// containers are watched.
    pub(super) fn watch(&self, uid: &PodUid, seen: &PodSeen, pids: Pids) -> bool {
        let mut watched = self.watched.lock().expect("no panic under this lock");
        watched.retain(|id, watch| {
            watch.uid != *uid || seen.container(id).is_some_and(|container| container.state.may_run())
        });
        let mut all_watched = true;
        for container in seen.alive() {
            if watched.contains_key(&container.id) {
                continue;
            }
            let pid = pids.get(&container.id).copied().filter(|_| container.state == RunState::Running);
            match pid.filter(|_| watched.len() < WATCHES_MAX).map(|pid| open(pid, &container.id)) {
                Some(Ok(process)) => {
                    let task = podwright_tasks::spawn(
                        "container-exit",
                        self.clone().follow(uid.clone(), container.id.clone(), process),
                    );
                    let watch = ExitWatch { uid: uid.clone(), _task: AbortOnDropHandle::new(task) };
                    watched.insert(container.id.clone(), watch);
                }
                Some(Err(error)) => {
                    tracing::debug!(container = %container.name, container_id = %container.id, %error, "opening a pidfd failed");
                    all_watched = false;
                }
                None => all_watched = false,
            }
        }
        all_watched
    }

    /// Ends the watches of pods that the runtime no longer has.
    pub(super) fn retain_pods(&self, listing: &Listing) {
        let mut watched = self.watched.lock().expect("no panic under this lock");
        watched.retain(|_, watch| listing.pods.contains_key(&watch.uid));
    }

    /// Ends all watches: hints come from the event stream.
    pub(super) fn clear(&self) {
        self.watched.lock().expect("no panic under this lock").clear();
    }

    async fn follow(self, uid: PodUid, id: ContainerId, process: AsyncFd<OwnedFd>) {
        if process.readable().await.is_ok() {
            tracing::debug!(%uid, container_id = %id, "container process exited");
            let _ = self.hints.send(Event::Hint { uid }).await;
        }
        // The watch stays until the pod was observed: no pid is requested for a watched container.
    }
}

/// Opens the process if it belongs to this container: the pid may have been reused since the runtime reported it.
fn open(pid: u32, id: &ContainerId) -> io::Result<AsyncFd<OwnedFd>> {
    let process = PidFd::open(pid)?;
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    if !cgroups.contains(id.as_str()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("pid {pid} is not in the container's cgroup")));
    }
    // Deprecated because some types can change their descriptor; an `OwnedFd` can't, and the replacement is unsafe.
    #[allow(deprecated)]
    AsyncFd::with_interest(process.into_fd(), Interest::READABLE)
}

/// The pid of the main process from a verbose status: `{"pid": …}` in the runtime's own JSON.
pub(super) fn pid_of(info: &BTreeMap<String, String>) -> Option<u32> {
    #[derive(Deserialize)]
    struct Info {
        pid: u32,
    }
    let text = info.get("info")?;
    serde_json::from_str::<Info>(text).ok().map(|info| info.pid).filter(|pid| *pid > 0)
}

/// Limit of open pidfds; exits of further containers are found by the periodic list.
const WATCHES_MAX: usize = 4096;
