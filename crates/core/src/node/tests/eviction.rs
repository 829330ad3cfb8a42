//! A node that runs out of memory or disk space, and pods that exceed their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, pod, sandbox, seen};
use crate::NodeConfig;
use crate::eviction::{EvictionConfig, Threshold, ThresholdValue};
use crate::model::*;
use crate::pod::State;
use crate::quantity::Amount;

const GIB: i64 = 1 << 30;
const MEMORY: Signal = Signal::MemoryAvailable;
const DISK: Signal = Signal::NodeFsAvailable;

/// A node that keeps 1 GiB of memory and 10 GiB of disk free.
fn node() -> Lab {
    let threshold = |signal: Signal, gib: i64| Threshold {
        signal,
        value: ThresholdValue::Quantity(Amount::from_bytes(gib * GIB)),
        min_reclaim: None,
        grace: Duration::ZERO,
    };
    let eviction = EvictionConfig {
        thresholds: vec![threshold(MEMORY, 1), threshold(DISK, 10)],
        transition_period: Duration::from_secs(300),
        storage_limits: true,
        ..EvictionConfig::default()
    };
    let sources = BTreeSet::from([Source::File, Source::Api, Source::Local]);
    let mut lab = Lab::with(NodeConfig { sources, eviction, ..NodeConfig::default() }, vec![]);
    lab.bring_up(Listing::default());
    for source in [Source::Api, Source::Local] {
        lab.handle(Event::Source { source, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    }
    lab.set(&[]);
    lab
}

fn put(lab: &mut Lab, source: Source, uid: &str, change: impl Fn(&mut Value)) {
    let mut value = serde_json::to_value(&*pod(uid, uid).pod).unwrap();
    value["metadata"]["resourceVersion"] = json!("7");
    value["spec"]["nodeName"] = json!("node");
    value["status"] = json!({"phase": "Pending"});
    change(&mut value);
    let manifest = Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "api".into() };
    lab.handle(Event::Source { source, change: SourceChange::Put(manifest) });
}

/// Starts the container of the only pod that starts; it was last observed in this state.
fn run(lab: &mut Lab, state: RunState) {
    run_until(lab, &seen(Some(state)));
}

fn run_until(lab: &mut Lab, last: &PodSeen) {
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
        Ok(Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }))),
    );
    lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::CreateContainer { .. })), Ok(Answer::Container("id".into())));
    lab.observe(&seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(last);
}

/// Answers the reading that is due; returns the pod data that it requests.
fn read(lab: &mut Lab, signals: &[(Signal, i64)], pods: &[(&str, PodUsage)]) -> PodReading {
    let at = lab.evictions.iter().position(|effect| matches!(effect, Effect::ReadNode { .. }));
    let at = at.or_else(|| {
        lab.now += Duration::from_secs(10);
        lab.handle(Event::Wake);
        lab.evictions.iter().position(|effect| matches!(effect, Effect::ReadNode { .. }))
    });
    let Effect::ReadNode { seq, pods: detail } = lab.evictions.remove(at.expect("a reading is due")) else {
        unreachable!("it was found above")
    };
    let reading = |gib: i64| SignalReading { available: gib * GIB, capacity: 100 * GIB, at: lab.now };
    let usages: BTreeMap<PodUid, PodUsage> = pods.iter().map(|(uid, usage)| ((*uid).into(), usage.clone())).collect();
    let reading = NodeReading {
        signals: signals.iter().map(|(signal, gib)| (*signal, reading(*gib))).collect(),
        layout: Some(DiskLayout::Shared),
        pods: (detail != PodReading::None).then_some(usages),
    };
    lab.handle(Event::NodeRead { seq, reading });
    detail
}

fn memory(mib: u64) -> PodUsage {
    let container = ContainerUsage { name: "c".into(), memory: Some(mib << 20), ..ContainerUsage::default() };
    PodUsage { memory: Some(mib << 20), containers: vec![container], ..PodUsage::default() }
}

/// Answers the calls for a pod, whose container exits with 143, until it has ended.
fn let_end(lab: &mut Lab, uid: &str) {
    let_end_with(lab, uid, 143);
}

fn exited(code: i32) -> PodSeen {
    let mut exited = seen(Some(RunState::Exited));
    exited.containers[0].exit_code = code;
    exited
}

