//! Answers from the past: of a replica that is behind, or of a server whose history was set back.

use std::time::Duration;

use tokio::time::Instant;

/// A replica of the server that is behind for longer is none.
const BEHIND_MAX: Duration = Duration::from_secs(600);

/// What a list is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staleness {
    /// It goes on from what is known.
    New,
    /// It is older than what is known.
    Old,
    /// It is older, and has been for so long that history was set back: what is known means nothing.
    HistoryReset,
}

/// Whether to believe lists that are older than what is known.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    behind_since: Option<Instant>,
}

impl Freshness {
    /// A server that is behind catches up; one whose history was set back, by a restored backup, never does.
    pub(crate) fn judge(&mut self, is_behind: bool, version: &str) -> Staleness {
        if !is_behind {
            self.behind_since = None;
            return Staleness::New;
        }
        let since = *self.behind_since.get_or_insert_with(Instant::now);
        if since.elapsed() <= BEHIND_MAX {
            return Staleness::Old;
        }
        tracing::warn!(version, "the API server's history was set back: its list is believed");
        self.behind_since = None;
        Staleness::HistoryReset
    }
}

/// How long to wait for the next line of a watch that began at this moment and may go on until that one.
///
/// One that has said nothing at all, not even where it is, which servers say every minute, began at a version that the server
/// has not reached: its history was set back. Only a list tells how things are.
pub(crate) fn patience(heard: bool, began: Instant, until: Instant) -> Instant {
    if heard { until } else { until.min(began + SILENCE) }
}

/// A watch that was deaf, from its beginning on.
pub(crate) fn never_delivered(heard: bool, lasted: Duration) -> bool {
    !heard && lasted >= SILENCE
}

/// Longer than the pause between two bookmarks.
const SILENCE: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_past_is_believed_when_it_has_become_the_present() {
        let mut freshness = Freshness::default();
        assert_eq!(freshness.judge(false, "9"), Staleness::New);
        assert_eq!(freshness.judge(true, "3"), Staleness::Old);
        tokio::time::advance(BEHIND_MAX).await;
        assert_eq!(freshness.judge(true, "4"), Staleness::Old);
        assert_eq!(freshness.judge(false, "10"), Staleness::New, "it has caught up");
        assert_eq!(freshness.judge(true, "4"), Staleness::Old, "and is behind anew");
        tokio::time::advance(BEHIND_MAX * 2).await;
        assert_eq!(freshness.judge(true, "4"), Staleness::HistoryReset);
        assert_eq!(freshness.judge(true, "3"), Staleness::Old);
    }

    #[test]
    fn silence_is_deaf_when_it_lasts() {
        let cases = [(false, 149, false), (false, 150, true), (true, 500, false)];
        for (heard, lasted, deaf) in cases {
            assert_eq!(never_delivered(heard, Duration::from_secs(lasted)), deaf, "{heard} {lasted}");
        }
    }
}
