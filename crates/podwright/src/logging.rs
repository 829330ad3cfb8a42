//! The agent's log on stderr. Under journald, lines have no time and colour but a syslog level prefix.
//!
//! Each call site may log [`limit::LINES`] lines per [`limit::INTERVAL`]; further lines are dropped, and their number is logged.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LoggingConfig;
use crate::run_flags::LogFormat;

mod limit;

/// Installs the global subscriber.
pub(crate) fn start(config: LoggingConfig) {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let limit = limit::LineLimit::default();
    limit.clone().report_in_background();
    let (filter, handle) = reload::Layer::new(filter(config.verbosity));
    let _ = FILTER.set(handle);
    let registry = tracing_subscriber::registry().with(filter).with(limit);
    match config.format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Text if under_journald() => {
            let plain = format().without_time().with_level(false).with_ansi(false);
            registry.with(layer.with_ansi(false).event_format(WithSyslogLevel(plain))).init();
        }
        LogFormat::Text => {
            let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            registry.with(layer.with_ansi(colour)).init();
        }
    }
}

/// Changes the verbosity of the running process.
pub(crate) fn set_verbosity(verbosity: u8) {
    if let Some(Err(error)) = FILTER.get().map(|handle| handle.reload(filter(verbosity))) {
        tracing::warn!(%error, "verbosity was not changed");
    }
}

/// Set by [`start`].
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// The scale of the kubelet: up to 3 for operators, 4 and 5 for debugging, above for tracing.
fn filter(verbosity: u8) -> Targets {
    let (own, others) = match verbosity {
        0..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::WARN),
        6..=7 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(others).with_target("podwright", own)
}

/// `JOURNAL_STREAM` names our stderr, and is not just inherited.
fn under_journald() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Adds the syslog level as a prefix that journald understands.
struct WithSyslogLevel<F>(F);

impl<S, N, F> FormatEvent<S, N> for WithSyslogLevel<F>
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

/// The syslog severity of a level.
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
    fn higher_verbosity_shows_more() {
        let shown = |verbosity, target, level| filter(verbosity).would_enable(target, &level);
        for target in ["podwright", "podwright_agent::sources::file", "podwright_core"] {
            assert!(shown(0, target, Level::INFO) && !shown(3, target, Level::DEBUG), "{target}");
            assert!(shown(4, target, Level::DEBUG) && !shown(5, target, Level::TRACE), "{target}");
        }
        assert!(shown(0, "hyper", Level::WARN) && !shown(5, "hyper", Level::INFO) && shown(8, "hyper", Level::TRACE));
    }
}
