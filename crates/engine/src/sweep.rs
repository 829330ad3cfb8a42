//! What no record owns is removed: at the start of the engine, and then from time to time. What can not be attributed is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oci_spec::runtime::Spec;
use podwright_image::GcReport;
use podwright_linux::cgroup::CgroupPath;
use podwright_linux::pidfd::PidFd;
use podwright_linux::{exit_info, mount};
use podwright_net::{Attachment, OwnedPod, ReconcileSummary};
use rustix::process::{Signal, pidfd_send_signal};

use crate::context::{EngineContext, failure, remove_tree};
use crate::driver::SPEC_FILE;
use crate::handlers::Handler;
use crate::images::ContainersOnDisk;
use crate::machine::{ContainerId, SandboxId};
use crate::{pod_network, recover};

/// Runs as long as the engine. The network is restored more often: anyone can flush its tables.
pub(crate) async fn run(context: Arc<EngineContext>) {
    let mut zombies = BTreeSet::new();
    for round in 0_u32.. {
        reconcile_network(&context).await;
        if round % FILES_EVERY == 0 {
            // What an earlier engine left belongs to no call of this one; what is newer than that may.
            let before = if round == 0 { context.opened_at } else { SystemTime::now() - AGE_MIN };
            let shared = Arc::clone(&context);
            let swept = context.pool.run("engine sweep", SWEEP_LIMIT, move || sweep_files(&shared, before)).await;
            if let Err(error) = swept {
                tracing::warn!(%error, "leftovers not removed");
            }
            // Containers that were removed above need their layers no more.
            collect_garbage(&context).await;
        }
        zombies = match context.shims.zygote_pid() {
            Ok(zygote) => reap_zombies(&zombies, zygote),
            Err(_) => zombies,
        };
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Content of images that nothing uses: what a failed pull has brought, and layers of removed containers whose image is gone. A pull
/// and a container that is being created hold theirs by a lease.
async fn collect_garbage(context: &Arc<EngineContext>) {
    let shared = Arc::clone(context);
    let collect = move || shared.images.collect_garbage(|| shared.gc_roots()).map_err(|error| failure(&error).message);
    let collected = context.pool.run("engine images", SWEEP_LIMIT, collect).await;
    match collected.map_err(|error| error.to_string()).flatten() {
        Ok(report) if report != GcReport::default() => {
            let (count, bytes) = (report.blobs + report.layers, report.bytes);
            tracing::info!(count, bytes, "unused content of images deleted");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(error, "unused content of images not deleted"),
    }
}

/// Restores what others removed and removes what no pod owns.
pub(crate) async fn reconcile_network(context: &Arc<EngineContext>) {
    let shared = Arc::clone(context);
    let reconcile = move || {
        // The list is made first: a pod that comes later is known to the network itself.
        let owned = owned_pods(&shared);
        shared.network.reconcile(&owned).map_err(|error| failure(&error).message)
    };
    let done = context.pool.run("engine network", SWEEP_LIMIT, reconcile).await;
    match done.map_err(|error| error.to_string()).flatten() {
        Ok(summary) if summary != ReconcileSummary::default() => tracing::info!(note = ?summary, "network restored"),
        Ok(_) => {}
        Err(error) => tracing::warn!(error, "network not reconciled"),
    }
}

/// Every sandbox that may have a network, those that are being made included. Only one that is ready has its network restored: the
/// others are about to release theirs. What a released one left, because its engine died before the address was free, is removed.
fn owned_pods(context: &EngineContext) -> Vec<OwnedPod> {
    let unrecorded = unrecorded_pods(context);
    let objects = context.objects();
    let has_released = |id: &SandboxId| {
        let sandbox = objects.machines.sandbox(id);
        sandbox.is_some_and(|sandbox| sandbox.is_shown() && !sandbox.is_ready() && !sandbox.held().network)
    };
    let pods = objects.sandboxes.iter().filter(|(id, _)| !has_released(id)).map(|(id, entry)| {
        let addresses: Vec<_> = entry.record.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let ports = pod_network::host_ports(&entry.record.config).unwrap_or_default();
        let pod = pod_network::identity(id, &entry.record.config);
        let is_ready = objects.machines.sandbox(id).is_some_and(|sandbox| sandbox.is_ready());
        let attachment = (is_ready && !addresses.is_empty()).then_some(Attachment { pod, addresses, ports });
        OwnedPod { sandbox_id: id.0.clone(), attachment }
    });
    // Nothing is known of these but that they may have an address.
    let unknown = context.unreadable.sandboxes().map(|id| id.0.clone()).chain(unrecorded);
    pods.chain(unknown.map(|sandbox_id| OwnedPod { sandbox_id, attachment: None })).collect()
}

/// Ids of sandboxes that have a run directory and no record. They may run: the sweep removes the directory once it has ended them.
pub(crate) fn unrecorded_pods(context: &EngineContext) -> Vec<String> {
    let all = names(&context.settings.run_dir.join(PODS_DIR));
    all.into_iter().filter(|name| !is_sandbox(context, name)).collect()
}

fn is_sandbox(context: &EngineContext, name: &str) -> bool {
    let id = SandboxId(name.to_owned());
    context.unreadable.has_sandbox(&id) || context.objects().sandboxes.contains_key(&id)
}

fn container_names(pod: &Path) -> Vec<String> {
    names(&pod.join(podwright_shim::protocol::CONTAINERS_DIR))
}

/// Directories of sandboxes and containers without an object that were last changed before this time. Blocks.
fn sweep_files(context: &EngineContext, before: SystemTime) {
    let engine = context.settings.root_dir.join("engine");
    let run = context.settings.run_dir.join(PODS_DIR);
    let is_sandbox = |name: &str| is_sandbox(context, name);
    let is_container = |name: &str| {
        let id = ContainerId(name.to_owned());
        context.unreadable.has_container(&id) || context.objects().containers.contains_key(&id)
    };
    for name in leftovers(&run, before, &is_sandbox) {
        let path = run.join(&name);
        let containers = container_names(&path);
        // Its sandbox is not known to be unreadable: nothing reads it but the container's own record.
        if containers.iter().any(|id| context.unreadable.has_container(&ContainerId(id.clone()))) {
            continue;
        }
        if containers.iter().any(|id| is_unknown_process(context, id, &name)) {
            tracing::warn!(sandbox_id = name, "pod without a record runs and its cgroup is not known, left alone");
            continue;
        }
        end_shim(context, &SandboxId(name.clone()));
        // Its containers would run on without their files.
        let survivors = containers.iter().filter(|id| !end_container(context, id, Some(&name))).count();
        if survivors > 0 {
            continue;
        }
        let _ = mount::detach(&path.join("shm"));
        remove(&path);
    }
    // What was left alone keeps its files.
    let left: BTreeSet<String> = unrecorded_pods(context).into_iter().collect();
    let left_containers: BTreeSet<String> = left.iter().flat_map(|name| container_names(&run.join(name))).collect();
    for name in leftovers(&engine.join("sandboxes"), before, &|name| left.contains(name) || is_sandbox(name)) {
        remove(&engine.join("sandboxes").join(name));
    }
    let is_kept = |name: &str| left_containers.contains(name) || is_container(name);
    for name in leftovers(&engine.join("containers"), before, &is_kept) {
        // While the directory is there, the container is known to be ours.
        if !end_container(context, &name, None) || !delete_from_runtimes(context, &name) {
            continue;
        }
        remove(&engine.join("containers").join(name));
    }
    end_leftover_processes(context);
    sweep_runtimes(context, before, &is_kept);
}

/// What other runtimes have of a container without an object. `false`: something is left.
fn delete_from_runtimes(context: &EngineContext, id: &str) -> bool {
    let handlers = context.settings.runtimes.keys().filter_map(|name| context.settings.handler(name));
    // Each is tried, whatever the others answer.
    handlers.filter(|handler| !delete_leftover(handler, id)).count() == 0
}

/// What other runtimes have of containers without an object or directory. Only directories of this engine are listed: where the operator
/// names another one, containers of other programs may be in it.
fn sweep_runtimes(context: &EngineContext, before: SystemTime, is_container: &dyn Fn(&str) -> bool) {
    let own = context.settings.runtimes.iter().filter(|(_, runtime)| runtime.root.is_none());
    for handler in own.filter_map(|(name, _)| context.settings.handler(name)) {
        let Handler::External { root, .. } = &handler else { continue };
        for id in leftovers(root, before, is_container) {
            delete_leftover(&handler, &id);
        }
    }
}

fn delete_leftover(handler: &Handler, id: &str) -> bool {
    let deleted = handler.delete(id);
    deleted
        .inspect_err(|error| tracing::warn!(container_id = id, %error, "leftover of another runtime not deleted"))
        .is_ok()
}

/// Processes that a container has left behind are killed at its exit. An engine that was ended just then, or a kill that took too
/// long, leaves them: nothing would end them before the container is removed, which may be days later.
fn end_leftover_processes(context: &EngineContext) {
    let ended: Vec<(ContainerId, CgroupPath)> = {
        let objects = context.objects();
        let has_ended = |id: &&ContainerId| {
            let machine = objects.machines.container(id);
            machine.is_some_and(|container| container.exit().is_some() && !container.is_removing())
        };
        let ended = objects.containers.keys().filter(has_ended);
        ended.filter_map(|id| Some((id.clone(), context.measured(&objects, id)?.cgroup))).collect()
    };
    for (id, cgroup) in ended.into_iter().filter(|(_, cgroup)| context.cgroups.exists_in_one(cgroup)) {
        let killed = context.cgroups.kill_all(&cgroup, CGROUP_LIMIT);
        match killed.and_then(|()| context.cgroups.remove(&cgroup, CGROUP_LIMIT)) {
            Ok(()) => tracing::info!(container_id = %id, "processes of an ended container killed"),
            Err(error) => tracing::warn!(container_id = %id, %error, "processes of an ended container not killed"),
        }
    }
}

fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Names of a directory that have the form of an id, are known to no one, and were last changed before a time.
fn leftovers(dir: &Path, before: SystemTime, is_known: &dyn Fn(&str) -> bool) -> Vec<String> {
    let is_old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|at| at < before)
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().filter(is_old);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_id(name) && !is_known(name)).collect()
}

/// The shim of a pod that has no record.
fn end_shim(context: &EngineContext, id: &SandboxId) {
    if let Ok(Some(shim)) = context.shims.connect(id) {
        tracing::warn!(sandbox_id = %id, "ending a shim without a sandbox");
        let _ = pidfd_send_signal(&shim.pidfd, Signal::KILL);
    }
}

/// The names in a directory that have the form of an id.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_id(name)).collect()
}