fn let_end_with(lab: &mut Lab, uid: &str, code: i32) {
    let stopped = PodSeen { sandboxes: vec![sandbox(false)], ..exited(code) };
    for _ in 0..10 {
        while let Some(at) = lab.calls.iter().position(|(_, of, _)| of.as_str() == uid) {
            let (id, ..) = lab.calls.remove(at);
            lab.handle(Event::Done { id, result: Ok(Answer::Done) });
        }
        while let Some(at) = lab.observations.iter().position(|(of, _)| of.as_str() == uid) {
            let (uid, seq) = lab.observations.remove(at);
            lab.handle(Event::Observed { uid, seq, result: Ok(stopped.clone()), covered: true });
        }
    }
    assert!(lab.state(uid).is_none_or(|state| state >= State::Finished), "{:?}", lab.state(uid));
}

fn status(lab: &Lab, uid: &str) -> PodStatus {
    lab.records[&PodUid::from(uid)].status.clone().expect("a status")
}

fn evicted(lab: &Lab) -> Vec<&'static str> {
    let signal = |effect: &Effect| match effect {
        Effect::Evicted { signal } => Some(*signal),
        _ => None,
    };
    lab.evictions.iter().filter_map(signal).collect()
}

fn has_disruption(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == "DisruptionTarget")
}

#[test]
fn a_pod_is_evicted_for_memory_and_its_exit_code_stays_in_the_status() {
    let mut lab = node();
    put(&mut lab, Source::Api, "a", |_| {});
    run(&mut lab, RunState::Running);
    assert_eq!(read(&mut lab, &[(MEMORY, 0)], &[]), PodReading::None);
    assert_eq!(evicted(&lab), [""; 0], "pods are read first");
    assert_eq!(read(&mut lab, &[(MEMORY, 0)], &[("a", memory(5))]), PodReading::Memory);
    assert_eq!(evicted(&lab), ["memory.available"]);
    let stop = Duration::from_secs(2);
    let is_stop = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::StopContainer { timeout, .. }) if *timeout == stop);
    assert!(lab.calls.iter().any(|(_, _, call)| is_stop(call)), "the grace period is a second: {:?}", lab.calls);
    let_end(&mut lab, "a");
    let status = status(&lab, "a");
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    let message = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 0. \
                   Container c was using 5Mi, request is 0, has larger consumption of memory. ";
    assert_eq!(status.message.as_deref(), Some(message));
    let condition =
        status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").expect("DisruptionTarget");
    assert_eq!(
        (condition.reason.as_deref(), condition.message.as_deref()),
        (Some("TerminationByKubelet"), Some(message))
    );
    let containers = status.container_statuses.unwrap();
    let terminated = containers[0].state.as_ref().and_then(|state| state.terminated.as_ref()).expect("terminated");
    assert_eq!(terminated.exit_code, 143);
    let event = lab.events.iter().find(|event| event.reason == "Evicted").expect("an event");
    assert_eq!((event.message.as_str(), event.warning), (message, true));
    assert!(event.annotations.contains(&("starved_resource", "memory".into())), "{:?}", event.annotations);
    let node = lab.events.iter().find(|event| event.reason == "EvictionThresholdMet").expect("an event of the node");
    assert_eq!((node.message.as_str(), node.is_about_node()), ("Attempting to reclaim memory", true));
    assert!(lab.node.runtime_facts().pressures.contains(&NodePressure::Memory));
}

