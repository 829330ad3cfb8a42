use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::model::{Container, Pod};

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u-1" }, "spec": spec })).unwrap()
}

fn res(requests: Value, limits: Value) -> Value {
    json!({ "requests": requests, "limits": limits })
}

fn one(resources: Value) -> Pod {
    pod(json!({ "containers": [{ "name": "a", "resources": resources }] }))
}

fn plain(amounts: &Amounts) -> BTreeMap<&str, String> {
    amounts.iter().map(|(name, amount)| (name.as_str(), amount.to_string())).collect()
}

#[test]
fn the_class_follows_from_requests_and_limits() {
    let full = json!({ "cpu": "1", "memory": "1Gi" });
    for (expected, given) in [
        (BEST_EFFORT, pod(json!({ "containers": [{ "name": "a" }] }))),
        (BEST_EFFORT, one(res(json!({ "cpu": "0" }), json!({ "memory": "0" })))),
        (BEST_EFFORT, one(res(json!({ "example.com/gpu": "1" }), json!({ "example.com/gpu": "1" })))),
        (GUARANTEED, one(res(full.clone(), full.clone()))),
        (GUARANTEED, one(res(json!({ "cpu": "1000m", "memory": "1024Mi" }), full.clone()))),
        (BURSTABLE, one(res(json!({}), full.clone()))),
        (BURSTABLE, one(res(json!({ "cpu": "1" }), json!({ "cpu": "1" })))),
        (BURSTABLE, one(res(json!({ "cpu": "500m", "memory": "1Gi" }), full.clone()))),
        (
            BURSTABLE,
            pod(
                json!({ "containers": [{ "name": "a", "resources": res(full.clone(), full.clone()) }, { "name": "b" }] }),
            ),
        ),
        // An init container without limits makes the pod burstable.
        (
            BURSTABLE,
            pod(json!({ "containers": [{ "name": "a", "resources": res(full.clone(), full.clone()) }],
                "initContainers": [{ "name": "i" }] })),
        ),
        (
            GUARANTEED,
            pod(json!({ "containers": [{ "name": "a", "resources": res(full.clone(), full.clone()) }],
                "initContainers": [{ "name": "s", "restartPolicy": "Always", "resources": res(full.clone(), full.clone()) }] })),
        ),
        // Pod-level resources decide alone.
        (GUARANTEED, pod(json!({ "containers": [{ "name": "a" }], "resources": res(full.clone(), full.clone()) }))),
        (BURSTABLE, pod(json!({ "containers": [{ "name": "a" }], "resources": { "requests": full } }))),
        (
            BURSTABLE,
            pod(
                json!({ "containers": [{ "name": "a" }], "resources": res(json!({ "cpu": "1" }), json!({ "cpu": "1" })) }),
            ),
        ),
        (
            BEST_EFFORT,
            pod(
                json!({ "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1" } } }], "resources": {} }),
            ),
        ),
    ] {
        assert_eq!(qos_class(&given), expected, "{}", serde_json::to_string(&given.spec).unwrap());
    }
}

#[test]
fn a_class_in_the_status_is_kept() {
    let mut given = pod(json!({ "containers": [{ "name": "a" }] }));
    given.status = Some(serde_json::from_value(json!({ "qosClass": "Burstable" })).unwrap());
    assert_eq!(qos_class(&given), BURSTABLE);
    given.status = Some(serde_json::from_value(json!({ "qosClass": "Sometimes" })).unwrap());
    assert_eq!(qos_class(&given), BEST_EFFORT);
}

#[test]
fn init_containers_run_with_the_sidecars_before_them() {
    let cpu = |n: &str| json!({ "requests": { "cpu": n }, "limits": { "cpu": n } });
    let given = pod(json!({
        "containers": [{ "name": "a", "resources": cpu("1") }, { "name": "b", "resources": cpu("500m") }],
        "initContainers": [
            { "name": "i1", "resources": cpu("2") },
            { "name": "s1", "restartPolicy": "Always", "resources": cpu("300m") },
            { "name": "i2", "resources": cpu("1900m") },
            { "name": "s2", "restartPolicy": "Always", "resources": cpu("100m") },
        ],
        "overhead": { "cpu": "10m", "memory": "5Mi" },
    }));
    // Together 1.5 + 0.4; i2 needs 1.9 + 0.3; overhead comes on top, but makes no new limit.
    assert_eq!(plain(&pod_requests(&given)), BTreeMap::from([("cpu", "2210m".into()), ("memory", "5Mi".into())]));
    assert_eq!(plain(&pod_limits(&given)), BTreeMap::from([("cpu", "2210m".into())]));
}

