//! The terminal of whoever runs an interactive command: raw while it runs, as it was afterwards.

use std::io::{self, IsTerminal};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A terminal in raw mode. Dropped: as it was.
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Every key goes to the other side from now on.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Stdin is a terminal.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal()
}

/// Comes whenever the terminal's size has changed.
pub(super) fn resizes() -> io::Result<Signal> {
    signal(SignalKind::window_change())
}

/// The terminal's size in the remote command protocol's words.
pub(super) fn size() -> Option<String> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    Some(format!(r#"{{"Width":{},"Height":{}}}"#, size.ws_col, size.ws_row))
}
