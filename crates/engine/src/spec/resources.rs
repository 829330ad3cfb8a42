//! Limits of the container's cgroup.

use std::path::PathBuf;

use oci_spec::runtime::{
    LinuxCpu, LinuxDeviceCgroup, LinuxHugepageLimitBuilder, LinuxMemory, LinuxResources, LinuxResourcesBuilder,
};
use podwright_cri::v1;

use super::{SpecError, SpecInputs};

/// `<parent>/<container id>`: the agent and cAdvisor look for the id in `/proc/<pid>/cgroup`.
pub(super) fn cgroup_path(inputs: &SpecInputs<'_>) -> Result<PathBuf, SpecError> {
    Ok(PathBuf::from(pod_cgroup(inputs.sandbox)?).join(inputs.container_id))
}

/// The cgroup of a pod, in which its containers have theirs.
pub(crate) fn pod_cgroup(sandbox: &v1::PodSandboxConfig) -> Result<String, SpecError> {
    let parent = sandbox.linux.as_ref().map_or("", |linux| linux.cgroup_parent.as_str());
    let wrong = |problem| Err(SpecError::CgroupParent(parent.into(), problem));
    if parent.ends_with(".slice") {
        return wrong("the engine uses the cgroupfs driver; set cgroupDriver: cgroupfs");
    }
    if !parent.starts_with('/') || parent.split('/').any(|part| part == "..") || parent.contains('\0') {
        return wrong("must be an absolute path without \"..\"");
    }
    Ok(parent.to_owned())
}

/// Gives a pod without a parent, as those of crictl, a cgroup of the engine. It is named after the sandbox.
pub(crate) fn default_pod_cgroup(sandbox: &mut v1::PodSandboxConfig, base: &str, sandbox_id: &str) {
    let linux = sandbox.linux.get_or_insert_default();
    if linux.cgroup_parent.is_empty() {
        linux.cgroup_parent = format!("{}/{sandbox_id}", base.trim_end_matches('/'));
    }
}

/// The cgroup of a pod that the engine makes and removes; `None`: the caller has given one.
pub(crate) fn own_pod_cgroup<'a>(sandbox: &'a v1::PodSandboxConfig, sandbox_id: &str) -> Option<&'a str> {
    // No caller knows the id before the sandbox exists.
    let parent = sandbox.linux.as_ref()?.cgroup_parent.as_str();
    (parent.rsplit('/').next() == Some(sandbox_id)).then_some(parent)
}

/// Zero means "not set" in the CRI.
pub(super) fn resources(inputs: &SpecInputs<'_>, rules: Vec<LinuxDeviceCgroup>) -> Result<LinuxResources, SpecError> {
    let mut resources = LinuxResourcesBuilder::default().devices(rules).build().expect("complete");
    let Some(asked) = inputs.config.linux.as_ref().and_then(|linux| linux.resources.as_ref()) else {
        return Ok(resources);
    };
    resources.set_cpu(cpu(asked)?);
    resources.set_memory(memory(asked, inputs.host.swap_limit));
    if inputs.host.hugetlb && !asked.hugepage_limits.is_empty() {
        let limits = asked.hugepage_limits.iter().map(|limit| {
            let bytes = i64::try_from(limit.limit).unwrap_or(i64::MAX);
            let builder = LinuxHugepageLimitBuilder::default().page_size(limit.page_size.clone()).limit(bytes);
            builder.build().expect("complete")
        });
        resources.set_hugepage_limits(Some(limits.collect()));
    }
    if !asked.unified.is_empty() {
        if !inputs.host.cgroup_v2 {
            return Err(SpecError::Unsupported("resources.unified on a cgroup v1 host".into()));
        }
        if let Some(key) = asked.unified.keys().find(|key| key.contains('/') || key.is_empty()) {
            let problem = "is not the name of a cgroup file";
            return Err(SpecError::Text { field: "resources.unified", value: key.clone(), problem });
        }
        resources.set_unified(Some(asked.unified.clone().into_iter().collect()));
    }
    Ok(resources)
}

fn cpu(asked: &v1::LinuxContainerResources) -> Result<Option<LinuxCpu>, SpecError> {
    let positive = |field: &'static str, value: i64| match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(SpecError::Number { field, value }),
    };
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut cpu = LinuxCpu::default();
    cpu.set_period(positive("cpu_period", asked.cpu_period)?);
    cpu.set_shares(positive("cpu_shares", asked.cpu_shares)?);
    // A negative quota is "no limit".
    cpu.set_quota((asked.cpu_quota != 0).then_some(asked.cpu_quota));
    cpu.set_cpus(text(&asked.cpuset_cpus));
    cpu.set_mems(text(&asked.cpuset_mems));
    Ok((cpu != LinuxCpu::default()).then_some(cpu))
}

/// As containerd: a memory limit without a swap limit also forbids swap.
fn memory(asked: &v1::LinuxContainerResources, swap_limit: bool) -> Option<LinuxMemory> {
    let limit = (asked.memory_limit_in_bytes != 0).then_some(asked.memory_limit_in_bytes);
    let swap = (asked.memory_swap_limit_in_bytes != 0).then_some(asked.memory_swap_limit_in_bytes);
    let mut memory = LinuxMemory::default();
    memory.set_limit(limit);
    memory.set_swap(swap.or(limit).filter(|_| swap_limit));
    (memory != LinuxMemory::default()).then_some(memory)
}
