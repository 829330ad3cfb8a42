//! Containers whose shim is lost, or whose agent was replaced: they are found again, adopted, watched and reaped.

mod adopt;
mod namespaces;
mod reap;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use podwright_linux::cgroup::CgroupPath;
use podwright_linux::exit_info::{self, ExitInfo};
use podwright_linux::pidfd::PidFd;
use podwright_shim::protocol::{DescriptorKind, Exited, ProcessIdentity};
use podwright_shim::run_files::{ContainerDir, RunFileError};
use tokio::io::unix::AsyncFd;

pub(crate) use adopt::adopt;
pub(crate) use namespaces::identities;
pub(crate) use reap::{reap_container, reap_shim};

use crate::cgroup_limits;
use crate::context::{EngineContext, now};
use crate::machine::{ContainerId, ExitReason, ExitRecord, Found, SandboxId, ShownContainer};

/// Reports an exit that this process has observed.
pub(crate) type ExitReporter = Arc<dyn Fn(ContainerId, ExitRecord) -> BoxFuture<'static, ()> + Send + Sync>;

/// The record of an exit that a shim has observed.
pub(crate) fn exit_record(exited: &Exited) -> ExitRecord {
    match exited.report.filter(|report| !report.unknown) {
        Some(report) => {
            let finished = i64::try_from(report.finished_at).unwrap_or(i64::MAX);
            ExitRecord::of_process(i32::try_from(report.code).unwrap_or(255), exited.oom_kills > 0, finished)
        }
        None => unknown_exit(),
    }
}

fn unknown_exit() -> ExitRecord {
    let message = "the process is gone and its exit status is not known".into();
    ExitRecord { code: 255, reason: ExitReason::Unknown, message, finished_at_ns: now().wall_ns }
}

/// Kills the shim of a container that has ended, if it does not report the exit: it hangs, and a stop would wait for ever.
pub(crate) fn watch_shim(context: &Arc<EngineContext>, id: &ContainerId, pidfd: Arc<OwnedFd>) {
    // An engine that was closed must not keep its lock until the container ends.
    let (context, id) = (Arc::downgrade(context), id.clone());
    podwright_tasks::spawn("shim-watch", async move {
        if ended(&pidfd).await.is_err() {
            return;
        }
        drop(pidfd);
        tokio::time::sleep(EXIT_REPORT_LIMIT).await;
        let Some(context) = context.upgrade() else { return };
        let objects = context.objects();
        let runs = objects.machines.container(&id).and_then(|container| container.shown());
        if runs != Some(ShownContainer::Running) {
            return;
        }
        let sandbox = objects.containers.get(&id).map(|entry| SandboxId(entry.record.sandbox_id.clone()));
        let link = sandbox.and_then(|id| objects.sandboxes.get(&id)?.link.clone());
        if let Some(link) = link {
            tracing::error!(container_id = %id, "shim has not reported an exit, killing it");
            let _ = rustix::process::pidfd_send_signal(link.pidfd(), rustix::process::Signal::KILL);
        }
    });
}

/// The record of an exit that this process has observed. The cgroup is there until the exit is reported.
async fn record_of(context: &Arc<EngineContext>, id: &ContainerId, info: ExitInfo) -> ExitRecord {
    let finished = now().wall_ns;
    let oom_killed = match location(context, id) {
        Some((sandbox, _)) => {
            let of = id.clone();
            let counted = move |context: &EngineContext| Ok::<_, io::Error>(oom_killed(context, &of));
            context.blocking(&sandbox, OBSERVE_LIMIT, counted).await.unwrap_or_default()
        }
        None => false,
    };
    ExitRecord::of_process(info.code, oom_killed, finished)
}

/// The kernel has killed a process of the container for its memory, as its cgroup counts. Blocks.
fn oom_killed(context: &EngineContext, id: &ContainerId) -> bool {
    let Some(cgroup) = cgroup_of(context, id) else { return false };
    let counts = match cgroup_limits::oom_file(&context.cgroups, &cgroup).as_str() {
        "" => String::new(),
        file => std::fs::read_to_string(file).unwrap_or_default(),
    };
    let kills = counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
    kills.is_some_and(|kills| kills > 0)
}

fn cgroup_of(context: &EngineContext, id: &ContainerId) -> Option<CgroupPath> {
    let objects = context.objects();
    context.measured(&objects, id).map(|measured| measured.cgroup)
}

/// Waits for the end of a process.
async fn ended(pidfd: &OwnedFd) -> io::Result<()> {
    // An owned descriptor, as the unsafe successor of this function demands.
    #[allow(deprecated)]
    let waiting = AsyncFd::with_interest(pidfd.try_clone()?, tokio::io::Interest::READABLE)?;
    waiting.readable().await.map(drop)
}

