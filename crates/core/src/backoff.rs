//! Restart policies and rules of containers, crash back-off and image pull back-off.
//!
//! The crash backoff follows the kubelet's `doBackOff`: the first restart is immediate and sets a delay of 10 s; an
//! instance that exits within ten minutes of its start is restarted after that delay, which then doubles up to the maximum.
//! Delays use the wall clock, because they outlive the agent. A clock that jumps costs one early restart, never a delay of a
//! day.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ContainerRestartRule;

use crate::model::{Backoff, Container, ContainerMemory, Exit, PodSpec, Time};

/// The container runs again after this exit code. Rules come first, then its own policy, then the pod's.
pub fn should_restart(container: &Container, spec: &PodSpec, code: i32) -> bool {
    if container.restart_policy.is_some() && matching_rule(container, code).is_some() {
        return true;
    }
    by_policy(policy(container, spec), code)
}

/// The container runs again after a kill, regardless of its exit code. Restart rules do not apply, as they match exit codes.
pub(crate) fn restarts_after_kill(container: &Container, spec: &PodSpec) -> bool {
    policy(container, spec) != "Never"
}

/// An exit with this code restarts all containers of the pod.
pub fn restarts_all(container: &Container, code: i32) -> bool {
    matching_rule(container, code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Some container of the pod has a `RestartAllContainers` rule.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    inits.chain(&spec.containers).flat_map(|c| c.restart_policy_rules.iter().flatten()).any(|r| r.action == RESTART_ALL)
}

/// The first rule that matches this exit code.
fn matching_rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        // Unknown actions of later Kubernetes versions are ignored: the policy decides.
        let known = rule.action == "Restart" || rule.action == RESTART_ALL;
        let on = rule.exit_codes.as_ref();
        known
            && on.is_some_and(|on| {
                let listed = on.values.iter().flatten().any(|value| *value == code);
                match on.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
    })
}

fn policy<'a>(container: &'a Container, spec: &'a PodSpec) -> &'a str {
    container.restart_policy.as_deref().or(spec.restart_policy.as_deref()).unwrap_or("Always")
}

fn by_policy(policy: &str, code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

/// The delay before the instance with this exit is replaced; `None`: at once.
pub fn wait(memory: &ContainerMemory, exit: &Exit) -> Option<Backoff> {
    let backoff = memory.backoff.as_ref()?;
    // An exit without a time (the instance disappeared) counts from the last start, so that restarts still slow down.
    let ended = exit.finished_at.unwrap_or(backoff.since);
    (!is_stable(backoff, ended)).then_some(Backoff { delay: backoff.delay, since: ended })
}

/// The delay after we killed an instance to replace it: only if its predecessor's delay had not expired when it exited (the
/// kubelet decides on the status from before the kill).
pub(crate) fn wait_after_kill(memory: &ContainerMemory, exit: &Exit) -> Option<Backoff> {
    let before = memory.previous_exit.as_ref()?;
    let waited = wait(memory, before)?;
    let ended = exit.finished_at?;
    (ended < later(waited.since, waited.delay)).then_some(Backoff { delay: waited.delay, since: ended })
}

/// The back-off to journal with the start that follows this exit.
pub fn next(memory: &ContainerMemory, exit: &Exit, now: Timestamp, max: Duration) -> Backoff {
    let first = CRASH_FIRST.min(max);
    let delay = match &memory.backoff {
        Some(b) if !is_stable(b, exit.finished_at.unwrap_or(b.since)) => b.delay.saturating_mul(2).clamp(first, max),
        _ => first,
    };
    Backoff { delay, since: now }
}

/// When the delay expires. A start in the future means that the clock was set back; then it has expired.
pub fn expires(wait: &Backoff, now: Timestamp) -> Timestamp {
    if wait.since > later(now, SKEW) { now } else { later(wait.since, wait.delay) }
}

/// It ran long enough since its last start to reset the back-off.
fn is_stable(backoff: &Backoff, ended: Timestamp) -> bool {
    ended.duration_since(backoff.since) > STABLE
}

/// Back-off of the pulls of one image for one pod. Not journaled: after a restart of the agent the first pull is immediate.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ImageBackoff {
    delay: Duration,
    since: Time,
}

