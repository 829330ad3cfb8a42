//! Detects lists that are older than what was read before: from an API server replica that lags behind, or from a server whose
//! etcd was restored from a backup.

use std::time::Duration;

use tokio::time::Instant;

/// A replica catches up within this time; older lists after it mean that the history was reset.
const LAG_MAX: Duration = Duration::from_secs(600);

/// How a list relates to what was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staleness {
    /// At least as new as what was read before.
    New,
    /// Older than what was read before: ignore it and list again.
    Old,
    /// Older for longer than a replica may lag: the server's history was reset, and versions read before are meaningless.
    HistoryReset,
}

/// Classifies successive lists of one resource.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    behind_since: Option<Instant>,
}

impl Freshness {
    /// A lagging replica catches up; a server that was restored from a backup never does.
    pub(crate) fn classify(&mut self, is_behind: bool, version: &str) -> Staleness {
        if !is_behind {
            self.behind_since = None;
            return Staleness::New;
        }
        let since = *self.behind_since.get_or_insert_with(Instant::now);
        if since.elapsed() <= LAG_MAX {
            return Staleness::Old;
        }
        tracing::warn!(resource_version = version, "API server history was reset: older list accepted");
        self.behind_since = None;
        Staleness::HistoryReset
    }
}

/// When to stop waiting for the next line of a watch that was opened at `opened` and ends by `until` at the latest.
///
/// A watch that delivers nothing at all, not even the bookmark that servers send every minute, was opened at a version that the
/// server has not reached: its history was reset, and only a list shows the current state.
pub(crate) fn next_line_deadline(delivered: bool, opened: Instant, until: Instant) -> Instant {
    if delivered { until } else { until.min(opened + SILENCE_MAX) }
}

/// The watch delivered nothing during its whole life, which was long enough for a bookmark.
pub(crate) fn never_delivered(delivered: bool, lasted: Duration) -> bool {
    !delivered && lasted >= SILENCE_MAX
}

/// Longer than the interval between two bookmarks (one minute).
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// A watch that is too far behind after this time is the ordinary case; one that is refused earlier may be refused again.
pub(crate) const LIST_AGE_MIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_older_list_is_accepted_once_it_can_not_be_replica_lag() {
        let mut freshness = Freshness::default();
        assert_eq!(freshness.classify(false, "9"), Staleness::New);
        assert_eq!(freshness.classify(true, "3"), Staleness::Old);
        tokio::time::advance(LAG_MAX).await;
        assert_eq!(freshness.classify(true, "4"), Staleness::Old);
        assert_eq!(freshness.classify(false, "10"), Staleness::New, "the replica caught up");
        assert_eq!(freshness.classify(true, "4"), Staleness::Old, "and lags again");
        tokio::time::advance(LAG_MAX * 2).await;
        assert_eq!(freshness.classify(true, "4"), Staleness::HistoryReset);
        assert_eq!(freshness.classify(true, "3"), Staleness::Old);
    }

    #[test]
    fn a_watch_without_any_line_for_150_s_never_delivered() {
        let cases = [(false, 149, false), (false, 150, true), (true, 500, false)];
        for (delivered, lasted, expected) in cases {
            let found = never_delivered(delivered, Duration::from_secs(lasted));
            assert_eq!(found, expected, "{delivered} {lasted}");
        }
    }
}
