//! Container statuses: state, last state, restart count, started and ready.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, EphemeralContainer, LinuxContainerUser, VolumeMountStatus,
};

use super::{StatusInput, second};
use crate::actions::{Fact, Within, current_sandbox, exit_of, is_post_start_done, is_started, is_voided};
use crate::model::{Container, ContainerId, ContainerMemory, ContainerSeen, Exit, PodSpec, SandboxId, is_sidecar};
use crate::resize;

/// All container statuses of a pod.
#[derive(Debug)]
pub(super) struct Statuses {
    /// In the order of the spec.
    pub(super) init: Vec<ContainerStatus>,
    /// By name.
    pub(super) app: Vec<ContainerStatus>,
    /// By name.
    pub(super) ephemeral: Vec<ContainerStatus>,
    /// Init has finished in the current sandbox, or had in the last one.
    pub(super) initialized: bool,
}

impl Statuses {
    pub(super) fn of(i: &StatusInput<'_>, spec: &PodSpec) -> Self {
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        let view = View::new(i, spec, inits.len());
        let by_name = |mut list: Vec<ContainerStatus>| {
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list
        };
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(plain);
        Self {
            init: inits.iter().enumerate().map(|(n, c)| view.status(c, Kind::Init(n))).collect(),
            app: by_name(spec.containers.iter().map(|c| view.status(c, Kind::App)).collect()),
            ephemeral: by_name(ephemeral.map(|c| view.status(&c, Kind::Ephemeral)).collect()),
            initialized: view.initialized,
        }
    }

    pub(super) fn init(&self, name: &str) -> Option<&ContainerStatus> {
        self.init.iter().find(|s| s.name == name)
    }

    pub(super) fn app(&self, name: &str) -> Option<&ContainerStatus> {
        self.app.iter().find(|s| s.name == name)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Index in the spec.
    Init(usize),
    App,
    Ephemeral,
}

/// Values shared by all containers of the pod.
struct View<'a> {
    i: &'a StatusInput<'a>,
    sandbox: Option<&'a SandboxId>,
    /// Number of finished init containers.
    done: usize,
    initialized: bool,
    ending: bool,
    has_init: bool,
    message_max: usize,
}

impl<'a> View<'a> {
    fn new(i: &'a StatusInput<'a>, spec: &PodSpec, inits: usize) -> Self {
        let sandbox = current_sandbox(i.seen, i.record).map(|s| &s.id);
        let cursor = i.record.cursor.as_ref().filter(|c| sandbox.is_none_or(|id| *id == c.sandbox));
        // Without a cursor, an app container in the sandbox shows that init has finished.
        let app_exists = |id: &SandboxId| {
            spec.containers
                .iter()
                .any(|c| !matches!(Fact::of(i.seen, i.record, &c.name, Within::Sandbox(id)), Fact::Nothing))
        };
        let initialized = match cursor {
            Some(cursor) => cursor.done >= inits,
            None => sandbox.is_some_and(app_exists),
        };
        let count = inits + spec.containers.len() + spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
        Self {
            i,
            sandbox,
            done: if initialized { inits } else { cursor.map_or(0, |c| c.done) },
            initialized,
            ending: i.record.termination().is_some(),
            has_init: inits > 0,
            message_max: MESSAGE_MAX / count.max(1),
        }
    }

