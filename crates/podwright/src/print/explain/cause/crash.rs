//! A container that is started again and again: how its last instance ended, how often, and when it is started next.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_core::model::history_text::restart_requested;

use super::blocked::last_parts;
use super::{Headline, is_sidecar};
use crate::print::{age, seconds};

/// Kubernetes: the back-off of a container starts again when it has run for ten minutes; until then a restart is part of a loop.
const LOOP_MAX: SignedDuration = SignedDuration::from_mins(10);
/// The exit of a container is reported with the seconds of its status, its events with more digits.
const ROUNDING: SignedDuration = SignedDuration::from_secs(2);

/// A container that is started again and again, whether it runs at the moment or not.
pub(super) fn crash(explanation: &Explanation, events: &[&CorrelatedEvent], now: Timestamp) -> Option<Headline> {
    let status = explanation.pod.as_ref()?.status.as_ref()?;
    let kind = |container: &ContainerStatus| match is_sidecar(explanation, &container.name) {
        true => Kind::Sidecar,
        false => Kind::Init,
    };
    let init = status.init_container_statuses.iter().flatten().map(|container| (container, kind(container)));
    let own = status.container_statuses.iter().flatten().map(|container| (container, Kind::App));
    init.chain(own).find_map(|(container, kind)| {
        let ended = last_end(explanation, container, now)?;
        Some(Crash { explanation, events, container, ended, kind, now }.headline())
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The containers after it wait until it exits with 0.
    Init,
    /// An init container with `restartPolicy: Always`: its exit ends nothing.
    Sidecar,
    App,
}

/// How the last instance ended, if the container is in a loop.
fn last_end<'a>(
    explanation: &Explanation,
    container: &'a ContainerStatus,
    now: Timestamp,
) -> Option<&'a ContainerStateTerminated> {
    let state = container.state.as_ref();
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let by_itself = |ended: &&ContainerStateTerminated| !restart_was_requested(explanation, &container.name, ended);
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        return match waiting.reason.as_deref().unwrap_or_default() {
            "CrashLoopBackOff" => before,
            // Between two instances.
            "" | "ContainerCreating" | "PodInitializing" => before.filter(by_itself),
            // What keeps it from starting is a cause of its own.
            _ => None,
        };
    }
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        return Some(ended).filter(|ended| is_restarted(explanation, container, ended.exit_code)).filter(by_itself);
    }
    let started = state?.running.as_ref()?.started_at.as_ref()?.0;
    let recent = now.duration_since(started) < LOOP_MAX;
    before.filter(|_| recent).filter(by_itself)
}

/// The restart policy has the container started again after this exit code.
pub(in crate::print::explain) fn is_restarted(
    explanation: &Explanation,
    status: &ContainerStatus,
    exit_code: i32,
) -> bool {
    let Some(spec) = explanation.pod.as_ref().and_then(|pod| pod.spec.as_ref()) else { return false };
    let init = spec.init_containers.iter().flatten().find(|container| container.name == status.name);
    let of_pod = spec.restart_policy.as_deref().unwrap_or("Always");
    match (init.and_then(|container| container.restart_policy.as_deref()), of_pod) {
        (Some("Always"), _) => true,
        (_, "Never") => false,
        (None, "Always") if init.is_none() => true,
        _ => exit_code != 0,
    }
}

/// A user restarted the container while this instance ran.
fn restart_was_requested(explanation: &Explanation, container: &str, ended: &ContainerStateTerminated) -> bool {
    let what = restart_requested(container);
    let began = ended.started_at.as_ref().map(|time| time.0);
    let mut requests = explanation.history.iter().filter(|line| line.what == what);
    requests.any(|line| began.is_none_or(|began| line.at.wall >= began - ROUNDING))
}

struct Crash<'a> {
    explanation: &'a Explanation,
    events: &'a [&'a CorrelatedEvent],
    container: &'a ContainerStatus,
    ended: &'a ContainerStateTerminated,
    kind: Kind,
    now: Timestamp,
}

