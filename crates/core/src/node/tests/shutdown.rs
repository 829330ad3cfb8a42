//! The host shuts down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::lab::{Lab, listing, pod, resize_in_short, sandbox, seen, wall};
use crate::NodeConfig;
use crate::model::*;
use crate::pod::State;
use crate::shutdown::ShutdownPeriods;
use crate::static_pod::CONFIG_MIRROR;

mod resumed;

const CRITICAL: i32 = 2_000_000_000;

/// A node with a runtime that performs calls at once, except for containers that ignore their stop.
pub(super) struct ShutdownLab {
    pub(super) lab: Lab,
    pub(super) runtime: BTreeMap<PodUid, PodSeen>,
    deaf: BTreeSet<PodUid>,
    /// Memory that every pod and every container uses.
    pub(super) memory: u64,
    /// Summaries of resize calls, in order.
    pub(super) resizes: Vec<String>,
    /// Pods in the order of their stops, with the timeout in seconds.
    stops: Vec<(String, u64)>,
}

fn config() -> NodeConfig {
    let shutdown = ShutdownPeriods::from_grace_periods(Duration::from_secs(30), Duration::from_secs(10));
    let sources = BTreeSet::from([Source::File, Source::Api, Source::Local]);
    NodeConfig { sources, shutdown, ..NodeConfig::default() }
}

fn manifest(name: &str, priority: i32, source: Source) -> Manifest {
    let mut value = serde_json::to_value(&*pod(name, name).pod).unwrap();
    value["spec"]["priority"] = json!(priority);
    if !source.is_static() {
        value["metadata"]["resourceVersion"] = json!("7");
        value["spec"]["nodeName"] = json!("node");
        value["status"] = json!({"phase": "Pending"});
    }
    Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: format!("{name}.yaml") }
}

impl ShutdownLab {
    /// With pods that run.
    fn running(pods: &[(&str, i32, Source)]) -> Self {
        Self::with(config(), vec![], BTreeMap::new(), pods)
    }

    pub(super) fn with(
        config: NodeConfig,
        records: Vec<PodRecord>,
        runtime: BTreeMap<PodUid, PodSeen>,
        pods: &[(&str, i32, Source)],
    ) -> Self {
        let mut lab = Lab::with(config, records);
        lab.bring_up(Listing::default());
        let mut own = Self::restarted(lab, runtime);
        for source in [Source::File, Source::Api, Source::Local] {
            let of = pods.iter().filter(|(_, _, of)| *of == source);
            let pods = of.map(|(name, priority, source)| manifest(name, *priority, *source)).collect();
            own.handle(Event::Source { source, change: SourceChange::Set { pods, broken: vec![] } });
        }
        own
    }

    /// An agent on a runtime that has these pods. Its sources have not reported.
    pub(super) fn restarted(lab: Lab, runtime: BTreeMap<PodUid, PodSeen>) -> Self {
        let (deaf, stops, resizes) = (BTreeSet::new(), vec![], vec![]);
        Self { lab, runtime, deaf, stops, memory: 0, resizes }
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.lab.handle(event);
        self.serve();
    }

    fn shut_down(&mut self, id: u64) {
        let request = Some(ShutdownRequest { id, allowed: Duration::from_secs(30) });
        self.handle(Event::Shutdown { request });
    }

    pub(super) fn after(&mut self, seconds: u64) {
        self.lab.now += Duration::from_secs(seconds);
        self.handle(Event::Wake);
    }

    /// Answers all calls and observations. Requests to object stores are left.
    pub(super) fn serve(&mut self) {
        for _ in 0..1000 {
            let deaf = &self.deaf;
            let is_ignored = |uid: &PodUid, call: &Call| {
                deaf.contains(uid) && matches!(call, Call::Runtime(RuntimeCall::StopContainer { .. }))
            };
            if let Some(at) = self.lab.calls.iter().position(|(_, uid, call)| !is_ignored(uid, call)) {
                let (id, uid, call) = self.lab.calls.remove(at);
                let answer = self.perform(&uid, &call);
                self.lab.handle(Event::Done { id, result: Ok(answer) });
            } else if let Some((uid, seq)) = self.lab.observations.pop() {
                let result = Ok(self.runtime.get(&uid).cloned().unwrap_or_default());
                self.lab.handle(Event::Observed { uid, seq, result, covered: true });
            } else {
                return;
            }
        }
        panic!("calls never stop: {:?}", self.lab.calls);
    }