#[test]
fn static_and_critical_pods_are_never_evicted() {
    let mut lab = node();
    lab.set(&[&pod("fixed", "fixed")]);
    put(&mut lab, Source::Api, "critical", |value| value["spec"]["priority"] = json!(2_000_000_000));
    for _ in 0..4 {
        read(&mut lab, &[(MEMORY, 0)], &[("fixed", memory(500)), ("critical", memory(500))]);
    }
    assert_eq!(evicted(&lab), [""; 0]);
    assert_eq!((lab.state("fixed"), lab.state("critical")), (Some(State::Syncing), Some(State::Syncing)));
    put(&mut lab, Source::Api, "plain", |value| {
        value["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "1Gi"}});
    });
    read(&mut lab, &[(MEMORY, 0)], &[]);
    read(&mut lab, &[(MEMORY, 0)], &[("fixed", memory(500)), ("plain", memory(1))]);
    assert_eq!(evicted(&lab), ["memory.available"]);
    assert!(lab.state("plain").is_none_or(|state| state > State::Syncing), "{:?}", lab.state("plain"));
}

fn removes_container(call: &Call) -> bool {
    matches!(call, Call::Runtime(RuntimeCall::RemoveContainer { id, .. }) if id.as_str() == "id")
}

fn removal_of_images(lab: &mut Lab) -> Option<Seq> {
    let at = lab.evictions.iter().position(|effect| matches!(effect, Effect::RemoveUnusedImages { .. }))?;
    match lab.evictions.remove(at) {
        Effect::RemoveUnusedImages { seq } => Some(seq),
        _ => None,
    }
}

#[test]
fn dead_containers_of_ended_pods_and_unused_images_are_removed_before_a_pod_is_evicted() {
    let mut lab = node();
    put(&mut lab, Source::Api, "a", |value| value["spec"]["restartPolicy"] = json!("Never"));
    run_until(&mut lab, &exited(7));
    let_end_with(&mut lab, "a", 7);
    assert!(!lab.calls.iter().any(|(_, _, call)| removes_container(call)), "its log is kept: {:?}", lab.calls);
    assert_eq!(read(&mut lab, &[(DISK, 5)], &[]), PodReading::None);
    assert!(lab.calls.iter().any(|(_, _, call)| removes_container(call)), "the newest one too: {:?}", lab.calls);
    assert_eq!(removal_of_images(&mut lab), None, "its image is in use until it is removed");
    lab.ok(removes_container);
    let seq = removal_of_images(&mut lab).expect("images follow");
    let without = PodSeen { containers: vec![], ..exited(7) };
    while !lab.observations.is_empty() {
        lab.observe(&without);
    }
    lab.handle(Event::ImagesRemoved { seq });
    assert_eq!(read(&mut lab, &[(DISK, 50)], &[]), PodReading::Fresh);
    assert_eq!(evicted(&lab), [""; 0]);
    let containers = status(&lab, "a").container_statuses.unwrap();
    let terminated = containers[0].state.as_ref().and_then(|state| state.terminated.clone());
    assert_eq!(terminated.expect("its exit is still known").exit_code, 7);
}

#[test]
fn the_newest_dead_container_of_a_pod_that_goes_on_is_kept_under_pressure() {
    let mut lab = node();
    put(&mut lab, Source::Api, "a", |value| {
        value["spec"]["restartPolicy"] = json!("Never");
        let other = json!({"name": "other", "image": "img", "imagePullPolicy": "IfNotPresent"});
        value["spec"]["containers"].as_array_mut().unwrap().push(other);
    });
    let mut lab = lab_with_dead_container(lab);
    assert_eq!(read(&mut lab, &[(DISK, 5)], &[]), PodReading::None);
    assert!(!lab.calls.iter().any(|(_, _, call)| removes_container(call)), "its log is read: {:?}", lab.calls);
    let seq = removal_of_images(&mut lab).expect("images are removed");
    lab.handle(Event::ImagesRemoved { seq });
    assert_eq!(read(&mut lab, &[(DISK, 50)], &[]), PodReading::Fresh);
    assert_eq!((evicted(&lab), lab.state("a")), (vec![], Some(State::Syncing)));
}

/// The pod's container `c` has exited with 7; another one keeps running.
fn lab_with_dead_container(mut lab: Lab) -> Lab {
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    while let Some(at) =
        lab.calls.iter().position(|(_, _, c)| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })))
    {
        let (id, ..) = lab.calls.remove(at);
        let image = Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }));
        lab.handle(Event::Done { id, result: Ok(image) });
    }
    let of_c = |c: &Call| matches!(c, Call::Host(HostCall::PrepareContainer { name, .. }) if name.as_str() == "c");
    lab.ok(of_c);
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::CreateContainer { .. })), Ok(Answer::Container("id".into())));
    lab.observe(&seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    let mut exited = seen(Some(RunState::Exited));
    exited.containers[0].exit_code = 7;
    while !lab.observations.is_empty() {
        lab.observe(&exited);
    }
    lab
}

