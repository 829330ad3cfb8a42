//! The steps of a container. Each can be repeated.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oci_spec::runtime::Spec;
use podwright_cri::v1;
use podwright_linux::cgroup::{CgroupError, CgroupPath};
use podwright_shim::client::RequestPacket;
use podwright_shim::plan::LaunchPlan;
use podwright_shim::protocol::{AbortLaunch, LaunchRequest, StdioPlan, request};
use podwright_tasks::PoolKey;
use prost::Message;

use crate::cgroup_limits;
use crate::context::{EngineContext, failure, remove_tree};
use crate::device_rules;
use crate::handlers::Handler;
use crate::machine::{ContainerId, Failure, SandboxId};
use crate::shims::{ShimLink, make_dir};
use crate::spec;
use crate::store::SandboxRecord;
use crate::views;

/// What a launch needs of the objects.
struct LaunchInputs {
    sandbox: SandboxId,
    link: ShimLink,
    config: v1::ContainerConfig,
    cgroup: CgroupPath,
    log_path: String,
    abort: Arc<std::sync::atomic::AtomicBool>,
}

/// Sends the launch to the shim. Its result is a report of the shim; an error means that nothing was launched.
pub(super) async fn launch(context: &Arc<EngineContext>, id: &ContainerId) -> Result<(), Failure> {
    let limits = context.objects().containers.get(id).map(|entry| Arc::clone(&entry.limits));
    let in_turn = limits.ok_or_else(|| Failure::new("the container is gone"))?.lock_owned().await;
    let inputs = launch_inputs(context, id)?;
    let (of, sandbox, cgroup) = (id.clone(), inputs.sandbox.clone(), inputs.cgroup.clone());
    let resources = inputs.config.linux.as_ref().and_then(|l| l.resources.clone()).unwrap_or_default();
    let prepare = move |context: &EngineContext| -> io::Result<(LaunchPlan, String)> {
        cgroup_limits::create(&context.cgroups, &cgroup, &resources).map_err(|e| io::Error::other(failure(&e)))?;
        let rules = device_rules::of_spec(&read_spec(context, &of)?);
        context.cgroups.set_devices(&cgroup, &rules).map_err(|e| io::Error::other(failure(&e)))?;
        make_dir(&context.staging_dir(&sandbox, &of))?;
        let plan = read_plan(context, &of)?;
        Ok((plan, cgroup_limits::oom_file(&context.cgroups, &cgroup)))
    };
    let (plan, oom_file) = context.blocking(&inputs.sandbox, PREPARE_LIMIT, prepare).await?;
    drop(in_turn);
    let LaunchInputs { link, config, log_path, abort, .. } = inputs;
    let stdio = StdioPlan { terminal: config.tty, stdin: config.stdin, stdin_once: config.stdin_once };
    let request = LaunchRequest {
        container: id.0.clone(),
        stdio: Some(stdio),
        deadline_ms: 0,
        log_path,
        oom_file,
        target_container: target_container(&config),
    };
    let packet = RequestPacket::launch(request, &plan).map_err(|e| failure(&e))?;
    if abort.load(Ordering::SeqCst) {
        return Err(Failure::new("the launch was aborted"));
    }
    link.launch(id.clone(), packet).await.map_err(|e| failure(&e))?;
    // An abort that came before the launch was queued has found nothing to abort.
    if abort.load(Ordering::SeqCst) {
        link.notify(request::RequestKind::AbortLaunch(AbortLaunch { container: id.0.clone() }));
    }
    Ok(())
}

fn launch_inputs(context: &EngineContext, id: &ContainerId) -> Result<LaunchInputs, Failure> {
    let objects = context.objects();
    let entry = objects.containers.get(id).ok_or_else(|| Failure::new("the container is gone"))?;
    let sandbox = SandboxId(entry.record.sandbox_id.clone());
    let pod = objects.sandboxes.get(&sandbox).ok_or_else(|| Failure::new("the sandbox is gone"))?;
    Ok(LaunchInputs {
        link: pod.link.clone().ok_or_else(|| Failure::new("the shim was lost"))?,
        config: entry.record.config.clone(),
        cgroup: cgroup(&pod.record.config, id)?,
        log_path: views::log_path(&objects, entry),
        abort: Arc::clone(&entry.abort_launch),
        sandbox,
    })
}

/// The cgroup of a container.
pub(super) fn cgroup(config: &v1::PodSandboxConfig, id: &ContainerId) -> Result<CgroupPath, Failure> {
    let pod = spec::pod_cgroup(config).map_err(|e| failure(&e))?;
    CgroupPath::parse(&pod).and_then(|pod| pod.join(&id.0)).map_err(|e| failure(&e))
}

