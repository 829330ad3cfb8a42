//! Runs helper programs with a time limit.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// No helper program takes this long, even on a slow, busy host.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Runs a program and returns its stdout; stderr is part of the error. Killed after two minutes.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = output_of(command)?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program until it exits with any status. Killed after two minutes.
pub(crate) fn output_of(command: &mut Command) -> Result<Output> {
    let what = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().with_context(|| format!("start {what}"))?;
    let pid = child.id();
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match result.recv_timeout(RUN_LIMIT) {
        Ok(output) => Ok(output?),
        Err(_) => {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid fits")?;
            kill_process(raw, Signal::KILL)?;
            bail!("{what}: still running after {RUN_LIMIT:?}, killed");
        }
    }
}