impl Crash<'_> {
    fn headline(&self) -> Headline {
        let kind = if self.kind == Kind::Sidecar { "sidecar " } else { "" };
        let name = format!("{kind}{}", self.container.name);
        let oom = self.ended.reason.as_deref() == Some("OOMKilled");
        let mut failure = String::new();
        let mut probe = |probe: &str, killing: &CorrelatedEvent| {
            failure = self.probe_failure(probe, killing).unwrap_or_default().to_owned();
            if failure.is_empty() { String::new() } else { format!(" ({failure})") }
        };
        let (reason, how) = if matches!(self.ended.reason.as_deref(), Some("StartError" | "ContainerCannotRun")) {
            ("StartError", format!("{name}: {}", last_parts(self.ended.message.as_deref().unwrap_or_default())))
        } else if let Some(event) = self.event("Killing", "failed liveness probe") {
            ("LivenessFailed", format!("{name} is killed by its liveness probe{}", probe("Liveness", event)))
        } else if let Some(event) = self.event("Killing", "failed startup probe") {
            ("StartupFailed", format!("{name} is killed by its startup probe{}", probe("Startup", event)))
        } else if let Some(event) = self.event("FailedPostStartHook", "") {
            (
                "PostStartHookError",
                format!("{name} is killed because its postStart hook fails: {}", event.event.message),
            )
        } else if oom {
            ("OOMKilled", format!("{name} was killed because it used more memory than its limit (OOMKilled)"))
        } else {
            let reason = match (self.kind, self.ended.exit_code) {
                (Kind::Init, _) => "InitCrashLoop",
                (Kind::Sidecar, 0) => "SidecarExitLoop",
                (Kind::App, 0) => "ExitLoop",
                (Kind::Sidecar | Kind::App, _) => "CrashLoopBackOff",
            };
            (reason, format!("{name} exited with {}", self.ended.exit_code))
        };
        let killed = ["LivenessFailed", "StartupFailed", "PostStartHookError"].contains(&reason);
        let verb = match self.ended.exit_code {
            _ if self.kind == Kind::Init => "cannot initialize: init container",
            _ if reason == "StartError" => "cannot start",
            _ if killed => "keeps restarting:",
            0 => "keeps exiting:",
            _ => "keeps crashing:",
        };
        let text = format!("{verb} {how}, {}, {}", self.times(), self.next());
        Headline::new(&text, reason, &failure)
    }

    /// The newest event of the container about the instance that ended.
    fn event(&self, reason: &str, part: &str) -> Option<&CorrelatedEvent> {
        let began = self.ended.started_at.as_ref().map(|time| time.0);
        let about = |shown: &&&CorrelatedEvent| {
            let event = &shown.event;
            let of = event.container.as_ref().is_some_and(|name| name.as_str() == self.container.name);
            of && event.reason == reason
                && event.message.contains(part)
                && began.is_none_or(|began| shown.last.wall >= began - ROUNDING)
        };
        self.events.iter().rev().find(about).copied()
    }

    /// What the probe reported before the container was killed.
    fn probe_failure(&self, probe: &str, killing: &CorrelatedEvent) -> Option<&str> {
        let about = |shown: &&&CorrelatedEvent| {
            shown.event.reason == "Unhealthy"
                && shown.event.container == killing.event.container
                && shown.event.message.starts_with(probe)
        };
        self.events.iter().rev().find(about).map(|shown| shown.event.message.as_str())
    }

    fn is_running(&self) -> bool {
        self.container.state.as_ref().is_some_and(|state| state.running.is_some())
    }

    /// The number of instances that have ended.
    fn times(&self) -> String {
        match self.container.restart_count + i32::from(!self.is_running()) {
            ..=1 => "once".into(),
            2 => "twice".into(),
            times => format!("{times} times"),
        }
    }

    fn next(&self) -> String {
        let of = |name: &str| name == self.container.name;
        let mut waits = self.explanation.waits.iter();
        let wait = waits.find(|wait| wait.container.as_ref().is_some_and(|name| of(name.as_str())));
        let until = wait.and_then(|wait| wait.until).filter(|until| *until > self.now);
        let started = self.container.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.as_ref());
        match (started, until) {
            (Some(started), _) => format!("started again {} ago", age(seconds(started.0, self.now))),
            (None, Some(until)) => format!("next start in {}", age(seconds(self.now, until))),
            (None, None) => "next start now".into(),
        }
    }
}
