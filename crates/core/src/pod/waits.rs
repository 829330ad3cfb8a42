//! What a pod waits for now, and until when; `podwright explain` shows it.

use std::time::Duration;

use jiff::Timestamp;

use super::progress::Progress;
use super::termination::describe_cause;
use super::{Machine, PodFacts, State};
use crate::backoff;
use crate::model::{Call, CallKey, Cause, HookKind, HostCall, Name, Now, RuntimeCall, Time};

/// A call that takes longer than this is listed.
const SLOW: Duration = Duration::from_secs(1);

/// One thing a pod waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// The container it is about; `None`: the whole pod.
    pub container: Option<Name>,
    /// `CrashLoopBackOff`, `FailedMount`, … as statuses and events name it.
    pub reason: String,
    /// The error, or details of the wait.
    pub message: String,
    /// Start of a call in flight.
    pub since: Option<Timestamp>,
    /// The next retry or the end of the wait, if known.
    pub until: Option<Timestamp>,
}

impl Machine {
    /// Everything this pod waits for, what concerns the whole pod first.
    pub fn waits(&self, now: Now) -> Vec<Wait> {
        let facts = &self.facts;
        let mut waits = vec![];
        if let Some(quarantine) = &facts.quarantine {
            let until = quarantine.until.map(|until| wall_time(until, now));
            waits.push(Wait { until, ..Wait::of_pod("Quarantined", &quarantine.why) });
        }
        if let Some((_, message)) = facts.observed.trouble() {
            waits.push(Wait::of_pod("FailedSync", &format!("the runtime does not report this pod: {message}")));
        }
        if facts.state() <= State::Syncing {
            waits.extend(facts.hold.iter().map(|hold| Wait::of_pod(&hold.reason, &hold.message)));
        }
        match facts.state() {
            State::Waiting => {}
            State::Syncing => waits_to_run(facts, &self.progress, now, &mut waits),
            State::Terminating => waits.push(waits_to_end(facts)),
            State::Terminated | State::Finished => waits.extend(waits_for_user(facts)),
        }
        waits_for_calls(facts, now, &mut waits);
        waits
    }
}

fn waits_to_run(facts: &PodFacts, progress: &Progress, now: Now, waits: &mut Vec<Wait>) {
    if progress.setup.is_network_missing() {
        waits.push(Wait::of_pod("NetworkNotReady", "the runtime has no network for pods yet"));
    }
    for (name, waiting) in progress.bring_up.waiting.iter() {
        let memory = facts.record.containers.get(name);
        let crash = memory.and_then(|m| backoff::wait(m, m.exit.as_ref()?)).map(|w| backoff::expires(&w, now.wall));
        let pull = progress.bring_up.images.next_pull(name, now.boot);
        let retry = facts.calls.pending_retry(&CallKey::Container(name.clone()));
        let until = match waiting.reason.as_str() {
            "CrashLoopBackOff" => crash,
            _ => pull.or(retry.map(|retry| retry.at)).map(|at| wall_time(at, now)),
        };
        let (reason, message) = (waiting.reason.clone(), waiting.message.clone());
        let until = until.filter(|at| *at > now.wall);
        waits.push(Wait { container: Some(name.clone()), reason, message, since: None, until });
    }
}

/// A pod that a user stopped starts again only when a user requests it; one that a shutdown ended, after the next boot.
fn waits_for_user(facts: &PodFacts) -> Option<Wait> {
    let stopped = facts.record.termination().is_some_and(|e| e.cause == Cause::Stopped && !e.deleted);
    let suspended = facts.record.is_suspended();
    let after_boot =
        || Wait::of_pod("NodeShutdown", "ended by the shutdown of the node; it runs again after the next boot");
    stopped.then(|| Wait::of_pod("Stopped", "stopped by a user")).or_else(|| suspended.then(after_boot))
}

