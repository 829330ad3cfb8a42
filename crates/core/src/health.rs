//! Health of the runtime: when it is checked, and what the results mean for pods and for the node's readiness.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{CallError, PodUid, RuntimeReady, Time};
use crate::mutate::{self, Mutant};
use crate::node_status::RuntimeFacts;

/// The first repeat of a check that failed; doubled up to `CHECK_MAX`.
const CHECK_FIRST: Duration = Duration::from_millis(100);
const CHECK_MAX: Duration = Duration::from_secs(5);
/// Upper bound of the interval while the runtime may still return before the node becomes not ready.
const CHECK_SOON: Duration = Duration::from_secs(1);
/// Interval of checks of a healthy runtime.
const CHECK_HEALTHY: Duration = Duration::from_secs(30);
/// The same if the results set the readiness of the Node object.
const CHECK_FOR_NODE: Duration = Duration::from_secs(10);
/// A restart of the runtime takes a moment: the node becomes not ready after this time and two failed checks.
const DOWN_AFTER: Duration = Duration::from_secs(5);
/// Pods that find the runtime unavailable before it counts as down without a check.
const SUSPECT_PODS: usize = 3;
/// The kubelet's message.
const DOWN: &str = "container runtime is down";

/// State of the health checks.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct RuntimeHealth {
    pub(crate) up: bool,
    /// Name of the runtime, as it reports it.
    pub(crate) name: String,
    /// Number of outages: failed checks, and event streams that were lost and came back.
    pub(crate) outages: u64,
    /// For the Node object; without the images.
    facts: RuntimeFacts,
    /// Pods for which it was unavailable since the last check that succeeded.
    #[serde(default)]
    unavailable_for: BTreeSet<PodUid>,
    /// When checks began to fail, and how many failed.
    failing: Option<(Time, u32)>,
    /// Start of the check in flight.
    checking: Option<Time>,
    /// Start of the last check.
    #[serde(default)]
    last_check: Time,
    next: Time,
    wait: Duration,
    every: Duration,
}

impl RuntimeHealth {
    /// `for_node`: the result sets the readiness of a Node object.
    pub(crate) fn new(for_node: bool) -> Self {
        Self {
            up: false,
            name: "containerd".into(),
            outages: 0,
            facts: RuntimeFacts::unknown(),
            unavailable_for: BTreeSet::new(),
            failing: None,
            checking: None,
            last_check: Time::ZERO,
            next: Time::ZERO,
            wait: CHECK_FIRST,
            every: if for_node { CHECK_FOR_NODE } else { CHECK_HEALTHY },
        }
    }

    /// No check has ended yet.
    pub(crate) fn is_pending(&self) -> bool {
        !self.up && self.outages == 0 && !self.facts.is_known()
    }

    /// Why the pod network is not ready.
    pub(crate) fn no_network(&self) -> Option<&str> {
        self.facts.network.as_deref()
    }

    pub(crate) fn facts(&self) -> &RuntimeFacts {
        &self.facts
    }

    /// The node shuts down, or not: part of its readiness.
    pub(crate) fn set_shutting_down(&mut self, shutting_down: bool) {
        self.facts.shutting_down = shutting_down;
    }

    /// The runtime was unavailable for one pod. That may concern only this pod, for example if its shim is gone: a check decides.
    /// If several pods find it unavailable it counts as down until then.
    pub(crate) fn unavailable_for(&mut self, uid: &PodUid, now: Time) {
        if self.unavailable_for.len() < SUSPECT_PODS {
            self.unavailable_for.insert(uid.clone());
        }
        match self.unavailable_for.len() < SUSPECT_PODS && !mutate::is_active(Mutant::UnavailableIsDown) {
            true => self.check_now(now.max(self.last_check + CHECK_SOON)),
            false => self.assume_down(now),
        }
    }

    /// A request about the whole runtime could not reach it: it counts as down until the next check.
    pub(crate) fn assume_down(&mut self, now: Time) {
        if self.up {
            self.up = false;
            self.wait = CHECK_FIRST;
            self.next = now;
        }
    }

    /// Checks now; the runtime counts as up until the result.
    pub(crate) fn check_now(&mut self, now: Time) {
        self.next = self.next.min(now);
    }

    pub(crate) fn begin(&mut self, now: Time) -> bool {
        let begin = self.checking.is_none() && self.next <= now;
        if begin {
            self.checking = Some(now);
            self.last_check = now;
        }
        begin
    }

    /// Result of a check. True if the runtime has become reachable or its network state changed.
    pub(crate) fn checked(&mut self, result: Result<RuntimeReady, CallError>, now: Time) -> bool {
        let since = self.checking.take().unwrap_or(now);
        match result {
            Ok(answer) => {
                self.failing = None;
                self.unavailable_for.clear();
                let (was_up, had_network) = (self.up, self.facts.network.is_none());
                self.update_facts(answer);
                if self.facts.ready.is_some() {
                    self.schedule_retry(now);
                    return false;
                }
                let has_network = self.facts.network.is_none();
                self.wait = if has_network { CHECK_FIRST } else { (self.wait * 2).min(CHECK_MAX) };
                self.next = now + if has_network { self.every } else { self.wait };
                self.up = true;
                !was_up || had_network != has_network
            }
            Err(_) => {
                let (since, failures) = self.failing.map_or((since, 1), |(since, failures)| (since, failures + 1));
                self.failing = Some((since, failures));
                if failures > 1 && since + DOWN_AFTER <= now {
                    self.facts.ready = Some(DOWN.into());
                }
                self.schedule_retry(now);
                false
            }
        }
    }

