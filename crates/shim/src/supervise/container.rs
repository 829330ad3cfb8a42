//! A container as the shim knows it.
//!
//! ```text
//!  Launching ──▶ Running ──▶ Draining ──▶ Exited ── AckExit ──▶ forgotten
//!      └── failed: forgotten
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::poller::{PollSource, Poller, WatchedDescriptor};
use crate::log_writer::{LogWriter, OutputStream};
use crate::protocol::{
    AttachStream, ContainerPhase, Exited, LaunchReply, ProcessIdentity, ReportedContainer, StdioPlan,
};
use crate::run_files::{ContainerDir, ExitFile};
use crate::stdio::ShimStreams;

#[derive(Debug)]
pub(super) struct SupervisedContainer {
    pub id: String,
    pub dir: ContainerDir,
    pub stdio: StdioPlan,
    pub log: LogWriter,
    /// `None`: an adopted container without the file.
    pub exit_file: Option<ExitFile>,
    /// `None`: OOM kills are not counted.
    pub oom_counter: Option<File>,
    pub stage: ContainerStage,
    pub streams: ContainerStreams,
    pub clients: BTreeMap<u64, AttachedClient>,
    pub stop_signal_sent: bool,
    /// The answer to its launch; `None`: not launched yet, or adopted.
    pub reply: Option<LaunchReply>,
}

#[derive(Debug)]
pub(super) enum ContainerStage {
    Launching,
    Running {
        pidfd: WatchedDescriptor,
        process: ProcessIdentity,
        started_at: u64,
        /// The process was seen as exited, but not how: the agent or pid 1 has to reap it first.
        exit_unknown_since: Option<Instant>,
    },
    /// The exit is recorded; its event waits for the end of the output.
    Draining {
        process: ProcessIdentity,
        exited: Exited,
        until: Instant,
    },
    /// The event waits for its acknowledgement.
    Exited {
        process: ProcessIdentity,
    },
}

/// The shim's ends. `None`: ended or never there.
#[derive(Debug, Default)]
pub(super) struct ContainerStreams {
    pub stdout: Option<WatchedDescriptor>,
    pub stderr: Option<WatchedDescriptor>,
    pub terminal: Option<WatchedDescriptor>,
    /// Keeps `terminal` readable while the init runs; see `stdio::ShimStreams`.
    pub terminal_slave: Option<OwnedFd>,
    pub stdin: Option<WatchedDescriptor>,
    /// Input that the container has not taken yet, at most one read of a client.
    pub pending_input: Vec<u8>,
    /// Standard input is closed when `pending_input` was taken.
    pub closing_stdin: bool,
}

/// One stream of an attached client.
#[derive(Debug)]
pub(super) struct AttachedClient {
    pub socket: WatchedDescriptor,
    pub stream: AttachStream,
}

impl SupervisedContainer {
    pub(super) fn entry(&self) -> ReportedContainer {
        let (phase, process) = match &self.stage {
            ContainerStage::Launching => (ContainerPhase::Launching, None),
            ContainerStage::Running { process, .. } => (ContainerPhase::Running, Some(*process)),
            ContainerStage::Draining { process, .. } | ContainerStage::Exited { process } => {
                (ContainerPhase::Exited, Some(*process))
            }
        };
        ReportedContainer {
            container: self.id.clone(),
            phase: phase.into(),
            process,
            stop_signal_sent: self.stop_signal_sent,
        }
    }

    /// Whether its init may still run.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.stage, ContainerStage::Launching | ContainerStage::Running { .. })
    }

    /// Whether all its output was read.
    pub(super) fn is_drained(&self) -> bool {
        self.streams.stdout.is_none() && self.streams.stderr.is_none() && self.streams.terminal.is_none()
    }
}

impl ContainerStreams {
    pub(super) fn watch(poller: &Rc<Poller>, key: u64, ends: ShimStreams) -> io::Result<Self> {
        let watch = |fd: Option<_>, source, flags| fd.map(|fd| poller.watch(fd, source, flags)).transpose();
        Ok(Self {
            stdout: watch(ends.stdout, PollSource::Output(key, OutputStream::Stdout), EventFlags::IN)?,
            stderr: watch(ends.stderr, PollSource::Output(key, OutputStream::Stderr), EventFlags::IN)?,
            terminal_slave: ends.pty_slave,
            terminal: watch(ends.pty, PollSource::Terminal(key), EventFlags::IN)?,
            stdin: watch(ends.stdin, PollSource::Stdin(key), EventFlags::empty())?,
            pending_input: vec![],
            closing_stdin: false,
        })
    }

    /// Where input goes.
    pub(super) fn input(&self) -> Option<&WatchedDescriptor> {
        self.stdin.as_ref().or(self.terminal.as_ref())
    }
}
