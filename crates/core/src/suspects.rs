//! Pods whose handling may have ended the process: the agent died, twice, while it worked on them in the same way, and did not get
//! to the end of that work in between.
//!
//! A panic is caught; running out of memory and hanging are not, and the restarted agent would meet the same pod again. So each
//! process finds out which work the former one did not end (`tasks/src/work.rs`), and a pod that was in the same work at two deaths
//! is quarantined: everything else starts without it.
//!
//! ```text
//!  death 1 ── within an hour ──▶ death 2 ─▶ quarantine, 10 min ─▶ tried again ── death 3 ─▶ quarantine, 20 min … 6 h
//!     └── completed, then death 2, 3, 4, 5 ──▶┘     │                    └── an hour without ─▶ forgotten
//!                                                  └── its spec changes, or it is to end ─▶ tried again at once
//! ```
//!
//! A process that was killed for another reason leaves the work that it did in that very moment: none if it was idle, that of any
//! pod if it was busy. Its successor then does the same work without dying, so the next death in it is an accident too. Only a pod in
//! which the agent dies again and again, and in at least half of all its deaths, is quarantined in spite of that. Blocking work that had been running for long, such as a mount
//! that hangs, is under way at every death: it does not count next to work that had just begun. Pods that one death makes suspects
//! are held for some seconds, and pods that are quarantined together are tried again, one after the other: so the next death shows
//! which of them is the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use crate::model::{InterruptedWork, PodRecord, PodUid, Suspect, Time};
use crate::status::is_quarantined;

/// The suspects after an end of the agent: `former` are those of its own start, `interrupted` is the work that it did not finish, `records`
/// are the pods as it left them. After a normal end no work is interrupted.
pub fn suspects_after(
    former: Vec<Suspect>,
    interrupted: &[InterruptedWork],
    records: &[PodRecord],
    now: Time,
) -> Vec<Suspect> {
    let mut suspects: Vec<Suspect> = former.into_iter().filter(|s| now <= forgotten_at(s)).collect();
    for suspect in suspects.iter_mut().filter(|s| was_released(&s.uid, records)) {
        suspect.until = None;
    }
    // Suspects of the same pod are tried again together.
    let mut stagger: BTreeMap<&PodUid, Duration> = BTreeMap::new();
    let reasons = reasons(interrupted);
    if !reasons.is_empty() {
        let is_other = |s: &&mut Suspect| s.completed && !reasons.contains(&(&s.uid, s.work.as_str()));
        suspects.iter_mut().filter(is_other).for_each(|s| s.elsewhere = s.elsewhere.saturating_add(1));
    }
    for (uid, work) in reasons {
        let Some(suspect) = suspects.iter_mut().find(|s| s.uid == *uid && s.work == work) else {
            suspects.push(first_death(uid, work, now));
            continue;
        };
        suspect.deaths = suspect.deaths.saturating_add(1);
        suspect.died = now;
        let was_completed = mem::take(&mut suspect.completed);
        if was_completed && (suspect.deaths < DEATHS_MANY || suspect.deaths < suspect.elsewhere) {
            continue;
        }
        let next = (STAGGER * u32::try_from(stagger.len()).unwrap_or(u32::MAX)).min(STAGGER_MAX);
        let later = *stagger.entry(uid).or_insert(next);
        suspect.quarantines = suspect.quarantines.saturating_add(1);
        suspect.until = Some(now + quarantine_time(suspect.quarantines) + later);
    }
    hold_in_turn(&mut suspects, now);
    // The newest are kept: one pod can have a few kinds of work at most.
    suspects.sort_by(|a, b| b.died.cmp(&a.died).then_with(|| (&a.uid, &a.work).cmp(&(&b.uid, &b.work))));
    suspects.truncate(SUSPECTS_MAX);
    suspects
}

fn first_death(uid: &PodUid, work: &str, now: Time) -> Suspect {
    let (uid, work) = (uid.clone(), work.into());
    Suspect { uid, work, deaths: 1, quarantines: 0, completed: false, elsewhere: 0, died: now, until: None }
}

