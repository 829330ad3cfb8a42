//! Graceful node shutdown: the order in which pods end when the host shuts down, and how long each group of them has.
//!
//! ```text
//!  unknown ──▶ idle ── the host shuts down ──▶ announcing ─▶ ending group 0 ─▶ … ─▶ ending group n ─▶ reporting ─▶ done
//!               ▲                                                                                                  │
//!               └───────────────────────────── the shutdown was cancelled ◀────────────────────────────────────────┘
//! ```
//!
//! The node is reported as not ready first, so that no more traffic is sent to its pods; then pods end from low to high priority;
//! then their statuses are sent; then the host may continue. Each phase has a deadline, and all of them together fit into the
//! time that the host allows.

mod periods;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{PodUid, ShutdownRequest, Time};

pub(crate) use periods::priority_of;
pub use periods::{PriorityPeriod, ShutdownPeriods};

/// Reason of pods that end because of the shutdown (Go kubelet: `nodeShutdownReason`).
pub(crate) const TERMINATED: &str = "Terminated";
/// The message to that reason, also of the condition `DisruptionTarget`.
pub(crate) const TERMINATED_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Reason of pods that are not admitted, and of the node's events.
pub(crate) const NODE_SHUTDOWN: &str = "NodeShutdown";
/// The message to that reason.
pub(crate) const NOT_ADMITTED: &str = "Pod was rejected as the node is shutting down.";
/// The message of the node's condition Ready.
pub(crate) const NOT_READY: &str = "node is shutting down";

/// Maximum time to wait until the API server has the not ready condition, before pods are terminated.
const ANNOUNCE_MAX: Duration = Duration::from_secs(2);
/// Statuses have this long to be sent, also if pods used up all the time.
const REPORT_MIN: Duration = Duration::from_secs(2);
/// An unreachable API server delays the shutdown no longer; the statuses are in the journal and are sent after the next boot.
const REPORT_MAX: Duration = Duration::from_secs(5);

/// State of the shutdown of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shutdown {
    phase: ShutdownPhase,
    /// `None` while the node does not shut down.
    current: Option<CurrentShutdown>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CurrentShutdown {
    /// Returned when the host may continue.
    id: u64,
    began: Time,
    /// The API server has the node's condition, or there is none.
    announced: bool,
    /// Scaled to the time that the host allows.
    periods: ShutdownPeriods,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
enum ShutdownPhase {
    /// The host has not reported yet whether it shuts down.
    #[default]
    Unknown,
    Idle,
    /// The node is being reported as not ready.
    Announcing {
        until: Time,
    },
    /// The pods of one group end.
    Ending {
        group: usize,
        until: Time,
        killed: BTreeSet<PodUid>,
    },
    /// Statuses are being sent.
    Reporting {
        until: Time,
    },
    /// The host may continue.
    Done,
}

/// A pod on a node that shuts down.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShutdownPod {
    pub(crate) uid: PodUid,
    pub(crate) priority: i32,
    /// Its own grace period.
    pub(crate) grace: Duration,
}

/// State that the shutdown waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShutdownFacts {
    /// Pods that run, or whose volumes are still mounted.
    pub(crate) pods: Vec<ShutdownPod>,
    /// Every status was sent.
    pub(crate) reported: bool,
}

/// The next step of a shutdown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ShutdownStep {
    /// End this pod.
    Kill {
        uid: PodUid,
        /// At most the pod's own.
        grace: Duration,
    },
    /// The host may continue.
    Allow {
        /// Of the request.
        id: u64,
    },
}

impl Shutdown {
    /// Without graceful shutdown (`configured`) the state is always idle.
    pub(crate) fn new(configured: bool) -> Self {
        let phase = if configured { ShutdownPhase::Unknown } else { ShutdownPhase::Idle };
        Self { phase, current: None }
    }

    /// The host shuts down. True if that is new.
    /// `announced`: there is no API server that has to know first.
    pub(crate) fn begin(
        &mut self,
        request: &ShutdownRequest,
        periods: &ShutdownPeriods,
        announced: bool,
        now: Time,
    ) -> bool {
        if let Some(current) = &mut self.current {
            // Requested again, by a host whose connection was lost: the answer goes to the newest request.
            current.id = request.id;
            if self.phase == ShutdownPhase::Done {
                self.phase = ShutdownPhase::Reporting { until: now };
            }
            return false;
        }
        let periods = periods.scaled_to(request.allowed);
        self.current = Some(CurrentShutdown { id: request.id, began: now, announced, periods });
        self.phase = ShutdownPhase::Announcing { until: now + ANNOUNCE_MAX };
        true
    }

