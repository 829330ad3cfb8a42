//! The phases of a shutdown, as tables of times.

use super::*;

const CRITICAL: i32 = 2_000_000_000;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn pod(uid: &str, priority: i32, grace: u64) -> ShutdownPod {
    ShutdownPod { uid: uid.into(), priority, grace: seconds(grace) }
}

fn facts(pods: &[ShutdownPod], reported: bool) -> ShutdownFacts {
    ShutdownFacts { pods: pods.to_vec(), reported }
}

fn kill(uid: &str, grace_ms: u64) -> ShutdownStep {
    ShutdownStep::Kill { uid: uid.into(), grace: Duration::from_millis(grace_ms) }
}

fn periods() -> ShutdownPeriods {
    ShutdownPeriods::from_grace_periods(seconds(30), seconds(10)).unwrap()
}

/// A shutdown at 100 s with 20 s for pods and 10 s for critical ones.
fn begun(announced: bool, allowed: u64) -> Shutdown {
    let mut shutdown = Shutdown::new(true);
    assert!(!shutdown.is_idle() && !shutdown.is_active());
    let request = ShutdownRequest { id: 7, allowed: seconds(allowed) };
    assert!(shutdown.begin(&request, &periods(), announced, seconds(100)));
    shutdown
}

#[test]
fn groups_end_from_low_to_high_priority_each_when_the_one_before_has_ended() {
    let (low, critical) = (pod("low", 0, 30), pod("critical", CRITICAL + 1000, 5));
    let mut shutdown = begun(true, 60);
    let both = facts(&[low, critical.clone()], false);
    assert_eq!(shutdown.advance(&both, seconds(100)), [kill("low", 20_000)], "the period is shorter than its grace");
    assert_eq!(shutdown.advance(&both, seconds(105)), [], "each is killed once");
    assert_eq!(shutdown.wake(), Some(seconds(120)));
    let one = facts(&[critical], false);
    assert_eq!(shutdown.advance(&one, seconds(106)), [kill("critical", 5000)], "its grace is shorter than the period");
    assert_eq!(shutdown.wake(), Some(seconds(116)));
    assert_eq!(shutdown.advance(&facts(&[], false), seconds(108)), [], "statuses are not sent yet");
    assert_eq!(shutdown.wake(), Some(seconds(113)));
    assert_eq!(shutdown.advance(&facts(&[], true), seconds(109)), [ShutdownStep::Allow { id: 7 }]);
    assert_eq!((shutdown.advance(&facts(&[], true), seconds(110)), shutdown.wake()), (vec![], None));
    assert!(shutdown.is_active(), "until the host is down, or the shutdown is cancelled");
}

#[test]
fn a_group_that_does_not_end_is_left_behind_when_its_period_is_over() {
    let stuck = [pod("low", 0, 30), pod("critical", CRITICAL, 30)];
    let mut shutdown = begun(true, 60);
    shutdown.advance(&facts(&stuck, true), seconds(100));
    assert_eq!(shutdown.advance(&facts(&stuck, true), seconds(119)), []);
    assert_eq!(shutdown.advance(&facts(&stuck, true), seconds(120)), [kill("critical", 10_000)]);
    assert_eq!(shutdown.advance(&facts(&stuck, false), seconds(130)), []);
    assert_eq!(shutdown.wake(), Some(seconds(132)), "statuses have a moment, although all the time is used up");
    assert_eq!(shutdown.advance(&facts(&stuck, false), seconds(132)), [ShutdownStep::Allow { id: 7 }]);
}

#[test]
fn an_empty_group_costs_nothing() {
    let mut shutdown = begun(true, 60);
    let one = [pod("critical", CRITICAL, 30)];
    assert_eq!(shutdown.advance(&facts(&one, true), seconds(100)), [kill("critical", 10_000)]);
    let mut shutdown = begun(true, 60);
    assert_eq!(shutdown.advance(&facts(&[], true), seconds(100)), [ShutdownStep::Allow { id: 7 }], "no pods at all");
}

