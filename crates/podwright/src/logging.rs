//! The log: lines on stderr. Under journald without time and colour, which it has itself, and with the level it sorts by.
//!
//! No place in the code may flood it: after [`limit::LINES`] lines in [`limit::INTERVAL`] the rest is counted, and one line tells
//! how many there were.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LoggingConfig;
use crate::run_flags::LogFormat;

mod limit;

/// Begin to log.
pub(crate) fn start(config: LoggingConfig) {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let limit = limit::Limit::default();
    limit.clone().tell_in_background();
    let registry = tracing_subscriber::registry().with(filter(config.verbosity)).with(limit);
    match config.format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Text if under_journald() => {
            let plain = format().without_time().with_level(false).with_ansi(false);
            registry.with(layer.with_ansi(false).event_format(Leveled(plain))).init();
        }
        LogFormat::Text => {
            let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            registry.with(layer.with_ansi(colour)).init();
        }
    }
}

/// The kubelet's numbers: up to 3 is for operators, 4 and 5 for debugging, more for everything.
fn filter(verbosity: u8) -> Targets {
    let (own, others) = match verbosity {
        0..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::WARN),
        6..=7 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(others).with_target("podwright", own)
}

/// stderr is the journal's, not just inherited beside it.
fn under_journald() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Puts the syslog level in front, as journald reads it.
struct Leveled<F>(F);

impl<S, N, F> FormatEvent<S, N> for Leveled<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(writer, "<{}>", syslog(*event.metadata().level()))?;
        self.0.format_event(ctx, writer, event)
    }
}

/// The level as syslog counts it.
fn syslog(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_verbosity_shows_more() {
        let shown = |verbosity, target, level| filter(verbosity).would_enable(target, &level);
        for target in ["podwright", "podwright_agent::sources::file", "podwright_core"] {
            assert!(shown(0, target, Level::INFO) && !shown(3, target, Level::DEBUG), "{target}");
            assert!(shown(4, target, Level::DEBUG) && !shown(5, target, Level::TRACE), "{target}");
        }
        assert!(shown(0, "hyper", Level::WARN) && !shown(5, "hyper", Level::INFO) && shown(8, "hyper", Level::TRACE));
    }
}