    fn status(&self, c: &Container, kind: Kind) -> ContainerStatus {
        let memory = self.i.record.containers.get(c.name.as_str());
        let fact = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any);
        if let Some(ended) = self.last_termination(c, &fact) {
            return ended;
        }
        let mut status = self.base(c, memory, &fact);
        status.state = Some(self.state(c, kind, &fact));
        status.last_state = self.previous_termination(&c.name, memory, fact.id());
        if let Fact::Ended(exit) = &fact
            && self.runs_again(c, kind, exit)
        {
            status.state = Some(self.not_started());
            status.last_state = Some(self.terminated(exit));
        }
        self.explain_wait(c, kind, &fact, &mut status);
        if kind != Kind::Ephemeral {
            self.set_started_and_ready(c, kind, memory, &fact, &mut status);
        }
        status
    }

    /// In a terminating pod the last published termination stays, if the container is gone or only an instance is left that will
    /// never run.
    fn last_termination(&self, c: &Container, fact: &Fact<'_>) -> Option<ContainerStatus> {
        if !self.ending || !matches!(fact, Fact::Nothing | Fact::Created(_)) {
            return None;
        }
        let status = self.i.record.status.as_ref().or(self.i.pod.status.as_ref())?;
        let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        let said = lists.into_iter().flatten().flatten().find(|s| s.name == c.name)?;
        exit_code(said).is_some().then(|| said.clone())
    }

    /// Everything except state, started and ready: from the instance, else from the journal, else from the spec.
    fn base(&self, c: &Container, memory: Option<&ContainerMemory>, fact: &Fact<'_>) -> ContainerStatus {
        let count = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let mut status = ContainerStatus {
            name: c.name.clone(),
            image: c.image.clone().unwrap_or_default(),
            restart_count: count(memory.map_or(0, |m| m.restarts)),
            volume_mounts: mounts(c),
            ..ContainerStatus::default()
        };
        let shown = fact.id().and_then(|id| self.i.seen.container(id));
        let (image, image_id) = match (shown, fact) {
            (Some(seen), _) => (&seen.image, &seen.image_id),
            (None, Fact::Ended(exit)) => (&exit.image, &exit.image_id),
            _ => return status,
        };
        if !image.is_empty() {
            status.image.clone_from(image);
        }
        status.image_id.clone_from(image_id);
        if let Some(seen) = shown {
            status.restart_count = count(seen.attempt);
            status.user = user(seen);
        }
        status.container_id = fact.id().map(|id| self.prefixed_id(id));
        status.resources = Some(match fact {
            Fact::Running(seen) => resize::actuated(self.i.record, c, seen.attempt),
            _ => c.resources.clone().unwrap_or_default(),
        });
        status.allocated_resources = c.resources.as_ref().and_then(|r| r.requests.clone());
        status
    }

    fn state(&self, c: &Container, kind: Kind, fact: &Fact<'_>) -> ContainerState {
        let memory = self.i.record.containers.get(c.name.as_str());
        match fact {
            Fact::Running(seen) if !self.ending && !is_post_start_done(c, memory, &seen.id) => self.not_started(),
            Fact::Running(seen) => running(seen),
            Fact::Ended(exit) => self.terminated(exit),
            // A process may exist. Until the following kill has a result, the last status stays.
            Fact::Unknown(seen) if self.was_reported_running(&c.name, &seen.id) => running(seen),
            Fact::Nothing if matches!(kind, Kind::Init(n) if n < self.done) && !is_sidecar(c) => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    reason: Some("Completed".into()),
                    message: Some("The init container has done its part; its own end is not on record".into()),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            },
            Fact::Nothing | Fact::Created(_) | Fact::Unknown(_) => self.not_started(),
        }
    }

    /// It exited but is not finished: it is being replaced, or may be because the result of its start is unknown, or init runs
    /// again in another sandbox.
    fn runs_again(&self, c: &Container, kind: Kind, exit: &Exit) -> bool {
        let memory = self.i.record.containers.get(c.name.as_str());
        let open = exit.started_at.is_none() && memory.is_some_and(|m| m.starting.as_ref() == Some(&exit.id));
        let replaced = open || is_voided(self.i.record, &c.name, &exit.id);
        let reruns_init = matches!(kind, Kind::Init(_)) && self.sandbox.is_some_and(|id| *id != exit.sandbox);
        !self.ending && kind != Kind::Ephemeral && (replaced || reruns_init)
    }

    /// Sets `state.waiting` if a reason is known. In a terminating pod an exited container shows its termination instead.
    fn explain_wait(&self, c: &Container, kind: Kind, fact: &Fact<'_>, status: &mut ContainerStatus) {
        let Some(waiting) = self.i.waiting.get(c.name.as_str()) else { return };
        let done = matches!(kind, Kind::Init(_)) && exit_code(status) == Some(0);
        let runs = matches!(fact, Fact::Running(_) | Fact::Unknown(_));
        if runs || done || (self.ending && matches!(fact, Fact::Ended(_))) {
            return;
        }
        if exit_code(status).is_some() {
            status.last_state = status.state.take();
        }
        let message = (!waiting.message.is_empty()).then(|| waiting.message.clone());
        status.state = Some(waiting_state(&waiting.reason, message));
    }

    /// Sets `started` and `ready`. Probe results belong to one instance and survive a restart of the agent.
    fn set_started_and_ready(
        &self,
        c: &Container,
        kind: Kind,
        memory: Option<&ContainerMemory>,
        fact: &Fact<'_>,
        status: &mut ContainerStatus,
    ) {
        let up = match fact {
            Fact::Running(seen) if is_started(c, memory, &seen.id) && is_post_start_done(c, memory, &seen.id) => {
                Some(&seen.id)
            }
            _ => None,
        };
        status.started = Some(up.is_some());
        let plain_init = matches!(kind, Kind::Init(_)) && !is_sidecar(c);
        let passed = |id: &ContainerId| {
            c.readiness_probe.is_none() || memory.and_then(|m| m.ready.as_ref()) == Some(&(id.clone(), true))
        };
        status.ready = if plain_init { exit_code(status) == Some(0) } else { up.is_some_and(passed) };
    }

    /// `lastState`: the termination of the previous instance.
    fn previous_termination(
        &self,
        name: &str,
        memory: Option<&ContainerMemory>,
        shown: Option<&ContainerId>,
    ) -> Option<ContainerState> {
        let remembered =
            memory.and_then(|m| [&m.exit, &m.previous_exit].into_iter().flatten().find(|e| Some(&e.id) != shown));
        let older = self.i.seen.containers.iter().filter(|c| c.name.as_str() == name && Some(&c.id) != shown);
        let older = older.filter(|c| c.finished_at.is_some()).map(exit_of).next();
        remembered.cloned().or(older).map(|exit| self.terminated(&exit))
    }

    fn terminated(&self, exit: &Exit) -> ContainerState {
        let text = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        let mut message = exit.message.as_str();
        if message.len() > self.message_max {
            message = &message[..message.floor_char_boundary(self.message_max)];
        }
        let terminated = ContainerStateTerminated {
            container_id: text(exit.id.as_str()).map(|_| self.prefixed_id(&exit.id)),
            exit_code: exit.code,
            signal: (exit.signal != 0).then_some(exit.signal),
            reason: text(&exit.reason),
            message: text(message),
            started_at: exit.started_at.map(second),
            finished_at: exit.finished_at.map(second),
        };
        ContainerState { terminated: Some(terminated), ..ContainerState::default() }
    }

    fn not_started(&self) -> ContainerState {
        let trouble = self.i.trouble.map(Into::into);
        waiting_state(if self.has_init { "PodInitializing" } else { "ContainerCreating" }, trouble)
    }

    fn was_reported_running(&self, name: &str, id: &ContainerId) -> bool {
        let status = self.i.record.status.as_ref();
        let lists = status.into_iter().flat_map(|s| [&s.init_container_statuses, &s.container_statuses]);
        lists
            .flatten()
            .flatten()
            .any(|s| s.name == name && is_running(s) && s.container_id == Some(self.prefixed_id(id)))
    }

    fn prefixed_id(&self, id: &ContainerId) -> String {
        format!("{}://{id}", self.i.runtime)
    }
}

