//! A pod without a connection: to its living shim after a restart of the agent, or to a new shim that takes over its containers.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::v1;
use podwright_shim::client::{RequestPacket, ShimAnswer};
use podwright_shim::plan::LaunchPlan;
use podwright_shim::protocol::{
    AbortLaunch, Adopt, AdoptContainer, ContainerPhase, DescriptorKind, HelloReply, LaunchRequest, ProcessIdentity,
    StdioPlan, request,
};

use super::namespaces::{self, PidWithProcess};
use super::{ExitReporter, ProcessState, container_dir, observe_process, watch};
use crate::cgroup_limits;
use crate::context::{EngineContext, failure};
use crate::machine::{AdoptError, ContainerId, ContainerRecordState, Failure, Found, SandboxId};
use crate::objects::HeldDescriptors;
use crate::shims::ShimLink;
use crate::store::ContainerRecord;
use crate::{spec, views};

type Adopted = Result<Vec<(ContainerId, Found)>, AdoptError>;

/// A container that may have a process.
struct Searched {
    id: ContainerId,
    record: ContainerRecord,
    descriptors: HeldDescriptors,
    log_path: String,
}

/// A pod and the shim that gets its containers.
struct Handover<'a> {
    context: &'a Arc<EngineContext>,
    id: &'a SandboxId,
    config: &'a v1::PodSandboxConfig,
    link: &'a ShimLink,
    exited: ExitReporter,
}

/// A container with a process.
type Living = (Searched, Arc<OwnedFd>);

/// Connects to the living shim, or forks a new one and gives it the descriptors. Reports what became of each container.
pub(crate) async fn adopt(context: &Arc<EngineContext>, id: &SandboxId, exited: ExitReporter) -> Adopted {
    let (steps, config, containers) = {
        let objects = context.objects();
        let Some(entry) = objects.sandboxes.get(id) else { return Err(AdoptError::NamespacesLost) };
        let of = objects.containers_of(id).into_iter().filter_map(|id| {
            let entry = objects.containers.get(&id).filter(|entry| entry.record.state.may_run())?;
            let log_path = views::log_path(&objects, entry);
            Some(Searched { id, record: entry.record.clone(), descriptors: entry.descriptors.clone(), log_path })
        });
        (Arc::clone(&entry.steps), entry.record.config.clone(), of.collect::<Vec<_>>())
    };
    let _in_turn = steps.lock().await;
    let of = id.clone();
    let living = context.blocking(id, CONNECT_LIMIT, move |context| context.shims.connect(&of)).await;
    match living.map_err(AdoptError::Failed)? {
        Some(shim) => {
            let pidfd = Arc::clone(&shim.pidfd);
            let link = start(context, id, shim)?;
            let state = settled(context, &link).await.map_err(|failure| {
                // It hangs: the next try forks another one.
                let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
                AdoptError::Failed(failure)
            })?;
            let handover = Handover { context, id, config: &config, link: &link, exited };
            find_all(&handover, containers, &state).await
        }
        None => take_over(context, id, &config, containers, exited).await,
    }
}

fn start(context: &EngineContext, id: &SandboxId, shim: crate::shims::ConnectedShim) -> Result<ShimLink, AdoptError> {
    let link = ShimLink::start(id.clone(), shim, context.reports.clone());
    let link = link.map_err(|error| AdoptError::Failed(failure(&error)))?;
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.link = Some(link.clone());
    }
    Ok(link)
}

/// The state of a shim once no launch is under way: the results of launches went to the former agent. A launcher that can not be
/// killed because a file system hangs does not hold up the other containers.
async fn settled(context: &EngineContext, link: &ShimLink) -> Result<HelloReply, Failure> {
    let until = tokio::time::Instant::now() + LAUNCH_WAIT;
    loop {
        let state = link.hello(&context.boot_id).await.map_err(|e| failure(&e))?;
        let launching: Vec<String> = state
            .containers
            .iter()
            .filter(|entry| entry.phase == ContainerPhase::Launching as i32)
            .map(|entry| entry.container.clone())
            .collect();
        if launching.is_empty() {
            return Ok(state);
        }
        if tokio::time::Instant::now() >= until + LAUNCH_WAIT {
            tracing::warn!(container_id = ?launching, "launches of a shim do not end");
            return Ok(state);
        }
        if tokio::time::Instant::now() >= until {
            for container in launching {
                link.notify(request::RequestKind::AbortLaunch(AbortLaunch { container }));
            }
        }
        tokio::time::sleep(LAUNCH_PAUSE).await;
    }
}

