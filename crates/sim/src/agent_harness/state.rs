//! The state of the fake runtime and how calls change it: sandboxes, containers, names and processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_cri::labels::{CONTAINER_NAME, POD_UID};
use podwright_cri::{Code, CriError, v1};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::clock::HarnessClock;
use super::faults::RuntimeFaults;
use crate::rng::Rng;

/// What a container's process does. The first element of the container's command is an index into the runtime's programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// It exits after this time with this code; `None`: it runs until it is stopped.
    pub exits_after: Option<(Duration, i32)>,
    /// It exits this long after TERM; `None`: it ignores TERM.
    pub exits_on_term: Option<Duration>,
}

impl Default for Program {
    fn default() -> Self {
        Self { exits_after: None, exits_on_term: Some(Duration::from_millis(20)) }
    }
}

/// A call that the runtime received.
#[derive(Clone, Debug)]
pub struct ReceivedCall {
    /// Time of arrival.
    pub at: Instant,
    /// Its CRI name.
    pub call: &'static str,
    /// UID of the pod, if the call names it.
    pub uid: Option<String>,
    /// ID or name of the object.
    pub subject: String,
}

pub(super) struct Sandbox {
    pub(super) metadata: v1::PodSandboxMetadata,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) name: String,
    pub(super) ready: bool,
    pub(super) created_at: i64,
    pub(super) ip: String,
}

pub(super) struct Container {
    pub(super) config: v1::ContainerConfig,
    pub(super) sandbox: String,
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) state: v1::ContainerState,
    pub(super) created_at: i64,
    pub(super) started_at: i64,
    pub(super) finished_at: i64,
    pub(super) exit_code: i32,
    pub(super) terms: u32,
    /// True once the process has exited.
    pub(super) gone: watch::Sender<bool>,
}

pub(super) struct State {
    pub(super) clock: HarnessClock,
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    /// IDs by name, of objects and of calls under way.
    pub(super) names: BTreeMap<String, String>,
    pub(super) images: BTreeSet<String>,
    pub(super) programs: Vec<Program>,
    pub(super) faults: RuntimeFaults,
    pub(super) rng: Rng,
    pub(super) received: Vec<ReceivedCall>,
    pub(super) log_calls: bool,
    /// Violations of what a node must guarantee.
    pub(super) violations: Vec<String>,
    pub(super) down: bool,
    /// Incremented by each outage: calls that were under way have no effect.
    pub(super) epoch: u64,
    pub(super) subscribers: Vec<mpsc::UnboundedSender<Result<v1::ContainerEventResponse, CriError>>>,
    pub(super) latency: Duration,
    next: u64,
}

pub(super) type CriResult<T> = Result<T, CriError>;

impl State {
    pub(super) fn new(seed: u64, clock: HarnessClock) -> Self {
        Self {
            clock,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            names: BTreeMap::new(),
            images: BTreeSet::new(),
            programs: vec![Program::default()],
            faults: RuntimeFaults::default(),
            rng: Rng::new(seed),
            received: vec![],
            log_calls: true,
            violations: vec![],
            down: false,
            epoch: 0,
            subscribers: vec![],
            latency: Duration::from_millis(5),
            next: 0,
        }
    }

    pub(super) fn nanos(&self) -> i64 {
        i64::try_from(self.clock.wall().as_nanosecond()).expect("in range for centuries")
    }

    /// As containerd's IDs: 64 hexadecimal digits.
    pub(super) fn new_id(&mut self) -> String {
        self.next += 1;
        format!("{:016x}{:048x}", self.rng.next(), self.next)
    }

    pub(super) fn uid_of(&self, id: &str) -> Option<String> {
        let labels = self.containers.get(id).map(|c| &c.config.labels);
        labels.or_else(|| self.sandboxes.get(id).map(|s| &s.labels))?.get(POD_UID).cloned()
    }