/// The exit code of a terminated container.
pub(super) fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

pub(super) fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

pub(super) fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_none_or(|s| s.running.is_none() && s.terminated.is_none())
}

pub(super) fn terminated_before(status: &ContainerStatus) -> bool {
    status.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn running(seen: &ContainerSeen) -> ContainerState {
    let started_at = Some(second(seen.started_at.unwrap_or(seen.created_at)));
    ContainerState { running: Some(ContainerStateRunning { started_at }), ..ContainerState::default() }
}

fn user(seen: &ContainerSeen) -> Option<ContainerUser> {
    let (uid, gid, groups) = seen.user.clone()?;
    let supplemental_groups = (!groups.is_empty()).then_some(groups);
    Some(ContainerUser { linux: Some(LinuxContainerUser { uid, gid, supplemental_groups }) })
}

fn mounts(c: &Container) -> Option<Vec<VolumeMountStatus>> {
    let of = |m: &k8s_openapi::api::core::v1::VolumeMount| VolumeMountStatus {
        mount_path: m.mount_path.clone(),
        name: m.name.clone(),
        read_only: m.read_only,
        // For "IfPossible" only the runtime knows the result, and it does not report it.
        recursive_read_only: match (m.read_only, m.recursive_read_only.as_deref()) {
            (Some(true), None | Some("Disabled")) => Some("Disabled".into()),
            (Some(true), Some("Enabled")) => Some("Enabled".into()),
            _ => None,
        },
        volume_status: None,
    };
    c.volume_mounts.as_ref().map(|mounts| mounts.iter().map(of).collect())
}

/// The fields of an ephemeral container that its status needs.
fn plain(c: &EphemeralContainer) -> Container {
    Container {
        name: c.name.clone(),
        image: c.image.clone(),
        resources: c.resources.clone(),
        volume_mounts: c.volume_mounts.clone(),
        ..Container::default()
    }
}

/// Kubernetes: termination messages of one pod together, `MaxPodTerminationMessageLogLength`.
const MESSAGE_MAX: usize = 12 * 1024;
