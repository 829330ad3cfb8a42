//! Processes that have exited.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::process::{Signal, pidfd_send_signal};

use super::container::{ContainerStage, SupervisedContainer};
use super::launching::now_ns;
use super::poller::PollSource;
use super::{PodSupervisor, execs, launching, streams};
use crate::log_writer::OutputStream;
use crate::protocol::{ExitReport, Exited, event};
use crate::reap;

/// Handles every child that has exited. Children that are not known are orphans of containers and reaped, because a zombie in a PID
/// namespace keeps the init of the namespace from ending.
pub(super) fn reap_children(shim: &mut PodSupervisor) {
    let mut last = None;
    while let Some(pid) = reap::any_exited() {
        if last == Some(pid) {
            // It waits for something else, e.g. for the other process of its launch, whose end comes here again.
            return;
        }
        last = Some(pid);
        // No process of a launch goes on before it was reported: what is unknown afterwards has no other owner.
        launching::advance_all(shim);
        if let Some(key) = container_of(shim, pid) {
            container_exited(shim, key, false);
        } else if let Some(key) = execs::exec_of(shim, pid) {
            execs::exec_exited(shim, key);
        } else if shim.pause_pid == Some(pid) {
            pause_exited(shim);
        } else if !launching::is_launcher(shim, pid) {
            reap::reap_pid(pid);
        }
    }
}

/// The order counts: status, OOM kills, record on disk, and only then the zombie goes.
/// `reaped`: another process has reaped it.
pub(super) fn container_exited(shim: &mut PodSupervisor, key: u64, reaped: bool) {
    let Some(container) = shim.containers.get_mut(&key) else { return };
    let Some(report) = container.exit_report(reaped) else { return };
    let ContainerStage::Running { pidfd, process, started_at, .. } = &container.stage else { return };
    let process = *process;
    let oom_kills = container.oom_counter.as_ref().map(reap::oom_kills).unwrap_or_default();
    let exited = Exited { container: container.id.clone(), report: Some(report), oom_kills, started_at: *started_at };
    if let Some(file) = &container.exit_file {
        // If it fails the event still carries the exit.
        let _ = file.write(&exited);
    }
    let _ = reap::reap(pidfd.as_fd());
    container.stage = ContainerStage::Draining { process, exited, until: Instant::now() + DRAIN_LIMIT };
    drain(shim, key);
}

/// Reads what is left. The end of a FIFO that had no writer since it was opened is not an event.
pub(super) fn drain(shim: &mut PodSupervisor, key: u64) {
    if let Some(container) = shim.containers.get_mut(&key) {
        container.streams.terminal_slave = None;
    }
    streams::read_output(shim, key, OutputStream::Stdout);
    streams::read_output(shim, key, OutputStream::Stderr);
    streams::finish_drained(shim, key);
}

/// An adopted container has exited, but the kernel did not say how in time.
pub(super) fn check_adopted(shim: &mut PodSupervisor, now: Instant) {
    let waiting = |container: &SupervisedContainer| matches!(container.stage, ContainerStage::Running { exit_unknown_since: Some(since), .. } if since + STATUS_RETRY <= now);
    let keys: Vec<u64> = shim.containers.iter().filter(|(_, c)| waiting(c)).map(|(key, _)| *key).collect();
    keys.into_iter().for_each(|key| container_exited(shim, key, false));
}

fn container_of(shim: &PodSupervisor, pid: u32) -> Option<u64> {
    let has = |container: &SupervisedContainer| matches!(container.stage, ContainerStage::Running { process, .. } if process.pid == pid);
    shim.containers.iter().find(|(_, container)| has(container)).map(|(key, _)| *key)
}

/// `pid`: `None` for an adopted one, which is no child of ours.
pub(super) fn watch_pause(shim: &mut PodSupervisor, pid: Option<u32>, pidfd: OwnedFd) -> io::Result<()> {
    shim.pause = Some(shim.poller.watch(pidfd, PollSource::PauseExit, EventFlags::IN)?);
    shim.pause_pid = pid;
    Ok(())
}

pub(super) fn pause_exited(shim: &mut PodSupervisor) {
    let Some(pause) = shim.pause.take() else { return };
    let report = match reap::reap(pause.as_fd()) {
        Ok(None) => {
            shim.pause = Some(pause);
            return;
        }
        Ok(Some(exit)) => reap::report(exit, now_ns()),
        Err(_) => reap::recorded(pause.as_fd()).map_or_else(unknown, |exit| reap::report(exit, now_ns())),
    };
    shim.pause_pid = None;
    shim.publish(event::EventBody::PauseExited(report));
}

/// Before the shim ends: the PID namespace of the pod ends with its pid 1.
pub(super) fn kill_pause(shim: &mut PodSupervisor) {
    if let Some(pause) = shim.pause.take() {
        let _ = pidfd_send_signal(&pause, Signal::KILL);
    }
}

impl SupervisedContainer {
    /// How the init has ended; `None`: it has not, or that is not known yet.
    fn exit_report(&mut self, reaped: bool) -> Option<ExitReport> {
        let ContainerStage::Running { pidfd, exit_unknown_since, .. } = &mut self.stage else { return None };
        let now = Instant::now();
        // Asked first: what is recorded is complete afterwards.
        let reaped = reaped || reap::is_reaped(pidfd.as_fd());
        match reap::observe(pidfd.as_fd()) {
            Ok(exit) => return exit.map(|exit| reap::report(exit, now_ns())),
            // Adopted: a child of the agent or of pid 1.
            Err(_) => {
                if let Some(exit) = reap::recorded(pidfd.as_fd()) {
                    return Some(reap::report(exit, now_ns()));
                }
                // Before 6.15 the agent alone gets the status of its child. It records the exit before it reaps.
                if let Ok(Some(Exited { report: Some(report), .. })) = self.dir.exit() {
                    return Some(report);
                }
            }
        }
        let since = *exit_unknown_since.get_or_insert(now);
        // Readable from now on: wait by time.
        pidfd.set(EventFlags::empty());
        // A zombie still has its status. Once it was reaped, a kernel that has not reported how never will.
        (reaped || since + STATUS_LIMIT <= now).then(unknown)
    }
}

pub(super) fn unknown() -> ExitReport {
    ExitReport { code: UNKNOWN_CODE, signal: 0, finished_at: now_ns(), unknown: true }
}

/// What the engine reports for an exit that was not observed.
const UNKNOWN_CODE: u32 = 255;
/// A daemon that left the container's cgroup may hold the FIFOs for ever.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// The agent reaps what it has adopted at once. In some virtual machines and containers pid 1 looks for zombies every few seconds.
const STATUS_LIMIT: Duration = Duration::from_secs(10);
/// Between two tries.
pub(super) const STATUS_RETRY: Duration = Duration::from_millis(50);