#[test]
fn no_pod_ends_before_the_node_is_reported_as_not_ready_unless_that_takes_too_long() {
    let pods = facts(&[pod("low", 0, 60)], true);
    let mut shutdown = begun(false, 60);
    assert_eq!((shutdown.advance(&pods, seconds(100)), shutdown.wake()), (vec![], Some(seconds(102))));
    shutdown.announced();
    let at = Duration::from_millis(100_500);
    assert_eq!(shutdown.advance(&pods, at), [kill("low", 19_500)], "the announcement is taken from the period");
    let mut shutdown = begun(false, 60);
    shutdown.advance(&pods, seconds(100));
    assert_eq!(shutdown.advance(&pods, seconds(102)), [kill("low", 18_000)]);
    // With 6 s in all, the first group has 4 s, and a quarter of it is for the announcement.
    let mut shutdown = begun(false, 6);
    assert_eq!((shutdown.advance(&pods, seconds(100)), shutdown.wake()), (vec![], Some(seconds(101))));
}

#[test]
fn periods_fit_into_the_time_that_the_host_allows() {
    let stuck = facts(&[pod("low", 0, 60), pod("critical", CRITICAL, 60)], true);
    let mut shutdown = begun(true, 15);
    assert_eq!(shutdown.advance(&stuck, seconds(100)), [kill("low", 10_000)]);
    assert_eq!(shutdown.advance(&stuck, seconds(110)), [kill("critical", 5000)]);
}

#[test]
fn a_group_without_time_is_killed_and_not_waited_for() {
    let table = ShutdownPeriods::from_grace_periods(seconds(10), seconds(10)).unwrap();
    let mut shutdown = Shutdown::new(true);
    shutdown.begin(&ShutdownRequest { id: 1, allowed: seconds(10) }, &table, true, seconds(100));
    let stuck = facts(&[pod("low", 0, 60), pod("critical", CRITICAL, 3)], true);
    assert_eq!(shutdown.advance(&stuck, seconds(100)), [kill("low", 0), kill("critical", 3000)]);
}

#[test]
fn a_cancelled_shutdown_stops_where_it_is_and_the_next_one_begins_with_the_first_group() {
    let stuck = facts(&[pod("low", 0, 60), pod("critical", CRITICAL, 60)], true);
    let mut shutdown = begun(true, 60);
    shutdown.advance(&stuck, seconds(100));
    assert!(shutdown.cancel());
    assert!(shutdown.is_idle() && !shutdown.is_active());
    assert_eq!((shutdown.advance(&stuck, seconds(200)), shutdown.wake()), (vec![], None));
    assert!(!shutdown.cancel(), "it is not cancelled twice");
    let request = ShutdownRequest { id: 8, allowed: seconds(60) };
    assert!(shutdown.begin(&request, &periods(), true, seconds(300)));
    assert_eq!(shutdown.advance(&stuck, seconds(300)), [kill("low", 20_000)]);
}

#[test]
fn a_repeated_request_changes_no_deadline_and_gets_the_answer() {
    let stuck = facts(&[pod("low", 0, 60)], true);
    let mut shutdown = begun(true, 60);
    shutdown.advance(&stuck, seconds(100));
    let again = ShutdownRequest { id: 8, allowed: seconds(60) };
    assert!(!shutdown.begin(&again, &periods(), true, seconds(110)));
    assert_eq!((shutdown.advance(&stuck, seconds(110)), shutdown.wake()), (vec![], Some(seconds(120))));
    assert_eq!(shutdown.advance(&facts(&[], true), seconds(111)), [ShutdownStep::Allow { id: 8 }]);
    let late = ShutdownRequest { id: 9, allowed: seconds(60) };
    assert!(!shutdown.begin(&late, &periods(), true, seconds(112)));
    assert_eq!(shutdown.advance(&facts(&[], true), seconds(112)), [ShutdownStep::Allow { id: 9 }]);
}

#[test]
fn a_node_without_graceful_shutdown_is_certain_from_the_start() {
    assert!(Shutdown::new(false).is_idle());
}