/// Several pods became suspects at this death: each but the first is held until the one before it has had time to show its effect.
fn hold_in_turn(suspects: &mut [Suspect], now: Time) {
    let is_new = |s: &Suspect| s.deaths == 1 && s.died == now;
    let pods: BTreeSet<PodUid> = suspects.iter().filter(|s| is_new(s)).map(|s| s.uid.clone()).collect();
    let turns: BTreeMap<&PodUid, u32> = pods.iter().zip(0..).collect();
    for suspect in suspects.iter_mut().filter(|s| is_new(s)) {
        let hold = (HOLD * turns.get(&suspect.uid).copied().unwrap_or_default()).min(HOLD_MAX);
        suspect.until = (!hold.is_zero()).then_some(now + hold);
    }
}

/// Work that may be the reason of the death, without duplicates: all but blocking work that began long before other work.
fn reasons(interrupted: &[InterruptedWork]) -> BTreeSet<(&PodUid, &str)> {
    let newest = interrupted.iter().map(|work| work.began).max().unwrap_or_default();
    let may_be_reason = |work: &&InterruptedWork| !work.blocking || newest <= work.began + LONG_WORK;
    interrupted.iter().filter(may_be_reason).map(|work| (&work.uid, work.work.as_str())).collect()
}

/// A pod that was quarantined is not any more: its spec was changed or it is to end. Without a record it has not been seen since.
fn was_released(uid: &PodUid, records: &[PodRecord]) -> bool {
    let record = records.iter().find(|record| record.uid == *uid);
    record.is_some_and(|record| !record.status.as_ref().is_some_and(is_quarantined))
}

fn forgotten_at(suspect: &Suspect) -> Time {
    suspect.until.unwrap_or_default().max(suspect.died) + FORGOTTEN_AFTER
}

/// Doubles with each quarantine.
fn quarantine_time(quarantines: u32) -> Duration {
    (QUARANTINE_FIRST * 2u32.pow(quarantines.saturating_sub(1).min(16))).min(QUARANTINE_MAX)
}

/// As many deaths in work that was completed in between are no accident, unless there were more in other work.
const DEATHS_MANY: u32 = 5;

