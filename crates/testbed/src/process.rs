//! A child that logs into a file, is killed by pid, and shows the end of its log when a test fails.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// How much of the log a failing test shows.
const SHOWN_LINES: usize = 60;

/// No helper program takes this long, also on a slow, busy machine.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// One running program of a scratch. Dropped: killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Start `command` with both outputs appended to `log/{name}.log` of the scratch.
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

    /// All it has written so far.
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
        // Errors mean that it is gone already, which is what is wanted.
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

/// Run a program to its end and return what it printed; its error output is part of the error. Killed after two minutes.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = output_of(command)?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Run a program to its end, whatever that is. Killed after two minutes.
pub(crate) fn output_of(command: &mut Command) -> Result<Output> {
    let what = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().with_context(|| format!("start {what}"))?;
    let pid = child.id();
    let (answer, wait) = mpsc::channel();
    std::thread::spawn(move || answer.send(child.wait_with_output()));
    match wait.recv_timeout(RUN_LIMIT) {
        Ok(output) => Ok(output?),
        Err(_) => {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid fits")?;
            kill_process(raw, Signal::KILL)?;
            bail!("{what}: no end after {RUN_LIMIT:?}, killed");
        }
    }
}
