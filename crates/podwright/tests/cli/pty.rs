//! Runs a command on a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A command on its own terminal.
pub(crate) struct Pty {
    child: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Pty {
    /// Starts the command on a terminal of 100 columns and 40 lines.
    pub(crate) fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("usable");
        let name = ptsname(&master, Vec::new()).expect("named");
        let slave = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("opened");
        tcsetwinsize(&master, Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).expect("sized");
        let again = |fd: &OwnedFd| fd.try_clone().expect("another handle");
        command.env("TERM", "xterm").stdin(again(&slave)).stdout(again(&slave)).stderr(slave);
        let child = command.spawn().expect("it runs");
        drop(command);
        let keys = File::from(master);
        let mut screen = keys.try_clone().expect("another handle");
        let (sender, shown) = channel();
        // Ends when the last process on the terminal has closed it.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, shown, text: String::new() }
    }

    /// Sends keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("pressed");
    }

    /// Reads the screen until it contains this text; returns the output up to there.
    pub(crate) fn until(&mut self, words: &str) -> String {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(at) = self.text.find(words) {
                let rest = self.text.split_off(at + words.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let left = end.saturating_duration_since(Instant::now());
            let more = self.shown.recv_timeout(left).unwrap_or_else(|_| panic!("no {words:?} in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }

    /// The exit status.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().expect("it was ours")
    }
}
