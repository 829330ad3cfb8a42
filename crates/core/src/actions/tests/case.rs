//! Parses the input of a table case.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerState, ContainerStateRunning, ContainerStatus,
    EphemeralContainer, Lifecycle, LifecycleHandler, PodStatus, Probe,
};

use super::{ago, now};
use crate::actions::{Actions, Inputs, ProbeFailure, Waiting, exit_of, pod_actions};
use crate::model::{
    Backoff, Cause, Container, ContainerSeen, Cursor, Exit, HookState, Life, Name, Now, Pod, PodRecord, PodSeen,
    PodSpec, ProbeKind, RunState, SandboxId, SandboxSeen, SavedTime, Source, Termination,
};

/// In the tables the image serves as the hash.
fn hash(c: &Container) -> String {
    c.image.clone().unwrap_or_default()
}

/// Input of a case, also in the status tables.
pub(crate) struct Case {
    pub(crate) pod: Pod,
    pub(crate) seen: PodSeen,
    pub(crate) record: PodRecord,
    pub(crate) probes: BTreeMap<Name, ProbeFailure>,
    pub(crate) restart_now: BTreeSet<Name>,
    pub(crate) waiting: BTreeMap<Name, Waiting>,
    pub(crate) hold: Option<Waiting>,
}

impl Case {
    pub(super) fn plan(&self) -> Actions {
        pod_actions(&Inputs {
            pod: &self.pod,
            seen: &self.seen,
            record: &self.record,
            probes: &self.probes,
            restart_now: &self.restart_now,
            now: Now { boot: Duration::from_secs(5000), wall: now() },
            backoff_max: Duration::from_secs(300),
            hash,
        })
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut case = Self {
            pod: Pod::default(),
            seen: PodSeen::default(),
            record: empty_record(),
            probes: BTreeMap::new(),
            restart_now: BTreeSet::new(),
            waiting: BTreeMap::new(),
            hold: None,
        };
        let lines: Vec<(&str, &str)> = text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
            .map(|l| l.split_once(' ').unwrap_or((l, "")))
            .collect();
        let journal = !lines.contains(&("journal", "lost"));
        for (word, rest) in lines {
            match word {
                "pod" => case.pod = parse_pod(rest),
                "seen" => {
                    case.seen = parse_seen(rest);
                    if journal {
                        remember(&case.seen, &mut case.record);
                    }
                }
                "cursor" => case.record.cursor = parse_cursor(rest),
                "memory" => parse_memory(rest, &mut case.record),
                "attempts" => case.record.sandbox_attempts = rest.parse().expect("a number"),
                "status" => case.record.status = Some(running_status(rest)),
                "restart" => case.restart_now = rest.split(' ').map(Name::from).collect(),
                "probe" => {
                    let (id, kind) = rest.split_once(' ').expect("instance and kind");
                    let kind = if kind == "liveness" { ProbeKind::Liveness } else { ProbeKind::Startup };
                    let name = id.split('#').next().expect("a name");
                    case.probes.insert(name.into(), ProbeFailure { id: id.into(), kind });
                }
                "journal" => {}
                "wait" => {
                    let (name, reason) = rest.split_once(' ').expect("name and reason");
                    case.waiting.insert(name.into(), Waiting { reason: reason.into(), message: "why".into() });
                }
                "hold" => case.hold = Some(Waiting { reason: rest.into(), message: "why".into() }),
                "ending" => case.record.life = Life::Terminating(parse_termination(rest)),
                "terminated" => {
                    case.terminate();
                }
                "finished" => {
                    case.terminate();
                    case.record.life.finished();
                }
                "old" => case.record.status.get_or_insert_default().phase = Some(rest.into()),
                other => panic!("unknown word {other}"),
            }
        }
        case
    }

    fn terminate(&mut self) {
        if self.record.termination().is_none() {
            self.record.life = Life::Terminating(parse_termination("deleted"));
        }
        self.record.life.terminated();
    }
}

fn empty_record() -> PodRecord {
    let pod = Arc::new(Pod::default());
    PodRecord { life: Life::Syncing, ..PodRecord::new("u".into(), Source::File, pod, ago(9000)) }
}

