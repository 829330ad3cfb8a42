//! How long pods have when the host shuts down.

use std::time::Duration;

use podwright_core::shutdown::{PriorityPeriod, ShutdownPeriods};

use super::diagnostics::Diagnostics;
use super::inputs::ConfigInputs;

/// `None`: the shutdown is not graceful. The rules are the Go kubelet's, and negative or huge periods are refused too.
pub(super) fn read(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<ShutdownPeriods> {
    let file = &inputs.file;
    let (total, critical) =
        (file.shutdown_grace_period.unwrap_or_default(), file.shutdown_grace_period_critical_pods.unwrap_or_default());
    let table = file.shutdown_grace_period_by_pod_priority.as_deref().unwrap_or_default();
    for (field, period) in [(TOTAL, total), (CRITICAL, critical)] {
        if !period.is_zero() && period < Duration::from_secs(1) {
            diagnostics.error(field, "must be zero or at least 1s");
        }
        if period > PERIOD_MAX {
            diagnostics.error(field, "must be at most 24h");
        }
    }
    if critical > total {
        diagnostics.error(CRITICAL, format!("must not be longer than {TOTAL}, of which it is a part"));
    }
    if !table.is_empty() && total.max(critical) > Duration::ZERO {
        diagnostics.error(BY_PRIORITY, format!("cannot be combined with {TOTAL} and {CRITICAL}: use one of them"));
    }
    let mut periods = Vec::new();
    for (index, entry) in table.iter().enumerate() {
        let field = format!("{BY_PRIORITY}[{index}]");
        let seconds = u64::try_from(entry.shutdown_grace_period_seconds).ok();
        let period = seconds.map(Duration::from_secs).filter(|period| *period <= PERIOD_MAX);
        match (i32::try_from(entry.priority), period) {
            (Ok(priority), Some(period)) => periods.push(PriorityPeriod { priority, period }),
            (Err(_), _) => diagnostics.error(&field, "priority: must be a 32-bit integer"),
            (_, None) => {
                diagnostics.error(&field, "shutdownGracePeriodSeconds: must be between 0 and 86400");
            }
        }
    }
    if table.is_empty() {
        ShutdownPeriods::from_grace_periods(total, critical)
    } else {
        ShutdownPeriods::by_priority(periods)
    }
}

const TOTAL: &str = "shutdownGracePeriod";
const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
/// No host waits for longer; sums of periods stay far from overflow.
const PERIOD_MAX: Duration = Duration::from_secs(24 * 3600);
