//! In-place resize: what is allocated, in which order it is applied, and what is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::lab::Lab;
use super::shutdown::ShutdownLab;
use crate::NodeConfig;
use crate::model::*;

/// Requests and limits: cores, MiB.
type Size = [(u64, u64); 2];
const SMALL: Size = [(1, 100), (2, 200)];
const LARGE: Size = [(2, 200), (3, 300)];

fn config() -> NodeConfig {
    let sources = BTreeSet::from([Source::Api]);
    NodeConfig { sources, allocatable_cpu_millis: 4000, allocatable_memory: 4 << 30, ..NodeConfig::default() }
}

fn resources([requests, limits]: Size) -> Value {
    let list = |(cpu, memory): (u64, u64)| json!({"cpu": cpu.to_string(), "memory": format!("{memory}Mi")});
    json!({"requests": list(requests), "limits": list(limits)})
}

/// A pod of the API server.
fn object(name: &str, generation: i64, size: Size, change: impl FnOnce(&mut Value)) -> Event {
    let mut value = serde_json::to_value(&*super::lab::pod(name, name).pod).unwrap();
    value["metadata"]["generation"] = json!(generation);
    value["metadata"]["resourceVersion"] = json!(generation.to_string());
    value["spec"]["nodeName"] = json!("node");
    value["spec"]["containers"][0]["resources"] = resources(size);
    value["status"] = json!({"phase": "Pending"});
    change(&mut value);
    let pod = Arc::new(serde_json::from_value(value).unwrap());
    Event::Source { source: Source::Api, change: SourceChange::Put(Manifest { pod, origin: "api".into() }) }
}

fn node() -> ShutdownLab {
    ShutdownLab::with(config(), vec![], BTreeMap::new(), &[])
}

/// A node with one pod that runs.
fn running(size: Size, change: impl FnOnce(&mut Value)) -> ShutdownLab {
    let mut node = node();
    node.handle(object("a", 1, size, change));
    assert_eq!((running_attempt(&node), node.resizes.as_slice()), (Some(0), [].as_slice()));
    node.lab.events.clear();
    node
}

fn running_attempt(node: &ShutdownLab) -> Option<u32> {
    let containers = node.runtime.get(&PodUid::from("a"))?.containers.iter();
    containers.filter(|c| c.name.as_str() == "c" && c.state == RunState::Running).map(|c| c.attempt).next()
}

/// Type, reason and message of the conditions about a resize.
fn conditions(node: &ShutdownLab, uid: &str) -> Vec<(String, String, String)> {
    let status = node.status(uid);
    let resize = status.conditions.into_iter().flatten().filter(|c| c.type_.starts_with("PodResize"));
    resize.map(|c| (c.type_, c.reason.unwrap_or_default(), c.message.unwrap_or_default())).collect()
}

/// Memory limit in the status of the container: of the instance, and the allocated request.
fn shown(node: &ShutdownLab) -> (String, String) {
    let container = node.status("a").container_statuses.unwrap().remove(0);
    let limit = container.resources.unwrap().limits.unwrap()["memory"].0.clone();
    (limit, container.allocated_resources.unwrap()["memory"].0.clone())
}

fn reasons(node: &ShutdownLab) -> Vec<&'static str> {
    node.lab.events.iter().map(|event| event.reason).filter(|reason| reason.starts_with("Resize")).collect()
}

