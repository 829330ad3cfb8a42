//! Looking at the runtime: the outline of everything, all of one pod, and hints that something may have changed.
//!
//! ```text
//!   Effect::List, Observe, CheckRuntime ─▶ Observer ─▶ runtime          answers, the only truth
//!   event stream (or a pidfd per container) ─▶ Event::Hint ─▶ the loop   reasons to look, never truth
//! ```
//!
//! Where the runtime has an event stream, that is where hints come from. Where it has none, each running container is watched by
//! a pidfd; its pid is in the runtime's verbose status, which is asked for only while the container is not yet watched.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use podwright_core::model::{CallError, Event, FullName, Listing, PodListed, PodSeen, PodUid, SandboxSeen, Source};
use podwright_cri::labels::{Owner, containers_of_pod, sandboxes_of_pod};
use podwright_cri::{CriError, RuntimeService, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::host::Pool;
use crate::perform::{SharedFeatures, read_failure};

mod convert;
mod event_stream;
mod exits;
mod runtime;
mod termination_message;
mod validate_response;

pub use runtime::{CgroupDriverMismatch, check_cgroup_driver, supports_supplemental_groups_policy};

use exits::Exits;

/// The one reader of the runtime.
pub struct Observer {
    runtime: Arc<dyn RuntimeService>,
    features: SharedFeatures,
    /// Its name and release, until it may have been replaced by another.
    version: Mutex<Option<v1::VersionResponse>>,
    pool: Pool,
    /// For each single call.
    limit: Duration,
    /// Pods whose last looks took all their time, and how many in a row.
    slow: Mutex<BTreeMap<PodUid, u32>>,
    exits: Exits,
    /// No event stream: running containers are watched one by one.
    watch_exits: AtomicBool,
    /// Whose sandbox or container an id is, for events that do not say. As large as the last list plus what was seen since.
    owners: Mutex<BTreeMap<String, PodUid>>,
    hints: mpsc::Sender<Event>,
}

impl Observer {
    /// An observer, and the hints it will give: to be passed to the loop as they come.
    pub fn new(
        runtime: Arc<dyn RuntimeService>,
        features: SharedFeatures,
        pool: Pool,
        limit: Duration,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (hints, taken) = mpsc::channel(HINTS_MAX);
        let observer = Self {
            runtime,
            features,
            version: Mutex::default(),
            pool,
            limit,
            slow: Mutex::default(),
            exits: Exits::new(hints.clone()),
            watch_exits: AtomicBool::new(false),
            owners: Mutex::default(),
            hints,
        };
        (observer, taken)
    }

    /// The outline of all pods. What lacks a kubelet's labels is not a pod.
    pub async fn list(&self) -> Result<Listing, CallError> {
        let (sandboxes, containers) = tokio::join!(
            self.runtime.list_pod_sandbox(None, self.limit),
            self.runtime.list_containers(None, self.limit)
        );
        let (sandboxes, containers) = (sandboxes.map_err(failed)?, containers.map_err(failed)?);
        // What makes no sense here is not judged: the pod is looked at, and that look says what is wrong with it alone.
        let mut listing = Listing::default();
        let mut owners = BTreeMap::new();
        for sandbox in sandboxes {
            let Some(owner) = Owner::of(&sandbox.labels) else { continue };
            let pod = entry(&mut listing, owner);
            pod.sandboxes.insert(sandbox.id.as_str().into(), convert::is_ready(sandbox.state));
            let source = sandbox.annotations.get(CONFIG_SOURCE).and_then(|text| Source::parse(text));
            pod.source = pod.source.or(source);
            owners.insert(sandbox.id.clone(), PodUid::from(owner.uid));
        }
        for container in containers {
            let Some(owner) = Owner::of(&container.labels) else { continue };
            let Some(name) = owner.container else { continue };
            let state = convert::run_state(container.state);
            entry(&mut listing, owner).containers.insert(container.id.as_str().into(), (name.into(), state));
            owners.insert(container.id.clone(), PodUid::from(owner.uid));
        }
        self.exits.keep_pods(&listing);
        self.slow.lock().expect("nobody panics with it").retain(|uid, _| listing.pods.contains_key(uid));
        *self.owners.lock().expect("nobody panics with it") = owners;
        Ok(listing)
    }

    /// Everything the runtime has of one pod, and whether every running container is watched for its exit.
    ///
    /// A look costs nothing, so that its first limit is short and people hear soon of a pod that cannot be seen; a runtime that
    /// is only slow gets more time with each try.
    pub async fn observe(&self, uid: &PodUid) -> Result<(PodSeen, bool), CallError> {
        let tries = self.slow.lock().expect("nobody panics with it").get(uid).copied().unwrap_or(0);
        let limit = (LOOK_FIRST * 2u32.pow(tries.min(10))).min(self.limit);
        let began = Instant::now();
        let result = self.look(uid, limit).await;
        let mut slow = self.slow.lock().expect("nobody panics with it");
        match &result {
            Err(_) if began.elapsed() >= limit => drop(slow.insert(uid.clone(), tries + 1)),
            _ => drop(slow.remove(uid)),
        }
        result
    }

    async fn look(&self, uid: &PodUid, limit: Duration) -> Result<(PodSeen, bool), CallError> {
        let (sandboxes, containers) = tokio::join!(
            self.runtime.list_pod_sandbox(Some(sandboxes_of_pod(uid.as_str())), limit),
            self.runtime.list_containers(Some(containers_of_pod(uid.as_str())), limit)
        );
        let (mut sandboxes, mut containers) = (sandboxes.map_err(failed)?, containers.map_err(failed)?);
        // A runtime that ignores the filter shows other pods' too.
        sandboxes.retain(|sandbox| Owner::of(&sandbox.labels).is_some_and(|owner| owner.uid == uid.as_str()));
        containers.retain(|container| Owner::of(&container.labels).is_some_and(|owner| owner.uid == uid.as_str()));
        validate_response::sandboxes(&sandboxes)
            .and_then(|()| validate_response::containers(&containers))
            .map_err(failed)?;
        self.remember(uid, &sandboxes, &containers);
        let looks = (self.sandboxes(sandboxes, limit), self.containers(uid, containers, limit));
        let (sandboxes, containers) = tokio::join!(looks.0, looks.1);
        let (sandboxes, (mut containers, pids)) = (sandboxes?, containers?);
        // Attempts count up within a sandbox, whatever the clock does; of two sandboxes the newer one's containers come first.
        let rank: BTreeMap<_, _> = sandboxes.iter().enumerate().map(|(n, sandbox)| (sandbox.id.clone(), n)).collect();
        containers.sort_by_key(|c| {
            let age = rank.get(&c.sandbox).copied().unwrap_or(usize::MAX);
            (c.name.clone(), age, Reverse(c.attempt), Reverse(c.created_at), c.id.clone())
        });
        let seen = PodSeen { sandboxes, containers };
        let covered = self.watch_exits.load(Ordering::Relaxed) && self.exits.watch(uid, &seen, pids);
        Ok((seen, covered))
    }

    /// Newest first. Only the newest one's addresses matter, and only while it is ready.
    async fn sandboxes(&self, listed: Vec<v1::PodSandbox>, limit: Duration) -> Result<Vec<SandboxSeen>, CallError> {
        let mut seen: Vec<SandboxSeen> = listed.into_iter().map(convert::sandbox).collect();
        seen.sort_by_key(|s| (Reverse(s.attempt), Reverse(s.created_at), s.id.clone()));
        let Some(newest) = seen.first_mut().filter(|newest| newest.ready) else { return Ok(seen) };
        match self.runtime.pod_sandbox_status(newest.id.as_str(), false, limit).await {
            Ok(answer) => {
                let status = validate_response::sandbox_status(answer, newest.id.as_str()).map_err(failed)?;
                newest.ready = convert::is_ready(status.state);
                newest.ips = convert::addresses(status.network);
            }
            // Gone since the list: the pod has one sandbox less.
            Err(error) if error.is_not_found() => drop(seen.remove(0)),
            Err(error) => return Err(failed(error)),
        }
        Ok(seen)
    }

    /// Every container in full, and the pids of those that are not yet watched.
    async fn containers(
        &self,
        uid: &PodUid,
        listed: Vec<v1::Container>,
        limit: Duration,
    ) -> Result<(Vec<podwright_core::model::ContainerSeen>, exits::Pids), CallError> {
        let watching = self.watch_exits.load(Ordering::Relaxed);
        let asked = listed.into_iter().filter(|c| Owner::of(&c.labels).is_some_and(|o| o.container.is_some())).map(
            |container| async move {
                let running = convert::run_state(container.state).may_run();
                let verbose = watching && running && !self.exits.has(&container.id);
                match self.runtime.container_status(&container.id, verbose, limit).await {
                    Ok(answer) => Ok(Some((container, answer))),
                    // Gone since the list.
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            },
        );
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(STATUSES_AT_ONCE).collect().await;
        let mut seen = Vec::new();
        let mut pids = exits::Pids::new();
        for answer in answers {
            let Some((container, answer)) = answer? else { continue };
            if let Some(pid) = exits::pid_of(&answer.info) {
                pids.insert(container.id.as_str().into(), pid);
            }
            let status = validate_response::container_status(answer, &container.id).map_err(failed)?;
            let words = termination_message::of(&self.pool, uid, &status, limit).await;
            seen.extend(convert::container(&container, status, words));
        }
        Ok((seen, pids))
    }

    fn remember(&self, uid: &PodUid, sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) {
        let mut owners = self.owners.lock().expect("nobody panics with it");
        let ids = sandboxes.iter().map(|s| &s.id).chain(containers.iter().map(|c| &c.id));
        owners.extend(ids.map(|id| (id.clone(), uid.clone())));
    }
}

fn entry<'a>(listing: &'a mut Listing, owner: Owner<'_>) -> &'a mut PodListed {
    listing.pods.entry(owner.uid.into()).or_insert_with(|| PodListed {
        full_name: FullName { namespace: owner.namespace.into(), name: owner.name.into() },
        source: None,
        sandboxes: BTreeMap::new(),
        containers: BTreeMap::new(),
    })
}

/// A look that failed changed nothing.
fn failed(error: CriError) -> CallError {
    read_failure("", &error)
}

/// Where a pod came from, on its sandbox.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Hints that wait for the loop; those who give them wait for a place.
const HINTS_MAX: usize = 256;

/// The first look at a pod may take this long; doubled each time it was not enough, up to the limit of all calls.
const LOOK_FIRST: Duration = Duration::from_secs(7);

/// Statuses of one pod's containers asked for side by side.
const STATUSES_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests;
