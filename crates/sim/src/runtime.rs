//! The container runtime: what a CRI runtime holds and how its calls change that. It has no time of its own; the scheduler
//! drives it.
//!
//! As containerd: a name is reserved from the moment its call arrives; a stopped sandbox refuses Create and Start; the stop
//! signal is sent once however many stops arrive; StopPodSandbox kills what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{
    ContainerId, ContainerSeen, FullName, Listing, Name, PodListed, PodSeen, PodUid, RunState, SandboxId, SandboxSeen,
    Source,
};

use crate::container_script::ContainerScript;

/// Everything the runtime has, and the true state of what it had.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// All sandboxes, ready or stopped.
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// All containers, running or exited.
    pub containers: BTreeMap<ContainerId, Instance>,
    /// Containers that were removed, for the checkers.
    pub removed: BTreeMap<ContainerId, Instance>,
    /// Pulled images.
    pub images: BTreeSet<String>,
    /// It does not answer calls.
    pub down: bool,
    /// Observations of this pod find the runtime unavailable.
    pub unobservable: Option<PodUid>,
    /// What the processes of containers do. A container's `command` is an index into this list.
    pub scripts: Vec<ContainerScript>,
    names: BTreeSet<String>,
    starts: BTreeMap<(PodUid, Name), usize>,
    made: u64,
}

/// A pod sandbox.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// UID of its pod.
    pub uid: PodUid,
    /// Namespace and name of its pod.
    pub full_name: FullName,
    /// The `config.source` annotation.
    pub source: Option<Source>,
    /// It has the kubelet's labels; without them it is not a pod of this node.
    pub labelled: bool,
    /// The attempt in its CRI metadata.
    pub attempt: u32,
    /// False once it is stopped.
    pub ready: bool,
    /// Wall time of its creation.
    pub created_at: Timestamp,
}

/// One container instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// UID of its pod.
    pub uid: PodUid,
    /// The container's name in the spec.
    pub name: Name,
    /// The restart count it was created with.
    pub attempt: u32,
    /// The sandbox it runs in.
    pub sandbox: SandboxId,
    /// The hash of its spec.
    pub hash: Option<String>,
    /// As CRI reports it.
    pub state: RunState,
    /// Wall time of its creation.
    pub created_at: Timestamp,
    /// Wall time of the start of its process.
    pub started_at: Option<Timestamp>,
    /// The same in simulation time.
    pub began: Option<Duration>,
    /// Wall time of the exit.
    pub finished_at: Option<Timestamp>,
    /// 0 until it exits.
    pub exit_code: i32,
    /// The reason of the exit, as CRI reports it.
    pub reason: String,
    /// Index into [`Runtime::scripts`].
    pub script: usize,
    /// TERM was sent.
    pub term_sent: bool,
    /// KILL was sent.
    pub kill_sent: bool,
    /// The grace period in its annotations.
    pub grace: Option<Duration>,
    /// The preStop hook in its annotations.
    pub pre_stop: Option<String>,
    /// Its start was cut off by the death of the caller: it exited without a process.
    pub cut_off: bool,
    /// The incarnation of its pod, see `Checks::incarnation`.
    pub incarnation: u32,
    /// Its number among all sandboxes and containers, in order of creation.
    pub made: u64,
}

/// The request to create a container.
#[derive(Clone, Debug)]
pub struct NewContainer {
    /// UID of its pod.
    pub uid: PodUid,
    /// The container's name in the spec.
    pub name: Name,
    /// The restart count.
    pub attempt: u32,
    /// The sandbox to run in.
    pub sandbox: SandboxId,
    /// The hash of its spec.
    pub hash: Option<String>,
    /// Index into [`Runtime::scripts`].
    pub script: usize,
    /// The pod's grace period.
    pub grace: Option<Duration>,
    /// The preStop hook as JSON.
    pub pre_stop: Option<String>,
    /// The incarnation of its pod.
    pub incarnation: u32,
}

impl Runtime {
    /// An empty runtime whose containers run these scripts.
    pub fn new(scripts: Vec<ContainerScript>) -> Self {
        Self { scripts, ..Self::default() }
    }

    /// A call that creates something of this name arrives. The name is reserved until the call fails or its object is removed.
    pub fn reserve(&mut self, name: String) -> Result<(), String> {
        if self.names.insert(name.clone()) { Ok(()) } else { Err(format!("name {name:?} is reserved")) }
    }

