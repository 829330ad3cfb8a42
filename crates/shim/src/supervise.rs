//! The event loop of a shim: parent and reaper of the pod's processes.
//!
//! ```text
//!  agent ◀─ connections ─▶ requests ─▶ launching ─▶ containers, execs
//!                             ▲                          │ output: streams ─▶ log, attached clients
//!                          events ◀── exits ◀────────────┘
//! ```
//! One thread, one epoll instance, nothing that waits except for the log's disk. Everything that a later shim or agent needs is in
//! the run directory or held by the agent too.

mod adoption;
mod connections;
mod container;
mod execs;
mod exits;
mod launching;
mod poller;
mod requests;
mod signals;
mod streams;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use podwright_linux::scm;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::launch::PodNamespaces;
use crate::launcher::Launcher;
use crate::log_writer::OutputStream;
use crate::protocol::{SOCKET_NAME, ShimEvent};
use connections::Connections;
use container::{ContainerStage, SupervisedContainer};
use execs::Exec;
use launching::AwaitedLaunch;
use poller::{PollSource, Poller, WatchedDescriptor};

/// Why a shim ended other than by `Shutdown`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuperviseError {
    #[error("{what}")]
    Start {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("wait for events")]
    Wait(#[source] io::Error),
}

/// The state of a shim.
struct PodSupervisor {
    launcher: &'static dyn Launcher,
    pod: String,
    /// The run directory of the pod.
    pod_dir: OwnedFd,
    boot_id: String,
    poller: Rc<Poller>,
    listener: WatchedDescriptor,
    /// `Some`: connections wait, because accepting failed.
    accept_after: Option<Instant>,
    signals: WatchedDescriptor,
    connections: Connections,
    /// `None`: `Setup` has not come, and containers use the namespaces of the host.
    namespaces: Option<PodNamespaces>,
    /// The pid 1 of the pod's PID namespace.
    pause: Option<WatchedDescriptor>,
    pause_pid: Option<u32>,
    containers: BTreeMap<u64, SupervisedContainer>,
    launches: BTreeMap<u64, AwaitedLaunch>,
    execs: BTreeMap<u64, Exec>,
    /// Not acknowledged, in their order.
    events: Vec<ShimEvent>,
    next_event: u64,
    next_key: u64,
    shutdown_requested: bool,
    /// SIGTERM came: the shim ends when nothing runs any more.
    terminating: bool,
}

/// Runs a shim until it is shut down. `connection` is the agent's first one.
pub(crate) fn run(
    launcher: &'static dyn Launcher,
    pod: String,
    pod_dir: OwnedFd,
    connection: OwnedFd,
) -> Result<(), SuperviseError> {
    let mut supervisor = PodSupervisor::new(launcher, pod, pod_dir, connection)
        .map_err(|(what, source)| SuperviseError::Start { what, source })?;
    supervisor.run().map_err(SuperviseError::Wait)?;
    supervisor.end();
    Ok(())
}