const QUARANTINE_FIRST: Duration = Duration::from_secs(600);
const QUARANTINE_MAX: Duration = Duration::from_secs(6 * 3600);
/// Deaths that are further apart have nothing to do with each other.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// Blocking work that began this long before other work waits for a disk or another host.
const LONG_WORK: Duration = Duration::from_secs(10);
/// Between the first tries of pods that became suspects by the same death: enough to start the agent and reach the work in question.
const HOLD: Duration = Duration::from_secs(5);
const HOLD_MAX: Duration = Duration::from_secs(30);
/// Between the retries of pods that were quarantined by the same death: longer than the start of an agent.
const STAGGER: Duration = Duration::from_secs(60);
const STAGGER_MAX: Duration = Duration::from_secs(1800);
/// Bounds the file.
const SUSPECTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::model::Source;
    use crate::status;

    fn minutes(n: u64) -> Time {
        Duration::from_secs(60 * n)
    }

    fn work(uid: &str, work: &str, began: u64, blocking: bool) -> InterruptedWork {
        InterruptedWork { uid: uid.into(), work: work.into(), began: Duration::from_secs(began), blocking }
    }

    fn interrupted(uids: &[&str]) -> Vec<InterruptedWork> {
        uids.iter().map(|uid| work(uid, "CreateContainer", 0, false)).collect()
    }

    /// After deaths in the same work, at minutes 1 and 2.
    fn after_two_deaths(uids: &[&str]) -> Vec<Suspect> {
        let first = suspects_after(vec![], &interrupted(uids), &[], minutes(1));
        suspects_after(first, &interrupted(uids), &[], minutes(2))
    }

    fn quarantined(suspects: &[Suspect], now: Time) -> Vec<&str> {
        suspects.iter().filter(|s| s.is_quarantined(now)).map(|s| s.uid.as_str()).collect()
    }

    #[test]
    fn the_second_death_in_the_same_work_quarantines_the_pod_and_each_further_one_for_longer() {
        let mut suspects = suspects_after(vec![], &interrupted(&["a", "b"]), &[], minutes(1));
        assert_eq!(quarantined(&suspects, minutes(1) + HOLD), [""; 0], "one death may have any reason");
        let mut now = minutes(2);
        for expected in [10, 20, 40, 80, 160, 320, 360, 360] {
            suspects = suspects_after(suspects, &interrupted(&["a"]), &[], now);
            assert_eq!(quarantined(&suspects, now), ["a"]);
            assert_eq!(quarantined(&suspects, now + minutes(expected) - Duration::from_secs(1)), ["a"]);
            now += minutes(expected);
            assert_eq!(quarantined(&suspects, now), [""; 0], "it is tried again");
            now += minutes(30);
        }
    }

    #[test]
    fn deaths_in_other_work_or_far_apart_do_not_count_together() {
        let first = suspects_after(vec![], &interrupted(&["a"]), &[], minutes(1));
        let other = suspects_after(first.clone(), &[work("a", "MountVolume", 0, true)], &[], minutes(2));
        assert_eq!(quarantined(&other, minutes(2)), [""; 0]);
        let late = suspects_after(first, &interrupted(&["a"]), &[], minutes(62));
        assert_eq!(quarantined(&late, minutes(62)), [""; 0]);
        assert_eq!(late[0].deaths, 1);
    }

    /// Suspects that have completed their work since the last death.
    fn completed(mut suspects: Vec<Suspect>) -> Vec<Suspect> {
        suspects.iter_mut().for_each(|s| s.completed = true);
        suspects
    }

    #[test]
    fn kills_at_random_moments_quarantine_no_pod_whose_work_is_completed_in_between() {
        let mut suspects = vec![];
        for n in 0..1000 {
            let uid = format!("pod-{}", n % 30);
            suspects = completed(suspects_after(suspects, &interrupted(&[&uid]), &[], Duration::from_secs(n)));
            assert_eq!(quarantined(&suspects, Duration::from_secs(n)), [""; 0], "after {n} kills");
        }
    }

    #[test]
    fn a_pod_in_which_the_agent_dies_again_and_again_is_quarantined_although_its_work_is_completed_sometimes() {
        let mut suspects = vec![];
        for n in 1..=4 {
            suspects = completed(suspects_after(suspects, &interrupted(&["a"]), &[], minutes(n)));
            assert_eq!(quarantined(&suspects, minutes(n)), [""; 0], "{n} deaths");
        }
        suspects = suspects_after(suspects, &interrupted(&["b"]), &[], minutes(5));
        assert_eq!(quarantined(&suspects, minutes(5)), [""; 0], "a death in other work");
        suspects = suspects_after(suspects, &interrupted(&["a"]), &[], minutes(6));
        assert_eq!(quarantined(&suspects, minutes(15)), ["a"]);
        assert_eq!(quarantined(&suspects, minutes(16)), [""; 0], "ten minutes, as the first quarantine has");
    }

    #[test]
    fn a_normal_end_and_a_death_without_work_keep_the_quarantine_and_add_nothing() {
        let twice = after_two_deaths(&["a"]);
        let after = suspects_after(twice.clone(), &[], &[], minutes(3));
        assert_eq!(after, twice);
        assert_eq!(suspects_after(twice, &[], &[], minutes(12 + 61)), [], "an hour after the retry");
    }

    #[test]
    fn the_number_of_suspects_is_bounded() {
        let many: Vec<_> = (0..1000).map(|n| work(&n.to_string(), "w", 0, false)).collect();
        assert_eq!(suspects_after(vec![], &many, &[], minutes(1)).len(), SUSPECTS_MAX);
    }

    fn record(quarantined: bool) -> PodRecord {
        let mut record = PodRecord::new("a".into(), Source::File, Arc::default(), Timestamp::UNIX_EPOCH);
        if quarantined {
            record.status = Some(status::quarantined(None, "AgentDied", String::new(), Timestamp::UNIX_EPOCH));
        }
        record
    }

    #[test]
    fn a_restart_does_not_bring_back_a_quarantine_that_a_user_ended() {
        let twice = after_two_deaths(&["a"]);
        let restarted = |record| suspects_after(twice.clone(), &[], &[record], minutes(3));
        assert_eq!(quarantined(&restarted(record(true)), minutes(3)), ["a"], "nothing has changed");
        assert_eq!(quarantined(&restarted(record(false)), minutes(3)), [""; 0], "it was released");
        let again = suspects_after(restarted(record(false)), &interrupted(&["a"]), &[record(false)], minutes(4));
        assert_eq!((quarantined(&again, minutes(23)), again[0].deaths), (vec!["a"], 3), "another death counts on");
    }

    #[test]
    fn blocking_work_that_had_been_running_for_long_is_not_the_reason_of_a_death() {
        let left = [work("nfs", "MountVolume", 5, true), work("poison", "CreateContainer", 100, false)];
        let mut suspects = vec![];
        for n in 1..=2 {
            suspects = suspects_after(suspects, &left, &[], minutes(n));
        }
        assert_eq!(quarantined(&suspects, minutes(2)), ["poison"]);
        // Code that does not wait may hang, which then is the reason, however long ago it began.
        let left = [work("hangs", "planning", 5, false), work("other", "CreateContainer", 100, false)];
        let uids: Vec<_> = reasons(&left).iter().map(|(uid, _)| uid.as_str()).collect();
        assert_eq!(uids, ["hangs", "other"]);
        let alone = [work("nfs", "MountVolume", 5, true)];
        assert_eq!(reasons(&alone).len(), 1, "without other work it may be the reason");
    }

    #[test]
    fn pods_that_one_death_makes_suspects_are_tried_one_after_the_other() {
        let suspects = suspects_after(vec![], &interrupted(&["a", "b", "c"]), &[], minutes(1));
        assert_eq!(quarantined(&suspects, minutes(1)), ["b", "c"]);
        assert_eq!(quarantined(&suspects, minutes(1) + HOLD), ["c"]);
        assert_eq!(quarantined(&suspects, minutes(1) + 2 * HOLD), [""; 0]);
        // The agent dies in the work of b while a has ended its own and c is held.
        let died = minutes(1) + HOLD + Duration::from_secs(1);
        let suspects = suspects_after(suspects, &interrupted(&["b"]), &[], died);
        assert_eq!(quarantined(&suspects, died + 2 * HOLD), ["b"]);
        let many: Vec<_> = (0..100).map(|n| work(&n.to_string(), "w", 0, false)).collect();
        assert_eq!(quarantined(&suspects_after(vec![], &many, &[], minutes(1)), minutes(1) + HOLD_MAX), [""; 0]);
    }

    #[test]
    fn pods_that_are_quarantined_together_are_tried_again_one_after_the_other() {
        let suspects = after_two_deaths(&["a", "b", "c"]);
        assert_eq!(quarantined(&suspects, minutes(11)), ["a", "b", "c"]);
        assert_eq!(quarantined(&suspects, minutes(12)), ["b", "c"]);
        assert_eq!(quarantined(&suspects, minutes(13)), ["c"]);
        assert_eq!(quarantined(&suspects, minutes(14)), [""; 0]);
    }

    #[test]
    fn a_pod_that_is_held_after_one_death_is_not_quarantined_for_long() {
        let with = |reason| status::quarantined(None, reason, String::new(), Timestamp::UNIX_EPOCH);
        assert!(is_quarantined(&with(status::HELD)) && !status::is_quarantined_for_long(&with(status::HELD)));
        assert!(status::is_quarantined_for_long(&with("AgentDied")));
    }
}
