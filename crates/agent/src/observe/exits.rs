//! A pidfd per running container: its exit is a hint, where the runtime gives none.

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

/// Main processes of containers, as the runtime tells them.
pub(super) type Pids = BTreeMap<ContainerId, u32>;

/// The containers that are watched.
#[derive(Clone)]
pub(super) struct Exits {
    watched: Arc<Mutex<BTreeMap<ContainerId, Watch>>>,
    hints: mpsc::Sender<Event>,
}

struct Watch {
    uid: PodUid,
    _task: AbortOnDropHandle<()>,
}

impl Exits {
    pub(super) fn new(hints: mpsc::Sender<Event>) -> Self {
        Self { watched: Arc::default(), hints }
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.watched.lock().expect("nobody panics with it").contains_key(id)
    }

    /// Watches what runs of this pod and is not watched yet, lets go of what does not run any more. `true`: all that runs is
    /// watched.
    pub(super) fn watch(&self, uid: &PodUid, seen: &PodSeen, pids: Pids) -> bool {
        let mut watched = self.watched.lock().expect("nobody panics with it");
        watched.retain(|id, watch| {
            watch.uid != *uid || seen.container(id).is_some_and(|container| container.state.may_run())
        });
        let mut all = true;
        for container in seen.alive() {
            if watched.contains_key(&container.id) {
                continue;
            }
            let pid = pids.get(&container.id).copied().filter(|_| container.state == RunState::Running);
            match pid.filter(|_| watched.len() < WATCHES_MAX).map(|pid| open(pid, &container.id)) {
                Some(Ok(process)) => {
                    let task = tokio::spawn(self.clone().follow(uid.clone(), container.id.clone(), process));
                    let watch = Watch { uid: uid.clone(), _task: AbortOnDropHandle::new(task) };
                    watched.insert(container.id.clone(), watch);
                }
                Some(Err(error)) => {
                    tracing::debug!(%uid, container = %container.id, %error, "a container is not watched for its exit");
                    all = false;
                }
                None => all = false,
            }
        }
        all
    }

    /// Lets go of pods the runtime has no more.
    pub(super) fn keep_pods(&self, listing: &Listing) {
        let mut watched = self.watched.lock().expect("nobody panics with it");
        watched.retain(|_, watch| listing.pods.contains_key(&watch.uid));
    }

    /// Lets go of everything: hints come from elsewhere.
    pub(super) fn clear(&self) {
        self.watched.lock().expect("nobody panics with it").clear();
    }

    async fn follow(self, uid: PodUid, id: ContainerId, process: AsyncFd<OwnedFd>) {
        if process.readable().await.is_ok() {
            tracing::debug!(%uid, container = %id, "a container's process has exited");
            let _ = self.hints.send(Event::Hint { uid }).await;
        }
        // The watch itself stays until the pod was looked at: what is watched is not asked for its pid again.
    }
}

/// The process, if it is really this container's: the pid may have changed hands since the runtime told it.
fn open(pid: u32, id: &ContainerId) -> io::Result<AsyncFd<OwnedFd>> {
    let process = PidFd::open(pid)?;
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    if !cgroups.contains(id.as_str()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("pid {pid} is not in the container's cgroup")));
    }
    // Deprecated because some types change their descriptor under it; an `OwnedFd` cannot, and its successor is unsafe.
    #[allow(deprecated)]
    AsyncFd::with_interest(process.into_fd(), Interest::READABLE)
}

/// The main process in a verbose status: `{"pid": …}` in the runtime's own JSON.
pub(super) fn pid_of(info: &BTreeMap<String, String>) -> Option<u32> {
    #[derive(Deserialize)]
    struct Info {
        pid: u32,
    }
    let text = info.get("info")?;
    serde_json::from_str::<Info>(text).ok().map(|info| info.pid).filter(|pid| *pid > 0)
}

/// Descriptors are not endless; beyond this the list has to do.
const WATCHES_MAX: usize = 4096;