    /// A name is reserved when a call begins, until the call fails or its object is removed.
    pub(super) fn reserve(&mut self, call: &'static str, what: &str, name: &str, id: &str) -> CriResult<()> {
        if let Some(owner) = self.names.get(name) {
            let message = format!("failed to reserve {what} name {name:?}: name {name:?} is reserved for {owner:?}");
            return Err(CriError::new(Code::Other, call, message));
        }
        self.names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }

    pub(super) fn run_sandbox(&mut self, id: &str, name: String, config: v1::PodSandboxConfig) {
        let n = self.next;
        let sandbox = Sandbox {
            metadata: config.metadata.unwrap_or_default(),
            labels: config.labels,
            annotations: config.annotations,
            name,
            ready: true,
            created_at: self.nanos(),
            ip: format!("10.{}.{}.{}", (n >> 16) & 255, (n >> 8) & 255, n & 255),
        };
        self.sandboxes.insert(id.to_owned(), sandbox);
    }

    pub(super) fn create(&mut self, id: &str, name: &str, request: v1::CreateContainerRequest) -> CriResult<()> {
        let refuse = |why: String| Err(CriError::new(Code::Other, "CreateContainer", why));
        let sandbox = request.pod_sandbox_id;
        if !self.sandboxes.get(&sandbox).is_some_and(|s| s.ready) {
            return refuse(format!("failed to find sandbox {sandbox:?} ready"));
        }
        let config = request.config.unwrap_or_default();
        let program = config.command.first().and_then(|index| index.parse::<usize>().ok()).unwrap_or(0);
        let program = self.programs.get(program).cloned().unwrap_or_default();
        let container = Container {
            config,
            sandbox,
            name: name.to_owned(),
            program,
            state: v1::ContainerState::ContainerCreated,
            created_at: self.nanos(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            terms: 0,
            gone: watch::channel(false).0,
        };
        self.containers.insert(id.to_owned(), container);
        Ok(())
    }

    /// Starts a container. Returns when its process exits, if it does without a signal.
    pub(super) fn start(&mut self, id: &str) -> CriResult<Option<(Duration, i32)>> {
        let now = self.nanos();
        let refuse = |code, why: String| Err(CriError::new(code, "StartContainer", why));
        let Some(container) = self.containers.get(id) else {
            return refuse(Code::NotFound, format!("an error occurred when try to find container {id:?}: not found"));
        };
        if container.state != v1::ContainerState::ContainerCreated {
            return refuse(Code::Other, format!("container {id:?} is in state {:?}", container.state));
        }
        let (sandbox, name) = (container.sandbox.clone(), self.name_of(id));
        if !self.sandboxes.get(&sandbox).is_some_and(|s| s.ready) {
            return refuse(Code::Other, format!("sandbox container {sandbox:?} is not running"));
        }
        let uid = self.uid_of(id);
        let live = |c: &&Container| c.state == v1::ContainerState::ContainerRunning;
        let same = |c: &&Container| c.config.labels.get(CONTAINER_NAME) == name.as_ref();
        let of_pod = |c: &&Container| c.config.labels.get(POD_UID) == uid.as_ref();
        if self.containers.values().filter(live).filter(same).any(|c| of_pod(&c)) {
            self.violations.push(format!("two running {name:?} in pod {uid:?}"));
        }
        let container = self.containers.get_mut(id).expect("found above");
        container.state = v1::ContainerState::ContainerRunning;
        container.started_at = now;
        Ok(container.program.exits_after)
    }

    pub(super) fn name_of(&self, id: &str) -> Option<String> {
        self.containers.get(id)?.config.labels.get(CONTAINER_NAME).cloned()
    }

    /// Its process exits. False if it did not run.
    pub(super) fn exit(&mut self, id: &str, code: i32) -> bool {
        let now = self.nanos();
        let Some(container) = self.containers.get_mut(id) else { return false };
        if container.state != v1::ContainerState::ContainerRunning {
            return false;
        }
        container.state = v1::ContainerState::ContainerExited;
        (container.finished_at, container.exit_code) = (now, code);
        container.gone.send_replace(true);
        true
    }

    pub(super) fn remove_container(&mut self, id: &str) {
        self.exit(id, 137);
        if let Some(container) = self.containers.remove(id) {
            self.names.remove(&container.name);
        }
    }

    pub(super) fn in_sandbox(&self, sandbox: &str) -> Vec<String> {
        self.containers.iter().filter(|(_, c)| c.sandbox == sandbox).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn remove_sandbox(&mut self, id: &str) {
        for container in self.in_sandbox(id) {
            self.remove_container(&container);
        }
        if let Some(sandbox) = self.sandboxes.remove(id) {
            self.names.remove(&sandbox.name);
        }
    }

    pub(super) fn list_sandboxes(&self, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let matches = |id: &String, s: &Sandbox| {
            (filter.id.is_empty() || filter.id == *id) && matches_labels(&filter.label_selector, &s.labels)
        };
        let all = self.sandboxes.iter().filter(|(id, s)| matches(id, s));
        all.map(|(id, s)| v1::PodSandbox {
            id: id.clone(),
            metadata: Some(s.metadata.clone()),
            state: sandbox_state(s).into(),
            created_at: s.created_at,
            labels: s.labels.clone(),
            annotations: s.annotations.clone(),
            runtime_handler: String::new(),
        })
        .collect()
    }

    pub(super) fn list_containers(&self, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
        let matches = |id: &String, c: &Container| {
            (filter.id.is_empty() || filter.id == *id)
                && filter.state.as_ref().is_none_or(|state| state.state == i32::from(c.state))
                && matches_labels(&filter.label_selector, &c.config.labels)
        };
        let all = self.containers.iter().filter(|(id, c)| matches(id, c));
        all.map(|(id, c)| v1::Container {
            id: id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            metadata: c.config.metadata.clone(),
            image: c.config.image.clone(),
            state: c.state.into(),
            created_at: c.created_at,
            labels: c.config.labels.clone(),
            annotations: c.config.annotations.clone(),
            ..Default::default()
        })
        .collect()
    }

    pub(super) fn sandbox_status(&self, id: &str) -> CriResult<v1::PodSandboxStatus> {
        let s = self.sandboxes.get(id).ok_or_else(|| CriError::new(Code::NotFound, "PodSandboxStatus", "not found"))?;
        Ok(v1::PodSandboxStatus {
            id: id.to_owned(),
            metadata: Some(s.metadata.clone()),
            state: sandbox_state(s).into(),
            created_at: s.created_at,
            network: Some(v1::PodSandboxNetworkStatus { ip: s.ip.clone(), additional_ips: vec![] }),
            labels: s.labels.clone(),
            annotations: s.annotations.clone(),
            ..Default::default()
        })
    }

    pub(super) fn container_status(&self, id: &str) -> CriResult<v1::ContainerStatus> {
        let c = self.containers.get(id);
        let c = c.ok_or_else(|| CriError::new(Code::NotFound, "ContainerStatus", "not found"))?;
        let exited = c.state == v1::ContainerState::ContainerExited;
        let reason = if c.exit_code == 0 { "Completed" } else { "Error" };
        Ok(v1::ContainerStatus {
            id: id.to_owned(),
            metadata: c.config.metadata.clone(),
            state: c.state.into(),
            created_at: c.created_at,
            started_at: c.started_at,
            finished_at: c.finished_at,
            exit_code: c.exit_code,
            image: c.config.image.clone(),
            image_ref: c.config.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
            reason: if exited { reason.into() } else { String::new() },
            labels: c.config.labels.clone(),
            annotations: c.config.annotations.clone(),
            ..Default::default()
        })
    }
}

fn sandbox_state(sandbox: &Sandbox) -> v1::PodSandboxState {
    if sandbox.ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready }
}

fn matches_labels(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
