use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::model::{ActuatedResources, ContainerSeen, HostCall, MemoryUse, ResizeInProgress, Source};

fn pod(containers: Value) -> Arc<Pod> {
    let value = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": containers}});
    Arc::new(serde_json::from_value(value).unwrap())
}

/// A container with requests and limits of CPU (cores) and memory (MiB); 0: none.
fn container(name: &str, cpu: [u64; 2], memory: [u64; 2]) -> Value {
    let list = |cpu: u64, memory: u64| {
        let mut list = serde_json::Map::new();
        let all = [("cpu", cpu, cpu.to_string()), ("memory", memory, format!("{memory}Mi"))];
        for (key, number, text) in all {
            if number > 0 {
                list.insert(key.into(), json!(text));
            }
        }
        Value::Object(list)
    };
    json!({"name": name, "resources": {"requests": list(cpu[0], memory[0]), "limits": list(cpu[1], memory[1])}})
}

#[test]
fn an_update_is_applied_except_for_resources() {
    let with = |image: &str, cpu: u64| {
        let mut c = container("c", [cpu, 0], [0, 0]);
        c["image"] = json!(image);
        pod(json!([c]))
    };
    assert_eq!(split(&with("a", 1), with("b", 1)), (with("b", 1), None));
    let (kept, desired) = split(&with("a", 1), with("b", 2));
    assert_eq!((kept, desired), (with("b", 1), Some(resources_of(&with("x", 2)))));
}

#[test]
fn events_contain_all_resources() {
    let pod = pod(json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]));
    let all = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3"#;
    assert_eq!(resize_message("started", &pod, Some(3), None), format!("Pod resize started: {all}}}"));
    let refused = resize_message("Deferred", &pod, Some(3), Some("why"));
    assert_eq!(refused, format!(r#"Pod resize Deferred: {all},"error":"why"}}"#));
}

#[test]
fn what_can_never_be_done_is_infeasible() {
    let of = |c: Value| pod(json!([c]));
    let burstable = of(container("c", [1, 2], [10, 20]));
    let mut pages = container("c", [1, 2], [10, 20]);
    pages["resources"]["requests"]["hugepages-2Mi"] = json!("2Mi");
    let mut whole = Pod::clone(&burstable);
    whole.spec.as_mut().unwrap().resources = Some(ResourceRequirements::default());
    let table = [
        (of(container("c", [2, 2], [10, 20])), None),
        (of(container("c", [2, 2], [20, 20])), Some("Pod QOS Class may not change as a result of resizing")),
        (of(container("c", [0, 0], [0, 0])), Some("Pod QOS Class may not change as a result of resizing")),
        (of(pages), Some("only cpu and memory resources are mutable")),
        (Arc::new(whole), Some("InPlacePodLevelResourcesVerticalScaling is disabled")),
    ];
    for (desired, expected) in table {
        let refusal = check_feasible(&burstable, &desired).err();
        assert!(refusal.iter().all(|refusal| refusal.infeasible));
        assert_eq!(refusal.as_ref().map(|refusal| refusal.message.as_str()), expected);
    }
}

#[test]
fn memory_in_use_is_compared_with_every_limit_that_is_lowered() {
    let lowered = LoweredMemory { pod: Some(100), containers: BTreeMap::from([("c".into(), ("id".into(), 50))]) };
    let used = |pod, c| MemoryUse { pod, containers: BTreeMap::from_iter([("c".into(), c)]) };
    assert_eq!(check_memory(&lowered, &used(Some(99), 49)), Ok(()));
    let text = |used: &MemoryUse| check_memory(&lowered, used).unwrap_err().to_string();
    assert_eq!(
        text(&used(Some(99), 50)),
        "cannot decrease memory limits: attempting to set container \"c\" memory limit (50) below current usage (50)"
    );
    assert_eq!(
        text(&MemoryUse::default()),
        "cannot decrease memory limits: [missing pod memory usage, missing container \"c\" memory usage]"
    );
}

/// A record with allocated resources, whose two running containers have others.
fn in_progress(actuated: Value, allocated: Value) -> (PodRecord, PodSeen) {
    let before = pod(actuated);
    let mut record = PodRecord::new("u".into(), Source::Api, pod(allocated), jiff::Timestamp::UNIX_EPOCH);
    record.resize.in_progress = Some(ResizeInProgress::default());
    let mut seen = PodSeen::default();
    for c in &before.spec.as_ref().unwrap().containers {
        let resources = c.resources.clone().unwrap();
        let memory = record.containers.entry(c.name.as_str().into()).or_default();
        memory.actuated = Some(ActuatedResources { attempt: 0, resources });
        seen.containers.push(ContainerSeen {
            id: c.name.as_str().into(),
            sandbox: "s".into(),
            name: c.name.as_str().into(),
            attempt: 0,
            hash: None,
            state: RunState::Running,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            grace: None,
            pre_stop: None,
            user: None,
        });
    }
    (record, seen)
}

#[test]
fn containers_that_shrink_are_updated_before_those_that_grow() {
    let before = json!([container("a", [1, 1], [10, 10]), container("b", [1, 1], [30, 30])]);
    let after = json!([container("a", [1, 1], [20, 20]), container("b", [1, 1], [20, 20])]);
    let (record, seen) = in_progress(before.clone(), after);
    let cgroup = PodCgroupValues::of(&pod(before));
    let actuation = Actuation::new(&record, &seen, &cgroup);
    assert_eq!(actuation.raise(), None, "the sum stays");
    let next = actuation.next().unwrap();
    assert!(format!("{next:?}").contains("name: b,"), "{next:?}");
    let lowered = actuation.lowered_memory();
    assert_eq!((lowered.pod, lowered.containers.len()), (None, 1));
}

#[test]
fn a_limit_that_is_not_given_any_more_stays() {
    let before = json!([container("a", [1, 2], [10, 20])]);
    let (record, seen) = in_progress(before.clone(), json!([container("a", [2, 0], [10, 0])]));
    let cgroup = PodCgroupValues::of(&pod(before));
    let raise = Actuation::new(&record, &seen, &cgroup).raise();
    let shares = HostCall::ResizeCgroup { cpu_shares: Some(2048), cpu_quota_us: None, memory: None };
    assert_eq!(raise, Some(shares));
}

#[test]
fn the_cgroup_of_a_pod_is_made_for_the_larger_of_both() {
    let before = json!([container("a", [1, 2], [30, 40]), container("b", [1, 1], [10, 10])]);
    let after = json!([container("a", [2, 3], [10, 20]), container("b", [1, 0], [10, 10])]);
    let (record, seen) = in_progress(before, after);
    let largest = resources_of(&largest_pod(&record, &seen));
    let a = &largest.containers["a"];
    let of = |list: &Option<Quantities>| {
        let list = list.clone().unwrap_or_default();
        ["cpu", "memory"].map(|name| list.get(name).map_or(String::new(), |quantity| quantity.0.clone()))
    };
    assert_eq!(of(&a.requests), ["2", "30Mi"]);
    assert_eq!(of(&a.limits), ["3", "40Mi"]);
    assert_eq!(of(&largest.containers["b"].limits), ["", "10Mi"], "without a limit it has no limit");
}