/// Kills what runs in the cgroup of a container without a record, and the pause process of its pod. `false`: something is left.
fn end_container(context: &EngineContext, id: &str, sandbox: Option<&str>) -> bool {
    let cgroups = match cgroups_of(context, id, sandbox) {
        Ok(cgroups) => cgroups,
        Err(error) => {
            tracing::warn!(container_id = id, %error, "cgroup of a container without a record not found");
            return false;
        }
    };
    cgroups.iter().all(|cgroup| {
        let killed = context.cgroups.kill_all(cgroup, CGROUP_LIMIT);
        let ended = killed.and_then(|()| context.cgroups.remove(cgroup, CGROUP_LIMIT));
        ended
            .inspect_err(|error| tracing::warn!(container_id = id, %error, "container without a record not ended"))
            .is_ok()
    })
}

/// The process of the container runs and nothing says in which cgroup, so that it can not be ended.
fn is_unknown_process(context: &EngineContext, id: &str, sandbox: &str) -> bool {
    let is_unknown = cgroups_of(context, id, Some(sandbox)).is_ok_and(|cgroups| cgroups.is_empty());
    is_unknown && recover::may_run(context, &SandboxId(sandbox.to_owned()), &ContainerId(id.to_owned()))
}

/// Empty: the container was never made complete, so that nothing was started.
fn cgroups_of(context: &EngineContext, id: &str, sandbox: Option<&str>) -> std::io::Result<Vec<CgroupPath>> {
    let dir = context.store.container_dir(&ContainerId(id.to_owned())).map_err(std::io::Error::other)?;
    let spec = match fs::read(dir.join(SPEC_FILE)) {
        Ok(bytes) => match serde_json::from_slice::<Spec>(&bytes) {
            // A loss of power leaves zeros, and after it nothing runs.
            Err(error) if error.is_eof() || is_of_earlier_boot(context, &dir) => return Ok(vec![]),
            spec => spec.map_err(std::io::Error::other)?,
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_ref());
    let path = path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    // Only what is named after the container itself is killed.
    let Some(pod) = path.strip_suffix(id) else { return Ok(vec![]) };
    let all = std::iter::once(id).chain(sandbox).map(|name| CgroupPath::parse(pod).and_then(|pod| pod.join(name)));
    all.collect::<Result<_, _>>().map_err(std::io::Error::other)
}

/// It was last changed before this engine was opened, which was the first of this boot.
fn is_of_earlier_boot(context: &EngineContext, path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    context.run_dir.rebooted && modified.is_ok_and(|at| at < context.opened_at)
}

fn remove(path: &Path) {
    match remove_tree(path) {
        Ok(()) => tracing::info!(path = %path.display(), "leftover removed"),
        Err(error) => tracing::warn!(path = %path.display(), %error, "leftover not removed"),
    }
}

/// Processes of lost shims that ended as our children and that no one waits for: zombies that were there in the last round too.
/// The zygote is not one of them: its owner waits for it.
/// Returns the zombies of now.
fn reap_zombies(before: &BTreeSet<u32>, zygote: Option<u32>) -> BTreeSet<u32> {
    let own = std::process::id();
    let mut zombies = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse::<u32>().ok()));
        if state != Some("Z") || parent != Some(own) || zygote == Some(pid) {
            continue;
        }
        if before.contains(&pid) {
            let reaped = PidFd::open(pid).and_then(|pidfd| exit_info::poll(&pidfd, true));
            tracing::debug!(pid, ok = reaped.is_ok(), "zombie of a lost shim");
        } else {
            zombies.insert(pid);
        }
    }
    zombies
}

/// Below the run directory: one directory for each pod.
const PODS_DIR: &str = "pods";
const INTERVAL: Duration = Duration::from_secs(30);
/// Files are swept every five minutes.
const FILES_EVERY: u32 = 10;
const SWEEP_LIMIT: Duration = Duration::from_secs(120);
const CGROUP_LIMIT: Duration = Duration::from_secs(5);
/// What was made just now may belong to a call that has not reached the objects.
const AGE_MIN: Duration = Duration::from_secs(60);
