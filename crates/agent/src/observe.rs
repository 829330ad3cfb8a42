//! Observes the container runtime: a list of all pods, the full state of one pod, and hints that something may have changed.
//!
//! ```text
//!   Effect::List, Observe, CheckRuntime ─▶ Observer ─▶ runtime                 responses: the only source of state
//!   event stream (or a pidfd per container) ─▶ Event::Hint ─▶ event loop       reasons to observe, never state
//! ```
//!
//! Hints come from the runtime's event stream. If it has none, each running container is watched by a pidfd; its pid is in the
//! verbose container status, which is requested only while the container is not yet watched.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use podwright_core::model::{CallError, Event, FullName, Listing, PodListed, PodSeen, PodUid, SandboxSeen, Source};
use podwright_core::static_pod::{CONFIG_SOURCE, MANIFEST_HASH};
use podwright_cri::labels::{self, Owner, containers_of_pod, sandboxes_of_pod};
use podwright_cri::{CriError, RuntimeService, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::host::{HostPaths, Pool};
use crate::perform::{SharedFeatures, read_failure};

mod convert;
mod event_stream;
mod exits;
mod runtime;
mod termination_message;
mod validate_response;

pub use runtime::{CgroupDriverError, runtime_cgroup_driver, supports_supplemental_groups_policy};

use exits::ExitWatches;

/// Reads the state of the container runtime.
pub struct Observer {
    runtime: Arc<dyn RuntimeService>,
    features: SharedFeatures,
    /// Name and version of the runtime; `None`: to be requested, since the runtime may have been replaced.
    version: Mutex<Option<v1::VersionResponse>>,
    pool: Pool,
    /// See [`Observer::hold`].
    held: AtomicBool,
    /// Where the files of pods are; termination messages are read from there only.
    paths: HostPaths,
    /// Time limit of each runtime call.
    limit: Duration,
    /// Pods whose last observations timed out, and how many in a row.
    slow: Mutex<BTreeMap<PodUid, u32>>,
    exits: ExitWatches,
    /// The runtime has no event stream: running containers are watched by pidfds.
    watch_exits: AtomicBool,
    /// The pod of each sandbox and container id, for events without labels. Holds the ids of the last list and those observed since.
    owners: Mutex<BTreeMap<String, PodUid>>,
    hints: mpsc::Sender<Event>,
}

impl Observer {
    /// Hints that a pod may have changed go to `hints`.
    pub fn new(
        runtime: Arc<dyn RuntimeService>,
        features: SharedFeatures,
        pool: Pool,
        paths: HostPaths,
        limit: Duration,
        hints: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            runtime,
            features,
            version: Mutex::default(),
            pool,
            held: AtomicBool::new(false),
            paths,
            limit,
            slow: Mutex::default(),
            exits: ExitWatches::new(hints.clone()),
            watch_exits: AtomicBool::new(false),
            owners: Mutex::default(),
            hints,
        }
    }

    /// Observations fail from now on, as if the runtime did not answer: without one, core neither starts nor stops anything.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// Ends [`Observer::hold`].
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    fn check_held(&self) -> Result<(), CallError> {
        if self.held.load(Ordering::Acquire) { Err(CallError::Unavailable { message: HELD.into() }) } else { Ok(()) }
    }

    /// All pods with the states of their sandboxes and containers. Objects without the labels of a kubelet are left out.
    pub async fn list(&self) -> Result<Listing, CallError> {
        self.check_held()?;
        let (sandboxes, containers) = tokio::join!(
            self.runtime.list_pod_sandbox(None, self.limit),
            self.runtime.list_containers(None, self.limit)
        );
        let (sandboxes, containers) = (sandboxes.map_err(failed)?, containers.map_err(failed)?);
        // Entries are not validated here: the pod is observed next, and that observation fails for this pod alone.
        let mut listing = Listing::default();
        let mut owners = BTreeMap::new();
        for sandbox in sandboxes {
            let Some(owner) = Owner::of(&sandbox.labels) else { continue };
            let pod = entry(&mut listing, owner);
            pod.sandboxes.insert(sandbox.id.as_str().into(), convert::is_ready(sandbox.state));
            let source = sandbox.annotations.get(CONFIG_SOURCE).and_then(|text| Source::parse(text));
            pod.source = pod.source.or(source);
            let manifest = sandbox.annotations.get(MANIFEST_HASH);
            pod.manifest_hash = pod.manifest_hash.take().or_else(|| manifest.cloned());
            owners.insert(sandbox.id.clone(), PodUid::from(owner.uid));
        }
        for container in containers {
            let Some(owner) = Owner::of(&container.labels) else { continue };
            let Some(name) = owner.container else { continue };
            let state = convert::run_state(container.state);
            let pod = entry(&mut listing, owner);
            pod.containers.insert(container.id.as_str().into(), (name.into(), state));
            pod.container_hashes.extend(container.annotations.get(labels::CONTAINER_HASH).cloned());
            owners.insert(container.id.clone(), PodUid::from(owner.uid));
        }
        self.exits.retain_pods(&listing);
        self.slow.lock().expect("no panic under this lock").retain(|uid, _| listing.pods.contains_key(uid));
        *self.owners.lock().expect("no panic under this lock") = owners;
        Ok(listing)
    }

    /// Everything the runtime has of one pod, and whether every running container is watched for its exit.
    ///
    /// An observation changes nothing and can be repeated: its first time limit is short, so that a pod that can't be observed is
    /// reported early, and a runtime that is only slow gets more time with each attempt.
    pub async fn observe(&self, uid: &PodUid) -> Result<(PodSeen, bool), CallError> {
        let attempts = self.slow.lock().expect("no panic under this lock").get(uid).copied().unwrap_or(0);
        let limit = (OBSERVE_TIME_FIRST * 2u32.pow(attempts.min(10))).min(self.limit);
        let began = Instant::now();
        let result = self.observe_within(uid, limit).await;
        let mut slow = self.slow.lock().expect("no panic under this lock");
        match &result {
            Err(_) if began.elapsed() >= limit => drop(slow.insert(uid.clone(), attempts + 1)),
            _ => drop(slow.remove(uid)),
        }
        result
    }

    async fn observe_within(&self, uid: &PodUid, limit: Duration) -> Result<(PodSeen, bool), CallError> {
        self.check_held()?;
        let (sandboxes, containers) = tokio::join!(
            self.runtime.list_pod_sandbox(Some(sandboxes_of_pod(uid.as_str())), limit),
            self.runtime.list_containers(Some(containers_of_pod(uid.as_str())), limit)
        );
        let (mut sandboxes, mut containers) = (sandboxes.map_err(failed)?, containers.map_err(failed)?);
        // A runtime may ignore the filter and return those of other pods too.
        sandboxes.retain(|sandbox| Owner::of(&sandbox.labels).is_some_and(|owner| owner.uid == uid.as_str()));
        containers.retain(|container| Owner::of(&container.labels).is_some_and(|owner| owner.uid == uid.as_str()));
        validate_response::sandboxes(&sandboxes)
            .and_then(|()| validate_response::containers(&containers))
            .map_err(failed)?;
        self.remember_owner(uid, &sandboxes, &containers);
        let (sandboxes, containers) =
            tokio::join!(self.sandboxes(sandboxes, limit), self.containers(uid, containers, limit));
        let (sandboxes, (mut containers, pids)) = (sandboxes?, containers?);
        // Attempts rise within a sandbox even if the clock is set back; containers of the newer sandbox come first.
        let rank: BTreeMap<_, _> = sandboxes.iter().enumerate().map(|(n, sandbox)| (sandbox.id.clone(), n)).collect();
        containers.sort_by_key(|c| {
            let age = rank.get(&c.sandbox).copied().unwrap_or(usize::MAX);
            (c.name.clone(), age, Reverse(c.attempt), Reverse(c.created_at), c.id.clone())
        });
        let seen = PodSeen { sandboxes, containers };
        let covered = self.watch_exits.load(Ordering::Relaxed) && self.exits.watch(uid, &seen, pids);
        Ok((seen, covered))
    }

    /// Sandboxes, newest first. IPs are read only of the newest one, and only if it is ready.
    async fn sandboxes(&self, listed: Vec<v1::PodSandbox>, limit: Duration) -> Result<Vec<SandboxSeen>, CallError> {
        let mut seen: Vec<SandboxSeen> = listed.into_iter().map(convert::sandbox).collect();
        seen.sort_by_key(|s| (Reverse(s.attempt), Reverse(s.created_at), s.id.clone()));
        let Some(newest) = seen.first_mut().filter(|newest| newest.ready) else { return Ok(seen) };
        match self.runtime.pod_sandbox_status(newest.id.as_str(), false, limit).await {
            Ok(response) => {
                let status = validate_response::sandbox_status(response, newest.id.as_str()).map_err(failed)?;
                newest.ready = convert::is_ready(status.state);
                newest.ips = convert::addresses(status.network);
            }
            // Removed since the list.
            Err(error) if error.is_not_found() => drop(seen.remove(0)),
            Err(error) => return Err(failed(error)),
        }
        Ok(seen)
    }

    /// Every container with its status, and the pids of those that are not yet watched.
    async fn containers(
        &self,
        uid: &PodUid,
        listed: Vec<v1::Container>,
        limit: Duration,
    ) -> Result<(Vec<podwright_core::model::ContainerSeen>, exits::Pids), CallError> {
        let watching = self.watch_exits.load(Ordering::Relaxed);
        let requests = listed.into_iter().filter(|c| Owner::of(&c.labels).is_some_and(|o| o.container.is_some())).map(
            |container| async move {
                let running = convert::run_state(container.state).may_run();
                let verbose = watching && running && !self.exits.contains(&container.id);
                match self.runtime.container_status(&container.id, verbose, limit).await {
                    Ok(response) => Ok(Some((container, response))),
                    // Removed since the list.
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            },
        );
        let responses: Vec<_> = stream::iter(requests).buffer_unordered(STATUS_CALLS_MAX).collect().await;
        let mut seen = Vec::new();
        let mut pids = exits::Pids::new();
        for response in responses {
            let Some((container, response)) = response? else { continue };
            if let Some(pid) = exits::pid_of(&response.info) {
                pids.insert(container.id.as_str().into(), pid);
            }
            let status = validate_response::container_status(response, &container.id).map_err(failed)?;
            let message = termination_message::of(&self.pool, &self.paths, uid, &status, limit).await;
            seen.extend(convert::container(&container, status, message));
        }
        Ok((seen, pids))
    }

    fn remember_owner(&self, uid: &PodUid, sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) {
        let mut owners = self.owners.lock().expect("no panic under this lock");
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
        container_hashes: BTreeSet::new(),
        manifest_hash: None,
    })
}

/// Observations change nothing, so a failed one is never in doubt.
fn failed(error: CriError) -> CallError {
    read_failure(None, &error)
}

/// Shown as the state of the runtime.
const HELD: &str = "the cgroup driver of the container runtime is not known yet";

/// Time limit of the first observation of a pod; doubled with each timeout, up to the limit of runtime calls.
const OBSERVE_TIME_FIRST: Duration = Duration::from_secs(7);

/// ContainerStatus calls for one pod under way at the same time.
const STATUS_CALLS_MAX: usize = 8;

#[cfg(test)]
mod tests;
