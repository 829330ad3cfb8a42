//! The steps of a sandbox. Each can be repeated.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::v1;
use podwright_linux::cgroup::{CgroupPath, CgroupResources};
use podwright_linux::mount::{self, Tmpfs};
use podwright_linux::pidfd::PidFd;
use podwright_net::{AttachRequest, Attachment, ReleaseRequest, ResolvConf, hosts_file};
use podwright_shim::client::{RequestPacket, ShimAnswer};
use podwright_shim::protocol::{DescriptorKind, ShimShutdown, request};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::context::{EngineContext, failure, remove_tree};
use crate::device_rules;
use crate::machine::{Failure, SandboxId, SandboxStep};
use crate::objects::{HeldDescriptors, find};
use crate::plan;
use crate::pod_network;
use crate::recover;
use crate::shims::{ShimCallError, ShimLink, make_dir};
use crate::spec;
use crate::store::SandboxRecord;

/// Performs a step, after an earlier one of the same sandbox has ended.
pub(super) async fn perform(context: &Arc<EngineContext>, id: &SandboxId, step: SandboxStep) -> Result<(), Failure> {
    let (record, steps) = {
        let objects = context.objects();
        let entry = objects.sandboxes.get(id).ok_or_else(|| Failure::new("the sandbox is gone"))?;
        (entry.record.clone(), Arc::clone(&entry.steps))
    };
    let _in_turn = steps.lock().await;
    match step {
        SandboxStep::WriteRecord => write_record(context, id, record).await,
        SandboxStep::ForkShim => fork_shim(context, id).await,
        SandboxStep::SetUpNamespaces => set_up_namespaces(context, id, &record).await,
        SandboxStep::Attach => attach(context, id, record).await,
        SandboxStep::EndPause => end_pause(context, id, &record).await,
        SandboxStep::ReleaseNetwork => release_network(context, id, record).await,
        SandboxStep::ReleaseNamespaces => release_namespaces(context, id, record).await,
        SandboxStep::ShutDownShim => shut_down_shim(context, id).await,
        SandboxStep::RemoveFiles => remove_files(context, id, record).await,
        // Has a result of its own.
        SandboxStep::Adopt => Ok(()),
    }
}

async fn write_record(context: &Arc<EngineContext>, id: &SandboxId, record: SandboxRecord) -> Result<(), Failure> {
    let of = id.clone();
    context.blocking(id, FILES_LIMIT, move |context| context.store.write_sandbox(&of, &record)).await
}

async fn fork_shim(context: &Arc<EngineContext>, id: &SandboxId) -> Result<(), Failure> {
    let of = id.clone();
    let shim = context.blocking(id, FORK_LIMIT, move |context| context.shims.fork(&of)).await?;
    let link = ShimLink::start(id.clone(), shim, context.reports.clone()).map_err(|e| failure(&e))?;
    set_link(context, id, &link);
    link.hello(&context.boot_id).await.map_err(|e| failure(&e))?;
    Ok(())
}

fn set_link(context: &EngineContext, id: &SandboxId, link: &ShimLink) {
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.link = Some(link.clone());
    }
}

fn link(context: &EngineContext, id: &SandboxId) -> Result<ShimLink, Failure> {
    let objects = context.objects();
    let link = objects.sandboxes.get(id).and_then(|entry| entry.link.clone());
    link.ok_or_else(|| Failure::new("the shim was lost"))
}

/// The cgroup of the pause process.
fn pause_cgroup(id: &SandboxId, record: &SandboxRecord) -> Result<CgroupPath, Failure> {
    let path = spec::pod_cgroup(&record.config).map_err(|e| failure(&e))?;
    CgroupPath::parse(&path).and_then(|path| path.join(&id.0)).map_err(|e| failure(&e))
}

async fn set_up_namespaces(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    record: &SandboxRecord,
) -> Result<(), Failure> {
    let cgroup = pause_cgroup(id, record)?;
    let plan = plan::setup_plan(&record.config, context.memberships(&cgroup)).map_err(|e| failure(&e))?;
    if plan.pause {
        let create = move |context: &EngineContext| {
            context.cgroups.create(&cgroup, &CgroupResources::default())?;
            context.cgroups.set_devices(&cgroup, &device_rules::of_pause())
        };
        context.blocking(id, FILES_LIMIT, create).await?;
    }
    let packet = RequestPacket::setup(&plan).map_err(|e| failure(&e))?;
    let descriptors: HeldDescriptors = match link(context, id)?.call(packet, SETUP_LIMIT).await {
        Ok(ShimAnswer::Setup { descriptors, .. }) => {
            descriptors.into_iter().map(|(kind, fd)| (kind, Arc::new(fd))).collect()
        }
        Ok(ShimAnswer::LaunchFailed(failed)) => return Err(Failure::new(failed.text)),
        Ok(_) => return Err(failure(&ShimCallError::Unexpected)),
        Err(error) => return Err(failure(&error)),
    };
    let netns = find(&descriptors, DescriptorKind::Net);
    let namespaces = recover::identities(&descriptors).map_err(|e| failure(&e))?;
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.descriptors = descriptors;
        // Written with the addresses.
        entry.record.namespaces = namespaces;
    }
    if let Some(netns) = netns {
        let of = id.clone();
        context.blocking(id, FILES_LIMIT, move |context| context.pins.pin(&of.0, netns.as_ref()).map(drop)).await?;
    }
    Ok(())
}