#[test]
fn pod_level_values_replace_the_sum() {
    let given = pod(json!({
        "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1G" } } }],
        "resources": { "requests": { "cpu": "3", "ephemeral-storage": "9G" }, "limits": { "cpu": "4" } },
    }));
    let requests = pod_requests(&given);
    assert_eq!(
        plain(&requests),
        BTreeMap::from([("cpu", "3".into()), ("ephemeral-storage", "1G".into()), ("memory", "1Gi".into())])
    );
    assert_eq!(plain(&pod_limits(&given)), BTreeMap::from([("cpu", "4".into())]));
}

#[test]
fn the_pods_cgroup_is_limited_only_if_every_container_is() {
    let given = pod(json!({ "containers": [
        { "name": "a", "resources": res(json!({ "cpu": "100m", "memory": "100Mi" }), json!({ "cpu": "200m", "memory": "200Mi" })) },
        { "name": "b", "resources": res(json!({ "cpu": "100m" }), json!({ "cpu": "300m" })) },
    ] }));
    let limits = pod_cgroup(&given, Some(100));
    assert_eq!(limits.cpu_shares, 204);
    assert_eq!((limits.cpu_quota_us, limits.cpu_period_us), (Some(50_000), 100_000));
    assert_eq!(limits.memory_limit, None);
    assert_eq!(limits.pids_limit, Some(100));

    let all = json!({ "cpu": "1m", "memory": "128Mi" });
    let limits = pod_cgroup(&one(res(all.clone(), all)), Some(-1));
    assert_eq!((limits.cpu_shares, limits.cpu_quota_us), (2, Some(1000)));
    assert_eq!((limits.memory_limit, limits.pids_limit), (Some(134_217_728), None));

    let limits = pod_cgroup(&pod(json!({ "containers": [{ "name": "a" }] })), None);
    assert_eq!(limits, CgroupLimits { cpu_shares: 2, cpu_period_us: 100_000, ..CgroupLimits::default() });
}

#[test]
fn an_unlimited_init_container_removes_the_pods_limit() {
    let full = json!({ "cpu": "1", "memory": "1Gi" });
    let given = pod(json!({
        "containers": [{ "name": "a", "resources": res(full.clone(), full.clone()) }],
        "initContainers": [{ "name": "i" }],
    }));
    assert_eq!((pod_cgroup(&given, None).cpu_quota_us, pod_cgroup(&given, None).memory_limit), (None, None));
    // With a limited sidecar before it, the containers that run at the same time have a limit.
    let given = pod(json!({
        "containers": [{ "name": "a", "resources": res(full.clone(), full.clone()) }],
        "initContainers": [{ "name": "s", "restartPolicy": "Always", "resources": res(full.clone(), full) }, { "name": "i" }],
    }));
    assert_eq!(pod_cgroup(&given, None).cpu_quota_us, Some(200_000));
}

#[test]
fn pod_level_limits_replace_missing_ones() {
    let given = pod(json!({
        "containers": [{ "name": "a" }, { "name": "b", "resources": { "limits": { "memory": "64Mi", "hugepages-2Mi": "4Mi" } } }],
        "resources": res(json!({ "cpu": "250m" }), json!({ "cpu": "500m", "memory": "256Mi" })),
    }));
    let whole = pod_cgroup(&given, None);
    assert_eq!((whole.cpu_shares, whole.cpu_quota_us, whole.memory_limit), (256, Some(50_000), Some(268_435_456)));
    let containers = &given.spec.as_ref().unwrap().containers;
    let a = container_cgroup(&given, &containers[0]);
    assert_eq!((a.cpu_shares, a.cpu_quota_us, a.memory_limit), (512, Some(50_000), Some(268_435_456)));
    let b = container_cgroup(&given, &containers[1]);
    assert_eq!((b.memory_limit, b.hugepages), (Some(67_108_864), BTreeMap::from([(2_097_152, 4_194_304)])));
}

