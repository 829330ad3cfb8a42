//! A child process that logs into a file, is killed when dropped, and prints the end of its log when a test fails.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// Lines of the log that a failing test prints.
const SHOWN_LINES: usize = 60;

/// A running program of a scratch. Dropping it kills the program.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with stdout and stderr appended to `log/{name}.log` of the scratch.
    pub fn start(scratch: &Scratch, name: &str, command: &mut Command) -> Result<Self> {
        let log = scratch.dir("log")?.join(format!("{name}.log"));
        let out: File = OpenOptions::new().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| format!("start {name}: {command:?}"))?;
        scratch.remember_pid(child.id())?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file it writes to.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit status, if it has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// SIGKILL, and wait for the end.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        Ok(self.child.wait()?)
    }

    /// Send a signal, unless it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exited()?.is_none() {
            kill_process(self.raw_pid()?, signal)?;
        }
        Ok(())
    }

    /// Wait for its end; an error after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if started.elapsed() > limit {
                bail!("{} (pid {}) still runs after {limit:?}", self.name, self.pid());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM, and wait for the end; an error after `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(limit)
    }

    fn raw_pid(&self) -> Result<Pid> {
        i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a pid fits")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("---- the last lines of {}", self.name);
            lines.iter().skip(lines.len().saturating_sub(SHOWN_LINES)).for_each(|line| eprintln!("{line}"));
            eprintln!("---- end of {}", self.name);
        }
    }
}
