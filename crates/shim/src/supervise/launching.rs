//! Launches: of the pod's namespaces, of containers and of execs, up to the moment when their program is executed.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use podwright_linux::pidfd::{self, PidFd};
use rustix::event::epoll::EventFlags;
use rustix::fs::OFlags;
use rustix::process::{Signal, pidfd_send_signal};

use super::container::{ContainerStage, ContainerStreams, SupervisedContainer};
use super::execs::PendingExec;
use super::poller::{PollSource, WatchedDescriptor};
use super::requests::{Asker, Reply, copies, refuse, refuse_io};
use super::{PodSupervisor, execs, exits};
use crate::launch::{ContainerStdio, LaunchFailure, LaunchInProgress, LaunchStep, Launched, PodNamespaces};
use crate::log_writer::LogWriter;
use crate::plan::{LaunchPlan, SetupPlan};
use crate::protocol::{
    CONTAINERS_MAX, DescriptorKind, LaunchReply, LaunchRequest, ProcessIdentity, RefusalReason, RequestRefusal,
    SetupReply, answer, read_sealed,
};
use crate::run_files::ContainerDir;
use crate::stdio;
use crate::threads::assert_one_thread;

/// A launch whose program is not executed yet.
pub(super) struct AwaitedLaunch {
    process: Box<dyn LaunchInProgress>,
    /// What `process` awaits. `None`: it could not be watched, so it is tried again by time.
    watched: Option<(RawFd, WatchedDescriptor)>,
    pub asker: Asker,
    /// All its processes are killed then.
    pub deadline: Instant,
    /// Why it was killed.
    given_up: Option<&'static str>,
    subject: Subject,
}

pub(super) enum Subject {
    Container(u64),
    Exec(PendingExec),
}

pub(super) fn setup(shim: &mut PodSupervisor, plan: OwnedFd) -> Result<Reply, RequestRefusal> {
    let plan: SetupPlan = plan_from(plan)?;
    if shim.namespaces.is_some() {
        return Err(refuse(RefusalReason::Exists, "the pod has its namespaces"));
    }
    assert_one_thread();
    let mut namespaces = match shim.launcher.setup(&plan) {
        Ok(namespaces) => namespaces,
        Err(failure) => return Ok(Reply::Now(answer::AnswerBody::LaunchFailed(failure.into()), vec![])),
    };
    let mut process = None;
    if let Some(pause) = namespaces.pause.take() {
        process = Some(identity(pause.pid, &pause.pidfd));
        exits::watch_pause(shim, Some(pause.pid), pause.pidfd).map_err(refuse_io("watch the pause process"))?;
    }
    shim.namespaces = Some(namespaces);
    let (kinds, fds) = pod_descriptors(shim).into_iter().map(|(kind, fd)| (i32::from(kind), fd)).unzip();
    Ok(Reply::Now(answer::AnswerBody::Setup(SetupReply { kinds, pause: process }), fds))
}

/// Copies of the pod's descriptors.
pub(super) fn pod_descriptors(shim: &PodSupervisor) -> Vec<(DescriptorKind, OwnedFd)> {
    let mut held = vec![];
    if let Some(PodNamespaces { user, net, ipc, uts, pid, .. }) = &shim.namespaces {
        held.extend(copies(DescriptorKind::Net, net.as_ref()));
        held.extend(copies(DescriptorKind::Ipc, ipc.as_ref()));
        held.extend(copies(DescriptorKind::Uts, uts.as_ref()));
        held.extend(copies(DescriptorKind::User, user.as_ref()));
        held.extend(copies(DescriptorKind::Pid, pid.as_ref()));
    }
    held.extend(copies(DescriptorKind::Pidfd, shim.pause.as_ref()));
    held
}

pub(super) fn launch(
    shim: &mut PodSupervisor,
    asker: Asker,
    request: LaunchRequest,
    plan: OwnedFd,
) -> Result<Reply, RequestRefusal> {
    let plan: LaunchPlan = plan_from(plan)?;
    if let Ok(key) = shim.key_of(&request.container) {
        return launch_again(shim, key, asker);
    }
    if shim.containers.len() >= CONTAINERS_MAX || shim.shutdown_requested {
        return Err(refuse(RefusalReason::TooMany, format!("{CONTAINERS_MAX} containers, or a shutdown")));
    }
    let key = shim.next_key;
    shim.next_key += 1;
    let (container, stdio) = prepare(shim, key, &request)?;
    let joined = namespaces_for(shim, &request)?;
    assert_one_thread();
    let begun = shim.launcher.init(&plan, &joined, stdio);
    let limit = if request.deadline_ms == 0 { LAUNCH_LIMIT } else { Duration::from_millis(request.deadline_ms.into()) };
    match begun {
        Ok(begun) => {
            shim.containers.insert(key, container);
            Ok(await_launch(shim, key, begun, asker, Instant::now() + limit, Subject::Container(key)))
        }
        Err(failure) => Ok(Reply::Now(answer::AnswerBody::LaunchFailed(failure.into()), vec![])),
    }
}