#[test]
fn shares_and_quota_have_the_kernels_bounds() {
    assert_eq!([0, 1, 2, 1000, 1_000_000, -5].map(milli_cpu_to_shares), [2, 2, 2, 1024, 262_144, 2]);
    assert_eq!(
        [0, 1, 10, 100, 2000, -5].map(milli_cpu_to_quota),
        [None, Some(1000), Some(1000), Some(10_000), Some(200_000), None]
    );
}

#[test]
fn cgroups_have_the_go_kubelets_names() {
    let full = json!({ "cpu": "1", "memory": "1Gi" });
    let path = |pod: &Pod| pod_cgroup_name("/", pod).join("/");
    assert_eq!(path(&one(res(full.clone(), full.clone()))), "kubepods/podu-1");
    assert_eq!(path(&one(res(full, json!({})))), "kubepods/burstable/podu-1");
    assert_eq!(path(&one(json!({}))), "kubepods/besteffort/podu-1");
    assert_eq!(pod_cgroup_name("/system/x/", &one(json!({}))).join("/"), "system/x/kubepods/besteffort/podu-1");
}

#[test]
fn the_burstable_cgroup_has_the_shares_of_its_pods_requests() {
    let full = json!({ "cpu": "1", "memory": "1Gi" });
    let pods = [one(res(json!({ "cpu": "1" }), json!({}))), one(res(full.clone(), full)), one(json!({}))];
    assert_eq!(burstable_shares(&pods), 1024);
    assert_eq!(burstable_shares([]), 2);
}

fn container(pod: &Pod, name: &str) -> Container {
    let spec = pod.spec.as_ref().unwrap();
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name).unwrap().clone()
}

#[test]
fn oom_scores_order_the_classes() {
    const NODE: i64 = 4_000_000_000;
    let adj = |pod: &Pod, name: &str| oom_score_adj(pod, &container(pod, name), NODE);
    let full = json!({ "cpu": "1", "memory": "1G" });
    assert_eq!(adj(&one(res(full.clone(), full)), "a"), -997);
    assert_eq!(adj(&one(json!({})), "a"), 1000);
    assert_eq!(adj(&one(res(json!({ "memory": "400M" }), json!({}))), "a"), 900);
    assert_eq!(adj(&one(res(json!({ "memory": "4G" }), json!({}))), "a"), 3);
    assert_eq!(adj(&one(res(json!({ "cpu": "1" }), json!({}))), "a"), 999);

    let mut critical = one(json!({}));
    critical.spec.as_mut().unwrap().priority_class_name = Some("system-node-critical".into());
    assert_eq!(adj(&critical, "a"), 1000, "the class name alone is not enough");
    critical.spec.as_mut().unwrap().priority = Some(2_000_001_000);
    assert_eq!(adj(&critical, "a"), -997);
}

#[test]
fn a_sidecar_is_killed_after_the_smallest_app_container() {
    let given = pod(json!({
        "containers": [
            { "name": "a", "resources": { "requests": { "memory": "1G" } } },
            { "name": "b", "resources": { "requests": { "memory": "400M" } } },
        ],
        "initContainers": [
            { "name": "small", "restartPolicy": "Always", "resources": { "requests": { "memory": "40M" } } },
            { "name": "large", "restartPolicy": "Always", "resources": { "requests": { "memory": "800M" } } },
            { "name": "init", "resources": { "requests": { "memory": "40M" } } },
        ],
    }));
    let adj = |name: &str| oom_score_adj(&given, &container(&given, name), 4_000_000_000);
    assert_eq!([adj("a"), adj("b"), adj("small"), adj("large"), adj("init")], [750, 900, 900, 800, 990]);
}

#[test]
fn the_unclaimed_pod_level_request_is_divided_among_containers() {
    let given = pod(json!({
        "containers": [{ "name": "a", "resources": { "requests": { "memory": "400M" } } }, { "name": "b" }],
        "resources": { "requests": { "memory": "1200M" } },
    }));
    let adj = |name: &str| oom_score_adj(&given, &container(&given, name), 4_000_000_000);
    assert_eq!([adj("a"), adj("b")], [800, 900]);
    assert_eq!(oom_score_adj(&given, &container(&given, "a"), 0), 999, "node memory unknown");
}
