//! The runtime as a whole: when it is asked how it is, and what its answers mean, to the pods and to the node's readiness.

use std::time::Duration;

use crate::model::{CallError, RuntimeReady, Time};
use crate::node_status::RuntimeFacts;

/// The first repeat of a check that failed; doubled up to `CHECK_MAX`.
const CHECK_FIRST: Duration = Duration::from_millis(100);
const CHECK_MAX: Duration = Duration::from_secs(5);
/// The longest pause while it may be back in time for nobody to notice.
const CHECK_SOON: Duration = Duration::from_secs(1);
/// A healthy runtime is asked this often whether its network still is.
const CHECK_HEALTHY: Duration = Duration::from_secs(30);
/// So often if the answers are the node's readiness, which others act on.
const CHECK_FOR_NODE: Duration = Duration::from_secs(10);
/// A runtime that is started anew is away for a moment. The node is not ready once this time has passed, and one check did not do.
const DOWN_AFTER: Duration = Duration::from_secs(5);
/// As the kubelet words it.
const DOWN: &str = "container runtime is down";

/// What is known of the runtime's health.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Health {
    pub(crate) up: bool,
    /// Its name, once it told.
    pub(crate) name: String,
    /// How often it was really away: a check found nobody there, or its event stream was lost and is back.
    pub(crate) outages: u64,
    /// What the node's object says of it; the images are not known here.
    facts: RuntimeFacts,
    /// Since when checks find nobody, and how many did.
    away: Option<(Time, u32)>,
    /// When the check under way was begun.
    checking: Option<Time>,
    next: Time,
    wait: Duration,
    every: Duration,
}

impl Health {
    /// Nothing is known yet. `for_node`: whether the node is ready is reported to others.
    pub(crate) fn new(for_node: bool) -> Self {
        Self {
            up: false,
            name: "containerd".into(),
            outages: 0,
            facts: RuntimeFacts::unknown(),
            away: None,
            checking: None,
            next: Time::ZERO,
            wait: CHECK_FIRST,
            every: if for_node { CHECK_FOR_NODE } else { CHECK_HEALTHY },
        }
    }

    /// Why pods can have no network.
    pub(crate) fn no_network(&self) -> Option<&str> {
        self.facts.network.as_deref()
    }

    pub(crate) fn facts(&self) -> &RuntimeFacts {
        &self.facts
    }

    /// A call found nobody there.
    pub(crate) fn suspect(&mut self, now: Time) {
        if self.up {
            self.up = false;
            self.wait = CHECK_FIRST;
            self.next = now;
        }
    }

    /// It may be away: it is asked now, and trusted until it has answered.
    pub(crate) fn doubt(&mut self, now: Time) {
        self.next = self.next.min(now);
    }

    pub(crate) fn begin(&mut self, now: Time) -> bool {
        let begin = self.checking.is_none() && self.next <= now;
        if begin {
            self.checking = Some(now);
        }
        begin
    }

    /// The check came back. True if the runtime is back, or its network came or went.
    pub(crate) fn checked(&mut self, result: Result<RuntimeReady, CallError>, now: Time) -> bool {
        let asked = self.checking.take().unwrap_or(now);
        match result {
            Ok(answer) => {
                self.away = None;
                let (was_up, had_network) = (self.up, self.facts.network.is_none());
                self.take_in(answer);
                if self.facts.ready.is_some() {
                    self.is_away(now);
                    return false;
                }
                let has_network = self.facts.network.is_none();
                self.wait = if has_network { CHECK_FIRST } else { (self.wait * 2).min(CHECK_MAX) };
                self.next = now + if has_network { self.every } else { self.wait };
                self.up = true;
                !was_up || had_network != has_network
            }
            Err(_) => {
                let (since, failures) = self.away.map_or((asked, 1), |(since, failures)| (since, failures + 1));
                self.away = Some((since, failures));
                if failures > 1 && since + DOWN_AFTER <= now {
                    self.facts.ready = Some(DOWN.into());
                }
                self.is_away(now);
                false
            }
        }
    }