#[test]
fn an_increase_begins_with_the_cgroup_of_the_pod_and_a_decrease_ends_with_it() {
    let mut node = running(SMALL, |_| {});
    node.handle(object("a", 2, LARGE, |_| {}));
    let steps = [
        "sandbox shares 2048 quota 300000 memory 300Mi",
        "pod shares 2048 quota 300000 memory 300Mi",
        "c cpu 1/2 memory 200Mi/300Mi",
        "c cpu 2/3 memory 200Mi/300Mi",
    ];
    assert_eq!(node.resizes, steps);
    assert_eq!(reasons(&node), ["ResizeStarted", "ResizeCompleted"]);
    assert_eq!((conditions(&node, "a"), shown(&node)), (vec![], ("300Mi".into(), "200Mi".into())));
    assert_eq!((node.status("a").observed_generation, running_attempt(&node)), (Some(2), Some(0)));

    node.resizes.clear();
    node.handle(object("a", 3, SMALL, |_| {}));
    let steps = [
        "c cpu 2/3 memory 100Mi/200Mi",
        "sandbox shares 2048 quota 300000 memory 200Mi",
        "pod memory 200Mi",
        "c cpu 1/2 memory 100Mi/200Mi",
        "sandbox shares 1024 quota 200000 memory 200Mi",
        "pod shares 1024 quota 200000",
    ];
    assert_eq!(node.resizes, steps);
    assert_eq!((conditions(&node, "a"), running_attempt(&node)), (vec![], Some(0)));
    let memory = &node.lab.records[&PodUid::from("a")].containers["c"];
    assert_eq!(memory.actuated, None, "it has what is allocated");
}

#[test]
fn a_resize_waits_for_resources_and_is_allocated_when_another_pod_ends() {
    let mut node = running(SMALL, |_| {});
    node.handle(object("b", 1, [(2, 100), (2, 200)], |_| {}));
    node.handle(object("a", 2, [(3, 100), (3, 200)], |_| {}));
    let message = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000".to_owned();
    assert_eq!(conditions(&node, "a"), [("PodResizePending".into(), "Deferred".into(), message)]);
    assert_eq!((reasons(&node), node.resizes.len()), (vec!["ResizeDeferred"], 0));
    // A newer resize that fits is allocated at once; then the first one again.
    node.handle(object("a", 3, [(2, 100), (2, 200)], |_| {}));
    assert_eq!(conditions(&node, "a"), []);
    node.handle(object("a", 4, [(3, 100), (3, 200)], |_| {}));
    assert_eq!(conditions(&node, "a")[0].1, "Deferred");
    node.resizes.clear();
    let uid = PodUid::from("b");
    node.handle(Event::Source { source: Source::Api, change: SourceChange::Remove(uid) });
    let steps = [
        "sandbox shares 3072 quota 300000 memory 200Mi",
        "pod shares 3072 quota 300000",
        "c cpu 3/3 memory 100Mi/200Mi",
    ];
    assert_eq!(node.resizes, steps);
    assert_eq!(conditions(&node, "a"), []);
}

#[test]
fn resources_that_a_resize_frees_are_used_at_once() {
    let mut node = running([(3, 100), (3, 200)], |_| {});
    node.handle(object("b", 1, [(1, 100), (1, 200)], |_| {}));
    node.handle(object("b", 2, [(2, 100), (2, 200)], |_| {}));
    assert_eq!(conditions(&node, "b")[0].1, "Deferred");
    node.handle(object("a", 2, [(2, 100), (2, 200)], |_| {}));
    assert_eq!((conditions(&node, "a"), conditions(&node, "b")), (vec![], vec![]));
}

#[test]
fn a_container_whose_policy_wants_it_is_restarted_in_a_cgroup_that_fits() {
    let policy = |value: &mut Value| {
        value["spec"]["containers"][0]["resizePolicy"] =
            json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    };
    let mut node = running(SMALL, policy);
    node.handle(object("a", 2, [(2, 100), (2, 200)], policy));
    assert_eq!(running_attempt(&node), Some(0), "its CPU is resized without a restart");
    node.resizes.clear();
    node.handle(object("a", 3, LARGE, policy));
    assert_eq!((running_attempt(&node), conditions(&node, "a")), (Some(1), vec![]));
    let steps = ["sandbox shares 2048 quota 300000 memory 300Mi", "pod quota 300000 memory 300Mi"];
    assert_eq!(node.resizes, steps, "the new instance is created with its resources");
    let killed = node.lab.events.iter().find(|event| event.reason == "Killing").unwrap();
    assert_eq!(killed.message, "Container c resize requires restart");
    assert_eq!(shown(&node), ("300Mi".into(), "200Mi".into()));
}

