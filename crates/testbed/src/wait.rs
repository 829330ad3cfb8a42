//! Waiting for the world with a deadline and a useful last word.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Try until `attempt` is `Ok`; panics after `limit` with what was waited for and the last thing that was seen instead.
///
/// Blocks the thread: tokio tests call it from a multi-threaded runtime or `spawn_blocking`.
#[track_caller]
pub fn wait_until<T, E: std::fmt::Display>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> T {
    let started = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(seen) if started.elapsed() >= limit => panic!("waited {limit:?} for {what}; last seen: {seen:#}"),
            Err(_) => sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_first_success() {
        let mut tries = 0;
        let got = wait_until(Duration::from_secs(5), "three tries", || {
            tries += 1;
            if tries == 3 { Ok(tries) } else { Err("too early") }
        });
        assert_eq!(got, 3);
    }

    #[test]
    #[should_panic(expected = "for the moon; last seen: clouds")]
    fn says_what_was_seen_instead() {
        wait_until(Duration::from_millis(20), "the moon", || Err::<(), _>("clouds"));
    }
}