    fn is_away(&mut self, now: Time) {
        self.up = false;
        self.outages += 1;
        let may_be_back = self.away.is_some_and(|(since, _)| now < since + DOWN_AFTER);
        self.next = now + if may_be_back { self.wait.min(CHECK_SOON) } else { self.wait };
        self.wait = (self.wait * 2).min(CHECK_MAX);
    }

    fn take_in(&mut self, answer: RuntimeReady) {
        if !answer.name.is_empty() {
            self.name = answer.name;
        }
        self.facts = RuntimeFacts {
            version: format!("{}://{}", self.name, answer.version),
            ready: answer.not_ready,
            network: (!answer.network).then_some(answer.message),
            handlers: answer.handlers,
            supplemental_groups_policy: answer.supplemental_groups_policy,
            images: vec![],
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

    fn nobody() -> Result<RuntimeReady, CallError> {
        Err(CallError::failed("connection refused"))
    }

    /// Ask whenever a check is due, up to this moment.
    fn ask_until(health: &mut Health, end: Time, answer: impl Fn() -> Result<RuntimeReady, CallError>) -> u32 {
        let mut asked = 0;
        while let Some(next) = health.wake().filter(|next| *next <= end) {
            assert!(health.begin(next) && !health.begin(next), "one at a time");
            health.checked(answer(), next);
            asked += 1;
        }
        asked
    }

    #[test]
    fn readiness_is_what_the_runtime_says_at_once() {
        let mut health = Health::new(true);
        assert!(readiness(health.facts()).is_err(), "nothing is known yet");
        assert!(health.checked(fine(), at(0)));
        assert_eq!((readiness(health.facts()), health.facts().version.as_str()), (Ok(()), "containerd://2.1"));
        let no_network = RuntimeReady { message: "no cni".into(), ..RuntimeReady::default() };
        assert!(health.checked(Ok(no_network), at(1)), "its network went");
        assert_eq!((readiness(health.facts()), health.up), (Err("no cni".into()), true));
        let not_ready = RuntimeReady { not_ready: Some("busy".into()), network: true, ..RuntimeReady::default() };
        assert!(!health.checked(Ok(not_ready), at(2)));
        assert_eq!((readiness(health.facts()), health.up), (Err("busy".into()), false));
        assert!(health.checked(fine(), at(3)));
        assert_eq!(readiness(health.facts()), Ok(()));
    }

    #[test]
    fn a_runtime_that_is_away_for_a_moment_leaves_the_node_ready() {
        let mut health = Health::new(true);
        ask_until(&mut health, at(0), fine);
        health.suspect(at(1000));
        ask_until(&mut health, at(5900), nobody);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), false));
        ask_until(&mut health, at(12_000), nobody);
        assert_eq!(readiness(health.facts()), Err(DOWN.into()));
        ask_until(&mut health, at(20_000), fine);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), true));
    }

    #[test]
    fn a_runtime_that_is_back_before_it_counts_as_down_is_found_in_time() {
        let mut health = Health::new(true);
        ask_until(&mut health, at(0), fine);
        health.suspect(at(1000));
        ask_until(&mut health, at(5200), nobody);
        ask_until(&mut health, at(6000), fine);
        assert_eq!((readiness(health.facts()), health.up), (Ok(()), true), "within a second");
    }

    #[test]
    fn one_check_that_hung_is_no_runtime_that_is_down() {
        let mut health = Health::new(true);
        ask_until(&mut health, at(0), fine);
        for (asked, answered, down) in [(10_000, 20_000, false), (20_100, 30_100, true)] {
            assert!(health.begin(at(asked)));
            health.checked(nobody(), at(answered));
            assert_eq!(readiness(health.facts()).is_err(), down);
        }
    }

    #[test]
    fn a_healthy_runtime_is_asked_rarely_and_at_once_when_in_doubt() {
        for (for_node, asked) in [(true, 6), (false, 2)] {
            let mut health = Health::new(for_node);
            ask_until(&mut health, at(0), fine);
            assert_eq!(ask_until(&mut health, at(60_000), fine), asked);
            health.doubt(at(61_000));
            assert_eq!((health.wake(), health.up), (Some(at(61_000)), true));
        }
    }
}