/// An agent that was restarted asks again for the result of a launch.
fn launch_again(shim: &mut PodSupervisor, key: u64, asker: Asker) -> Result<Reply, RequestRefusal> {
    if let Some(launch) = shim.launches.get_mut(&key) {
        launch.asker = asker;
        return Ok(Reply::Later);
    }
    let container = &shim.containers[&key];
    match (&container.stage, &container.reply) {
        (ContainerStage::Running { pidfd, .. }, Some(reply)) => {
            let mut fds = copies(DescriptorKind::Pidfd, Some(pidfd));
            fds.extend(copies(DescriptorKind::Pty, container.streams.terminal.as_ref()));
            let fds = fds.into_iter().map(|(_, fd)| fd).collect();
            Ok(Reply::Now(answer::AnswerBody::Launched(reply.clone()), fds))
        }
        _ => Err(refuse(RefusalReason::Exists, "the container was launched before")),
    }
}

/// Waits for the result of a launch that has begun.
pub(super) fn await_launch(
    shim: &mut PodSupervisor,
    key: u64,
    process: Box<dyn LaunchInProgress>,
    asker: Asker,
    deadline: Instant,
    subject: Subject,
) -> Reply {
    let mut launch = AwaitedLaunch { process, watched: None, asker, deadline, given_up: None, subject };
    launch.watch(shim, key);
    shim.launches.insert(key, launch);
    Reply::Later
}

/// Everything that a container needs before its process exists.
fn prepare(
    shim: &PodSupervisor,
    key: u64,
    request: &LaunchRequest,
) -> Result<(SupervisedContainer, ContainerStdio), RequestRefusal> {
    let file_error = |error: crate::run_files::RunFileError| refuse(RefusalReason::Io, error.to_string());
    let dir = ContainerDir::make(&shim.pod_dir, &request.container).map_err(file_error)?;
    dir.clear().map_err(file_error)?;
    let exit_file = dir.prepare_exit().map_err(file_error)?;
    dir.prepare_stop_signal().map_err(file_error)?;
    let log = LogWriter::open(&request.log_path).map_err(refuse_io("open the log"))?;
    let oom_counter = open_counter(&request.oom_file)?;
    let plan = request.stdio.unwrap_or_default();
    let (theirs, ours) = stdio::container(&dir, plan).map_err(refuse_io("make the standard streams"))?;
    let streams = ContainerStreams::watch(&shim.poller, key, ours).map_err(refuse_io("watch the standard streams"))?;
    let container = SupervisedContainer {
        id: request.container.clone(),
        dir,
        stdio: plan,
        log,
        exit_file: Some(exit_file),
        oom_counter,
        stage: ContainerStage::Launching,
        streams,
        clients: Default::default(),
        stop_signal_sent: false,
        reply: None,
    };
    Ok((container, theirs))
}

/// The namespaces of a launch: the pod's, with the PID namespace of a target container if one is named.
fn namespaces_for(shim: &PodSupervisor, request: &LaunchRequest) -> Result<PodNamespaces, RequestRefusal> {
    let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
    let mut joined = PodNamespaces::default();
    if let Some(PodNamespaces { user, net, ipc, uts, pid, .. }) = &shim.namespaces {
        let error = refuse_io("copy a namespace");
        joined.user = copy(user).map_err(&error)?;
        joined.net = copy(net).map_err(&error)?;
        joined.ipc = copy(ipc).map_err(&error)?;
        joined.uts = copy(uts).map_err(&error)?;
        joined.pid = copy(pid).map_err(&error)?;
    }
    if !request.target_container.is_empty() {
        let key = shim.key_of(&request.target_container)?;
        let ContainerStage::Running { pidfd, process, .. } = &shim.containers[&key].stage else {
            return Err(refuse(RefusalReason::WrongState, "the target container is not running"));
        };
        let namespace = File::open(format!("/proc/{}/ns/pid", process.pid));
        // The pid cannot have been reused while its process exists, a child of this shim or an adopted one.
        let has_exited = PidFd::from(pidfd.as_fd().try_clone_to_owned().map_err(refuse_io("copy a pidfd"))?)
            .wait_exit(Duration::ZERO)
            .map_err(refuse_io("observe the target container"))?;
        if has_exited {
            return Err(refuse(RefusalReason::WrongState, "the target container has exited"));
        }
        joined.pid = Some(namespace.map_err(refuse_io("open the PID namespace of the target"))?.into());
    }
    Ok(joined)
}