    fn schedule_retry(&mut self, now: Time) {
        self.up = false;
        self.outages += 1;
        let may_return = self.failing.is_some_and(|(since, _)| now < since + DOWN_AFTER);
        self.next = now + if may_return { self.wait.min(CHECK_SOON) } else { self.wait };
        self.wait = (self.wait * 2).min(CHECK_MAX);
    }

    fn update_facts(&mut self, answer: RuntimeReady) {
        if !answer.name.is_empty() {
            self.name = answer.name;
        }
        self.facts = RuntimeFacts {
            version: format!("{}://{}", self.name, answer.version),
            ready: answer.not_ready,
            network: (!answer.network).then_some(answer.message),
            problems: answer.problems,
            handlers: answer.handlers,
            supplemental_groups_policy: answer.supplemental_groups_policy,
            shutting_down: self.facts.shutting_down,
            ..RuntimeFacts::default()
        };
    }

    pub(crate) fn wake(&self) -> Option<Time> {
        self.checking.is_none().then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_status::readiness;

    fn at(millis: u64) -> Time {
        Duration::from_millis(millis)
    }

    fn fine() -> Result<RuntimeReady, CallError> {
        Ok(RuntimeReady { network: true, version: "2.1".into(), ..RuntimeReady::default() })
    }

    fn unreachable() -> Result<RuntimeReady, CallError> {
        Err(CallError::failed("connection refused"))
    }

    /// Runs every check that is due until `end`.
    fn check_until(health: &mut RuntimeHealth, end: Time, answer: impl Fn() -> Result<RuntimeReady, CallError>) -> u32 {
        let mut checks = 0;
        while let Some(next) = health.wake().filter(|next| *next <= end) {
            assert!(health.begin(next) && !health.begin(next), "one at a time");
            health.checked(answer(), next);
            checks += 1;
        }
        checks
    }

    #[test]
    fn readiness_follows_the_runtime_at_once() {
        let mut health = RuntimeHealth::new(true);
        assert!(readiness(health.facts()).is_err() && health.is_pending(), "nothing is known yet");
        assert!(health.checked(fine(), at(0)) && !health.is_pending());
        let mut lost = health.clone();
        lost.assume_down(at(0));
        assert!(!lost.up && !lost.is_pending(), "it has responded before");
        assert_eq!((readiness(health.facts()), health.facts().version.as_str()), (Ok(()), "containerd://2.1"));
        let no_network = RuntimeReady { message: "no cni".into(), ..RuntimeReady::default() };
        assert!(health.checked(Ok(no_network), at(1)), "its network is down");
        assert_eq!((readiness(health.facts()).map_err(|e| e.to_string()), health.up), (Err("no cni".into()), true));
        let not_ready = RuntimeReady { not_ready: Some("busy".into()), network: true, ..RuntimeReady::default() };
        assert!(!health.checked(Ok(not_ready), at(2)));
        assert_eq!((readiness(health.facts()).map_err(|e| e.to_string()), health.up), (Err("busy".into()), false));
        assert!(health.checked(fine(), at(3)));
        assert_eq!(readiness(health.facts()), Ok(()));
    }

    #[test]
    fn a_short_outage_leaves_the_node_ready() {
        let mut health = RuntimeHealth::new(true);
        check_until(&mut health, at(0), fine);
        health.assume_down(at(1000));
        check_until(&mut health, at(5900), unreachable);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), false));
        check_until(&mut health, at(12_000), unreachable);
        assert_eq!(readiness(health.facts()).map_err(|e| e.to_string()), Err(DOWN.into()));
        check_until(&mut health, at(20_000), fine);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), true));
    }

    #[test]
    fn a_runtime_that_returns_before_the_limit_is_found_in_time() {
        let mut health = RuntimeHealth::new(true);
        check_until(&mut health, at(0), fine);
        health.assume_down(at(1000));
        check_until(&mut health, at(5200), unreachable);
        check_until(&mut health, at(6000), fine);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), true), "within a second");
    }

    #[test]
    fn one_hanging_check_does_not_make_the_node_not_ready() {
        let mut health = RuntimeHealth::new(true);
        check_until(&mut health, at(0), fine);
        for (sent, answered, down) in [(10_000, 20_000, false), (20_100, 30_100, true)] {
            assert!(health.begin(at(sent)));
            health.checked(unreachable(), at(answered));
            assert_eq!(readiness(health.facts()).is_err(), down);
        }
    }

    #[test]
    fn a_healthy_runtime_is_checked_rarely_and_at_once_on_request() {
        for (for_node, checks) in [(true, 6), (false, 2)] {
            let mut health = RuntimeHealth::new(for_node);
            check_until(&mut health, at(0), fine);
            assert_eq!(check_until(&mut health, at(60_000), fine), checks);
            health.check_now(at(61_000));
            assert_eq!((health.wake(), health.up), (Some(at(61_000)), true));
        }
    }
}
