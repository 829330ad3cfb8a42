//! The periods of a graceful shutdown.

use podwright_core::shutdown::{PriorityPeriod, ShutdownPeriods};

use super::*;

fn periods(entries: &[(i32, u64)]) -> Option<ShutdownPeriods> {
    let entry = |(priority, seconds): &(i32, u64)| {
        let period = Duration::from_secs(*seconds);
        PriorityPeriod { priority: *priority, period }
    };
    ShutdownPeriods::by_priority(entries.iter().map(entry).collect())
}

#[test]
fn a_shutdown_is_graceful_with_a_total_period_or_with_a_table() {
    let table = "shutdownGracePeriodByPodPriority:\n- {priority: 10000, shutdownGracePeriodSeconds: 20}\n\
                 - {shutdownGracePeriodSeconds: 60}\n";
    let rows = [
        ("", None),
        ("shutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\n", None),
        ("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n", periods(&[(0, 20), (2_000_000_000, 10)])),
        ("shutdownGracePeriod: 1m\n", periods(&[(0, 60), (2_000_000_000, 0)])),
        (table, periods(&[(0, 60), (10_000, 20)])),
    ];
    for (yaml, expected) in rows {
        let config = load(yaml).unwrap();
        assert_eq!(config.node.shutdown, expected, "{yaml}");
        assert_eq!(config.warnings, Vec::<String>::new(), "{yaml}");
    }
}

#[test]
fn periods_that_make_no_sense_are_refused() {
    let rows = [
        ("shutdownGracePeriod: 10ms\n", "shutdownGracePeriod: must be zero or at least 1s"),
        ("shutdownGracePeriod: 48h\n", "shutdownGracePeriod: must be at most 24h"),
        (
            "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 10ms\n",
            "shutdownGracePeriodCriticalPods: must be zero or at least 1s",
        ),
        (
            "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s\n",
            "shutdownGracePeriodCriticalPods: must not be longer than shutdownGracePeriod, of which it is a part",
        ),
        (
            "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]\n",
            "shutdownGracePeriodByPodPriority: cannot be combined with shutdownGracePeriod and \
             shutdownGracePeriodCriticalPods: use one of them",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: -5}]\n",
            "shutdownGracePeriodByPodPriority[0]: shutdownGracePeriodSeconds: must be between 0 and 86400",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 5000000000, shutdownGracePeriodSeconds: 5}]\n",
            "shutdownGracePeriodByPodPriority[0]: priority: must be a 32-bit integer",
        ),
    ];
    for (yaml, error) in rows {
        assert_eq!(load(yaml).unwrap_err(), [error], "{yaml}");
    }
}