impl PodSupervisor {
    fn new(
        launcher: &'static dyn Launcher,
        pod: String,
        pod_dir: OwnedFd,
        connection: OwnedFd,
    ) -> Result<Self, (&'static str, io::Error)> {
        let step = |what| move |error: io::Error| (what, error);
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|e| ("become the subreaper", e.into()))?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(step("read the boot id"))?;
        let poller = Poller::new().map_err(step("make an epoll instance"))?;
        let signals = signals::open().map_err(step("receive signals"))?;
        let listener = scm::listen(pod_dir.as_fd(), SOCKET_NAME, BACKLOG).map_err(step("listen"))?;
        let watch = |fd, source| poller.watch(fd, source, EventFlags::IN).map_err(step("watch a descriptor"));
        let (signals, listener) = (watch(signals, PollSource::Signals)?, watch(listener, PollSource::Listener)?);
        let mut connections = Connections::new(poller.clone());
        connections.add(connection, Instant::now()).map_err(step("add the first connection"))?;
        Ok(Self {
            launcher,
            pod,
            pod_dir,
            boot_id: boot_id.trim().to_owned(),
            poller,
            listener,
            accept_after: None,
            signals,
            connections,
            namespaces: None,
            pause: None,
            pause_pid: None,
            containers: BTreeMap::new(),
            launches: BTreeMap::new(),
            execs: BTreeMap::new(),
            events: vec![],
            next_event: 0,
            next_key: 0,
            shutdown_requested: false,
            terminating: false,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.is_finished() {
            let now = Instant::now();
            self.run_timers(now);
            let limit = self.next_wake(now).map(|wake| wake.saturating_duration_since(now));
            for (token, source, flags) in self.poller.wait(limit)? {
                if self.poller.is_watched(token) {
                    self.dispatch(source, flags);
                }
            }
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        let alive = || self.containers.values().any(SupervisedContainer::is_alive) || !self.launches.is_empty();
        self.shutdown_requested || (self.terminating && !alive())
    }

    /// The agent's answer to `Shutdown` is sent already; a connection that could not take it ends with the process.
    fn end(&mut self) {
        exits::kill_pause(self);
        let _ = rustix::fs::unlinkat(&self.pod_dir, SOCKET_NAME, rustix::fs::AtFlags::empty());
    }

    fn dispatch(&mut self, source: PollSource, flags: EventFlags) {
        match source {
            PollSource::Listener => self.accept(),
            PollSource::Signals => self.receive_signals(),
            PollSource::Connection(id) => {
                if flags.contains(EventFlags::OUT) && !self.connections.flush(id) {
                    return self.close_connection(id);
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.serve(id);
                }
            }
            PollSource::Report(key) => launching::launch_reported(self, key),
            PollSource::ContainerExit(key) => exits::container_exited(self, key, flags.contains(EventFlags::HUP)),
            PollSource::ExecExit(key) => execs::exec_exited(self, key),
            PollSource::PauseExit => exits::pause_exited(self),
            PollSource::Output(key, stream) => streams::read_output(self, key, stream),
            PollSource::Terminal(key) => {
                if flags.contains(EventFlags::OUT) {
                    streams::input_ready(self, key, EventFlags::OUT);
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    streams::read_output(self, key, OutputStream::Stdout);
                }
            }
            PollSource::Stdin(key) => streams::input_ready(self, key, flags),
            PollSource::Client(key, id) => streams::client_ready(self, key, id),
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match accept_with(&self.listener, flags) {
                // One that cannot be added is closed.
                Ok(socket) => drop(self.connections.add(socket, Instant::now())),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptor or memory is left. The connection still waits, so the listener would be ready at once again.
                Err(_) => {
                    self.listener.set(EventFlags::empty());
                    self.accept_after = Some(Instant::now() + ACCEPT_RETRY);
                    return;
                }
            }
        }
    }

    fn resume_accepting(&mut self, now: Instant) {
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
            self.listener.set(EventFlags::IN);
        }
    }

    fn receive_signals(&mut self) {
        let received = signals::receive(&self.signals);
        self.terminating |= received.terminate;
        if received.child {
            exits::reap_children(self);
        }
    }

    fn run_timers(&mut self, now: Instant) {
        self.resume_accepting(now);
        requests::drop_late_strangers(self, now);
        execs::end_late_execs(self, now);
        exits::check_adopted(self, now);
        launching::end_late_launches(self, now);
        launching::retry_unwatched(self);
        let draining = |container: &SupervisedContainer| matches!(container.stage, ContainerStage::Draining { until, .. } if until <= now);
        let due: Vec<u64> = self.containers.iter().filter(|(_, c)| draining(c)).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| streams::finish_drained(self, key));
    }

    /// When `run_timers` has something to do.
    fn next_wake(&self, now: Instant) -> Option<Instant> {
        let containers = self.containers.values().filter_map(|container| match container.stage {
            ContainerStage::Draining { until, .. } => Some(until),
            ContainerStage::Running { exit_unknown_since: Some(_), .. } => Some(now + exits::STATUS_RETRY),
            _ => None,
        });
        let launches = self.launches.values().map(|launch| launch.next_wake(now));
        let execs = self.execs.values().filter_map(|exec| exec.deadline);
        let hello = self.connections.next_deadline().map(|(due, _)| due);
        containers.chain(launches).chain(execs).chain(hello).chain(self.accept_after).min()
    }
}

/// Between two tries to accept when no descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(500);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
