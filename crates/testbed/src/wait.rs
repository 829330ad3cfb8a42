//! Waiting for a condition with a deadline and a useful error.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Repeats `attempt` until it returns `Ok`; panics after `limit` with `what` and the last error.
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
            Err(error) if started.elapsed() >= limit => panic!("waited {limit:?} for {what}; last error: {error:#}"),
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
        let mut attempts = 0;
        let got = wait_until(Duration::from_secs(5), "three attempts", || {
            attempts += 1;
            if attempts == 3 { Ok(attempts) } else { Err("too early") }
        });
        assert_eq!(got, 3);
    }

    #[test]
    #[should_panic(expected = "for the socket; last error: not found")]
    fn panics_with_the_last_error() {
        wait_until(Duration::from_millis(20), "the socket", || Err::<(), _>("not found"));
    }
}