/// What a living shim, else the files that it left, say about each container. What the shim lacks is given to it: its agent may have
/// ended before it could.
async fn find_all(handover: &Handover<'_>, containers: Vec<Searched>, state: &HelloReply) -> Adopted {
    let Handover { context, id, config, link, .. } = handover;
    let (mut all, mut unknown) = (vec![], vec![]);
    for searched in containers {
        match state.containers.iter().find(|entry| entry.container == searched.id.0) {
            // No program was executed: without a result it is a failed start.
            Some(entry) if entry.phase == ContainerPhase::Launching as i32 => {}
            // One that has exited: the event follows.
            Some(entry) => {
                learn_process(context, &searched.id, entry.process);
                if searched.record.user.is_none() {
                    learn_launch(context, link, &searched.id).await;
                }
                all.push((searched.id, Found::Alive { stop_signal_sent: entry.stop_signal_sent }));
            }
            None => unknown.push(searched),
        }
    }
    let starting: BTreeSet<ContainerId> = unknown.iter().filter(|c| is_starting(c)).map(|c| c.id.clone()).collect();
    let (ended, alive) = look_for(context, id, unknown).await?;
    // This shim has no trace of the launch, and takes no more requests of the former agent.
    all.extend(ended.into_iter().map(|(id, found)| match found {
        Found::Gone if starting.contains(&id) => (id, Found::NotLaunched),
        found => (id, found),
    }));
    // The namespaces are given before the first container: without copies of descriptors it has neither.
    if state.holds == 0 {
        let given = namespaces::of_pod(context, id, config, pids(context, id, &alive)).await?;
        give(link, Adopt { namespaces: kinds(&given), containers: vec![] }, &given).await?;
    }
    for (searched, pidfd) in alive {
        let found = give_container(handover, &searched, &pidfd).await?;
        all.push((searched.id, found));
    }
    Ok(all)
}

fn is_starting(searched: &Searched) -> bool {
    searched.record.state == ContainerRecordState::Starting
}

/// The answer to the launch was lost with the former agent: the shim repeats it. Without a plan nothing can be launched by it.
async fn learn_launch(context: &EngineContext, link: &ShimLink, id: &ContainerId) {
    let request = LaunchRequest { container: id.0.clone(), ..LaunchRequest::default() };
    let answer = match RequestPacket::launch(request, &LaunchPlan::default()) {
        Ok(packet) => link.call(packet, ADOPT_LIMIT).await,
        Err(error) => Err(error.into()),
    };
    match answer {
        Ok(ShimAnswer::Launched { reply, pidfd, pty }) => {
            if let Some(entry) = context.objects().containers.get_mut(id) {
                entry.launched(reply, pidfd, pty);
            }
        }
        Ok(_) => tracing::warn!(container_id = %id, "an unexpected answer of the shim"),
        // It has exited, or was adopted.
        Err(error) => tracing::info!(container_id = %id, %error, "user of a container not known"),
    }
}

fn learn_process(context: &EngineContext, id: &ContainerId, process: Option<ProcessIdentity>) {
    if let (Some(process), Some(entry)) = (process, context.objects().containers.get_mut(id)) {
        entry.learn_process(process);
    }
}

/// Those that have ended, and those with a process.
async fn look_for(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    containers: Vec<Searched>,
) -> Result<(Vec<(ContainerId, Found)>, Vec<Living>), AdoptError> {
    let (mut ended, mut alive) = (vec![], vec![]);
    for searched in containers {
        match observed_process(context, id, &searched).await? {
            ProcessState::Alive { pidfd, .. } => alive.push((searched, pidfd)),
            ProcessState::Exited(record) => ended.push((searched.id, Found::Exited(record))),
            ProcessState::Gone => ended.push((searched.id, Found::Gone)),
        }
    }
    Ok((ended, alive))
}