    fn perform(&mut self, uid: &PodUid, call: &Call) -> Answer {
        self.resizes.extend(resize_in_short(call));
        let call = match call {
            Call::Runtime(call) => call,
            Call::Host(HostCall::ReadMemory { containers }) => {
                let containers = containers.keys().map(|name| (name.clone(), self.memory)).collect();
                return Answer::Memory(MemoryUse { pod: Some(self.memory), containers });
            }
            Call::Host(_) => return Answer::Done,
        };
        let (pod, now) = (self.runtime.entry(uid.clone()).or_default(), wall(self.lab.now));
        match call {
            RuntimeCall::RunSandbox { attempt } => {
                let id = SandboxId::from(format!("sb{attempt}").as_str());
                let made = SandboxSeen { id: id.clone(), attempt: *attempt, created_at: now, ..sandbox(true) };
                // The newest is the first.
                pod.sandboxes.insert(0, made);
                return Answer::Sandbox(id);
            }
            RuntimeCall::ImageStatus { .. } => {
                return Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }));
            }
            RuntimeCall::CreateContainer { name, attempt, sandbox, .. } => {
                let id = ContainerId::from(format!("{name}{attempt}").as_str());
                let made = seen(Some(RunState::Created)).containers.remove(0);
                let made = ContainerSeen {
                    id: id.clone(),
                    name: name.clone(),
                    attempt: *attempt,
                    sandbox: sandbox.clone(),
                    created_at: now,
                    started_at: Some(now),
                    ..made
                };
                pod.containers.insert(0, made);
                return Answer::Container(id);
            }
            RuntimeCall::StartContainer { .. } => {
                pod.containers
                    .iter_mut()
                    .filter(|c| c.state == RunState::Created)
                    .for_each(|c| c.state = RunState::Running);
            }
            RuntimeCall::StopContainer { timeout, .. } => {
                self.stops.push((uid.to_string(), timeout.as_secs()));
                end(pod, 143);
            }
            RuntimeCall::StopSandbox { id } => {
                pod.sandboxes.iter_mut().filter(|s| s.id == *id).for_each(|s| s.ready = false);
            }
            RuntimeCall::RemoveContainer { id, .. } => pod.containers.retain(|c| c.id != *id),
            RuntimeCall::RemoveSandbox { id } => pod.sandboxes.retain(|s| s.id != *id),
            _ => {}
        }
        Answer::Done
    }

    fn state(&self, uid: &str) -> Option<State> {
        self.lab.state(uid)
    }

    pub(super) fn status(&self, uid: &str) -> PodStatus {
        self.lab.records[&PodUid::from(uid)].status.clone().unwrap()
    }

    /// Phase and reason.
    fn shown(&self, uid: &str) -> (String, Option<String>) {
        let status = self.status(uid);
        (status.phase.unwrap(), status.reason)
    }

    /// The API server takes every status.
    fn take_statuses(&mut self) {
        while !self.lab.requests.is_empty() {
            let (id, request) = self.lab.requests.remove(0);
            if let ObjectRequest::PatchStatus { object, status, .. } = request {
                let mut pod = Pod::clone(&manifest(&object.full_name.name, 0, Source::Api).pod);
                pod.metadata.resource_version = Some("9".into());
                pod.status = Some(PodStatus::clone(&status));
                self.handle(Event::ObjectAnswered { id, result: Ok(Some(Arc::new(pod))) });
            }
        }
    }

    fn node_events(&self) -> Vec<(&str, &str)> {
        let of_node = self.lab.events.iter().filter(|event| event.is_about_node());
        of_node.map(|event| (event.reason, event.message.as_str())).collect()
    }
}

