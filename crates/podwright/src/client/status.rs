//! `podwright status`: the agent, its runtime, network, allocatable resources, images and pods, invalid manifests and recent warnings on one page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use podwright_core::model::is_terminal;
use podwright_core::qos::pod_requests;
use serde_json::Value;

use super::get::Manifests;
use super::wait::held_reason;
use super::{Client, ClientError, List, images, print};
use crate::cli::StatusFlags;
use crate::print::amounts::{bytes, cpus, size};
use crate::print::{Paint, age, plain, pods, seconds};

/// Warnings that are older, in seconds, are not shown.
const WARNING_AGE_MAX: u64 = 3600;
/// Warnings that are shown, the newest first.
const WARNINGS_MAX: usize = 10;

/// What the page shows.
struct NodeState<'a> {
    version: &'a str,
    /// The Node object.
    node: Value,
    pods: Vec<Pod>,
    manifests: Manifests,
    events: Vec<Event>,
    /// Number and bytes; `None`: the agent does not keep them.
    images: Option<(usize, u64)>,
}

/// `podwright status`
pub(super) async fn status(flags: &StatusFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let version: Value = client.get("/version").await?;
    let nodes = client.get::<List<Value>>("/api/v1/nodes").await?.items;
    let state = NodeState {
        version: version["gitVersion"].as_str().unwrap_or("of an unknown version"),
        node: nodes.into_iter().next().unwrap_or_default(),
        pods: client.get::<List<Pod>>("/api/v1/pods").await?.items,
        manifests: client.get("/podwright/v1/manifests").await?,
        events: client.get::<List<Event>>("/api/v1/events").await?.items,
        images: images::total(&client).await?,
    };
    Ok(print(&Paint::for_stdout().headings(&page(&state, Timestamp::now()))))
}

fn page(state: &NodeState<'_>, now: Timestamp) -> String {
    let NodeState { version, node, pods, manifests, events, images } = state;
    let mut out = String::new();
    let name = node["metadata"]["name"].as_str().map(|name| format!(" on node {}", plain(name))).unwrap_or_default();
    let _ = writeln!(out, "Agent\n  running{name}, version {}", plain(version));
    let runtime = match (manifests.runtime_up, manifests.runtime_pending) {
        (true, _) => "responds",
        (false, true) => "has not been queried yet: the agent was just started",
        (false, false) => "does not respond: nothing is started or stopped until it does",
    };
    let _ = writeln!(out, "Container runtime\n  {runtime}");
    for problem in &manifests.runtime_problems {
        let _ = writeln!(out, "  {}", plain(problem));
    }
    match &manifests.network_error {
        Some(error) => _ = writeln!(out, "Pod network\n  not ready: {}", plain(error)),
        None if manifests.runtime_up => out.push_str("Pod network\n  ready\n"),
        None => {}
    }
    let _ = writeln!(out, "Allocatable\n  {}", allocatable(node, pods));
    if !manifests.pressures.is_empty() {
        let pressures = plain(&manifests.pressures.join(", "));
        let _ = writeln!(out, "  {pressures}: pods may be evicted, and new ones have to wait");
    }
    let images = images.map(|(count, bytes)| format!("{count}, {}", size(bytes)));
    let _ =
        writeln!(out, "Images\n  {}", images.as_deref().unwrap_or("kept by the container runtime, see crictl images"));
    let _ = writeln!(out, "Pods\n  {}", count(pods));
    if !manifests.broken.is_empty() {
        out.push_str("Invalid manifests\n");
        for broken in &manifests.broken {
            let _ = writeln!(out, "  {}: {}", plain(&broken.origin), plain(&broken.message));
        }
    }
    let warnings = warnings(events, now);
    if !warnings.is_empty() {
        out.push_str("Warnings of the last hour\n");
        warnings.iter().take(WARNINGS_MAX).for_each(|line| _ = writeln!(out, "  {line}"));
        if let Some(hidden @ 1..) = warnings.len().checked_sub(WARNINGS_MAX) {
            let _ = writeln!(out, "  and {hidden} more: podwright events -A");
        }
    }
    out
}

/// `pods request 0.35 of 2 CPUs and 256Mi of 3.8Gi memory`, of what pods can request: the capacity without reservations.
fn allocatable(node: &Value, pods: &[Pod]) -> String {
    let total = |resource: &str| {
        let text = node["status"]["allocatable"][resource].as_str()?;
        text.parse::<podwright_core::quantity::Amount>().ok()
    };
    let (Some(cpu), Some(memory)) = (total("cpu"), total("memory")) else { return "unknown".into() };
    let (mut millis, mut used) = (0, 0);
    for pod in pods.iter().filter(|pod| is_admitted(pod)) {
        let requests = pod_requests(pod);
        millis += requests.get("cpu").map_or(0, |amount| amount.milli_value());
        used += requests.get("memory").map_or(0, |amount| amount.value());
    }
    let (cpu, memory) = (cpu.milli_value(), memory.value());
    format!("pods request {} of {} CPUs and {} of {} memory", cpus(millis), cpus(cpu), bytes(used), bytes(memory))
}