/// Connects the network, writes the files that depend on its addresses, and mounts the shared memory.
async fn attach(context: &Arc<EngineContext>, id: &SandboxId, record: SandboxRecord) -> Result<(), Failure> {
    let of = id.clone();
    let config = record.config;
    let addresses = context.blocking(id, NETWORK_LIMIT, move |context| attach_blocking(context, &of, &config)).await?;
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.record.addresses = addresses.iter().map(IpAddr::to_string).collect();
    }
    Ok(())
}

/// Why a sandbox could not be connected or given its files.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("connect the network")]
    Network(#[from] podwright_net::NetworkError),
    #[error(transparent)]
    Request(#[from] pod_network::PortMappingError),
    #[error("DNS configuration")]
    Dns(#[from] podwright_net::DnsFileError),
    #[error("{0}")]
    File(&'static str, #[source] io::Error),
    #[error(transparent)]
    Store(#[from] crate::store::EngineStoreError),
}

fn attach_blocking(
    context: &EngineContext,
    id: &SandboxId,
    config: &v1::PodSandboxConfig,
) -> Result<Vec<IpAddr>, AttachError> {
    let dns = config.dns_config.clone().unwrap_or_default();
    let dns = ResolvConf { servers: &dns.servers, searches: &dns.searches, options: &dns.options };
    let mut addresses = vec![];
    if pod_network::has_own(config) {
        let (pod, ports) = (pod_network::identity(id, config), pod_network::host_ports(config)?);
        let netns = context.pins.path(&id.0);
        let bandwidth = None;
        let request = AttachRequest { pod: &pod, netns: &netns, ports: &ports, bandwidth, dns };
        addresses = context.network.add(&request)?.addresses;
    }
    write_files(context, id, config, &dns, &addresses)?;
    if pod_network::has_own_ipc(config) {
        let shm = context.shm_dir(id);
        make_dir(&shm).map_err(|e| AttachError::File("make the directory of the shared memory", e))?;
        let tmpfs = Tmpfs { size: Some(SHM_BYTES), mode: 0o1777 };
        mount::tmpfs(&shm, &tmpfs).map_err(|e| AttachError::File("mount the shared memory", e))?;
    }
    Ok(addresses)
}

fn write_files(
    context: &EngineContext,
    id: &SandboxId,
    config: &v1::PodSandboxConfig,
    dns: &ResolvConf<'_>,
    addresses: &[IpAddr],
) -> Result<(), AttachError> {
    let dir = context.store.sandbox_dir(id)?;
    let hostname = if config.hostname.is_empty() { &context.host.hostname } else { &config.hostname };
    let hosts = match pod_network::has_own(config) {
        true => hosts_file(hostname, addresses)?,
        // The host's network has the host's names.
        false => {
            fs::read_to_string("/etc/hosts").or_else(absent).map_err(|e| AttachError::File("read /etc/hosts", e))?
        }
    };
    let resolv = match dns.is_empty() {
        false => dns.render()?,
        true => fs::read_to_string("/etc/resolv.conf")
            .or_else(absent)
            .map_err(|e| AttachError::File("read /etc/resolv.conf", e))?,
    };
    let write = |name: &str, text: &str| write_public(&dir.join(name), text);
    write("hosts", &hosts).map_err(|e| AttachError::File("write hosts", e))?;
    write("hostname", &format!("{hostname}\n")).map_err(|e| AttachError::File("write hostname", e))?;
    write("resolv.conf", &resolv).map_err(|e| AttachError::File("write resolv.conf", e))
}

fn absent(error: io::Error) -> io::Result<String> {
    if error.kind() == io::ErrorKind::NotFound { Ok(String::new()) } else { Err(error) }
}

/// Containers of any user read it.
fn write_public(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// Without a descriptor the shim kills it when it is shut down.
async fn end_pause(context: &Arc<EngineContext>, id: &SandboxId, record: &SandboxRecord) -> Result<(), Failure> {
    let pidfd = {
        let objects = context.objects();
        objects.sandboxes.get(id).and_then(|entry| find(&entry.descriptors, DescriptorKind::Pidfd))
    };
    let cgroup = pause_cgroup(id, record)?;
    let end = move |context: &EngineContext| -> io::Result<()> {
        if let Some(pidfd) = pidfd {
            context.cgroups.thaw(&cgroup);
            end_process(&pidfd)?;
        }
        context.cgroups.kill_all(&cgroup, CGROUP_LIMIT).map_err(io::Error::other)?;
        context.cgroups.remove(&cgroup, CGROUP_LIMIT).map_err(io::Error::other)
    };
    context.blocking(id, FILES_LIMIT, end).await
}

/// Kills a process and waits for its end.
fn end_process(pidfd: &std::os::fd::OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match PidFd::from(pidfd.try_clone()?).wait_exit(CGROUP_LIMIT)? {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not end")),
    }
}

async fn release_network(context: &Arc<EngineContext>, id: &SandboxId, record: SandboxRecord) -> Result<(), Failure> {
    let of = id.clone();
    let release = move |context: &EngineContext| {
        let pod = pod_network::identity(&of, &record.config);
        let netns = context.pins.path(&of.0);
        // Without the pin the namespace is gone: plugins get no path then.
        let netns = netns.exists().then_some(netns);
        let ports = pod_network::host_ports(&record.config).unwrap_or_default();
        let addresses: Vec<IpAddr> = record.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let attachment = (!addresses.is_empty()).then(|| Attachment { pod: pod.clone(), addresses, ports });
        let request = ReleaseRequest { pod: &pod, netns: netns.as_deref(), attachment: attachment.as_ref() };
        context.network.release(&request)
    };
    context.blocking(id, NETWORK_LIMIT, release).await?;
    // The record is written when the stop is complete.
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.record.addresses.clear();
    }
    Ok(())
}

async fn release_namespaces(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    record: SandboxRecord,
) -> Result<(), Failure> {
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.descriptors.clear();
    }
    let of = id.clone();
    let release = move |context: &EngineContext| {
        context.pins.unpin(&of.0)?;
        if !pod_network::has_own_ipc(&record.config) {
            return Ok(());
        }
        match mount::detach(&context.shm_dir(&of)) {
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::NOENT)) => Ok(()),
            other => other,
        }
    };
    context.blocking(id, FILES_LIMIT, release).await
}

/// One that refuses because a container has not ended for it yet is asked again, and killed in the end.
async fn shut_down_shim(context: &Arc<EngineContext>, id: &SandboxId) -> Result<(), Failure> {
    let known = context.objects().sandboxes.get(id).and_then(|entry| entry.link.clone());
    let link = match known {
        Some(link) => link,
        None => {
            let of = id.clone();
            let living = context.blocking(id, FORK_LIMIT, move |context| context.shims.connect(&of)).await?;
            let Some(shim) = living else { return Ok(()) };
            let link = ShimLink::start(id.clone(), shim, context.reports.clone()).map_err(|e| failure(&e))?;
            // A shim that does not answer is killed below.
            let _ = link.hello(&context.boot_id).await;
            link
        }
    };
    for _ in 0..SHUTDOWN_TRIES {
        let packet = RequestPacket::new(request::RequestKind::Shutdown(ShimShutdown {}));
        match link.call(packet, SHUTDOWN_LIMIT).await {
            Err(ShimCallError::Refused(_)) => tokio::time::sleep(SHUTDOWN_PAUSE).await,
            Ok(_) | Err(_) => break,
        }
    }
    let pidfd = Arc::clone(link.pidfd());
    let end = move |_: &EngineContext| -> io::Result<()> {
        match PidFd::from(pidfd.try_clone()?).wait_exit(SHUTDOWN_WAIT)? {
            true => Ok(()),
            false => end_process(&pidfd),
        }
    };
    context.blocking(id, FILES_LIMIT, end).await?;
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.link = None;
    }
    Ok(())
}