#[test]
fn a_memory_limit_is_not_set_below_the_memory_in_use() {
    let mut node = running(LARGE, |_| {});
    node.memory = 250 << 20;
    node.handle(object("a", 2, SMALL, |_| {}));
    let message = "cannot decrease memory limits: [attempting to set pod memory limit (209715200) below current usage \
        (262144000), attempting to set container \"c\" memory limit (209715200) below current usage (262144000)]";
    let in_progress = ("PodResizeInProgress".to_owned(), "Error".to_owned(), message.to_owned());
    assert_eq!((conditions(&node, "a"), node.resizes.len()), (vec![in_progress], 0));
    assert_eq!(reasons(&node), ["ResizeStarted", "ResizeError"]);
    assert_eq!(shown(&node), ("300Mi".into(), "100Mi".into()), "what it has, and what is allocated");
    node.memory = 50 << 20;
    node.after(16);
    assert_eq!((conditions(&node, "a"), shown(&node)), (vec![], ("200Mi".into(), "100Mi".into())));
    assert_eq!(reasons(&node), ["ResizeStarted", "ResizeError", "ResizeCompleted"]);
}

#[test]
fn an_agent_that_restarts_between_allocation_and_actuation_goes_on() {
    let mut node = running(LARGE, |_| {});
    node.lab.handle(object("a", 2, SMALL, |_| {}));
    assert!(node.resizes.is_empty(), "allocated, and nothing is applied yet");
    let records: Vec<PodRecord> = node.lab.records.values().cloned().collect();
    let mut lab = Lab::with(config(), records);
    lab.bring_up(super::lab::listing("a", "a"));
    let mut next = ShutdownLab::restarted(lab, node.runtime.clone());
    next.serve();
    let Event::Source { change: SourceChange::Put(manifest), .. } = object("a", 2, SMALL, |_| {}) else { panic!() };
    let change = SourceChange::Set { pods: vec![manifest], broken: vec![] };
    next.handle(Event::Source { source: Source::Api, change });
    let limit = crate::qos::pod_cgroup(next.lab.made.last().unwrap(), None).memory_limit;
    assert_eq!(limit, Some(300 << 20), "its cgroup is not made smaller than its container");
    let steps = [
        "c cpu 2/3 memory 100Mi/200Mi",
        "sandbox shares 2048 quota 300000 memory 200Mi",
        "pod memory 200Mi",
        "c cpu 1/2 memory 100Mi/200Mi",
        "sandbox shares 1024 quota 200000 memory 200Mi",
        "pod shares 1024 quota 200000",
    ];
    assert_eq!((next.resizes.as_slice(), conditions(&next, "a")), (steps.map(str::to_owned).as_slice(), vec![]));
    assert_eq!(running_attempt(&next), Some(0));
}

#[test]
fn sidecars_are_resized_too() {
    let sidecar = |size: Size| {
        move |value: &mut Value| {
            value["spec"]["initContainers"] = json!([{"name": "s", "image": "img", "imagePullPolicy": "IfNotPresent",
                "restartPolicy": "Always", "resources": resources(size)}]);
        }
    };
    let mut node = running(SMALL, sidecar(SMALL));
    node.handle(object("a", 2, SMALL, sidecar([(1, 100), (3, 200)])));
    let steps = ["sandbox shares 2048 quota 500000 memory 400Mi", "pod quota 500000", "s cpu 1/3 memory 100Mi/200Mi"];
    assert_eq!(node.resizes, steps);
    assert_eq!(conditions(&node, "a"), []);
}

#[test]
fn a_resize_that_the_runtime_refuses_changes_no_limit() {
    let mut node = running(SMALL, |_| {});
    node.lab.handle(object("a", 2, LARGE, |_| {}));
    let is_update = |call: &Call| matches!(call, Call::Runtime(RuntimeCall::UpdateSandbox { .. }));
    node.lab.answer(is_update, Err(CallError::failed("the machine has no more memory")));
    let pending: Vec<String> =
        node.lab.calls.iter().filter_map(|(_, _, call)| super::lab::resize_in_short(call)).collect();
    assert_eq!(pending, Vec::<String>::new());
    let message = "the machine has no more memory".to_owned();
    assert_eq!(conditions(&node, "a"), [("PodResizeInProgress".into(), "Error".into(), message)]);
    node.after(16);
    assert_eq!((conditions(&node, "a"), shown(&node)), (vec![], ("300Mi".into(), "200Mi".into())));
}
