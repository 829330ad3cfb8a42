//! Processes that are started in a running container.
//!
//! Their streams are the agent's. Those of ExecSync are killed when the agent is lost or their deadline has passed; the others get
//! EPIPE or SIGHUP.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};

use super::container::ContainerStage;
use super::launching::{Subject, now_ns, plan_from};
use super::poller::{PollSource, WatchedDescriptor};
use super::requests::{Asker, Reply, refuse, refuse_io};
use super::{PodSupervisor, exits, launching};
use crate::launch::{LaunchFailure, Launched};
use crate::plan::ExecPlan;
use crate::protocol::{
    DescriptorKind, EXECS_MAX, ExecExited, ExecRequest, ExecStarted, RefusalReason, RequestRefusal, answer, event,
};
use crate::threads::assert_one_thread;
use crate::{reap, stdio};

/// An exec whose program is not executed yet.
#[derive(Debug)]
pub(super) struct PendingExec {
    request: ExecRequest,
    deadline: Option<Instant>,
    ends: Vec<(DescriptorKind, OwnedFd)>,
}

/// An exec that runs.
#[derive(Debug)]
pub(super) struct Exec {
    container: String,
    exec: String,
    pub pid: u32,
    pidfd: WatchedDescriptor,
    /// The connection that an ExecSync belongs to.
    sync: Option<u64>,
    pub deadline: Option<Instant>,
    deadline_exceeded: bool,
}

pub(super) fn exec(
    shim: &mut PodSupervisor,
    asker: Asker,
    request: ExecRequest,
    plan: OwnedFd,
) -> Result<Reply, RequestRefusal> {
    let plan: ExecPlan = plan_from(plan)?;
    let key = shim.key_of(&request.container)?;
    let ContainerStage::Running { pidfd, .. } = &shim.containers[&key].stage else {
        return Err(refuse(RefusalReason::WrongState, "the container is not running"));
    };
    let unacknowledged = shim.events.iter().filter(|e| matches!(e.body, Some(event::EventBody::ExecExited(_)))).count();
    if shim.execs.len() + shim.launches.len() + unacknowledged >= EXECS_MAX || request.exec.len() > EXEC_ID_BYTES_MAX {
        return Err(refuse(RefusalReason::TooMany, format!("{EXECS_MAX} execs, or a long id")));
    }
    let (theirs, ends) =
        stdio::exec(request.stdio.unwrap_or_default()).map_err(refuse_io("make the standard streams"))?;
    assert_one_thread();
    let begun = match shim.launcher.exec(&plan, pidfd.as_fd(), theirs) {
        Ok(begun) => begun,
        Err(failure) => return Ok(Reply::Now(answer::AnswerBody::LaunchFailed(failure.into()), vec![])),
    };
    let now = Instant::now();
    let deadline = (request.sync && request.deadline_ms > 0).then(|| now + Duration::from_millis(request.deadline_ms));
    let launch_until = deadline.unwrap_or(now + EXEC_LAUNCH_LIMIT).min(now + EXEC_LAUNCH_LIMIT);
    let key = shim.next_key;
    shim.next_key += 1;
    let subject = Subject::Exec(PendingExec { request, deadline, ends });
    Ok(launching::await_launch(shim, key, begun, asker, launch_until, subject))
}

pub(super) fn exec_launched(
    shim: &mut PodSupervisor,
    key: u64,
    pending: PendingExec,
    asker: Asker,
    result: Result<Launched, LaunchFailure>,
) {
    let PendingExec { request, deadline, mut ends } = pending;
    let started = result.and_then(|mut launched| {
        let pid = launched.pid;
        if let Some(inside) = launched.pty.take() {
            ends = vec![(DescriptorKind::Pty, inside)];
        }
        let (copy, watched) = (launched.pidfd.try_clone(), launched.pidfd.try_clone());
        let watched = watched.and_then(|fd| shim.poller.watch(fd, PollSource::ExecExit(key), EventFlags::IN));
        match (copy, watched) {
            (Ok(copy), Ok(pidfd)) => Ok((pid, copy, pidfd)),
            _ => {
                let _ = pidfd_send_signal(&launched.pidfd, Signal::KILL);
                let text = "watch the exec: no descriptor left".to_owned();
                Err(LaunchFailure {
                    step: crate::launch::LaunchStep::Process,
                    errno: Some(libc::EMFILE),
                    text,
                    user: None,
                })
            }
        }
    });
    let (pid, copy, pidfd) = match started {
        Ok(started) => started,
        Err(failure) => return shim.answer(asker, answer::AnswerBody::LaunchFailed(failure.into()), vec![]),
    };
    let sync = request.sync.then_some(asker.connection);
    let lost = sync.is_some_and(|connection| !shim.connections.is_current(connection));
    let (container, exec) = (request.container, request.exec);
    let kinds = std::iter::once(DescriptorKind::Pidfd).chain(ends.iter().map(|(kind, _)| *kind));
    let started = ExecStarted { exec: exec.clone(), pid, kinds: kinds.map(i32::from).collect() };
    let fds = std::iter::once(copy).chain(ends.into_iter().map(|(_, fd)| fd)).collect();
    let exec = Exec { container, exec, pid, pidfd, sync, deadline, deadline_exceeded: false };
    if lost {
        exec.kill();
    }
    shim.execs.insert(key, exec);
    shim.answer(asker, answer::AnswerBody::ExecStarted(started), fds);
}

/// The process of an exec has exited. Its record is the event alone: an exec does not outlive the agent's interest.
pub(super) fn exec_exited(shim: &mut PodSupervisor, key: u64) {
    let Some(exec) = shim.execs.get(&key) else { return };
    let report = match reap::reap(exec.pidfd.as_fd()) {
        Ok(None) => return,
        Ok(Some(exit)) => reap::report(exit, now_ns()),
        Err(_) => exits::unknown(),
    };
    let exec = shim.execs.remove(&key).expect("looked up above");
    shim.publish(event::EventBody::ExecExited(ExecExited {
        container: exec.container,
        exec: exec.exec,
        report: Some(report),
        deadline_exceeded: exec.deadline_exceeded,
    }));
}

pub(super) fn end_late_execs(shim: &mut PodSupervisor, now: Instant) {
    for exec in shim.execs.values_mut().filter(|exec| exec.deadline.is_some_and(|deadline| deadline <= now)) {
        exec.deadline = None;
        exec.deadline_exceeded = true;
        exec.kill();
    }
}

/// The agent of a connection is gone: nothing waits for its ExecSyncs any more.
pub(super) fn agent_lost(shim: &mut PodSupervisor, connection: u64) {
    shim.execs.values().filter(|exec| exec.sync == Some(connection)).for_each(Exec::kill);
    launching::agent_lost(shim, connection);
}

pub(super) fn exec_of(shim: &PodSupervisor, pid: u32) -> Option<u64> {
    shim.execs.iter().find(|(_, exec)| exec.pid == pid).map(|(key, _)| *key)
}

impl PendingExec {
    pub(super) fn is_sync(&self) -> bool {
        self.request.sync
    }
}

impl Exec {
    /// The whole process group: the process is its leader. It is not reaped yet, so the number is still its.
    fn kill(&self) {
        if let Some(group) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// As that of a container's launch.
const EXEC_LAUNCH_LIMIT: Duration = Duration::from_secs(120);
/// Chosen by the agent; events must fit a packet.
const EXEC_ID_BYTES_MAX: usize = 128;
