//! Grace periods of a shutdown, by the priority of pods.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::PodSpec;

/// Kubernetes: `SystemCriticalPriority`.
const CRITICAL: i32 = 2_000_000_000;

/// One entry of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityPeriod {
    /// The lowest priority of the group.
    pub priority: i32,
    /// How long the pods of the group may take to end.
    pub period: Duration,
}

/// The groups of pods, from low to high priority. At least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownPeriods(Vec<PriorityPeriod>);

/// The priority of a pod. A static pod may name a class that the API server would resolve; those of the system are constant.
pub(crate) fn priority_of(spec: &PodSpec) -> i32 {
    let of_class = match spec.priority_class_name.as_deref() {
        Some("system-cluster-critical") => CRITICAL,
        Some("system-node-critical") => CRITICAL + 1000,
        _ => 0,
    };
    spec.priority.unwrap_or(of_class)
}

impl ShutdownPeriods {
    /// From `shutdownGracePeriodByPodPriority`. `None`: it has no entry.
    pub fn by_priority(mut table: Vec<PriorityPeriod>) -> Option<Self> {
        table.sort_by_key(|entry| entry.priority);
        (!table.is_empty()).then_some(Self(table))
    }

    /// From `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, in whole seconds. `None`: the shutdown is not graceful
    /// (Go kubelet: `migrateConfig`).
    pub fn from_grace_periods(total: Duration, critical: Duration) -> Option<Self> {
        let others = total.checked_sub(critical).filter(|_| !total.is_zero())?;
        let entry =
            |priority, period: Duration| PriorityPeriod { priority, period: Duration::from_secs(period.as_secs()) };
        Some(Self(vec![entry(0, others), entry(CRITICAL, critical)]))
    }

    /// The sum of all periods.
    pub fn total(&self) -> Duration {
        self.0.iter().map(|entry| entry.period).sum()
    }

    /// The group of a pod: the highest entry that is not above its priority, else the lowest (Go kubelet: `groupByPriority`).
    pub(super) fn group_of(&self, priority: i32) -> usize {
        self.0.iter().rposition(|entry| entry.priority <= priority).unwrap_or(0)
    }

    pub(super) fn get(&self, group: usize) -> Option<Duration> {
        self.0.get(group).map(|entry| entry.period)
    }

    /// The sum of the periods of the groups up to this one.
    pub(super) fn total_until(&self, group: usize) -> Duration {
        self.0.iter().take(group + 1).map(|entry| entry.period).sum()
    }

    /// All periods shortened by the same factor, so that they fit.
    pub(super) fn scaled_to(&self, allowed: Duration) -> Self {
        let total = self.total();
        if allowed >= total {
            return self.clone();
        }
        let factor = allowed.as_secs_f64() / total.as_secs_f64();
        let scaled = |entry: &PriorityPeriod| PriorityPeriod { period: entry.period.mul_f64(factor), ..*entry };
        Self(self.0.iter().map(scaled).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(entries: &[(i32, u64)]) -> ShutdownPeriods {
        let entry = |(priority, seconds): &(i32, u64)| PriorityPeriod {
            priority: *priority,
            period: Duration::from_secs(*seconds),
        };
        ShutdownPeriods::by_priority(entries.iter().map(entry).collect()).unwrap()
    }

    #[test]
    fn two_grace_periods_make_two_groups() {
        let periods = |total, critical| {
            ShutdownPeriods::from_grace_periods(Duration::from_millis(total), Duration::from_millis(critical))
        };
        assert_eq!(periods(30_000, 10_000), Some(table(&[(0, 20), (CRITICAL, 10)])));
        assert_eq!(periods(30_000, 0), Some(table(&[(0, 30), (CRITICAL, 0)])));
        assert_eq!(periods(10_000, 10_000), Some(table(&[(0, 0), (CRITICAL, 10)])));
        assert_eq!(periods(30_900, 10_800), Some(table(&[(0, 20), (CRITICAL, 10)])), "in whole seconds");
        assert_eq!(periods(0, 0), None);
        assert_eq!(periods(10_000, 20_000), None);
        assert_eq!(ShutdownPeriods::by_priority(vec![]), None);
    }

    /// The rows of the Go kubelet's `Test_groupByPriority`.
    #[test]
    fn a_pod_belongs_to_the_highest_entry_that_is_not_above_it() {
        let migrated = ShutdownPeriods::from_grace_periods(Duration::from_secs(300), Duration::from_secs(120)).unwrap();
        assert_eq!(migrated, table(&[(CRITICAL, 120), (0, 180)]));
        assert_eq!([0, 1_000_000_000, CRITICAL].map(|priority| migrated.group_of(priority)), [0, 0, 1]);
        let periods = table(&[(1, 10), (2, 20), (3, 30), (4, 40)]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|priority| periods.group_of(priority)), [0, 0, 1, 2, 3, 3]);
        assert_eq!(periods.group_of(-1), 0, "below all entries: the lowest");
        assert_eq!((periods.get(3), periods.get(4)), (Some(Duration::from_secs(40)), None));
        assert_eq!((periods.total_until(1), periods.total()), (Duration::from_secs(30), Duration::from_secs(100)));
    }

    #[test]
    fn a_class_of_the_system_has_its_priority_without_an_api_server() {
        let spec = |value| serde_json::from_value::<PodSpec>(value).unwrap();
        let rows = [
            (json!({"containers": []}), 0),
            (json!({"containers": [], "priority": 7}), 7),
            (json!({"containers": [], "priorityClassName": "system-cluster-critical"}), CRITICAL),
            (json!({"containers": [], "priorityClassName": "system-node-critical"}), CRITICAL + 1000),
            (json!({"containers": [], "priorityClassName": "system-node-critical", "priority": 7}), 7),
            (json!({"containers": [], "priorityClassName": "mine"}), 0),
        ];
        for (value, priority) in rows {
            assert_eq!(priority_of(&spec(value.clone())), priority, "{value}");
        }
    }

    #[test]
    fn periods_shrink_by_the_same_factor_if_less_time_is_allowed() {
        let periods = table(&[(0, 20), (CRITICAL, 10)]);
        let seconds = |allowed| {
            let scaled = periods.scaled_to(Duration::from_secs(allowed));
            [scaled.get(0).unwrap().as_secs(), scaled.get(1).unwrap().as_secs()]
        };
        assert_eq!([seconds(60), seconds(30)], [[20, 10]; 2]);
        assert_eq!((seconds(15), seconds(6), seconds(0)), ([10, 5], [4, 2], [0, 0]));
        assert_eq!(table(&[(0, 0)]).scaled_to(Duration::ZERO), table(&[(0, 0)]));
    }
}
