//! Containers of a shim that was lost.
//!
//! Their init is not our child: its end is seen by the pidfd, and how it ended is read from the exit file (the lost shim had
//! recorded it, or the agent has), else asked of the kernel after the agent or pid 1 has reaped it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use podwright_linux::pidfd::{self, PidFd};
use rustix::event::epoll::EventFlags;

use super::container::{ContainerStage, ContainerStreams, SupervisedContainer};
use super::exits::DRAIN_LIMIT;
use super::launching::open_counter;
use super::poller::PollSource;
use super::requests::{Asker, refuse, refuse_io};
use super::{PodSupervisor, exits};
use crate::launch::PodNamespaces;
use crate::log_writer::LogWriter;
use crate::protocol::{
    Adopt, AdoptContainer, AdoptRefusal, CONTAINERS_MAX, DescriptorKind, PROTOCOL, ProcessIdentity, ProtocolError,
    RefusalReason, RequestRefusal,
};
use crate::run_files::ContainerDir;
use crate::stdio;

pub(super) fn adopt(
    shim: &mut PodSupervisor,
    asker: Asker,
    adopt: Adopt,
    fds: Vec<OwnedFd>,
) -> Result<(), ProtocolError> {
    let count = adopt.namespaces.len() + adopt.containers.iter().map(|c| c.descriptors.len()).sum::<usize>();
    if count != fds.len() {
        return Err(ProtocolError::Missing("its descriptors"));
    }
    let mut fds = fds.into_iter();
    let mut take = |kinds: &[i32]| -> Vec<(i32, OwnedFd)> { kinds.iter().copied().zip(&mut fds).collect() };
    let pod = take(&adopt.namespaces);
    let containers: Vec<_> = adopt.containers.into_iter().map(|c| (take(&c.descriptors), c)).collect();
    let mut refused = vec![];
    let mut note = |container: Option<String>, result: Result<(), RequestRefusal>| {
        refused.extend(result.err().map(|refusal| AdoptRefusal { container, refusal: Some(refusal) }));
    };
    note(None, adopt_pod(shim, pod));
    for (descriptors, container) in containers {
        let id = container.container.clone();
        note(Some(id), adopt_container(shim, container, descriptors));
    }
    shim.send_state(asker, PROTOCOL, refused);
    Ok(())
}

fn adopt_pod(shim: &mut PodSupervisor, descriptors: Vec<(i32, OwnedFd)>) -> Result<(), RequestRefusal> {
    if descriptors.is_empty() {
        return Ok(());
    }
    let mut adopted = PodNamespaces::default();
    let PodNamespaces { user, net, ipc, uts, pid, .. } = &mut adopted;
    let mut pause = None;
    for (kind, fd) in descriptors {
        match DescriptorKind::try_from(kind) {
            Ok(DescriptorKind::Net) => *net = Some(fd),
            Ok(DescriptorKind::Ipc) => *ipc = Some(fd),
            Ok(DescriptorKind::Uts) => *uts = Some(fd),
            Ok(DescriptorKind::User) => *user = Some(fd),
            Ok(DescriptorKind::Pid) => *pid = Some(fd),
            Ok(DescriptorKind::Pidfd) => pause = Some(fd),
            Ok(other) => return Err(unexpected(other)),
            // Of a later version.
            Err(_) => {}
        }
    }
    let present = shim.namespaces.get_or_insert_default();
    present.user = adopted.user.or(present.user.take());
    present.net = adopted.net.or(present.net.take());
    present.ipc = adopted.ipc.or(present.ipc.take());
    present.uts = adopted.uts.or(present.uts.take());
    present.pid = adopted.pid.or(present.pid.take());
    pause.map_or(Ok(()), |pidfd| exits::watch_pause(shim, None, pidfd).map_err(refuse_io("watch the pause process")))
}

