//! When the last graceful shutdown of the node began and ended.

use jiff::Timestamp;
use prometheus::IntGauge;
use prometheus::core::Collector;

use super::gauge;

/// Unix times; zero: there was none.
#[derive(Clone)]
pub(super) struct ShutdownMetrics {
    start: IntGauge,
    end: IntGauge,
}

impl Default for ShutdownMetrics {
    fn default() -> Self {
        let seconds = "since unix epoch in seconds";
        Self {
            start: gauge(
                "kubelet_graceful_shutdown_start_time_seconds",
                &format!("Last graceful shutdown start time {seconds}"),
            ),
            end: gauge(
                "kubelet_graceful_shutdown_end_time_seconds",
                &format!("Last graceful shutdown end time {seconds}"),
            ),
        }
    }
}

impl ShutdownMetrics {
    pub(super) fn set(&self, start: Timestamp, end: Option<Timestamp>) {
        self.start.set(start.as_second());
        self.end.set(end.map_or(0, Timestamp::as_second));
    }

    pub(super) fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.start.clone()), Box::new(self.end.clone())]
    }
}