fn parse_pod(text: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some("u".into());
    let mut spec = PodSpec::default();
    for part in text.split(' ') {
        let (key, value) = part.split_once('=').expect("key=value");
        let containers = || value.split(',').map(parse_container).collect::<Vec<_>>();
        match key {
            "restart" => spec.restart_policy = Some(value.into()),
            "containers" => spec.containers = containers(),
            "init" => spec.init_containers = Some(containers()),
            "ephemeral" => {
                let named = |name: &str| EphemeralContainer { name: name.into(), ..EphemeralContainer::default() };
                spec.ephemeral_containers = Some(value.split(',').map(named).collect());
            }
            other => panic!("unknown key {other}"),
        }
    }
    pod.spec = Some(spec);
    pod
}

fn parse_container(text: &str) -> Container {
    let mut parts = text.split(':');
    let name = parts.next().expect("a name");
    let mut c = Container { name: name.into(), image: Some("v1".into()), ..Container::default() };
    for flag in parts {
        let probe = |grace| Some(Probe { termination_grace_period_seconds: grace, ..Probe::default() });
        match flag.split_once('=') {
            None if flag == "sidecar" => c.restart_policy = Some("Always".into()),
            None if flag == "startup" => c.startup_probe = probe(None),
            None if flag == "readiness" => c.readiness_probe = probe(None),
            None if flag == "hook" => {
                let hook = Some(LifecycleHandler::default());
                c.lifecycle = Some(Lifecycle { post_start: hook, ..Lifecycle::default() });
            }
            Some(("own", policy)) => c.restart_policy = Some(policy.into()),
            Some(("image", image)) => c.image = Some(image.into()),
            Some(("liveness-grace", secs)) => c.liveness_probe = probe(secs.parse().ok()),
            Some((codes, action)) => {
                let (operator, code) = match codes.strip_prefix("notin") {
                    Some(code) => ("NotIn", code),
                    None => ("In", codes.strip_prefix("in").expect("a rule")),
                };
                let exit_codes = ContainerRestartRuleOnExitCodes {
                    operator: operator.into(),
                    values: Some(vec![code.parse().expect("a code")]),
                };
                let rule = ContainerRestartRule { action: action.into(), exit_codes: Some(exit_codes) };
                c.restart_policy_rules.get_or_insert_default().push(rule);
            }
            _ => panic!("unknown flag {flag}"),
        }
    }
    c
}

fn parse_seen(text: &str) -> PodSeen {
    let mut seen = PodSeen::default();
    for part in text.split(' ') {
        let (name, value) = part.split_once('=').expect("key=value");
        if name == "sandbox" {
            let list: Vec<&str> = value.split(',').filter(|s| *s != "none").collect();
            for (n, text) in list.iter().enumerate() {
                let (id, state) = text.split_once(':').unwrap_or(("s1", text));
                let (state, age) = state.split_once('~').unwrap_or((state, "5000"));
                seen.sandboxes.push(SandboxSeen {
                    id: id.into(),
                    attempt: u32::try_from(list.len() - 1 - n).expect("few"),
                    ready: state == "ready",
                    created_at: ago(age.parse().expect("an age")),
                    ips: vec!["10.0.0.2".into()],
                });
            }
            continue;
        }
        let mut state = value;
        let mut take = |mark: char| match state.split_once(mark) {
            Some((before, after)) => {
                state = before;
                Some(after)
            }
            None => None,
        };
        let hash = take('!');
        let sandbox = take('@');
        let attempt: u32 = take('#').map_or(0, |n| n.parse().expect("a number"));
        let (state, code) = match state.strip_prefix("exited(") {
            Some(code) => (RunState::Exited, code.trim_end_matches(')').parse().expect("a code")),
            None if state == "running" => (RunState::Running, 0),
            None if state == "created" => (RunState::Created, 0),
            None if state == "unknown" => (RunState::Unknown, 0),
            None => panic!("unknown state {state}"),
        };
        seen.containers.push(ContainerSeen {
            id: format!("{name}#{attempt}").into(),
            sandbox: sandbox.map_or_else(|| seen.sandboxes[0].id.clone(), SandboxId::from),
            name: name.into(),
            attempt,
            hash: Some(hash.unwrap_or("v1").into()),
            state,
            created_at: ago(100),
            started_at: (state != RunState::Created).then(|| ago(99)),
            finished_at: (state == RunState::Exited).then(|| ago(1)),
            exit_code: code,
            reason: String::new(),
            message: String::new(),
            image: "v1".into(),
            image_id: "sha".into(),
            grace: None,
            pre_stop: None,
            user: None,
        });
    }
    seen
}

