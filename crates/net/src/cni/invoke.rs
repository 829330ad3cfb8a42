//! Runs plugins: configuration on standard input, command in the environment, result on standard output, killed at the deadline.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::{Map, Value};

use crate::cni_error::CniError;

/// A result has some kilobytes; what is longer is cut and does not parse.
const OUTPUT_LEN_MAX: u64 = 1 << 20;
/// The part of an error that is kept.
const MESSAGE_LEN_MAX: usize = 4096;
/// A process that the plugin left behind may hold its output open; it is waited for this long after the plugin's exit.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(1);

/// One CNI operation, the same for all plugins of a network.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// `ADD`, `DEL`, `STATUS` or `GC`.
    pub(crate) command: &'static str,
    pub(crate) container_id: String,
    /// Empty if the namespace is gone.
    pub(crate) netns: String,
    pub(crate) interface: String,
    pub(crate) args: String,
    pub(crate) path: String,
    /// For all plugins together.
    pub(crate) deadline: Instant,
}

impl Invocation {
    /// Runs one plugin and returns its standard output.
    pub(crate) fn run(&self, plugin: &str, program: &Path, input: &Map<String, Value>) -> Result<Vec<u8>, CniError> {
        let run_error = |source| CniError::Run { plugin: plugin.to_owned(), source };
        let input = serde_json::to_vec(input).map_err(|e| run_error(e.into()))?;
        let mut child = Command::new(program)
            .env("CNI_COMMAND", self.command)
            .env("CNI_CONTAINERID", &self.container_id)
            .env("CNI_NETNS", &self.netns)
            .env("CNI_IFNAME", &self.interface)
            .env("CNI_ARGS", &self.args)
            .env("CNI_PATH", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The plugin and what it starts can be killed together.
            .process_group(0)
            .spawn()
            .map_err(run_error)?;
        let (output, errors) = (collect(child.stdout.take()), collect(child.stderr.take()));
        if let Some(mut stdin) = child.stdin.take() {
            // On a thread: a plugin that reads nothing must not block us. One that ends without reading is no error.
            thread::spawn(move || drop(stdin.write_all(&input)));
        }
        let status = match wait(&mut child, self.deadline) {
            Ok(Some(status)) => status,
            Ok(None) => return Err(CniError::Deadline { plugin: plugin.to_owned(), command: self.command }),
            Err(e) => return Err(run_error(e)),
        };
        let output = output.recv_timeout(OUTPUT_DEADLINE).unwrap_or_default();
        if status.success() {
            return Ok(output);
        }
        let errors = errors.recv_timeout(OUTPUT_DEADLINE).unwrap_or_default();
        Err(self.failure(plugin, status, &output, &errors))
    }

    pub(super) fn failure(&self, plugin: &str, status: ExitStatus, output: &[u8], errors: &[u8]) -> CniError {
        let reported: Option<Value> = serde_json::from_slice(output).ok();
        let field =
            |name: &str| reported.as_ref().and_then(|r| r.get(name)).and_then(Value::as_str).unwrap_or_default();
        let mut message =
            [field("msg"), field("details")].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join("; ");
        if message.is_empty() {
            let text = if errors.is_empty() { output } else { errors };
            message = format!("{status}: {}", String::from_utf8_lossy(text).trim());
        }
        let mut end = message.len().min(MESSAGE_LEN_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        let code = reported.as_ref().and_then(|r| r.get("code")).and_then(Value::as_u64).unwrap_or(0);
        CniError::Failed { plugin: plugin.to_owned(), command: self.command, code, message }
    }
}

/// The program of a plugin type.
pub(crate) fn find(plugin: &str, dirs: &[PathBuf]) -> Result<PathBuf, CniError> {
    let found = dirs.iter().map(|dir| dir.join(plugin)).find(|path| path.is_file());
    found.ok_or_else(|| CniError::NoPlugin { plugin: plugin.to_owned(), dirs: dirs.to_vec() })
}

/// Reads a stream to its end on a thread.
fn collect(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(mut stream) = stream {
            let _ = stream.by_ref().take(OUTPUT_LEN_MAX).read_to_end(&mut bytes);
            let _ = sender.send(bytes);
            // The rest is dropped, so that the plugin does not block.
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    });
    receiver
}

/// `None` if the process was killed at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let exited =
        pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).and_then(|pidfd| until(&pidfd, deadline));
    if matches!(exited, Ok(true)) {
        return child.wait().map(Some);
    }
    let _ = kill_process_group(pid, Signal::KILL);
    child.wait()?;
    exited.map(|_| None)
}

/// Whether the process ended before the deadline.
fn until(pidfd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