/// Its requests count: it has not terminated, and does not wait for resources itself.
fn is_admitted(pod: &Pod) -> bool {
    !is_terminal(pod.status.as_ref().and_then(|status| status.phase.as_deref())) && held_reason(pod).is_none()
}

/// `5: 4 Running, 1 CrashLoopBackOff`
fn count(pods: &[Pod]) -> String {
    let mut by_status: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods {
        *by_status.entry(plain(&pods::summary(pod).status)).or_default() += 1;
    }
    let counts: Vec<String> = by_status.iter().map(|(status, number)| format!("{number} {status}")).collect();
    if counts.is_empty() { "none".into() } else { format!("{}: {}", pods.len(), counts.join(", ")) }
}

fn warnings(events: &[Event], now: Timestamp) -> Vec<String> {
    let time = |event: &Event| event.last_timestamp.as_ref().map(|time| time.0);
    let recent = |event: &&Event| {
        let is_new = time(event).is_some_and(|time| seconds(time, now) <= WARNING_AGE_MAX);
        event.type_.as_deref() == Some("Warning") && is_new
    };
    let mut recent: Vec<&Event> = events.iter().filter(recent).collect();
    recent.sort_by_key(|event| std::cmp::Reverse(time(event)));
    let line = |event: &Event| {
        let ago = time(event).map(|time| age(seconds(time, now))).unwrap_or_default();
        let about = &event.involved_object;
        let (namespace, name) =
            (about.namespace.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
        let (reason, message) =
            (event.reason.as_deref().unwrap_or_default(), event.message.as_deref().unwrap_or_default());
        plain(&format!("{ago} ago, {namespace}/{name}: {reason}: {message}"))
    };
    recent.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_names_what_needs_attention() {
        let pods: Vec<Pod> = serde_json::from_value(json!([
            {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [
                {"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}, "status": {"phase": "Running"}},
            {"metadata": {"name": "b"}, "status": {"phase": "Failed", "reason": "Stopped"}},
            {"metadata": {"name": "c"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1000"}}}]},
             "status": {"phase": "Pending", "reason": "OutOfcpu"}}]))
        .unwrap();
        let manifests: Manifests = serde_json::from_value(json!({"runtimeUp": false, "pressures": ["DiskPressure"],
            "networkError": "no CNI configuration", "runtimeProblems": ["RecordsWritten: no space"],
            "broken": [{"origin": "/m/x.yaml", "message": "line 1"}]}))
        .unwrap();
        let event = |reason: &str, time: &str| {
            json!({"metadata": {}, "type": "Warning", "reason": reason, "message": "m", "lastTimestamp": time,
                   "involvedObject": {"namespace": "default", "name": "b"}})
        };
        let events: Vec<Event> = serde_json::from_value(json!([
            event("Old", "2024-01-01T00:00:00Z"),
            event("BackOff", "2024-01-01T10:00:00Z")
        ]))
        .unwrap();
        let capacity = json!({"cpu": "4", "memory": "8388608Ki"});
        let allocatable = json!({"cpu": "2000m", "memory": "4194304Ki"});
        let status = json!({"capacity": capacity, "allocatable": allocatable});
        let node = json!({"metadata": {"name": "n"}, "status": status});
        let state = NodeState { version: "1.0", node, pods, manifests, events, images: Some((3, 12_345_678)) };
        let page = page(&state, "2024-01-01T10:00:05Z".parse().unwrap());
        let expected = "Agent\n  running on node n, version 1.0\nContainer runtime\n  does not respond: nothing is started or \
                        stopped until it does\n  RecordsWritten: no space\nPod network\n  not ready: no CNI configuration\nAllocatable\n  pods request 0.25 of 2 CPUs and 64Mi of 4Gi \
                        memory\n  DiskPressure: pods may be evicted, and new ones have to wait\nImages\n  3, 12.3 MB\nPods\n  3: 1 OutOfcpu, 1 Running, 1 Stopped\nInvalid manifests\n  /m/x.yaml: line 1\n\
                        Warnings of the last hour\n  5s ago, default/b: BackOff: m\n";
        assert_eq!(page, expected);
    }
}
