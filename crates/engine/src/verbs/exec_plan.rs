//! A process in a running container: what ExecSync and the streaming exec have in common.

use std::sync::Arc;
use std::time::Duration;

use podwright_cri::{Code, CriError};
use podwright_shim::client::{Descriptors, RequestPacket, ShimAnswer};
use podwright_shim::plan::{ExecPlan, LaunchPlan, ProcessPlan, ResolvedUser};
use podwright_shim::protocol::{ExecExited, ExecRequest, ExecStarted, StdioPlan};
use tokio::sync::oneshot;

use super::{VerbContext, failed, invalid, known_container, new_id};
use crate::context::EngineContext;
use crate::driver::read_plan;
use crate::machine::{ContainerId, SandboxId, ShownContainer};
use crate::shims::ShimLink;

/// A process to start.
pub(super) struct ExecAsked {
    pub(super) call: &'static str,
    pub(super) container: String,
    pub(super) command: Vec<String>,
    pub(super) stdio: StdioPlan,
    /// ExecSync: the shim kills it at this deadline, and when the engine is lost.
    pub(super) deadline: Option<Duration>,
    pub(super) sync: bool,
}

/// A process that runs.
pub(super) struct ExecRunning {
    pub(super) sandbox: SandboxId,
    pub(super) descriptors: Descriptors,
    pub(super) ended: oneshot::Receiver<ExecExited>,
}

/// Starts a process with the rights and the environment of the container.
pub(super) async fn start(calls: VerbContext<'_>, asked: ExecAsked) -> Result<ExecRunning, CriError> {
    let call = asked.call;
    if asked.command.first().is_none_or(String::is_empty) {
        return Err(invalid(call, "the request has no command"));
    }
    let (id, sandbox, link, user) = locate(calls.context, call, &asked.container).await?;
    // As any other user it could do more than the container.
    let unknown = || CriError::new(Code::Other, call, "the user of the container is not known".to_owned());
    let user = user.ok_or_else(unknown)?;
    let of = id.clone();
    let read = move |context: &EngineContext| read_plan(context, &of);
    let plan = calls.context.blocking(&sandbox, PLAN_LIMIT, read).await.map_err(|e| failed(call, &e))?;
    let plan = exec_plan(plan, asked.command, user, asked.stdio).ok_or_else(|| invalid(call, "a NUL byte"))?;
    let exec = new_id(call)?;
    let ended = calls.driver.execs.expect(&sandbox, &exec);
    let milliseconds = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let request = ExecRequest {
        container: id.0,
        exec,
        stdio: Some(asked.stdio),
        sync: asked.sync,
        deadline_ms: asked.deadline.map_or(0, milliseconds),
    };
    let other = |message: String| CriError::new(Code::Other, call, message);
    let packet = RequestPacket::exec(request, &plan).map_err(|error| other(error.to_string()))?;
    match link.call(packet, START_LIMIT).await {
        Ok(ShimAnswer::ExecStarted { descriptors, started: ExecStarted { .. } }) => {
            Ok(ExecRunning { sandbox, descriptors, ended })
        }
        Ok(ShimAnswer::LaunchFailed(failed)) => Err(other(failed.text)),
        Ok(_) => Err(other("an unexpected answer of the shim".into())),
        Err(error) => Err(other(error.to_string())),
    }
}

/// The user is `None` if the shim was lost before it could report it.
pub(super) type Located = (ContainerId, SandboxId, ShimLink, Option<ResolvedUser>);

/// Waits while the shim of the container is replaced: the container is shown as running meanwhile.
pub(super) async fn locate(context: &Arc<EngineContext>, call: &'static str, text: &str) -> Result<Located, CriError> {
    let until = tokio::time::Instant::now() + ADOPT_LIMIT;
    loop {
        let found = present(context, call, text);
        if found.is_ok() || !is_adopted(context, call, text) || tokio::time::Instant::now() >= until {
            return found;
        }
        tokio::time::sleep(ADOPT_PAUSE).await;
    }
}

/// Another shim is about to take the container over.
fn is_adopted(context: &EngineContext, call: &'static str, text: &str) -> bool {
    let objects = context.objects();
    let Ok(id) = known_container(&objects, call, text) else { return false };
    let runs = objects.machines.container(&id).and_then(|container| container.shown()) == Some(ShownContainer::Running);
    let sandbox = objects.containers.get(&id).map(|entry| SandboxId(entry.record.sandbox_id.clone()));
    let sandbox = sandbox.and_then(|id| objects.machines.sandbox(&id));
    runs && sandbox.is_some_and(|sandbox| sandbox.is_adopting())
}

fn present(context: &EngineContext, call: &'static str, text: &str) -> Result<Located, CriError> {
    let objects = context.objects();
    let id = known_container(&objects, call, text)?;
    let not_running = || CriError::new(Code::Other, call, format!("container {text:?} is not running"));
    if objects.machines.container(&id).is_none_or(|container| container.refuses_exec()) {
        return Err(not_running());
    }
    let entry = objects.containers.get(&id).ok_or_else(not_running)?;
    let sandbox = SandboxId(entry.record.sandbox_id.clone());
    let link = objects.sandboxes.get(&sandbox).and_then(|sandbox| sandbox.link.clone()).ok_or_else(not_running)?;
    Ok((id, sandbox, link, entry.user().cloned()))
}

/// The plan of the init with another command. `None`: the command can not be passed to the kernel.
fn exec_plan(plan: LaunchPlan, command: Vec<String>, user: ResolvedUser, stdio: StdioPlan) -> Option<ExecPlan> {
    if command.iter().any(|argument| argument.contains('\0')) {
        return None;
    }
    let mut process = plan.process.unwrap_or_default();
    if stdio.terminal && !process.env.iter().any(|entry| entry.starts_with(b"TERM=")) {
        process.env.push(b"TERM=xterm".to_vec());
    }
    let argv = command.into_iter().map(String::into_bytes).collect();
    Some(ExecPlan {
        container_id: plan.container_id,
        process: Some(ProcessPlan { argv, terminal: stdio.terminal, ..process }),
        user: Some(user),
        cgroups: plan.cgroups,
        oom_score_adj: plan.oom_score_adj,
        uid_mappings: plan.uid_mappings,
        gid_mappings: plan.gid_mappings,
        personality: plan.personality,
        runtime: plan.runtime,
    })
}

const PLAN_LIMIT: Duration = Duration::from_secs(10);
/// A shim is replaced within milliseconds on a host that is not overloaded.
const ADOPT_LIMIT: Duration = Duration::from_secs(10);
const ADOPT_PAUSE: Duration = Duration::from_millis(20);
/// The shim gives up a launch that hangs.
const START_LIMIT: Duration = Duration::from_secs(150);
