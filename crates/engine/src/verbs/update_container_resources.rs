//! UpdateContainerResources: limits that are not given stay. After a failure all are as before, in the cgroup and in the record.

use std::sync::Arc;
use std::time::Duration;

use podwright_cri::{CriError, v1};
use podwright_linux::cgroup::CgroupPath;

use super::{VerbContext, failed, invalid, known_container, not_found, refused};
use crate::cgroup_limits;
use crate::context::EngineContext;
use crate::driver::EngineCall;
use crate::machine::{SandboxId, ShownContainer};
use crate::spec;

pub(crate) async fn update_container_resources(
    calls: VerbContext<'_>,
    request: v1::UpdateContainerResourcesRequest,
) -> Result<(), CriError> {
    let asked = request.linux.ok_or_else(|| invalid(CALL, "the request has no resources"))?;
    let unknown = || not_found(CALL, "container", &request.container_id);
    let (id, limits) = {
        let objects = calls.context.objects();
        let id = known_container(&objects, CALL, &request.container_id)?;
        let limits = Arc::clone(&objects.containers.get(&id).ok_or_else(unknown)?.limits);
        (id, limits)
    };
    // A launch that has read the limits makes the cgroup first; another update has been recorded.
    let _in_turn = limits.lock().await;
    let (sandbox, merged, pod, is_running) = {
        let objects = calls.context.objects();
        let shown = objects.machines.container(&id).and_then(|container| container.shown());
        let entry = objects.containers.get(&id).ok_or_else(unknown)?;
        let sandbox = SandboxId(entry.record.sandbox_id.clone());
        let pod = objects.sandboxes.get(&sandbox).ok_or_else(unknown)?;
        let known = entry.record.config.linux.as_ref().and_then(|l| l.resources.clone()).unwrap_or_default();
        let is_running = match shown {
            Some(ShownContainer::Running) => true,
            Some(ShownContainer::Created) => false,
            _ => return Err(CriError::new(podwright_cri::Code::Other, CALL, "container is not running")),
        };
        let pod = spec::pod_cgroup(&pod.record.config).map_err(|error| invalid(CALL, error.to_string()))?;
        (sandbox, merge(known, asked), pod, is_running)
    };
    let (container, resources) = (id.0.clone(), merged.clone());
    let apply = move |context: &EngineContext| {
        let path = CgroupPath::parse(&pod).and_then(|pod| pod.join(&container))?;
        // One that was not started has no cgroup: its limits are set when it is. One that is being started has its cgroup already.
        match is_running || context.cgroups.exists_in_one(&path) {
            true => cgroup_limits::update(&context.cgroups, &path, &resources),
            false => Ok(()),
        }
    };
    calls.context.blocking(&sandbox, LIMIT, apply).await.map_err(|failure| failed(CALL, &failure))?;
    let call = EngineCall::SetResources(id, Box::new(merged));
    calls.driver.call(call).await.map_err(|failure| refused(CALL, failure))
}

/// What is given replaces what was known; zero and empty are "not given".
fn merge(known: v1::LinuxContainerResources, asked: v1::LinuxContainerResources) -> v1::LinuxContainerResources {
    let number = |asked: i64, known: i64| if asked == 0 { known } else { asked };
    let text = |asked: String, known: String| if asked.is_empty() { known } else { asked };
    let mut unified = known.unified;
    unified.extend(asked.unified);
    v1::LinuxContainerResources {
        cpu_period: number(asked.cpu_period, known.cpu_period),
        cpu_quota: number(asked.cpu_quota, known.cpu_quota),
        cpu_shares: number(asked.cpu_shares, known.cpu_shares),
        memory_limit_in_bytes: number(asked.memory_limit_in_bytes, known.memory_limit_in_bytes),
        oom_score_adj: number(asked.oom_score_adj, known.oom_score_adj),
        cpuset_cpus: text(asked.cpuset_cpus, known.cpuset_cpus),
        cpuset_mems: text(asked.cpuset_mems, known.cpuset_mems),
        hugepage_limits: if asked.hugepage_limits.is_empty() { known.hugepage_limits } else { asked.hugepage_limits },
        unified,
        memory_swap_limit_in_bytes: number(asked.memory_swap_limit_in_bytes, known.memory_swap_limit_in_bytes),
    }
}

const CALL: &str = "UpdateContainerResources";
const LIMIT: Duration = Duration::from_secs(30);
