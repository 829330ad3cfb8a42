//! One probe of one container instance: when it runs next, and when its verdict turns.
//!
//! ```text
//!  new ── initialDelay ──▶ due ── result ──▶ due in a period ── … ── threshold reached ──▶ Change
//!                                                            startup, or liveness failed: over until the next instance
//! ```
//!
//! Readiness begins with no, or with what was known of this very instance before the agent restarted; liveness begins with
//! yes; startup begins undecided. The caller keeps readiness and liveness waiting until startup has passed.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::model::{ProbeKind, ProbeVerdict, Time};

/// The verdict turned, or, for a startup probe, was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// `successThreshold` was reached.
    Success,
    /// `failureThreshold` was reached.
    Failure,
}

/// The state of one probe of one instance.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ProbeState {
    kind: ProbeKind,
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    /// `None`: nothing was decided yet.
    verdict: Option<Change>,
    /// The last result, and how many of it came in a row.
    run: Option<(Change, u32)>,
    /// `None`: over, until another instance comes.
    due: Option<Time>,
}

impl ProbeState {
    /// A probe of an instance that started at `started`. `carried` is the readiness known of this instance from before;
    /// `whose` (the pod's uid, the container's name) spreads the probes of an agent that finds many running instances at once.
    pub fn new(
        kind: ProbeKind,
        spec: &Probe,
        started: Time,
        carried: Option<bool>,
        whose: (&str, &str),
        now: Time,
    ) -> Self {
        let period = seconds(spec.period_seconds, 10);
        let first = started + seconds(spec.initial_delay_seconds, 0);
        // What was found running takes its place in the period. What somebody waits for is probed at once: an instance
        // that has just come up, or the readiness of one whose startup has just passed.
        let found = match kind {
            ProbeKind::Startup => false,
            ProbeKind::Readiness => carried.is_some(),
            ProbeKind::Liveness => true,
        };
        let settled = now > first.max(started + period);
        let due = if found && settled { now + spread(whose, kind, period) } else { first.max(now) };
        let verdict = match (kind, carried) {
            (ProbeKind::Readiness, Some(true)) | (ProbeKind::Liveness, _) => Some(Change::Success),
            (ProbeKind::Readiness, _) => Some(Change::Failure),
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

    /// When to run it next; `None`: not again for this instance.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// How long one run may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A run came back. `Some`: the verdict turned.
    pub fn result(&mut self, result: ProbeVerdict, now: Time) -> Option<Change> {
        let was_due = self.due?;
        // Runs keep their beat, however long each takes; beats that were missed are not made up for.
        let beat = was_due + self.period;
        self.due = Some(if beat > now { beat } else { now + self.period });
        let result = match result {
            ProbeVerdict::Success => Change::Success,
            ProbeVerdict::Failure(_) => Change::Failure,
            // The probe could not be made: neither counts nor breaks a row.
            ProbeVerdict::Unknown(_) => return None,
        };
        let row = match self.run {
            Some((last, row)) if last == result => row.saturating_add(1),
            _ => 1,
        };
        self.run = Some((result, row));
        let needed = match result {
            Change::Success => self.success_threshold,
            Change::Failure => self.failure_threshold,
        };
        if row < needed || self.verdict == Some(result) {
            return None;
        }
        self.verdict = Some(result);
        // A container that is about to be killed is left in peace; one that has started need not start again.
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && result == Change::Failure) {
            self.due = None;
        }
        Some(result)
    }
}

/// A place within the period that is always the same for the same probe.
fn spread(whose: (&str, &str), kind: ProbeKind, period: Duration) -> Duration {
    let parts = [whose.0.as_bytes(), b"/", whose.1.as_bytes(), b"/", &[kind as u8]];
    // FNV-1a; its high bits are the well mixed ones.
    let hash = parts
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis((hash >> 16) % millis)
}

/// Kubernetes' default where the field is absent or zero, as the API server fills it in; nonsense counts as absent.
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
        ProbeVerdict::Unknown("the runtime is away".into())
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
    fn run(state: &mut ProbeState, results: &[ProbeVerdict]) -> Vec<Option<Change>> {
        results.iter().map(|r| state.result(r.clone(), state.due().unwrap_or(T0))).collect()
    }

