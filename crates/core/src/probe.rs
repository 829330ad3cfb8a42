//! One probe of one container instance: when it runs next, and when its result changes.
//!
//! ```text
//!  new ── initialDelay ──▶ due ── result ──▶ due in a period ── … ── threshold reached ──▶ ProbeChange
//!                                                            startup, or liveness failed: stops until the next instance
//! ```
//!
//! Readiness starts as failed, or with the journaled result of this instance; liveness starts as passed; startup starts
//! undecided. The caller starts readiness and liveness probes after the startup probe has passed.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::model::{ProbeKind, ProbeVerdict, Time};

/// The result changed, or, for a startup probe, was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum ProbeChange {
    /// `successThreshold` was reached.
    Success,
    /// `failureThreshold` was reached.
    Failure,
}

/// The state of one probe of one instance.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProbeState {
    kind: ProbeKind,
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    /// `None`: undecided.
    verdict: Option<ProbeChange>,
    /// The last result and its number of consecutive occurrences.
    run: Option<(ProbeChange, u32)>,
    /// `None`: stopped for this instance.
    due: Option<Time>,
}

impl ProbeState {
    /// A probe of an instance that started at `started`. `carried` is the journaled readiness of this
    /// instance; `whose` (pod UID, container name) spreads the probes of an agent that finds many running instances at once.
    pub(crate) fn new(
        kind: ProbeKind,
        spec: &Probe,
        started: Time,
        carried: Option<bool>,
        whose: (&str, &str),
        now: Time,
    ) -> Self {
        let period = seconds(spec.period_seconds, 10);
        let first = started + seconds(spec.initial_delay_seconds, 0);
        // An instance that was running before the agent started gets an offset in the period. An instance that has just
        // started, or whose startup probe has just passed, is probed at once.
        let found = match kind {
            ProbeKind::Startup => false,
            ProbeKind::Readiness => carried.is_some(),
            ProbeKind::Liveness => true,
        };
        let settled = now > first.max(started + period);
        let due = if found && settled { now + spread(whose, kind, period) } else { first.max(now) };
        let verdict = match (kind, carried) {
            (ProbeKind::Readiness, Some(true)) | (ProbeKind::Liveness, _) => Some(ProbeChange::Success),
            (ProbeKind::Readiness, _) => Some(ProbeChange::Failure),
            (ProbeKind::Startup, _) => None,
        };
        Self {
            kind,
            period,
            timeout: seconds(spec.timeout_seconds, 1),
            success_threshold: threshold(spec.success_threshold, 1),
            failure_threshold: threshold(spec.failure_threshold, 3),
            verdict,
            run: None,
            due: Some(due),
        }
    }

    /// Time of the next run; `None`: never again for this instance.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Timeout of one run.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Result of a run. `Some` if the state changed.
    pub(crate) fn result(&mut self, result: ProbeVerdict, now: Time) -> Option<ProbeChange> {
        let was_due = self.due?;
        // Runs stay on the schedule regardless of their duration; missed runs are skipped.
        let beat = was_due + self.period;
        self.due = Some(if beat > now { beat } else { now + self.period });
        let result = match result {
            ProbeVerdict::Success => ProbeChange::Success,
            ProbeVerdict::Failure(_) => ProbeChange::Failure,
            // The probe could not run: it neither counts nor interrupts a series.
            ProbeVerdict::Unknown(_) => return None,
        };
        let row = match self.run {
            Some((last, row)) if last == result => row.saturating_add(1),
            _ => 1,
        };
        self.run = Some((result, row));
        let needed = match result {
            ProbeChange::Success => self.success_threshold,
            ProbeChange::Failure => self.failure_threshold,
        };
        if row < needed || self.verdict == Some(result) {
            return None;
        }
        self.verdict = Some(result);
        // A container that will be killed is not probed again, nor is a passed startup probe repeated.
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && result == ProbeChange::Failure) {
            self.due = None;
        }
        Some(result)
    }
}

/// A deterministic offset within the period.
fn spread(whose: (&str, &str), kind: ProbeKind, period: Duration) -> Duration {
    let parts = [whose.0.as_bytes(), b"/", whose.1.as_bytes(), b"/", &[kind as u8]];
    // FNV-1a; its high bits are better mixed.
    let hash = parts
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis((hash >> 16) % millis)
}

/// Kubernetes' default where the field is absent or zero, as the API server sets it; an invalid value counts as absent.
fn seconds(field: Option<i32>, default: u64) -> Duration {
    let given = field.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    Duration::from_secs(given.unwrap_or(default))
}

