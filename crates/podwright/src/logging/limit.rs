//! So many lines from one place in the code in a while; the rest is counted.
//!
//! What is asked for with a high `--v` is not limited: whoever asks for it wants all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one place within [`INTERVAL`]: more than a full node's burst says about its pods.
pub(super) const LINES: u32 = 1000;
/// See [`LINES`].
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// The layer.
#[derive(Clone, Default)]
pub(super) struct Limit {
    sites: Arc<Mutex<HashMap<Identifier, Site>>>,
}

/// One place in the code; there are only so many of them.
struct Site {
    of: &'static Metadata<'static>,
    since: Instant,
    lines: u32,
    dropped: u64,
}

impl Limit {
    /// May this place say another line?
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

    /// The places that said too much since the last time, and how many lines were dropped.
    fn take_dropped(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut sites = self.sites.lock().expect("no panic under this lock");
        let too_loud = sites.values_mut().filter(|site| site.dropped > 0);
        too_loud.map(|site| (site.of, std::mem::take(&mut site.dropped))).collect()
    }

    /// One line for each place that was too loud, as long as the process lives.
    pub(super) fn tell_in_background(self) {
        let tell = move || {
            loop {
                std::thread::sleep(INTERVAL);
                for (of, dropped) in self.take_dropped() {
                    let (file, line) = (of.file().unwrap_or("?"), of.line().unwrap_or(0));
                    tracing::warn!(file, line, dropped, "too many lines from one place: these were dropped");
                }
            }
        };
        // Without a thread the lines are dropped all the same; nothing better can be done.
        let _ = std::thread::Builder::new().name("log-limit".into()).stack_size(128 << 10).spawn(tell);
    }
}

impl<S: Subscriber> Layer<S> for Limit {
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
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_loud_place_is_cut_short_and_counted_and_others_are_heard() {
        let (page, limit) = (Page::default(), Limit::default());
        let writer = page.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..LINES + 500 {
                tracing::warn!(n, "loud");
                tracing::debug!(n, "asked for");
            }
            tracing::info!("quiet");
        });
        let text = String::from_utf8(page.0.lock().expect("no panic").clone()).expect("text");
        let count = |word: &str| text.lines().filter(|line| line.contains(word)).count();
        assert_eq!((count("loud"), count("quiet")), (LINES as usize, 1));
        assert_eq!(count("asked for"), LINES as usize + 500);
        let dropped = limit.take_dropped();
        assert_eq!(dropped.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [500]);
        assert!(limit.take_dropped().is_empty(), "it is told once");
    }

    #[test]
    fn after_a_while_a_place_may_speak_again() {
        let limit = Limit::default();
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