fn waits_to_end(facts: &PodFacts) -> Wait {
    let ending = facts.record.termination();
    let why = describe_cause(ending.map_or(Cause::Ended, |e| e.cause));
    let alive: Vec<&str> = facts.observed.seen.alive().map(|c| c.name.as_str()).collect();
    let message = match alive.is_empty() {
        true => format!("{why}; all containers have stopped, the sandbox is being stopped"),
        false => format!("{why}; still running: {}", alive.join(", ")),
    };
    let until = ending.map(|e| e.deadline.wall);
    Wait { until, ..Wait::of_pod("Terminating", &message) }
}

/// Calls that are slow, have failed, or are in doubt.
fn waits_for_calls(facts: &PodFacts, now: Now, waits: &mut Vec<Wait>) {
    for (call, at) in facts.calls.under_way().filter(|(_, at)| *at + SLOW < now.boot) {
        if let Some(wait) = Wait::under_way(call) {
            waits.push(Wait { since: Some(wall_time(at, now)), ..wait });
        }
    }
    for (key, retry) in facts.calls.retries().filter(|(_, retry)| retry.at > now.boot) {
        // Listed as a wait of the container.
        if matches!(key, CallKey::Container(_) | CallKey::Instance(_)) {
            continue;
        }
        let message = match (key, &retry.message) {
            // The error of a mount does not repeat the volume's name.
            (CallKey::Volume(volume), Some(error)) => format!("volume {:?}: {error}", volume.as_str()),
            (_, error) => error.clone().unwrap_or_else(|| format!("{key} failed")),
        };
        let wait = Wait::of_pod(reason_of(key, facts.state()), &message);
        waits.push(Wait { until: Some(wall_time(retry.at, now)), ..wait });
    }
    for call in facts.calls.doubts() {
        let message = format!("result of the {} is unknown; the pod is observed again", call.key());
        waits.push(Wait::of_pod("InDoubt", &message));
    }
}

/// The event reason that users know the failure of this call by.
pub(super) fn reason_of(key: &CallKey, state: State) -> &'static str {
    match key {
        CallKey::RunSandbox => "FailedCreatePodSandBox",
        CallKey::Volume(_) => "FailedMount",
        CallKey::Cgroup if state < State::Terminated => "FailedCreatePodContainer",
        CallKey::Stop(_) | CallKey::Sandbox(_) => "FailedKillPod",
        _ => "FailedSync",
    }
}

impl Wait {
    fn of_pod(reason: &str, message: &str) -> Self {
        Self { container: None, reason: reason.to_owned(), message: message.to_owned(), since: None, until: None }
    }

    fn under_way(call: &Call) -> Option<Self> {
        let (container, reason, message) = match call {
            Call::Runtime(RuntimeCall::PullImage { name, image }) => {
                (Some(name), "Pulling", format!("image {image:?} is being pulled"))
            }
            Call::Host(HostCall::MountVolume { volume }) => {
                (None, "Mounting", format!("volume {volume:?} is being set up"))
            }
            Call::Runtime(RuntimeCall::RunSandbox { .. }) => {
                (None, "RunPodSandbox", "the runtime is creating the sandbox".into())
            }
            Call::Runtime(RuntimeCall::CreateContainer { name, .. }) => {
                (Some(name), "CreateContainer", "the runtime is creating the container".into())
            }
            Call::Runtime(RuntimeCall::StartContainer { name, .. }) => {
                (Some(name), "StartContainer", "the runtime is starting the container".into())
            }
            Call::Host(HostCall::PrepareContainer { name, .. }) => {
                (Some(name), "PrepareContainer", "its files on the host are being created".into())
            }
            Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, name, .. }) => {
                (Some(name), "PostStartHook", "its postStart hook runs".into())
            }
            Call::Runtime(RuntimeCall::Hook { kind: HookKind::PreStop, name, .. }) => {
                (Some(name), "PreStopHook", "its preStop hook runs".into())
            }
            Call::Runtime(RuntimeCall::StopContainer { name, .. }) => {
                (Some(name), "StopContainer", "the runtime is stopping the container".into())
            }
            Call::Runtime(RuntimeCall::StopSandbox { .. }) => {
                (None, "StopPodSandbox", "the runtime is stopping the sandbox".into())
            }
            Call::Host(HostCall::RemoveVolumes) => (None, "RemoveVolumes", "its volumes are being removed".into()),
            Call::Host(HostCall::RemoveCgroup) => (None, "RemoveCgroup", "its cgroup is being removed".into()),
            _ => return None,
        };
        Some(Self { container: container.cloned(), ..Self::of_pod(reason, &message) })
    }
}