#[test]
fn pods_are_refused_under_pressure_and_those_of_this_node_wait() {
    let mut lab = node();
    read(&mut lab, &[(DISK, 5)], &[]);
    put(&mut lab, Source::Api, "api", |_| {});
    put(&mut lab, Source::Local, "local", |_| {});
    lab.set(&[&pod("fixed", "fixed")]);
    let refused = status(&lab, "api");
    assert_eq!((refused.phase.as_deref(), refused.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    let message = "Pod was rejected: The node had condition: [DiskPressure]. ";
    assert_eq!(refused.message.as_deref(), Some(message));
    assert_eq!((lab.state("local"), lab.state("fixed")), (Some(State::Waiting), Some(State::Syncing)));
    lab.now += Duration::from_secs(300);
    lab.handle(Event::Wake);
    read(&mut lab, &[(DISK, 50)], &[]);
    assert_eq!(lab.state("local"), Some(State::Syncing), "the condition has ended");
    assert!(lab.node.runtime_facts().pressures.is_empty());
}

#[test]
fn a_pod_above_its_own_limit_is_evicted_without_a_disruption_condition() {
    let limited = |value: &mut Value| {
        value["spec"]["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "1Mi"}});
        value["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]);
    };
    let mut lab = node();
    put(&mut lab, Source::Api, "a", limited);
    let usage = |bytes: u64| PodUsage { ephemeral_storage: Some(bytes), ..PodUsage::default() };
    read(&mut lab, &[], &[]);
    assert_eq!(read(&mut lab, &[], &[("a", usage(1 << 20))]), PodReading::All, "pods with limits are measured");
    assert_eq!(evicted(&lab), [""; 0]);
    read(&mut lab, &[], &[("a", usage((1 << 20) + 1))]);
    assert_eq!(evicted(&lab), ["ephemeralpodfs.limit"]);
    let_end_without_container(&mut lab, "a");
    let status = status(&lab, "a");
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("Evicted"), Some(message)));
    assert!(!has_disruption(&status));
}

fn let_end_without_container(lab: &mut Lab, uid: &str) {
    let stopped = PodSeen::default();
    for _ in 0..10 {
        while let Some(at) = lab.calls.iter().position(|(_, of, _)| of.as_str() == uid) {
            let (id, ..) = lab.calls.remove(at);
            lab.handle(Event::Done { id, result: Ok(Answer::Done) });
        }
        while let Some(at) = lab.observations.iter().position(|(of, _)| of.as_str() == uid) {
            let (uid, seq) = lab.observations.remove(at);
            lab.handle(Event::Observed { uid, seq, result: Ok(stopped.clone()), covered: true });
        }
    }
}

#[test]
fn an_empty_dir_above_its_limit_evicts_its_pod_if_limits_are_enforced() {
    let limited =
        |value: &mut Value| value["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]);
    for (enforced, volume, expected) in
        [(true, "v", vec!["emptydirfs.limit"]), (true, "other", vec![]), (false, "v", vec![])]
    {
        let mut lab = node();
        lab.node.pods.config.eviction.storage_limits = enforced;
        put(&mut lab, Source::Api, "a", limited);
        lab.handle(Event::EmptyDirExceeded { uid: "a".into(), volume: volume.into() });
        assert_eq!(evicted(&lab), expected, "{enforced} {volume}");
        lab.handle(Event::EmptyDirExceeded { uid: "a".into(), volume: volume.into() });
        assert_eq!(evicted(&lab), expected, "once");
    }
}

#[test]
fn no_pod_is_evicted_for_the_disk_while_one_above_its_limit_ends() {
    let mut lab = node();
    put(&mut lab, Source::Api, "a", |value| {
        value["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]);
    });
    put(&mut lab, Source::Api, "b", |_| {});
    let other = || PodUsage { ephemeral_storage: Some(1 << 30), ..PodUsage::default() };
    lab.handle(Event::EmptyDirExceeded { uid: "a".into(), volume: "v".into() });
    for _ in 0..2 {
        read(&mut lab, &[(DISK, 5)], &[("b", other())]);
        assert_eq!((evicted(&lab), removal_of_images(&mut lab)), (vec!["emptydirfs.limit"], None));
    }
    let_end_without_container(&mut lab, "a");
    assert!(lab.state("a").is_none_or(|state| state >= State::Finished), "{:?}", lab.state("a"));
    read(&mut lab, &[(DISK, 5)], &[]);
    let seq = removal_of_images(&mut lab).expect("still short: the node reclaims");
    lab.handle(Event::ImagesRemoved { seq });
    read(&mut lab, &[(DISK, 5)], &[("b", other())]);
    assert_eq!(evicted(&lab), ["emptydirfs.limit", "nodefs.available"], "and then evicts");
}