    /// The host does not shut down. True if it did before.
    pub(crate) fn cancel(&mut self) -> bool {
        self.phase = ShutdownPhase::Idle;
        self.current.take().is_some()
    }

    /// The API server knows that the node is not ready.
    pub(crate) fn announced(&mut self) {
        if let Some(current) = &mut self.current {
            current.announced = true;
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// It is certain that the host does not shut down.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == ShutdownPhase::Idle
    }

    /// Moves on as far as possible. A phase that takes no time is skipped.
    pub(crate) fn advance(&mut self, facts: &ShutdownFacts, now: Time) -> Vec<ShutdownStep> {
        let mut steps = vec![];
        let Some(current) = &self.current else { return steps };
        loop {
            let next = match &mut self.phase {
                ShutdownPhase::Announcing { until } => {
                    let end = current.announcement_end(*until, facts);
                    if !current.announced && now < end {
                        *until = end;
                        return steps;
                    }
                    current.enter_group(0, now)
                }
                ShutdownPhase::Ending { group, until, killed } => {
                    let members = current.members(*group, facts);
                    for pod in &members {
                        if killed.insert(pod.uid.clone()) {
                            let grace = pod.grace.min(until.saturating_sub(now));
                            steps.push(ShutdownStep::Kill { uid: pod.uid.clone(), grace });
                        }
                    }
                    if !members.is_empty() && now < *until {
                        return steps;
                    }
                    current.enter_group(*group + 1, now)
                }
                ShutdownPhase::Reporting { until } => {
                    if !facts.reported && now < *until {
                        return steps;
                    }
                    steps.push(ShutdownStep::Allow { id: current.id });
                    ShutdownPhase::Done
                }
                ShutdownPhase::Unknown | ShutdownPhase::Idle | ShutdownPhase::Done => return steps,
            };
            // Pods that were killed in this step are observed before their statuses count as sent.
            let is_report = matches!(next, ShutdownPhase::Reporting { .. });
            self.phase = next;
            if is_report && !steps.is_empty() {
                return steps;
            }
        }
    }

    /// When [`Self::advance`] has to be called at the latest.
    pub(crate) fn wake(&self) -> Option<Time> {
        match &self.phase {
            ShutdownPhase::Announcing { until }
            | ShutdownPhase::Ending { until, .. }
            | ShutdownPhase::Reporting { until } => Some(*until),
            ShutdownPhase::Unknown | ShutdownPhase::Idle | ShutdownPhase::Done => None,
        }
    }
}

impl CurrentShutdown {
    /// At most a quarter of the time of the first group that has pods: the announcement is taken from it.
    fn announcement_end(&self, latest: Time, facts: &ShutdownFacts) -> Time {
        let first = facts.pods.iter().map(|pod| self.periods.group_of(pod.priority)).min();
        let period = first.and_then(|group| self.periods.get(group)).unwrap_or_default();
        latest.min(self.began + period / 4)
    }

    fn members<'a>(&self, group: usize, facts: &'a ShutdownFacts) -> Vec<&'a ShutdownPod> {
        facts.pods.iter().filter(|pod| self.periods.group_of(pod.priority) == group).collect()
    }

    /// Its full period, unless that would end after the sum of the periods so far: the host does not wait for longer than the sum
    /// of all.
    fn enter_group(&self, group: usize, now: Time) -> ShutdownPhase {
        match self.periods.get(group) {
            Some(period) => {
                let until = (now + period).min(self.began + self.periods.total_until(group));
                ShutdownPhase::Ending { group, until, killed: BTreeSet::new() }
            }
            None => {
                let left = (self.began + self.periods.total()).saturating_sub(now);
                ShutdownPhase::Reporting { until: now + left.clamp(REPORT_MIN, REPORT_MAX) }
            }
        }
    }
}

#[cfg(test)]
mod tests;