fn adopt_container(
    shim: &mut PodSupervisor,
    adopted: AdoptContainer,
    held: Vec<(i32, OwnedFd)>,
) -> Result<(), RequestRefusal> {
    if shim.key_of(&adopted.container).is_ok() {
        return Ok(());
    }
    if shim.containers.len() >= CONTAINERS_MAX {
        return Err(refuse(RefusalReason::TooMany, format!("{CONTAINERS_MAX} containers")));
    }
    let process =
        adopted.process.ok_or_else(|| refuse(RefusalReason::Invalid, "an adopted container needs a process"))?;
    let (mut pidfd, mut pty) = (None, None);
    for (kind, fd) in held {
        match DescriptorKind::try_from(kind) {
            Ok(DescriptorKind::Pidfd) => pidfd = Some(fd),
            Ok(DescriptorKind::Pty) => pty = Some(fd),
            Ok(other) => return Err(unexpected(other)),
            Err(_) => {}
        }
    }
    let key = shim.next_key;
    shim.next_key += 1;
    let mut container = reopen(shim, key, &adopted, pty)?;
    let recorded = container.dir.exit().map_err(|error| refuse(RefusalReason::Io, error.to_string()))?;
    let pidfd = match (recorded, pidfd) {
        (Some(exited), _) => {
            container.stage = ContainerStage::Draining { process, exited, until: Instant::now() + DRAIN_LIMIT };
            shim.containers.insert(key, container);
            exits::drain(shim, key);
            return Ok(());
        }
        (None, Some(pidfd)) => pidfd,
        (None, None) => verified(&process).map_err(refuse_io("find the process"))?,
    };
    let pidfd =
        shim.poller.watch(pidfd, PollSource::ContainerExit(key), EventFlags::IN).map_err(refuse_io("watch it"))?;
    // The answer to its launch may be lost: the agent learns that it was started from its exit, at the latest.
    let started_at = pidfd::started_at_ns(process.start_time);
    container.stage = ContainerStage::Running { pidfd, process, started_at, exit_unknown_since: None };
    shim.containers.insert(key, container);
    Ok(())
}

fn reopen(
    shim: &PodSupervisor,
    key: u64,
    adopted: &AdoptContainer,
    pty: Option<OwnedFd>,
) -> Result<SupervisedContainer, RequestRefusal> {
    let file_error = |error: crate::run_files::RunFileError| refuse(RefusalReason::Io, error.to_string());
    let dir = ContainerDir::open(&shim.pod_dir, &adopted.container).map_err(file_error)?;
    let stdio = adopted.stdio.unwrap_or_default();
    let ends = if stdio.terminal {
        let reopened = pty.map(stdio::reopen_terminal).transpose().map_err(refuse_io("use the terminal"))?;
        reopened.unwrap_or_default()
    } else {
        stdio::reopen(&dir).map_err(refuse_io("open the standard streams"))?
    };
    Ok(SupervisedContainer {
        id: adopted.container.clone(),
        stdio,
        log: LogWriter::open(&adopted.log_path).map_err(refuse_io("open the log"))?,
        exit_file: dir.reopen_exit().map_err(file_error)?,
        // The cgroup may be gone with the container.
        oom_counter: open_counter(&adopted.oom_file).unwrap_or_default(),
        stage: ContainerStage::Launching,
        streams: ContainerStreams::watch(&shim.poller, key, ends).map_err(refuse_io("watch the standard streams"))?,
        clients: Default::default(),
        stop_signal_sent: dir.stop_signal_sent().map_err(file_error)?,
        reply: None,
        dir,
    })
}

fn unexpected(kind: DescriptorKind) -> RequestRefusal {
    refuse(RefusalReason::Invalid, format!("a descriptor of kind {kind:?} is not expected"))
}

/// A pidfd of the process, if it is still the same.
fn verified(process: &ProcessIdentity) -> io::Result<OwnedFd> {
    let pidfd = PidFd::open_started(process.pid, process.start_time)?.into_fd();
    let inode = rustix::fs::fstat(pidfd.as_fd())?.st_ino;
    if process.inode != 0 && inode != process.inode {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the pid is another process now"));
    }
    Ok(pidfd)
}