/// Looks for a container's process without a shim, and has its exit reported. Files that can not be read are tried again until the
/// container is removed: a process that was not found may live.
pub(crate) async fn watch(context: &Arc<EngineContext>, id: &ContainerId, exited: ExitReporter) -> Found {
    let mut pause = RETRY_MIN;
    let found = loop {
        let Some((sandbox, held)) = location(context, id) else { return Found::Gone };
        let (of, pod) = (id.clone(), sandbox.clone());
        let observe = move |context: &EngineContext| observe_process(context, &pod, &of, held);
        match context.blocking(&sandbox, OBSERVE_LIMIT, observe).await {
            Ok(found) => break found,
            Err(error) => tracing::warn!(container_id = %id, %error, "process of a container not found yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    };
    match found {
        ProcessState::Gone => Found::Gone,
        ProcessState::Exited(record) => Found::Exited(record),
        ProcessState::Alive { pidfd, stop_signal_sent } => {
            if let Some(entry) = context.objects().containers.get_mut(id) {
                entry.descriptors.retain(|(kind, _)| *kind != DescriptorKind::Pidfd);
                entry.descriptors.push((DescriptorKind::Pidfd, Arc::clone(&pidfd)));
            }
            let (context, id) = (Arc::clone(context), id.clone());
            podwright_tasks::spawn("container-exit", async move {
                let _ = ended(&pidfd).await;
                let record = status_after_end(&context, &id, &pidfd).await;
                exited(id, record).await;
            });
            Found::Alive { stop_signal_sent }
        }
    }
}

/// The state of a container's process.
enum ProcessState {
    Gone,
    Exited(ExitRecord),
    Alive { pidfd: Arc<OwnedFd>, stop_signal_sent: bool },
}

fn location(context: &EngineContext, id: &ContainerId) -> Option<(SandboxId, Option<Arc<OwnedFd>>)> {
    let objects = context.objects();
    let entry = objects.containers.get(id)?;
    Some((SandboxId(entry.record.sandbox_id.clone()), entry.pidfd()))
}

/// Blocks. An error says nothing about the process.
fn observe_process(
    context: &EngineContext,
    sandbox: &SandboxId,
    id: &ContainerId,
    held: Option<Arc<OwnedFd>>,
) -> io::Result<ProcessState> {
    let dir = match container_dir(context, sandbox, id) {
        Ok(dir) => Some(dir),
        Err(error) if is_gone(&error) => None,
        Err(error) => return Err(error),
    };
    let exited = match dir.as_ref().map(ContainerDir::exit) {
        // A shim that was killed while it wrote it: the kernel may know more.
        None | Some(Err(RunFileError::Damaged { .. })) => None,
        Some(exited) => exited.map_err(io::Error::other)?,
    };
    let process = dir.as_ref().map(ContainerDir::process);
    if let Some(entry) = context.objects().containers.get_mut(id) {
        entry.learn_start(exited.as_ref().map_or(0, |exited| exited.started_at));
        if let Some(Ok(Some(process))) = &process {
            entry.learn_process(*process);
        }
    }
    if let Some(exited) = exited {
        return Ok(ProcessState::Exited(exit_record(&exited)));
    }
    let stop_signal_sent = dir.as_ref().is_some_and(|dir| dir.stop_signal_sent().unwrap_or(true));
    let pidfd = match (held, &dir) {
        (Some(held), _) => held,
        (None, None) => return Ok(ProcessState::Gone),
        (None, Some(_)) => match process.transpose().map_err(io::Error::other)?.flatten().map(|of| verified(&of)) {
            Some(Ok(pidfd)) => Arc::new(pidfd),
            Some(Err(error)) if !is_gone(&error) => return Err(error),
            // It was launched: that is no failed start, after which another one would be tried.
            Some(Err(_)) => return Ok(ProcessState::Exited(unknown_exit())),
            None => return Ok(ProcessState::Gone),
        },
    };
    // Asked first: what is recorded is complete afterwards.
    let reaped = exit_info::is_reaped(&pidfd)?;
    if let Some(info) = status(&pidfd) {
        let oom_killed = oom_killed(context, id);
        return Ok(ProcessState::Exited(ExitRecord::of_process(info.code, oom_killed, now().wall_ns)));
    }
    // A zombie of pid 1 has its status until it is reaped, which may take seconds: who gets it waits for that.
    Ok(match reaped {
        true => ProcessState::Exited(unknown_exit()),
        false => ProcessState::Alive { pidfd, stop_signal_sent },
    })
}

/// A container's process was launched and is not known to have ended. Blocks.
pub(crate) fn may_run(context: &EngineContext, sandbox: &SandboxId, id: &ContainerId) -> bool {
    let process = match container_dir(context, sandbox, id).map(|dir| dir.process()) {
        Ok(Ok(process)) => process,
        Ok(Err(_)) => return true,
        Err(error) => return !is_gone(&error),
    };
    match process.map(|process| verified(&process)) {
        None => false,
        Some(Err(error)) => !is_gone(&error),
        Some(Ok(pidfd)) => !PidFd::from(pidfd).wait_exit(Duration::ZERO).unwrap_or(false),
    }
}

/// The file or process does not exist. Any other error, as too many open files, is no reason to give up a process.
fn is_gone(error: &io::Error) -> bool {
    // `pidfd_open` refuses a pid that is now a thread of another process as invalid.
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The files of a container in the run directory.
fn container_dir(context: &EngineContext, sandbox: &SandboxId, id: &ContainerId) -> io::Result<ContainerDir> {
    let pod = File::open(context.shims.pod_dir(sandbox))?;
    ContainerDir::open(pod, &id.0).map_err(|error| match error {
        RunFileError::Io { source, .. } if is_gone(&source) => source,
        other => io::Error::other(other),
    })
}

/// A pidfd of the process, if the pid is not another process now.
fn verified(process: &ProcessIdentity) -> io::Result<OwnedFd> {
    let pidfd = PidFd::open_started(process.pid, process.start_time)?.into_fd();
    let inode = rustix::fs::fstat(&pidfd)?.st_ino;
    if process.inode != 0 && inode != process.inode {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the pid is another process now"));
    }
    Ok(pidfd)
}

/// How a process has ended, as far as the kernel reports it: to its parent, or to anyone with a pidfd (6.15). It is not reaped here: the exit
/// is not recorded yet, and an engine that dies before asks again. The sweep reaps it.
fn status(pidfd: &OwnedFd) -> Option<ExitInfo> {
    match exit_info::poll(pidfd, false) {
        Ok(Some(info)) => Some(info),
        _ => exit_info::recorded(pidfd).ok().flatten(),
    }
}

async fn status_after_end(context: &Arc<EngineContext>, id: &ContainerId, pidfd: &OwnedFd) -> ExitRecord {
    let Some((sandbox, _)) = location(context, id) else { return unknown_exit() };
    let until = tokio::time::Instant::now() + STATUS_LIMIT;
    loop {
        let reaped = exit_info::is_reaped(pidfd).unwrap_or(false);
        let (of, pod) = (id.clone(), sandbox.clone());
        let recorded = move |context: &EngineContext| {
            let exited = container_dir(context, &pod, &of).and_then(|dir| dir.exit().map_err(io::Error::other));
            exited.map(|exited| exited.map(|exited| exit_record(&exited)))
        };
        if let Ok(Some(record)) = context.blocking(&sandbox, OBSERVE_LIMIT, recorded).await {
            return record;
        }
        if let Some(info) = status(pidfd) {
            return record_of(context, id, info).await;
        }
        if reaped || tokio::time::Instant::now() >= until {
            return unknown_exit();
        }
        // Pid 1 reaps it in a moment, or in some seconds.
        tokio::time::sleep(STATUS_PAUSE).await;
    }
}

/// Sends the stop signal in place of the shim, once: the note is on disk before.
pub(crate) async fn stop_signal(context: &Arc<EngineContext>, id: &ContainerId) {
    let (sandbox, pidfd, signal) = {
        let objects = context.objects();
        let Some(entry) = objects.containers.get(id) else { return };
        let Some(pidfd) = entry.pidfd() else { return };
        (SandboxId(entry.record.sandbox_id.clone()), pidfd, entry.record.stop_signal)
    };
    let (of, pod) = (id.clone(), sandbox.clone());
    let send = move |context: &EngineContext| -> io::Result<()> {
        if container_dir(context, &pod, &of)?.claim_stop_signal().map_err(io::Error::other)? {
            PidFd::from(pidfd.try_clone()?).signal_number(signal)?;
        }
        Ok(())
    };
    if let Err(error) = context.blocking(&sandbox, OBSERVE_LIMIT, send).await {
        tracing::warn!(container_id = %id, %error, "stop signal not sent");
    }
}

const OBSERVE_LIMIT: Duration = Duration::from_secs(10);
/// A shim reports an exit when the output is complete, after two seconds at most.
const EXIT_REPORT_LIMIT: Duration = Duration::from_secs(15);
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long pid 1 may take to reap a process that has ended: before, others do not get its status.
const STATUS_LIMIT: Duration = Duration::from_secs(10);
const STATUS_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_process_is_there_until_it_is_reaped() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let pidfd = PidFd::open(child.id()).unwrap();
        assert!(pidfd.wait_exit(Duration::from_secs(30)).unwrap());
        let pidfd = pidfd.into_fd();
        // An engine that dies after the first time asks again.
        assert_eq!([status(&pidfd), status(&pidfd)].map(|record| record.map(|record| record.code)), [Some(3); 2]);
        assert_eq!(child.wait().unwrap().code(), Some(3), "it was not reaped");
    }
}