async fn remove_files(context: &Arc<EngineContext>, id: &SandboxId, record: SandboxRecord) -> Result<(), Failure> {
    let of = id.clone();
    let remove = move |context: &EngineContext| -> io::Result<()> {
        remove_tree(&context.shims.pod_dir(&of))?;
        if let Some(cgroup) = spec::own_pod_cgroup(&record.config, &of.0) {
            let cgroup = CgroupPath::parse(cgroup).map_err(io::Error::other)?;
            context.cgroups.remove(&cgroup, CGROUP_LIMIT).map_err(io::Error::other)?;
        }
        context.store.remove_sandbox(&of).map_err(io::Error::other)
    };
    context.blocking(id, FILES_LIMIT, remove).await
}

/// As every runtime has it.
const SHM_BYTES: u64 = 64 << 20;
/// For work on local files and cgroups; a disk that takes longer hangs.
const FILES_LIMIT: Duration = Duration::from_secs(60);
/// The zygote has ten seconds, twice.
const FORK_LIMIT: Duration = Duration::from_secs(30);
const SETUP_LIMIT: Duration = Duration::from_secs(60);
/// Plugins have their own limit, which is shorter.
const NETWORK_LIMIT: Duration = Duration::from_secs(180);
const CGROUP_LIMIT: Duration = Duration::from_secs(5);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);
/// A container's last output is drained for two seconds.
const SHUTDOWN_TRIES: u32 = 30;
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(100);