    #[test]
    fn the_first_run_waits_for_the_initial_delay_and_the_next_for_the_period() {
        let mut state = fresh(ProbeKind::Readiness, &probe(5, 3, 1, 3));
        assert_eq!(state.due(), Some(T0 + secs(5)));
        state.result(ok(), T0 + secs(5) + Duration::from_millis(400));
        assert_eq!(state.due(), Some(T0 + secs(8)), "the beat does not drift with the length of a run");
        state.result(ok(), T0 + secs(100));
        assert_eq!(state.due(), Some(T0 + secs(103)), "missed beats are not made up for");
    }

    #[test]
    fn without_numbers_the_api_defaults_hold_and_nonsense_is_no_number() {
        for spec in [Probe::default(), probe(-1, 0, -5, 0)] {
            let mut state = fresh(ProbeKind::Liveness, &spec);
            assert_eq!((state.due(), state.timeout(), state.period), (Some(T0), secs(1), secs(10)));
            assert_eq!(run(&mut state, &[bad(), bad(), bad()]), [None, None, Some(Change::Failure)]);
        }
    }

    #[test]
    fn readiness_begins_with_no_and_turns_at_its_thresholds() {
        let mut state = fresh(ProbeKind::Readiness, &probe(0, 1, 2, 3));
        let changes = run(&mut state, &[ok(), bad(), ok(), ok(), ok(), bad(), bad(), ok(), bad(), bad(), bad(), bad()]);
        let (up, down) = (Some(Change::Success), Some(Change::Failure));
        assert_eq!(changes, [None, None, None, up, None, None, None, None, None, None, down, None]);
        assert!(state.due().is_some(), "readiness goes on for ever");
    }

    #[test]
    fn liveness_begins_with_yes_and_is_over_when_it_failed() {
        let mut state = fresh(ProbeKind::Liveness, &probe(0, 1, 1, 2));
        assert_eq!(
            run(&mut state, &[ok(), bad(), ok(), bad(), bad()]),
            [None, None, None, None, Some(Change::Failure)]
        );
        assert_eq!(state.due(), None);
        assert_eq!(state.result(ok(), T0 + secs(50)), None, "a late answer changes nothing");
    }

    #[test]
    fn startup_begins_undecided_and_is_over_either_way() {
        for (result, change) in [(ok(), Change::Success), (bad(), Change::Failure)] {
            let mut state = fresh(ProbeKind::Startup, &probe(0, 1, 1, 1));
            assert_eq!(run(&mut state, &[result]), [Some(change)]);
            assert_eq!(state.due(), None);
        }
    }

    #[test]
    fn a_probe_that_could_not_be_made_neither_counts_nor_breaks_a_row() {
        let mut state = fresh(ProbeKind::Liveness, &probe(0, 1, 1, 2));
        assert_eq!(run(&mut state, &[bad(), unknown(), unknown(), bad()]), [None, None, None, Some(Change::Failure)]);
    }

    #[test]
    fn readiness_of_the_same_instance_is_carried_over_a_restart_of_the_agent() {
        let found =
            |ready| ProbeState::new(ProbeKind::Readiness, &probe(0, 10, 1, 2), T0, ready, ("u", "web"), T0 + secs(500));
        let down = Some(Change::Failure);
        assert_eq!(run(&mut found(Some(true)), &[ok(), bad(), bad()]), [None, None, down]);
        assert_eq!(run(&mut found(Some(false)), &[bad(), bad(), ok()]), [None, None, Some(Change::Success)]);
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
    fn readiness_is_asked_at_once_when_startup_took_long() {
        let now = T0 + secs(90);
        let state = ProbeState::new(ProbeKind::Readiness, &probe(0, 10, 1, 1), T0, None, ("u", "web"), now);
        assert_eq!(state.due(), Some(now));
    }

    #[test]
    fn a_long_initial_delay_that_is_not_over_is_kept_after_a_restart_of_the_agent() {
        let state = ProbeState::new(ProbeKind::Liveness, &probe(60, 10, 1, 1), T0, None, ("u", "w"), T0 + secs(30));
        assert_eq!(state.due(), Some(T0 + secs(60)));
    }
}