/// A launch has something to report.
pub(super) fn launch_reported(shim: &mut PodSupervisor, key: u64) {
    advance(shim, key);
    exits::reap_children(shim);
}

/// Reads what launches have reported. Afterwards all their processes are known that have gone beyond the clone.
pub(super) fn advance_all(shim: &mut PodSupervisor) {
    let keys: Vec<u64> = shim.launches.keys().copied().collect();
    keys.into_iter().for_each(|key| advance(shim, key));
}

fn advance(shim: &mut PodSupervisor, key: u64) {
    let Some(mut launch) = shim.launches.remove(&key) else { return };
    let Some(mut result) = launch.process.advance() else {
        launch.watch(shim, key);
        shim.launches.insert(key, launch);
        return;
    };
    if let (Err(failure), Some(why)) = (&mut result, launch.given_up) {
        *failure = LaunchFailure { step: LaunchStep::Lost, errno: None, text: why.to_owned(), user: None };
    }
    launch_ended(shim, key, launch, result);
}

fn launch_ended(shim: &mut PodSupervisor, key: u64, launch: AwaitedLaunch, result: Result<Launched, LaunchFailure>) {
    let AwaitedLaunch { asker, subject, .. } = launch;
    match subject {
        Subject::Container(key) => container_launched(shim, key, asker, result),
        Subject::Exec(exec) => execs::exec_launched(shim, key, exec, asker, result),
    }
}

/// Kills launches whose deadline has passed. One whose processes do not end although they were killed waits for a device or server:
/// the agent gets its answer, or it would take this shim for one that hangs. The processes never execute the program, and are reaped
/// as orphans when they end.
pub(super) fn end_late_launches(shim: &mut PodSupervisor, now: Instant) {
    let late = shim.launches.iter().filter(|(_, launch)| launch.deadline <= now).map(|(key, _)| *key);
    for key in late.collect::<Vec<u64>>() {
        let Some(mut launch) = shim.launches.remove(&key) else { continue };
        let Some(why) = launch.given_up else {
            launch.give_up("the deadline of the launch has passed");
            shim.launches.insert(key, launch);
            continue;
        };
        let text = format!("{why}, and its process does not end: it waits for a device or a file system");
        launch_ended(shim, key, launch, Err(LaunchFailure::new(LaunchStep::Lost, text)));
    }
}

fn container_launched(shim: &mut PodSupervisor, key: u64, asker: Asker, result: Result<Launched, LaunchFailure>) {
    let (body, fds) = match result.map_err(Into::into).and_then(|launched| container_runs(shim, key, launched)) {
        Ok((reply, fds)) => (answer::AnswerBody::Launched(reply), fds),
        Err(failure) => {
            shim.containers.remove(&key);
            (answer::AnswerBody::LaunchFailed(failure), vec![])
        }
    };
    shim.answer(asker, body, fds);
}

/// The container runs. Its identity is on disk before the agent hears of it.
fn container_runs(
    shim: &mut PodSupervisor,
    key: u64,
    mut launched: Launched,
) -> Result<(LaunchReply, Vec<OwnedFd>), crate::protocol::LaunchFailed> {
    let container = shim.containers.get_mut(&key).expect("a container stays while it is launched");
    if let Some(master) = launched.pty.take() {
        // Of another runtime, in place of ours.
        let streams = stdio::reopen_terminal(master).and_then(|ends| ContainerStreams::watch(&shim.poller, key, ends));
        container.streams = streams.map_err(|error| {
            let _ = pidfd_send_signal(&launched.pidfd, Signal::KILL);
            LaunchFailure::io(LaunchStep::Terminal, "use the terminal", &error)
        })?;
    }
    let process = identity(launched.pid, &launched.pidfd);
    let started_at = now_ns();
    let recorded = container.dir.write_process(&process).map_err(|error| error.to_string());
    let copy = launched.pidfd.try_clone();
    let watch = |pidfd| shim.poller.watch(pidfd, PollSource::ContainerExit(key), EventFlags::IN);
    let watched = recorded.and_then(|()| {
        let text = |error: std::io::Error| format!("watch the container: {error}");
        Ok((copy.map_err(text)?, watch(launched.pidfd.try_clone().map_err(text)?).map_err(text)?))
    });
    let (copy, pidfd) = watched.map_err(|text| {
        let _ = pidfd_send_signal(&launched.pidfd, Signal::KILL);
        LaunchFailure::new(LaunchStep::Process, text)
    })?;
    container.stage = ContainerStage::Running { pidfd, process, started_at, exit_unknown_since: None };
    let mut fds = vec![copy];
    fds.extend(copies(DescriptorKind::Pty, container.streams.terminal.as_ref()).into_iter().map(|(_, fd)| fd));
    let Launched { uid, gid, groups, home, .. } = launched;
    let reply = LaunchReply { process: Some(process), uid, gid, groups, home, started_at };
    container.reply = Some(reply.clone());
    Ok((reply, fds))
}

