//! When a container that ended is started again: policies, rules, and the waits that grow.
//!
//! The crash backoff follows the kubelet's `doBackOff`: the first restart is immediate and leaves 10 s behind; an instance
//! that ends within ten minutes of its start waits that long after its end, then twice as long, up to the ceiling.
//! Waits are kept on the wall clock, because they outlive the agent; a clock that jumps costs one early restart, never a
//! pod that waits for a moment a day away.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ContainerRestartRule;

use crate::model::{Backoff, Container, ContainerMemory, Exit, PodSpec, Time};

/// Does the container run again after this exit code? Rules first, then its own policy, then the pod's.
pub fn should_restart(container: &Container, spec: &PodSpec, code: i32) -> bool {
    if container.restart_policy.is_some() && matching_rule(container, code).is_some() {
        return true;
    }
    by_policy(policy(container, spec), code)
}

/// Would it be started again if we ended it, whatever its exit code? Rules don't count: they speak of exit codes.
pub fn restarts_after_kill(container: &Container, spec: &PodSpec) -> bool {
    policy(container, spec) != "Never"
}

/// Its end, with this code, makes every container of the pod start anew.
pub fn restarts_all(container: &Container, code: i32) -> bool {
    matching_rule(container, code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Some container of the pod may one day restart all of them.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    inits.chain(&spec.containers).flat_map(|c| c.restart_policy_rules.iter().flatten()).any(|r| r.action == RESTART_ALL)
}

/// The first rule that speaks of this exit code.
fn matching_rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        // An action of a later Kubernetes is no rule here: the policy decides.
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

/// The wait before the instance that ended like this is replaced; `None`: none at all.
pub fn wait(memory: &ContainerMemory, exit: &Exit) -> Option<Backoff> {
    let backoff = memory.backoff.as_ref()?;
    // An exit without a time (the instance was lost) counts from the last start, so that even then restarts slow down.
    let ended = exit.finished_at.unwrap_or(backoff.since);
    (!is_stable(backoff, ended)).then_some(Backoff { delay: backoff.delay, since: ended })
}

/// The wait for an instance we ended ourselves to replace it: only if its predecessor's wait wasn't over when it went
/// (the kubelet decides on the sight from before the kill).
pub fn wait_after_kill(memory: &ContainerMemory, exit: &Exit) -> Option<Backoff> {
    let before = memory.previous_exit.as_ref()?;
    let waited = wait(memory, before)?;
    let ended = exit.finished_at?;
    (ended < later(waited.since, waited.delay)).then_some(Backoff { delay: waited.delay, since: ended })
}

/// The backoff to remember with the start that follows this exit.
pub fn next(memory: &ContainerMemory, exit: &Exit, now: Timestamp, max: Duration) -> Backoff {
    let first = CRASH_FIRST.min(max);
    let delay = match &memory.backoff {
        Some(b) if !is_stable(b, exit.finished_at.unwrap_or(b.since)) => b.delay.saturating_mul(2).clamp(first, max),
        _ => first,
    };
    Backoff { delay, since: now }
}

/// When the wait is over, seen from now: a beginning in the future means the clock was set back, and counts as over.
pub fn expires(wait: &Backoff, now: Timestamp) -> Timestamp {
    if wait.since > later(now, SKEW) { now } else { later(wait.since, wait.delay) }
}

/// It ran long enough since its last start to be trusted again.
fn is_stable(backoff: &Backoff, ended: Timestamp) -> bool {
    ended.duration_since(backoff.since) > STABLE
}

/// The failed pulls of one image for one pod. Not journaled: after a restart the first try is free.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ImageBackoff {
    delay: Duration,
    since: Time,
}

impl ImageBackoff {
    /// A pull failed.
    pub fn failed(&mut self, now: Time) {
        self.delay = match self.expired(now) {
            true => IMAGE_FIRST,
            false => (self.delay * 2).min(IMAGE_MAX),
        };
        self.since = now;
    }

    /// The next pull has to wait until then; `None`: it may go.
    pub fn until(&self, now: Time) -> Option<Time> {
        let until = self.since + self.delay;
        (!self.expired(now) && now < until).then_some(until)
    }

    /// Until then the failure is shown as what it was, later as a back-off.
    pub fn shown_until(&self) -> Time {
        self.since + FAILURE_SHOWN
    }

    fn expired(&self, now: Time) -> bool {
        self.delay.is_zero() || now.saturating_sub(self.since) > IMAGE_MAX * 2
    }
}

/// A duration as Go prints it, for messages people search for: `10s`, `1m20s`, `5m0s`.
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

/// The rule's word for starting everything anew.
const RESTART_ALL: &str = "RestartAllContainers";
/// Kubernetes: the first wait of the crash backoff.
const CRASH_FIRST: Duration = Duration::from_secs(10);
/// Kubernetes: an instance that lives longer starts again with a clean slate.
const STABLE: SignedDuration = SignedDuration::from_secs(600);
/// Kubernetes: `imageBackOffPeriod`.
const IMAGE_FIRST: Duration = Duration::from_secs(10);
/// Kubernetes shows `ErrImagePull` until the pod's next sync; whoever looks, or watches, is to see it here too.
const FAILURE_SHOWN: Duration = Duration::from_secs(1);
/// Kubernetes: `MaxImageBackOff`.
const IMAGE_MAX: Duration = Duration::from_secs(300);
/// The runtime's clock and ours are read at different moments; more than this is a jump.
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
    fn the_first_restart_is_immediate_and_the_following_waits_double_up_to_the_ceiling() {
        let mut memory = ContainerMemory::default();
        let (mut clock, mut waits) = (0, vec![]);
        for _ in 0..9 {
            // Each instance ends the moment it started.
            let ended = exit(clock);
            let wait = wait(&memory, &ended).map(|w| expires(&w, at(clock)).duration_since(at(clock)).as_secs());
            waits.push(wait.unwrap_or(0));
            clock += wait.unwrap_or(0);
            memory.backoff = Some(next(&memory, &ended, at(clock), MAX));
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn ten_minutes_of_running_wipe_the_slate() {
        let memory =
            ContainerMemory { backoff: Some(Backoff { delay: MAX, since: at(0) }), ..ContainerMemory::default() };
        assert!(wait(&memory, &exit(600)).is_some());
        assert_eq!(wait(&memory, &exit(601)), None);
        assert_eq!(next(&memory, &exit(601), at(601), MAX).delay, CRASH_FIRST);
    }

    #[test]
    fn a_small_ceiling_also_bounds_the_first_wait() {
        let ceiling = Duration::from_secs(2);
        let mut memory = ContainerMemory::default();
        for _ in 0..3 {
            memory.backoff = Some(next(&memory, &exit(0), at(0), ceiling));
            assert_eq!(memory.backoff.as_ref().map(|b| b.delay), Some(ceiling));
        }
    }

    #[test]
    fn a_clock_set_back_by_a_day_does_not_hold_a_container_for_a_day() {
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
    fn what_we_killed_waits_only_if_its_predecessors_wait_was_not_over() {
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
            // The container's own word wins over any pod's.
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
    fn image_pulls_wait_10_20_40_and_forget_after_ten_quiet_minutes() {
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