fn end(pod: &mut PodSeen, code: i32) {
    for container in pod.containers.iter_mut().filter(|c| c.state == RunState::Running) {
        (container.state, container.exit_code) = (RunState::Exited, code);
        container.finished_at = container.started_at;
    }
}

#[test]
fn pods_end_by_priority_with_their_exit_codes_and_the_host_continues_after_the_last_status() {
    let mut node = ShutdownLab::running(&[("low", 0, Source::Api), ("top", CRITICAL, Source::Api)]);
    node.take_statuses();
    assert_eq!((node.state("low"), node.state("top")), (Some(State::Syncing), Some(State::Syncing)));
    node.deaf.insert("low".into());
    node.shut_down(4);
    assert!(node.lab.node.runtime_facts().shutting_down);
    assert_eq!(node.node_events(), [("NodeShutdown", "Shutdown manager detected shutdown event")]);
    assert_eq!(node.state("low"), Some(State::Syncing), "the node is reported as not ready first");
    node.handle(Event::ShutdownAnnounced);
    assert_eq!((node.state("low"), node.state("top")), (Some(State::Terminating), Some(State::Syncing)));
    node.deaf.clear();
    node.serve();
    assert_eq!((node.state("low"), node.state("top")), (Some(State::Finished), Some(State::Finished)));
    assert_eq!(node.stops, [("low".to_owned(), 20), ("top".to_owned(), 10)]);
    assert_eq!(node.lab.allowed, [0; 0], "statuses are being sent");
    node.take_statuses();
    assert_eq!(node.lab.allowed, [4]);
    for uid in ["low", "top"] {
        let status = node.status(uid);
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Terminated")));
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(status.message.as_deref(), Some(message));
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").unwrap();
        assert_eq!(
            (condition.reason.as_deref(), condition.message.as_deref()),
            (Some("TerminationByKubelet"), Some(message))
        );
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 143);
    }
    let kept = node.runtime[&PodUid::from("low")].containers.len();
    assert_eq!(kept, 1, "it was not evicted: its container and its logs stay");
}

#[test]
fn an_api_server_that_is_away_delays_the_shutdown_by_seconds_only() {
    let mut node = ShutdownLab::running(&[("low", 0, Source::Api)]);
    node.shut_down(1);
    node.after(2);
    assert_eq!(node.state("low"), Some(State::Finished), "terminated although it is not announced");
    assert_eq!(node.lab.allowed, [0; 0]);
    node.after(5);
    assert_eq!(node.lab.allowed, [1]);
    let next = Lab::with(config(), node.lab.records.values().cloned().collect());
    let record = next.node.workers().get(&PodUid::from("low")).unwrap().record().clone();
    assert_eq!(record.status.unwrap().phase.as_deref(), Some("Failed"), "its status is in the journal");
}

#[test]
fn no_pod_is_admitted_while_the_node_shuts_down() {
    let mut node = ShutdownLab::running(&[("old", CRITICAL, Source::Api)]);
    node.deaf.insert("old".into());
    node.shut_down(1);
    let put =
        |name: &str, source| Event::Source { source, change: SourceChange::Put(manifest(name, CRITICAL, source)) };
    node.handle(put("new", Source::Api));
    let status = node.status("new");
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("NodeShutdown")));
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(status.message.as_deref(), Some(message));
    let event = node.lab.events.iter().find(|e| e.uid.as_ref().is_some_and(|uid| uid.as_str() == "new")).unwrap();
    assert_eq!(
        (event.reason, event.message.as_str()),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.")
    );
    node.handle(put("local", Source::Local));
    assert_eq!(
        (node.state("local"), node.shown("local")),
        (Some(State::Waiting), ("Pending".into(), Some("NodeShutdown".into())))
    );
    node.handle(Event::Shutdown { request: None });
    assert_eq!(node.state("local"), Some(State::Syncing), "the shutdown was cancelled");
    let cancelled = ("NodeShutdown", "Shutdown manager detected shutdown cancellation");
    assert_eq!(node.node_events().last(), Some(&cancelled));
    assert!(!node.lab.node.runtime_facts().shutting_down);
}