async fn observed_process(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    searched: &Searched,
) -> Result<ProcessState, AdoptError> {
    let mut tries = LOOK_TRIES;
    loop {
        let (pod, of) = (id.clone(), searched.id.clone());
        let held = crate::objects::find(&searched.descriptors, DescriptorKind::Pidfd);
        let observe = move |context: &EngineContext| observe_process(context, &pod, &of, held);
        match context.blocking(id, CONNECT_LIMIT, observe).await {
            Ok(found) => return Ok(found),
            Err(failure) if tries == 0 => return Err(AdoptError::Failed(failure)),
            Err(failure) => tracing::warn!(container_id = %searched.id, error = %failure, "container not found yet"),
        }
        tries -= 1;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// A new shim for the containers of one that is gone.
async fn take_over(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    config: &v1::PodSandboxConfig,
    containers: Vec<Searched>,
    exited: ExitReporter,
) -> Adopted {
    let (mut all, alive) = look_for(context, id, containers).await?;
    for (searched, pidfd) in &alive {
        // An orphan of this process, if it is not one of pid 1.
        super::reap_container(context, &searched.id, Arc::clone(pidfd), Arc::clone(&exited));
    }
    let given = namespaces::of_pod(context, id, config, pids(context, id, &alive)).await?;
    let of = id.clone();
    let forked = context.blocking(id, FORK_LIMIT, move |context| context.shims.fork(&of)).await;
    let link = start(context, id, forked.map_err(AdoptError::Failed)?)?;
    let failed = |error: &dyn std::error::Error| AdoptError::Failed(failure(error));
    link.hello(&context.boot_id).await.map_err(|e| failed(&e))?;
    give(&link, Adopt { namespaces: kinds(&given), containers: vec![] }, &given).await?;
    let handover = Handover { context, id, config, link: &link, exited };
    for (searched, pidfd) in alive {
        let found = give_container(&handover, &searched, &pidfd).await?;
        all.push((searched.id, found));
    }
    Ok(all)
}

/// With a descriptor each: it shows whether a pid is still the process.
fn pids(context: &EngineContext, id: &SandboxId, alive: &[Living]) -> Vec<PidWithProcess> {
    let of = |(searched, pidfd): &Living| Some((process(context, id, &searched.id)?.pid, Arc::clone(pidfd)));
    alive.iter().filter_map(of).collect()
}

/// The identity of a container's process, from memory or from the files of its shim.
fn process(context: &EngineContext, sandbox: &SandboxId, id: &ContainerId) -> Option<ProcessIdentity> {
    let known = context.objects().containers.get(id).and_then(|entry| entry.process);
    known.or_else(|| container_dir(context, sandbox, id).ok()?.process().ok()?)
}

/// One container at a time: one that the shim refuses costs no other, and is watched from here.
async fn give_container(
    handover: &Handover<'_>,
    searched: &Searched,
    pidfd: &Arc<OwnedFd>,
) -> Result<Found, AdoptError> {
    let Handover { context, id: sandbox, config, link, exited } = handover;
    let process = process(context, sandbox, &searched.id);
    learn_process(context, &searched.id, process);
    let pty = crate::objects::find(&searched.descriptors, DescriptorKind::Pty);
    let mut held = vec![(DescriptorKind::Pidfd, Arc::clone(pidfd))];
    held.extend(pty.map(|pty| (DescriptorKind::Pty, pty)));
    let asked = &searched.record.config;
    let cgroup = spec::pod_cgroup(config).ok();
    let cgroup =
        cgroup.and_then(|pod| podwright_linux::cgroup::CgroupPath::parse(&pod).ok()?.join(&searched.id.0).ok());
    let container = AdoptContainer {
        container: searched.id.0.clone(),
        process,
        stdio: Some(StdioPlan { terminal: asked.tty, stdin: asked.stdin, stdin_once: asked.stdin_once }),
        log_path: searched.log_path.clone(),
        oom_file: cgroup.map(|path| cgroup_limits::oom_file(&context.cgroups, &path)).unwrap_or_default(),
        descriptors: kinds(&held),
    };
    let state = give(link, Adopt { namespaces: vec![], containers: vec![container] }, &held).await?;
    let entry = state.containers.iter().find(|entry| entry.container == searched.id.0);
    if let Some(entry) = entry {
        return Ok(Found::Alive { stop_signal_sent: entry.stop_signal_sent });
    }
    tracing::warn!(container_id = %searched.id, error = ?state.refused, "container not adopted by its shim");
    Ok(watch(context, &searched.id, Arc::clone(exited)).await)
}

fn kinds(descriptors: &HeldDescriptors) -> Vec<i32> {
    descriptors.iter().map(|(kind, _)| (*kind).into()).collect()
}

async fn give(link: &ShimLink, adopt: Adopt, held: &HeldDescriptors) -> Result<HelloReply, AdoptError> {
    let copies: io::Result<Vec<OwnedFd>> = held.iter().map(|(_, fd)| fd.try_clone()).collect();
    let copies = copies.map_err(|e| AdoptError::Failed(failure(&e)))?;
    match link.call(RequestPacket::adopt(adopt, copies), ADOPT_LIMIT).await {
        Ok(ShimAnswer::State(state)) => Ok(state),
        Ok(_) => Err(AdoptError::Failed(Failure::new("an unexpected answer of the shim"))),
        Err(error) => Err(AdoptError::Failed(failure(&error))),
    }
}

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const FORK_LIMIT: Duration = Duration::from_secs(30);
const ADOPT_LIMIT: Duration = Duration::from_secs(10);
/// Between them: a shortage of memory or of descriptors ends, a disk recovers.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOK_TRIES: u32 = 3;
/// A launch takes milliseconds; one that takes longer hangs in a file system.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);
const LAUNCH_PAUSE: Duration = Duration::from_millis(50);