/// The journal after all of this was observed.
fn remember(seen: &PodSeen, record: &mut PodRecord) {
    record.sandbox_attempts = u32::try_from(seen.sandboxes.len()).expect("few");
    record.cursor = seen.sandbox().map(|s| Cursor { sandbox: s.id.clone(), done: 0 });
    for c in seen.containers.iter().rev() {
        let memory = record.containers.entry(c.name.clone()).or_default();
        memory.created = true;
        memory.restarts = c.attempt;
        if c.state == RunState::Exited {
            memory.exit = Some(exit_of(c));
        }
    }
}

fn parse_cursor(text: &str) -> Option<Cursor> {
    let (sandbox, done) = text.split_once(' ')?;
    Some(Cursor { sandbox: sandbox.into(), done: done.parse().expect("a number") })
}

fn parse_termination(text: &str) -> Termination {
    let (cause, reason) = text.split_once(' ').map_or((text, None), |(cause, reason)| (cause, Some(reason)));
    let cause = match cause {
        "deleted" => Cause::Deleted,
        "evicted" => Cause::Evicted,
        "ended" => Cause::Ended,
        other => panic!("unknown cause {other}"),
    };
    Termination {
        exceeded_limit: false,
        cause,
        admitted: true,
        restart_requested: false,
        deleted: false,
        grace: Duration::from_secs(30),
        deadline: SavedTime { boot_id: String::new(), boot: Duration::ZERO, wall: now() },
        status_override: reason.map(|reason| (reason.into(), "why".into())),
    }
}

fn parse_memory(text: &str, record: &mut PodRecord) {
    let (name, words) = text.split_once(' ').expect("a name and words");
    let memory = record.containers.entry(name.into()).or_default();
    memory.created = true;
    for word in words.split(' ') {
        let (key, value) = word.split_once('=').expect("key=value");
        match key {
            "restarts" => memory.restarts = value.parse().expect("a number"),
            "exit" | "previous" => {
                let (code, sandbox) = value.split_once('@').expect("code@sandbox");
                let attempt = memory.restarts.saturating_sub(u32::from(key == "previous"));
                let exit = Exit {
                    id: format!("{name}#{attempt}").into(),
                    attempt,
                    sandbox: sandbox.into(),
                    code: code.parse().expect("a code"),
                    signal: 0,
                    reason: String::new(),
                    message: String::new(),
                    started_at: Some(ago(60)),
                    finished_at: Some(ago(1)),
                    image: "v1".into(),
                    image_id: "sha".into(),
                    hash: None,
                };
                if key == "exit" { memory.exit = Some(exit) } else { memory.previous_exit = Some(exit) }
            }
            "backoff" => {
                let (delay, since) = value.split_once("s@").expect("delay and since");
                let delay = Duration::from_secs(delay.parse().expect("a number"));
                memory.backoff = Some(Backoff { delay, since: ago(-since.parse::<i64>().expect("a number")) });
            }
            "ready" => {
                let (id, verdict) = value.split_once(':').expect("id:verdict");
                memory.ready = Some((id.into(), verdict == "yes"));
            }
            "started" => memory.started = Some(value.into()),
            "voided" => memory.voided = Some(value.into()),
            "hook" => {
                let (id, state) = value.split_once(':').expect("id:state");
                let state = match state {
                    "failed" => HookState::Failed,
                    "done" => HookState::Done,
                    _ => HookState::Begun,
                };
                memory.post_start = Some((id.into(), state));
            }
            other => panic!("unknown key {other}"),
        }
    }
}

/// A status in which this instance is running.
fn running_status(id: &str) -> PodStatus {
    let state = ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    let container = ContainerStatus {
        name: id.split('#').next().expect("a name").into(),
        container_id: Some(format!("containerd://{id}")),
        state: Some(state),
        ..ContainerStatus::default()
    };
    PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() }
}