fn threshold(field: Option<i32>, default: u32) -> u32 {
    field.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Time = Duration::from_secs(1000);
    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }
    fn ok() -> ProbeVerdict {
        ProbeVerdict::Success
    }
    fn bad() -> ProbeVerdict {
        ProbeVerdict::Failure("no".into())
    }
    fn unknown() -> ProbeVerdict {
        ProbeVerdict::Unknown("the runtime is unavailable".into())
    }
    fn probe(delay: i32, period: i32, success: i32, failure: i32) -> Probe {
        Probe {
            initial_delay_seconds: Some(delay),
            period_seconds: Some(period),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            ..Probe::default()
        }
    }
    fn fresh(kind: ProbeKind, spec: &Probe) -> ProbeState {
        ProbeState::new(kind, spec, T0, None, ("u", "web"), T0)
    }
    /// Feeds results, each when it is due, and collects the changes.
    fn run(state: &mut ProbeState, results: &[ProbeVerdict]) -> Vec<Option<ProbeChange>> {
        results.iter().map(|r| state.result(r.clone(), state.due().unwrap_or(T0))).collect()
    }

    #[test]
    fn the_first_run_waits_for_the_initial_delay_and_the_next_for_the_period() {
        let mut state = fresh(ProbeKind::Readiness, &probe(5, 3, 1, 3));
        assert_eq!(state.due(), Some(T0 + secs(5)));
        state.result(ok(), T0 + secs(5) + Duration::from_millis(400));
        assert_eq!(state.due(), Some(T0 + secs(8)), "the schedule does not drift with the duration of a run");
        state.result(ok(), T0 + secs(100));
        assert_eq!(state.due(), Some(T0 + secs(103)), "missed runs are skipped");
    }

    #[test]
    fn unset_or_invalid_numbers_get_the_api_defaults() {
        for spec in [Probe::default(), probe(-1, 0, -5, 0)] {
            let mut state = fresh(ProbeKind::Liveness, &spec);
            assert_eq!((state.due(), state.timeout(), state.period), (Some(T0), secs(1), secs(10)));
            assert_eq!(run(&mut state, &[bad(), bad(), bad()]), [None, None, Some(ProbeChange::Failure)]);
        }
    }

    #[test]
    fn readiness_starts_as_failed_and_changes_at_its_thresholds() {
        let mut state = fresh(ProbeKind::Readiness, &probe(0, 1, 2, 3));
        let changes = run(&mut state, &[ok(), bad(), ok(), ok(), ok(), bad(), bad(), ok(), bad(), bad(), bad(), bad()]);
        let (up, down) = (Some(ProbeChange::Success), Some(ProbeChange::Failure));
        assert_eq!(changes, [None, None, None, up, None, None, None, None, None, None, down, None]);
        assert!(state.due().is_some(), "readiness never stops");
    }

    #[test]
    fn liveness_starts_as_passed_and_stops_when_it_failed() {
        let mut state = fresh(ProbeKind::Liveness, &probe(0, 1, 1, 2));
        assert_eq!(
            run(&mut state, &[ok(), bad(), ok(), bad(), bad()]),
            [None, None, None, None, Some(ProbeChange::Failure)]
        );
        assert_eq!(state.due(), None);
        assert_eq!(state.result(ok(), T0 + secs(50)), None, "a late result changes nothing");
    }

    #[test]
    fn startup_starts_undecided_and_stops_with_either_result() {
        for (result, change) in [(ok(), ProbeChange::Success), (bad(), ProbeChange::Failure)] {
            let mut state = fresh(ProbeKind::Startup, &probe(0, 1, 1, 1));
            assert_eq!(run(&mut state, &[result]), [Some(change)]);
            assert_eq!(state.due(), None);
        }
    }

    #[test]
    fn a_probe_that_could_not_run_neither_counts_nor_interrupts_a_series() {
        let mut state = fresh(ProbeKind::Liveness, &probe(0, 1, 1, 2));
        assert_eq!(
            run(&mut state, &[bad(), unknown(), unknown(), bad()]),
            [None, None, None, Some(ProbeChange::Failure)]
        );
    }

    #[test]
    fn readiness_of_an_instance_survives_a_restart_of_the_agent() {
        let found =
            |ready| ProbeState::new(ProbeKind::Readiness, &probe(0, 10, 1, 2), T0, ready, ("u", "web"), T0 + secs(500));
        let down = Some(ProbeChange::Failure);
        assert_eq!(run(&mut found(Some(true)), &[ok(), bad(), bad()]), [None, None, down]);
        assert_eq!(run(&mut found(Some(false)), &[bad(), bad(), ok()]), [None, None, Some(ProbeChange::Success)]);
    }

    #[test]
    fn instances_found_running_are_spread_over_the_period_the_same_way_each_time() {
        let now = T0 + secs(500);
        let due = |uid: &str| {
            let state = ProbeState::new(ProbeKind::Liveness, &probe(0, 10, 1, 1), T0, None, (uid, "web"), now);
            state.due().expect("due")
        };
        assert_eq!(due("u1"), due("u1"));
        let mut tenths = [0; 10];
        for n in 0..1000 {
            let at = due(&format!("uid-{n}")) - now;
            assert!(at < secs(10));
            tenths[usize::try_from(at.as_secs()).expect("small")] += 1;
        }
        assert!(tenths.iter().all(|n| (50..200).contains(n)), "{tenths:?}");
    }

    #[test]
    fn readiness_is_probed_at_once_after_a_long_startup() {
        let now = T0 + secs(90);
        let state = ProbeState::new(ProbeKind::Readiness, &probe(0, 10, 1, 1), T0, None, ("u", "web"), now);
        assert_eq!(state.due(), Some(now));
    }

    #[test]
    fn a_remaining_initial_delay_is_kept_after_a_restart_of_the_agent() {
        let state = ProbeState::new(ProbeKind::Liveness, &probe(60, 10, 1, 1), T0, None, ("u", "w"), T0 + secs(30));
        assert_eq!(state.due(), Some(T0 + secs(60)));
    }
}
