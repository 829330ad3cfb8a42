//! Limits the number of lines that a single call site may log per interval.
//!
//! Debug and trace lines, which need a high `--v`, are not limited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum number of lines of a call site within [`INTERVAL`]; a burst on a full node needs less.
pub(super) const LINES: u32 = 1000;
/// See [`LINES`].
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// The layer that drops lines above the limit.
#[derive(Clone, Default)]
pub(super) struct LineLimit {
    sites: Arc<Mutex<HashMap<Identifier, Site>>>,
}

/// The counters of one call site. Their number is bounded by the code.
struct Site {
    of: &'static Metadata<'static>,
    since: Instant,
    lines: u32,
    dropped: u64,
}

impl LineLimit {
    /// Counts a line, and returns whether it may be logged.
    fn allows(&self, of: &'static Metadata<'static>, now: Instant) -> bool {
        let mut sites = self.sites.lock().expect("no panic under this lock");
        let site = sites.entry(of.callsite()).or_insert(Site { of, since: now, lines: 0, dropped: 0 });
        if now.duration_since(site.since) >= INTERVAL {
            (site.since, site.lines) = (now, 0);
        }
        site.lines += 1;
        let allowed = site.lines <= LINES;
        site.dropped += u64::from(!allowed);
        allowed
    }

    /// The call sites with dropped lines since the last call, and the number of dropped lines.
    fn take_dropped(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut sites = self.sites.lock().expect("no panic under this lock");
        let limited = sites.values_mut().filter(|site| site.dropped > 0);
        limited.map(|site| (site.of, std::mem::take(&mut site.dropped))).collect()
    }

    /// Starts a thread that logs the number of dropped lines of each call site once per interval.
    pub(super) fn report_in_background(self) {
        let report = move || {
            loop {
                std::thread::sleep(INTERVAL);
                for (of, dropped) in self.take_dropped() {
                    let (file, line) = (of.file().unwrap_or("?"), of.line().unwrap_or(0));
                    tracing::warn!(
                        path = file,
                        line,
                        count = dropped,
                        "log lines dropped: too many from one call site"
                    );
                }
            }
        };
        // If the thread cannot be started, only the report is missing.
        let _ = std::thread::Builder::new().name("log-limit".into()).stack_size(128 << 10).spawn(report);
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        *event.metadata().level() > Level::INFO || self.allows(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_above_the_limit_are_dropped_and_counted_per_call_site() {
        let (buffer, limit) = (Buffer::default(), LineLimit::default());
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..LINES + 500 {
                tracing::warn!(n, "loud");
                tracing::debug!(n, "asked for");
            }
            tracing::info!("quiet");
        });
        let text = String::from_utf8(buffer.0.lock().expect("no panic").clone()).expect("text");
        let count = |message: &str| text.lines().filter(|line| line.contains(message)).count();
        assert_eq!((count("loud"), count("quiet")), (LINES as usize, 1));
        assert_eq!(count("asked for"), LINES as usize + 500);
        let dropped = limit.take_dropped();
        assert_eq!(dropped.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [500]);
        assert!(limit.take_dropped().is_empty(), "dropped lines are reported once");
    }

    #[test]
    fn the_limit_is_reset_after_the_interval() {
        let limit = LineLimit::default();
        let (of, begin) = (tracing::Span::none(), Instant::now());
        drop(of);
        let metadata = {
            let kept = Arc::new(Mutex::new(None));
            struct Keep(Arc<Mutex<Option<&'static Metadata<'static>>>>);
            impl<S: Subscriber> Layer<S> for Keep {
                fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                    *self.0.lock().expect("no panic") = Some(event.metadata());
                }
            }
            let subscriber = tracing_subscriber::registry().with(Keep(kept.clone()));
            tracing::subscriber::with_default(subscriber, || tracing::info!("here"));
            kept.lock().expect("no panic").expect("seen")
        };
        assert!((0..LINES).all(|_| limit.allows(metadata, begin)));
        assert!(!limit.allows(metadata, begin));
        assert!(limit.allows(metadata, begin + INTERVAL));
    }
}