/// The plan that was made with the container.
pub(crate) fn read_plan(context: &EngineContext, id: &ContainerId) -> io::Result<LaunchPlan> {
    let path = context.store.container_dir(id).map_err(io::Error::other)?.join(PLAN_FILE);
    LaunchPlan::decode(fs::read(path)?.as_slice()).map_err(io::Error::other)
}

fn read_spec(context: &EngineContext, id: &ContainerId) -> io::Result<Spec> {
    let path = context.store.container_dir(id).map_err(io::Error::other)?.join(SPEC_FILE);
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// The container whose PID namespace is joined; empty: none.
fn target_container(config: &v1::ContainerConfig) -> String {
    let options = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let options = options.and_then(|s| s.namespace_options.as_ref());
    let target = options.filter(|options| options.pid == v1::NamespaceMode::Target as i32);
    target.map(|options| options.target_id.clone()).unwrap_or_default()
}

/// Where a container is, and by whom it was made.
struct Location {
    sandbox: SandboxId,
    cgroup: CgroupPath,
    handler: Handler,
}

/// `None`: it is gone.
fn location(context: &EngineContext, id: &ContainerId) -> Option<Location> {
    let objects = context.objects();
    let sandbox = SandboxId(objects.containers.get(id)?.record.sandbox_id.clone());
    let SandboxRecord { config, handler, .. } = &objects.sandboxes.get(&sandbox)?.record;
    let cgroup = cgroup(config, id).ok()?;
    // A handler that is configured no more can not be asked: the cgroup is emptied all the same.
    let handler = context.settings.handler(handler).unwrap_or(Handler::Builtin);
    Some(Location { sandbox, cgroup, handler })
}

/// Ends what is left of a container in its runtime and in its cgroup.
fn end_processes(context: &EngineContext, id: &ContainerId, location: &Location) -> Result<(), CgroupError> {
    if let Err(error) = location.handler.delete(&id.0) {
        tracing::warn!(container_id = %id, %error, "container not deleted by its runtime");
    }
    context.cgroups.kill_all(&location.cgroup, KILL_LIMIT)?;
    context.cgroups.remove(&location.cgroup, REMOVE_LIMIT)
}

/// Thaws a container that was killed: on v1 the signal has no effect on it before.
pub(super) async fn thaw(context: &Arc<EngineContext>, id: &ContainerId) {
    let Some(Location { sandbox, cgroup, .. }) = location(context, id) else { return };
    let thaw = move |context: &EngineContext| -> io::Result<()> {
        context.cgroups.thaw(&cgroup);
        Ok(())
    };
    if let Err(error) = context.blocking_on(cgroup_work(&sandbox, id), KILL_LIMIT, thaw).await {
        tracing::warn!(container_id = %id, %error, "killed container not thawed");
    }
}

/// Kills what is left in the cgroup of a container that has ended, and removes the cgroup.
pub(super) async fn end_cgroup(context: &Arc<EngineContext>, id: &ContainerId) {
    let Some(location) = location(context, id) else { return };
    let (of, sandbox) = (id.clone(), location.sandbox.clone());
    let end = move |context: &EngineContext| end_processes(context, &of, &location);
    if let Err(error) = context.blocking_on(cgroup_work(&sandbox, id), PREPARE_LIMIT, end).await {
        tracing::warn!(container_id = %id, %error, "cgroup of an ended container not removed");
    }
}

/// Removes everything of a container that has no process.
pub(super) async fn clean_up(context: &Arc<EngineContext>, id: &ContainerId) -> Result<(), Failure> {
    let location = location(context, id).ok_or_else(|| Failure::new("the container is gone"))?;
    let sandbox = location.sandbox.clone();
    let (of, pod) = (id.clone(), sandbox.clone());
    let remove = move |context: &EngineContext| -> io::Result<()> {
        let text = |error: &dyn std::error::Error| io::Error::other(failure(error));
        end_processes(context, &of, &location).map_err(|e| text(&e))?;
        let run = context.shims.pod_dir(&pod);
        remove_tree(&context.staging_dir(&pod, &of))?;
        remove_tree(&run.join(podwright_shim::protocol::CONTAINERS_DIR).join(&of.0))?;
        context.store.remove_container(&of).map_err(|e| text(&e))
    };
    context.blocking_on(cgroup_work(&sandbox, id), PREPARE_LIMIT, remove).await
}

/// A process that can not be killed holds up its own container, not the starts and stops of the others.
fn cgroup_work(sandbox: &SandboxId, id: &ContainerId) -> PoolKey {
    PoolKey::new(format!("cgroups {sandbox}"), format!("cgroup {id}"))
}

/// The encoded plan of a container, in its directory.
pub(super) const PLAN_FILE: &str = "plan";
/// The OCI runtime specification of a container, in its directory.
pub(crate) const SPEC_FILE: &str = "config.json";
/// A disk or kernel that takes longer hangs.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