/// Kills the processes of a launch; its reports then end. `false`: there is none for this container.
pub(super) fn give_up_launch(shim: &mut PodSupervisor, key: u64, why: &'static str) -> bool {
    let Some(launch) = shim.launches.get_mut(&key) else { return false };
    launch.give_up(why);
    true
}

/// Whether a launch that is under way uses this process: its end is not ours to handle.
pub(super) fn is_launcher(shim: &PodSupervisor, pid: u32) -> bool {
    shim.launches.values().any(|launch| launch.process.has_process(pid))
}

/// ExecSyncs of an agent that is gone are not launched to their end.
pub(super) fn agent_lost(shim: &mut PodSupervisor, connection: u64) {
    let lost = |launch: &&mut AwaitedLaunch| matches!(&launch.subject, Subject::Exec(exec) if exec.is_sync());
    for launch in shim.launches.values_mut().filter(|launch| launch.asker.connection == connection).filter(lost) {
        launch.give_up("the agent is gone");
    }
}

/// Tries launches again that could not be watched.
pub(super) fn retry_unwatched(shim: &mut PodSupervisor) {
    let unwatched = |launch: &AwaitedLaunch| launch.watched.is_none();
    let keys: Vec<u64> = shim.launches.iter().filter(|(_, launch)| unwatched(launch)).map(|(key, _)| *key).collect();
    keys.into_iter().for_each(|key| launch_reported(shim, key));
}

impl AwaitedLaunch {
    pub(super) fn give_up(&mut self, why: &'static str) {
        self.given_up.get_or_insert(why);
        self.process.kill();
        // A second signal would not help.
        self.deadline = Instant::now() + END_LIMIT;
    }

    /// When it needs attention even if nothing is reported.
    pub(super) fn next_wake(&self, now: Instant) -> Instant {
        if self.watched.is_none() { self.deadline.min(now + UNWATCHED_RETRY) } else { self.deadline }
    }

    fn watch(&mut self, shim: &PodSupervisor, key: u64) {
        let awaited = self.process.awaited();
        let number = awaited.as_raw_fd();
        if self.watched.as_ref().is_none_or(|(watched, _)| *watched != number) {
            let watched = shim.poller.watch(awaited, PollSource::Report(key), EventFlags::IN);
            self.watched = watched.ok().map(|watched| (number, watched));
        }
    }
}

/// Identity of a process of ours, which cannot have been reaped.
pub(super) fn identity(pid: u32, pidfd: impl AsFd) -> ProcessIdentity {
    let inode = rustix::fs::fstat(pidfd).map(|stat| stat.st_ino).unwrap_or_default();
    ProcessIdentity { pid, start_time: pidfd::start_time(pid).unwrap_or_default(), inode }
}

pub(super) fn open_counter(path: &str) -> Result<Option<File>, RequestRefusal> {
    if path.is_empty() {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    opened.map(|fd| Some(File::from(fd))).map_err(|error| refuse_io("open the OOM counter")(error.into()))
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn plan_from<M: prost::Message + Default>(memfd: OwnedFd) -> Result<M, RequestRefusal> {
    read_sealed(memfd).map_err(|error| refuse(RefusalReason::Invalid, error.to_string()))
}

/// Between two tries of a launch that cannot be watched, for lack of memory or of epoll's quota.
const UNWATCHED_RETRY: Duration = Duration::from_millis(100);
/// How long a launcher that was killed may take to end. The agent waits for 30 seconds longer than [`LAUNCH_LIMIT`].
const END_LIMIT: Duration = Duration::from_secs(3);
/// A launcher may wait for a file system; one that takes longer is killed.
const LAUNCH_LIMIT: Duration = Duration::from_secs(120);