/// A moment on the boot clock, for users.
pub(super) fn wall_time(at: Time, now: Now) -> Timestamp {
    let moved = match at.checked_sub(now.boot) {
        Some(ahead) => now.wall.checked_add(ahead),
        None => now.wall.checked_sub(now.boot - at),
    };
    moved.unwrap_or(now.wall)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::actions::Waiting;
    use crate::model::{Backoff, CallId, Exit, Pod, Source};

    fn now(secs: u64) -> Now {
        let boot = Duration::from_secs(secs);
        Now { boot, wall: Timestamp::from_second(1_700_000_000).unwrap() + boot }
    }

    fn machine() -> Machine {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}
        }))
        .unwrap();
        let mut machine = Machine::new("u".into(), Source::File, Arc::new(pod), None, now(0));
        machine.facts.record.set(|r| &mut r.life, crate::model::Life::Syncing);
        machine
    }

    fn waiting(reason: &str) -> Waiting {
        Waiting { reason: reason.into(), message: "why".into() }
    }

    #[test]
    fn a_held_pod_has_a_wait_and_an_idle_pod_has_none() {
        let mut m = machine();
        assert_eq!(m.waits(now(1)), []);
        m.facts.hold = Some(waiting("OutOfcpu"));
        assert_eq!(m.waits(now(1)), [Wait::of_pod("OutOfcpu", "why")]);
    }

    #[test]
    fn the_wait_of_a_crash_loop_ends_with_its_back_off() {
        let mut m = machine();
        m.progress.bring_up.waiting.insert("c".into(), waiting("CrashLoopBackOff"));
        let exit = Exit {
            id: "x".into(),
            attempt: 0,
            sandbox: "s".into(),
            code: 1,
            signal: 0,
            reason: "Error".into(),
            message: String::new(),
            started_at: None,
            finished_at: Some(now(5).wall),
            image: String::new(),
            image_id: String::new(),
            hash: None,
        };
        let backoff = Backoff { delay: Duration::from_secs(20), since: now(0).wall };
        m.facts.record.edit_container(&"c".into(), |memory| {
            (memory.backoff, memory.exit) = (Some(backoff), Some(exit));
        });
        assert_eq!(m.waits(now(6))[0].until, Some(now(25).wall));
        assert_eq!(m.waits(now(26))[0].until, None, "a time in the past is not shown");
    }

    #[test]
    fn a_failed_mount_names_its_error_and_its_next_try_and_a_slow_one_its_age() {
        let mut m = machine();
        let key = CallKey::Volume("v".into());
        m.facts.calls.failed(key, now(1).boot, Duration::ZERO, Some("no such device"), "u");
        assert_eq!(m.waits(now(1)), [], "a retry that is due is not shown");
        m.facts.calls.failed(CallKey::Volume("v".into()), now(1).boot, Duration::from_secs(10), None, "u");
        let wait = &m.waits(now(2))[0];
        assert_eq!((wait.reason.as_str(), wait.message.as_str()), ("FailedMount", "volume \"v\": no such device"));
        assert!(wait.until.is_some_and(|at| at >= now(11).wall && at <= now(16).wall), "{wait:?}");
        m.facts.calls.reset_backoff();
        m.facts.calls.sent(
            CallId(1),
            Call::Host(HostCall::MountVolume { volume: "v".into() }),
            now(3).boot,
            Duration::from_secs(60),
        );
        assert_eq!(m.waits(now(4)), []);
        let wait = &m.waits(now(9))[0];
        assert_eq!((wait.reason.as_str(), wait.since), ("Mounting", Some(now(3).wall)));
    }
}