#[test]
fn a_cancelled_shutdown_spares_the_groups_that_follow_and_pods_of_this_node_run_again() {
    let pods = [
        ("static", 0, Source::File),
        ("local", 0, Source::Local),
        ("api", 0, Source::Api),
        ("top", CRITICAL, Source::Api),
    ];
    let mut node = ShutdownLab::running(&pods);
    node.deaf.insert("api".into());
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    assert_eq!(node.shown("static"), ("Failed".into(), Some("Terminated".into())));
    assert_eq!(node.shown("local"), ("Running".into(), Some("Terminated".into())), "its phase is not final");
    assert_eq!(node.state("local"), Some(State::Finished));
    node.handle(Event::Shutdown { request: None });
    node.deaf.clear();
    node.serve();
    assert_eq!(node.shown("api"), ("Failed".into(), Some("Terminated".into())), "a terminated pod stays terminated");
    assert_eq!(node.state("top"), Some(State::Syncing));
    for uid in ["static", "local"] {
        assert_eq!((node.state(uid), node.shown(uid)), (Some(State::Syncing), ("Running".into(), None)), "{uid}");
    }
    assert_eq!(node.lab.allowed, [0; 0]);
}

#[test]
fn after_the_boot_api_pods_stay_failed_and_pods_of_this_node_run_again() {
    let pods = [("static", 0, Source::File), ("local", 0, Source::Local), ("api", 0, Source::Api)];
    let mut node = ShutdownLab::running(&pods);
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    let records: Vec<PodRecord> = node.lab.records.values().cloned().collect();
    let restart = |boot_id: &str| {
        let mut records = records.clone();
        for record in &mut records {
            if let Some(ending) = record.life.termination_mut() {
                ending.deadline.boot_id = boot_id.into();
            }
        }
        ShutdownLab::with(config(), records, node.runtime.clone(), &pods)
    };
    let booted = restart("the boot before");
    assert_eq!((booted.state("api"), booted.shown_in_record("api")), (Some(State::Finished), Some("Failed".into())));
    for uid in ["static", "local"] {
        assert_eq!((booted.state(uid), booted.shown(uid).0), (Some(State::Syncing), "Running".into()), "{uid}");
    }
    // An agent that restarts while the host shuts down waits for the report of the host.
    let mut restarted = restart("boot");
    assert_eq!((restarted.state("static"), restarted.state("local")), (Some(State::Finished), Some(State::Finished)));
    restarted.shut_down(1);
    restarted.handle(Event::ShutdownAnnounced);
    assert_eq!((restarted.state("static"), restarted.state("local")), (Some(State::Finished), Some(State::Finished)));
    restarted.take_statuses();
    restarted.after(5);
    assert_eq!(restarted.lab.allowed, [1], "it continues");
}

impl ShutdownLab {
    /// The phase, also of a pod whose record was not written since the start.
    fn shown_in_record(&self, uid: &str) -> Option<String> {
        self.lab.node.workers().get(&PodUid::from(uid))?.record().status.clone()?.phase
    }
}

#[test]
fn a_pod_that_ends_already_gets_less_time_and_keeps_its_reason() {
    let mut node = ShutdownLab::running(&[("a", 0, Source::Api)]);
    node.deaf.insert("a".into());
    let evicted = Some(("Evicted".to_owned(), "no memory".to_owned()));
    node.handle(Event::Kill { uid: "a".into(), grace: Some(Duration::from_secs(60)), evicted });
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    let ending = node.lab.records[&PodUid::from("a")].termination().unwrap().clone();
    assert_eq!((ending.cause, ending.grace), (Cause::Evicted, Duration::from_secs(20)));
    node.deaf.clear();
    node.serve();
    assert_eq!(node.shown("a"), ("Failed".into(), Some("Evicted".into())));
}

#[test]
fn a_node_without_graceful_shutdown_ignores_the_host() {
    let mut node = ShutdownLab::with(
        NodeConfig { shutdown: None, ..config() },
        vec![],
        BTreeMap::new(),
        &[("a", 0, Source::File)],
    );
    node.shut_down(1);
    assert_eq!((node.state("a"), node.node_events()), (Some(State::Syncing), vec![]));
}
