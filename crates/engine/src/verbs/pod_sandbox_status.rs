//! PodSandboxStatus.

use std::collections::BTreeMap;

use podwright_cri::{CriError, v1};
use serde_json::{Value, json};

use super::{VerbContext, known_sandbox, not_found};
use crate::views;

pub(crate) fn pod_sandbox_status(
    calls: VerbContext<'_>,
    text: &str,
    verbose: bool,
) -> Result<v1::PodSandboxStatusResponse, CriError> {
    let objects = calls.context.objects();
    let id = known_sandbox(&objects, CALL, text)?;
    let status = views::sandbox_status(&objects, &id).ok_or_else(|| not_found(CALL, "sandbox", text))?;
    let containers = objects.containers_of(&id);
    let mut info = BTreeMap::new();
    if verbose {
        let netns = calls.context.pins.path(&id.0);
        let config = objects.sandboxes.get(&id).map(|entry| config(&entry.record.config));
        let text = json!({ "sandboxID": id.0, "netns": status.network.as_ref().map(|_| netns), "config": config });
        info.insert("info".to_owned(), text.to_string());
    }
    Ok(v1::PodSandboxStatusResponse {
        containers_statuses: containers.iter().filter_map(|id| views::container_status(&objects, id)).collect(),
        timestamp: crate::context::now().wall_ns,
        status: Some(status),
        info,
    })
}

/// What a sandbox was asked for and its status does not show, in the names of containerd's `crictl inspectp`.
fn config(config: &v1::PodSandboxConfig) -> Value {
    let cgroup_parent = config.linux.as_ref().map(|linux| &linux.cgroup_parent);
    json!({
        "hostname": config.hostname,
        "log_directory": config.log_directory,
        "linux": { "cgroup_parent": cgroup_parent },
    })
}

const CALL: &str = "PodSandboxStatus";