impl ImageBackoff {
    /// A pull failed.
    pub(crate) fn failed(&mut self, now: Time) {
        self.delay = match self.expired(now) {
            true => IMAGE_FIRST,
            false => (self.delay * 2).min(IMAGE_MAX),
        };
        self.since = now;
    }

    /// When the next pull may start; `None`: now.
    pub(crate) fn until(&self, now: Time) -> Option<Time> {
        let until = self.since + self.delay;
        (!self.expired(now) && now < until).then_some(until)
    }

    /// Until then the status shows `ErrImagePull`, later `ImagePullBackOff`.
    pub(crate) fn error_shown_until(&self) -> Time {
        self.since + FAILURE_SHOWN
    }

    fn expired(&self, now: Time) -> bool {
        self.delay.is_zero() || now.saturating_sub(self.since) > IMAGE_MAX * 2
    }
}

/// A duration as Go prints it, for messages that are equal to the kubelet's: `10s`, `1m20s`, `5m0s`.
pub fn go_duration(d: Duration) -> String {
    let (secs, millis) = (d.as_secs(), d.subsec_millis());
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}").trim_end_matches('0').into() };
    let (h, m, s) = (secs / 3600, secs / 60 % 60, secs % 60);
    match (h, m) {
        (0, 0) => format!("{s}{fraction}s"),
        (0, m) => format!("{m}m{s}{fraction}s"),
        (h, m) => format!("{h}h{m}m{s}{fraction}s"),
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

const RESTART_ALL: &str = "RestartAllContainers";
/// Kubernetes: the first delay of the crash back-off.
const CRASH_FIRST: Duration = Duration::from_secs(10);
/// Kubernetes: an instance that runs longer resets the back-off.
const STABLE: SignedDuration = SignedDuration::from_secs(600);
/// Kubernetes: `imageBackOffPeriod`.
const IMAGE_FIRST: Duration = Duration::from_secs(10);
/// Kubernetes shows `ErrImagePull` until the pod's next sync; this makes it visible for observers here too.
const FAILURE_SHOWN: Duration = Duration::from_secs(1);
/// Kubernetes: `MaxImageBackOff`.
const IMAGE_MAX: Duration = Duration::from_secs(300);
/// The clock is read at different times by the runtime and by us; a larger difference is a clock jump.
const SKEW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ContainerRestartRuleOnExitCodes as OnCodes;

    const MAX: Duration = Duration::from_secs(300);

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + secs).expect("in range")
    }

    fn exit(at_secs: i64) -> Exit {
        Exit {
            id: "c".into(),
            attempt: 0,
            sandbox: "s".into(),
            code: 1,
            signal: 0,
            reason: "Error".into(),
            message: String::new(),
            started_at: None,
            finished_at: Some(at(at_secs)),
            image: String::new(),
            image_id: String::new(),
            hash: None,
        }
    }

    #[test]
    fn the_first_restart_is_immediate_and_later_delays_double_up_to_the_maximum() {
        let mut memory = ContainerMemory::default();
        let (mut clock, mut waits) = (0, vec![]);
        for _ in 0..9 {
            // Each instance exits when it starts.
            let ended = exit(clock);
            let wait = wait(&memory, &ended).map(|w| expires(&w, at(clock)).duration_since(at(clock)).as_secs());
            waits.push(wait.unwrap_or(0));
            clock += wait.unwrap_or(0);
            memory.backoff = Some(next(&memory, &ended, at(clock), MAX));
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn ten_minutes_of_running_reset_the_backoff() {
        let memory =
            ContainerMemory { backoff: Some(Backoff { delay: MAX, since: at(0) }), ..ContainerMemory::default() };
        assert!(wait(&memory, &exit(600)).is_some());
        assert_eq!(wait(&memory, &exit(601)), None);
        assert_eq!(next(&memory, &exit(601), at(601), MAX).delay, CRASH_FIRST);
    }

    #[test]
    fn a_small_maximum_also_bounds_the_first_delay() {
        let ceiling = Duration::from_secs(2);
        let mut memory = ContainerMemory::default();
        for _ in 0..3 {
            memory.backoff = Some(next(&memory, &exit(0), at(0), ceiling));
            assert_eq!(memory.backoff.as_ref().map(|b| b.delay), Some(ceiling));
        }
    }

    #[test]
    fn a_clock_set_back_by_a_day_does_not_delay_a_container_by_a_day() {
        let wait = Backoff { delay: MAX, since: at(86_400) };
        assert_eq!(expires(&wait, at(0)), at(0));
        assert_eq!(expires(&wait, at(86_401)), at(86_700));
    }

    #[test]
    fn an_exit_without_a_time_still_waits_from_the_last_start() {
        let mut lost = exit(0);
        lost.finished_at = None;
        let memory = ContainerMemory {
            backoff: Some(Backoff { delay: CRASH_FIRST, since: at(5) }),
            ..ContainerMemory::default()
        };
        assert_eq!(wait(&memory, &lost), Some(Backoff { delay: CRASH_FIRST, since: at(5) }));
        assert_eq!(next(&memory, &lost, at(15), MAX).delay, CRASH_FIRST * 2);
    }

    #[test]
    fn a_killed_instance_is_delayed_only_if_its_predecessors_delay_had_not_expired() {
        let mut memory = ContainerMemory {
            backoff: Some(Backoff { delay: CRASH_FIRST * 4, since: at(10) }),
            previous_exit: Some(exit(10)),
            ..ContainerMemory::default()
        };
        assert_eq!(wait_after_kill(&memory, &exit(30)), Some(Backoff { delay: CRASH_FIRST * 4, since: at(30) }));
        assert_eq!(wait_after_kill(&memory, &exit(51)), None);
        memory.previous_exit = None;
        assert_eq!(wait_after_kill(&memory, &exit(30)), None);
    }

    #[test]
    fn rules_come_before_policies_and_policies_of_the_container_before_the_pods() {
        let spec = |policy: &str| PodSpec { restart_policy: Some(policy.into()), ..PodSpec::default() };
        let rule = |operator: &str, action: &str| ContainerRestartRule {
            action: action.into(),
            exit_codes: Some(OnCodes { operator: operator.into(), values: Some(vec![42]) }),
        };
        let container = |own: Option<&str>, rules: Vec<ContainerRestartRule>| Container {
            restart_policy: own.map(Into::into),
            restart_policy_rules: Some(rules),
            ..Container::default()
        };
        let plain = container(None, vec![]);
        for (policy, ok, failed) in [("Always", true, true), ("OnFailure", false, true), ("Never", false, false)] {
            assert_eq!(should_restart(&plain, &spec(policy), 0), ok, "{policy}");
            assert_eq!(should_restart(&plain, &spec(policy), 1), failed, "{policy}");
            // The container's policy overrides the pod's.
            let own = container(Some(policy), vec![]);
            assert_eq!(should_restart(&own, &spec("Always"), 0), ok, "own {policy}");
            assert_eq!(should_restart(&own, &spec("Never"), 1), failed, "own {policy}");
        }
        let on_42 = container(Some("Never"), vec![rule("In", "Restart")]);
        assert!(should_restart(&on_42, &spec("Never"), 42));
        assert!(!should_restart(&on_42, &spec("Always"), 1));
        let not_42 = container(Some("Never"), vec![rule("NotIn", "Restart")]);
        assert!(!should_restart(&not_42, &spec("Never"), 42));
        assert!(should_restart(&not_42, &spec("Never"), 1));
        let all = container(Some("Never"), vec![rule("In", RESTART_ALL)]);
        assert!(restarts_all(&all, 42) && !restarts_all(&all, 1) && !restarts_all(&on_42, 42));
        let future = container(Some("Never"), vec![rule("In", "Explode")]);
        assert!(!should_restart(&future, &spec("Always"), 42));
    }

    #[test]
    fn image_pull_delays_double_and_reset_after_ten_minutes() {
        let mut backoff = ImageBackoff::default();
        let mut now = Duration::from_secs(1000);
        assert_eq!(backoff.until(now), None);
        let mut waits = vec![];
        for _ in 0..7 {
            backoff.failed(now);
            let until = backoff.until(now).expect("just failed");
            waits.push((until - now).as_secs());
            now = until;
            assert_eq!(backoff.until(now), None);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        now += IMAGE_MAX * 2;
        backoff.failed(now);
        assert_eq!(backoff.until(now), Some(now + IMAGE_FIRST));
    }

    #[test]
    fn durations_read_as_go_prints_them() {
        for (millis, text) in
            [(10_000, "10s"), (80_000, "1m20s"), (300_000, "5m0s"), (3_600_000, "1h0m0s"), (1_500, "1.5s")]
        {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