    /// The call ended without creating anything.
    pub fn release(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// RunPodSandbox; its name is reserved already.
    pub fn run_sandbox(&mut self, sandbox: Sandbox) -> SandboxId {
        self.made += 1;
        let id = SandboxId::from(format!("s{}", self.made));
        self.sandboxes.insert(id.clone(), sandbox);
        id
    }

    /// CreateContainer; its name is reserved already.
    pub fn create(&mut self, new: NewContainer, wall: Timestamp) -> Result<ContainerId, String> {
        if !self.sandboxes.get(&new.sandbox).is_some_and(|s| s.ready) {
            return Err(format!("sandbox {} is not ready", new.sandbox));
        }
        self.made += 1;
        let id = ContainerId::from(format!("c{}", self.made));
        let instance = Instance {
            uid: new.uid,
            name: new.name,
            attempt: new.attempt,
            sandbox: new.sandbox,
            hash: new.hash,
            state: RunState::Created,
            created_at: wall,
            started_at: None,
            began: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            script: new.script,
            term_sent: false,
            kill_sent: false,
            grace: new.grace,
            pre_stop: new.pre_stop,
            cut_off: false,
            incarnation: new.incarnation,
            made: self.made,
        };
        self.containers.insert(id.clone(), instance);
        Ok(id)
    }

    /// StartContainer. Returns which start of this container it is.
    pub fn start(&mut self, id: &ContainerId, now: Duration, wall: Timestamp) -> Result<usize, String> {
        let Some(container) = self.containers.get_mut(id) else { return Err(format!("container {id} not found")) };
        if !self.sandboxes.get(&container.sandbox).is_some_and(|s| s.ready) {
            return Err(format!("sandbox {} is not running", container.sandbox));
        }
        if container.state != RunState::Created {
            return Err(format!("container {id} is in state {:?}", container.state));
        }
        container.state = RunState::Running;
        container.started_at = Some(wall);
        container.began = Some(now);
        let nth = self.starts.entry((container.uid.clone(), container.name.clone())).or_default();
        *nth += 1;
        Ok(*nth - 1)
    }

    /// A start failed inside the runtime: containerd leaves such a container exited.
    pub fn fail_start(&mut self, id: &ContainerId, wall: Timestamp) {
        if let Some(c) = self.containers.get_mut(id).filter(|c| c.state == RunState::Created) {
            c.state = RunState::Exited;
            c.exit_code = 128;
            c.reason = "StartError".into();
            c.finished_at = Some(wall);
        }
    }

    /// The caller of a start died, and the runtime gives the start up.
    pub fn cut_off_start(&mut self, id: &ContainerId, wall: Timestamp) {
        self.fail_start(id, wall);
        if let Some(c) = self.containers.get_mut(id).filter(|c| c.state == RunState::Exited && c.began.is_none()) {
            c.cut_off = true;
        }
    }

    /// A process exits. False if it had exited before.
    pub fn exit(&mut self, id: &ContainerId, code: i32, wall: Timestamp) -> bool {
        let Some(c) = self.containers.get_mut(id).filter(|c| c.state.may_run()) else { return false };
        c.state = RunState::Exited;
        c.exit_code = code;
        c.reason = if code == 0 { "Completed" } else { "Error" }.into();
        c.finished_at = Some(wall);
        true
    }

    /// RemoveContainer: a running process is killed first, as every runtime does.
    pub fn remove(&mut self, id: &ContainerId) {
        if let Some(mut c) = self.containers.remove(id) {
            if c.state.may_run() {
                (c.state, c.exit_code) = (RunState::Exited, 137);
            }
            self.names.remove(&container_name(&c.uid, &c.name, c.attempt));
            self.removed.insert(id.clone(), c);
        }
    }

    /// RemovePodSandbox: removes the containers in it, too.
    pub fn remove_sandbox(&mut self, id: &SandboxId) {
        let inside: Vec<_> = self.inside(id).map(|(id, _)| id.clone()).collect();
        for container in inside {
            self.remove(&container);
        }
        if let Some(s) = self.sandboxes.remove(id) {
            self.names.remove(&sandbox_name(&s.uid, s.attempt));
        }
    }

    /// The host reboots. Either the runtime's state is lost, or everything in it has exited.
    pub fn reboot(&mut self, wiped: bool, wall: Timestamp) {
        self.names.retain(|_| false);
        let all: Vec<ContainerId> = self.containers.keys().cloned().collect();
        for id in &all {
            if self.exit(id, 255, wall)
                && let Some(c) = self.containers.get_mut(id)
            {
                c.reason = "Unknown".into();
            }
            if wiped {
                self.remove(id);
            }
        }
        if wiped {
            self.sandboxes.clear();
            return;
        }
        for sandbox in self.sandboxes.values_mut() {
            sandbox.ready = false;
        }
        let sandboxes = self.sandboxes.values().map(|s| sandbox_name(&s.uid, s.attempt));
        let containers = self.containers.values().map(|c| container_name(&c.uid, &c.name, c.attempt));
        self.names = sandboxes.chain(containers).collect();
    }

    // --- queries ---

    /// The containers in a sandbox.
    pub fn inside(&self, id: &SandboxId) -> impl Iterator<Item = (&ContainerId, &Instance)> {
        self.containers.iter().filter(move |(_, c)| c.sandbox == *id)
    }

    /// A pod's containers, running or not.
    pub fn of<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = (&'a ContainerId, &'a Instance)> {
        self.containers.iter().filter(move |(_, c)| c.uid == *uid)
    }

    /// A pod's running containers.
    pub fn alive<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = (&'a ContainerId, &'a Instance)> {
        self.of(uid).filter(|(_, c)| c.state.may_run())
    }

    /// A pod's sandboxes.
    pub fn sandboxes_of<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = (&'a SandboxId, &'a Sandbox)> {
        self.sandboxes.iter().filter(move |(_, s)| s.uid == *uid)
    }

    /// Every pod that has a sandbox or a container.
    pub fn uids(&self) -> BTreeSet<PodUid> {
        self.sandboxes.values().map(|s| s.uid.clone()).chain(self.containers.values().map(|c| c.uid.clone())).collect()
    }

    /// The script of a container's process.
    pub fn script(&self, id: &ContainerId) -> Option<&ContainerScript> {
        let index = self.truth(id)?.script;
        self.scripts.get(index).or(self.scripts.first())
    }

    /// An instance, removed or not.
    pub fn truth(&self, id: &ContainerId) -> Option<&Instance> {
        self.containers.get(id).or_else(|| self.removed.get(id))
    }

    /// Every instance a pod ever had.
    pub fn ever<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = (&'a ContainerId, &'a Instance)> {
        self.containers.iter().chain(&self.removed).filter(move |(_, c)| c.uid == *uid)
    }

    /// What CRI reports of one pod.
    pub fn observe(&self, uid: &PodUid) -> PodSeen {
        let mut sandboxes: Vec<SandboxSeen> = self
            .sandboxes_of(uid)
            .filter(|(_, s)| s.labelled)
            .map(|(id, s)| SandboxSeen {
                id: id.clone(),
                attempt: s.attempt,
                ready: s.ready,
                created_at: s.created_at,
                ips: if s.ready { vec![format!("10.0.0.{}", 1 + s.attempt % 250)] } else { vec![] },
            })
            .collect();
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        let mut containers: Vec<ContainerSeen> = self.of(uid).map(|(id, c)| c.seen(id)).collect();
        containers.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
        PodSeen { sandboxes, containers }
    }

    /// What CRI lists.
    pub fn list(&self) -> Listing {
        let mut listing = Listing::default();
        for (id, s) in self.sandboxes.iter().filter(|(_, s)| s.labelled) {
            let pod = listing.pods.entry(s.uid.clone()).or_insert_with(|| PodListed {
                full_name: s.full_name.clone(),
                source: s.source,
                sandboxes: BTreeMap::new(),
                containers: BTreeMap::new(),
                container_hashes: BTreeSet::new(),
                manifest_hash: None,
            });
            pod.sandboxes.insert(id.clone(), s.ready);
        }
        for (id, c) in &self.containers {
            if let Some(pod) = listing.pods.get_mut(&c.uid) {
                pod.containers.insert(id.clone(), (c.name.clone(), c.state));
            }
        }
        listing
    }
}

impl Instance {
    fn seen(&self, id: &ContainerId) -> ContainerSeen {
        ContainerSeen {
            id: id.clone(),
            sandbox: self.sandbox.clone(),
            name: self.name.clone(),
            attempt: self.attempt,
            hash: self.hash.clone(),
            state: self.state,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            reason: self.reason.clone(),
            message: String::new(),
            image: "image".into(),
            image_id: "sha256:image".into(),
            grace: self.grace,
            pre_stop: self.pre_stop.clone(),
            user: None,
        }
    }
}

/// The runtime's name for a sandbox.
pub fn sandbox_name(uid: &PodUid, attempt: u32) -> String {
    format!("{uid}_{attempt}")
}

/// The runtime's name for a container.
pub fn container_name(uid: &PodUid, name: &Name, attempt: u32) -> String {
    format!("{name}_{uid}_{attempt}")
}

/// The runtime's name for an image.
pub fn image_id(image: &str) -> String {
    format!("sha256:{image}")
}
