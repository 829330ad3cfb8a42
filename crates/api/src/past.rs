//! Answers from the past: of a replica that is behind, or of a server whose history was set back.

use std::time::Duration;

use tokio::time::Instant;

/// A replica of the server that is behind for longer is none.
const BEHIND_MAX: Duration = Duration::from_secs(600);

/// Whether to believe lists that are older than what is known.
#[derive(Debug, Default)]
pub(crate) struct Past {
    behind_since: Option<Instant>,
}

impl Past {
    /// A server that is behind catches up; one whose history was set back, by a restored backup, never does.
    pub(crate) fn may_believe(&mut self, is_behind: bool, version: &str) -> bool {
        if !is_behind {
            self.behind_since = None;
            return true;
        }
        let since = *self.behind_since.get_or_insert_with(Instant::now);
        let set_back = since.elapsed() > BEHIND_MAX;
        if set_back {
            tracing::warn!(version, "the API server's history was set back: its list is believed");
            self.behind_since = None;
        }
        set_back
    }
}

/// A watch that ended and said nothing in all its time, not even where it is, which servers say every minute. It began at a
/// version that the server has not reached: its history was set back. Only a list tells how things are.
pub(crate) fn was_deaf(heard: bool, lasted: Duration) -> bool {
    !heard && lasted >= SILENCE
}

/// Longer than the pause between two bookmarks.
const SILENCE: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_past_is_believed_when_it_has_become_the_present() {
        let mut past = Past::default();
        assert!(past.may_believe(false, "9"));
        assert!(!past.may_believe(true, "3"));
        tokio::time::advance(BEHIND_MAX).await;
        assert!(!past.may_believe(true, "4"));
        assert!(past.may_believe(false, "10"), "it has caught up");
        assert!(!past.may_believe(true, "4"), "and is behind anew");
        tokio::time::advance(BEHIND_MAX * 2).await;
        assert!(past.may_believe(true, "4"));
        assert!(!past.may_believe(true, "3"));
    }

    #[test]
    fn silence_is_deaf_when_it_lasts() {
        let cases = [(false, 149, false), (false, 150, true), (true, 500, false)];
        for (heard, lasted, deaf) in cases {
            assert_eq!(was_deaf(heard, Duration::from_secs(lasted)), deaf, "{heard} {lasted}");
        }
    }
}
