//! The terminal of an interactive command: in raw mode while the command runs.

use std::io::{self, IsTerminal};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Keeps the terminal in raw mode; the previous mode is restored on drop.
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// From now on the terminal passes every key on unchanged.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

pub(super) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Received whenever the size of the terminal has changed.
pub(super) fn resizes() -> io::Result<Signal> {
    signal(SignalKind::window_change())
}

/// The size of the terminal, as JSON for the resize stream.
pub(super) fn size() -> Option<String> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    Some(format!(r#"{{"Width":{},"Height":{}}}"#, size.ws_col, size.ws_row))
}
