use serde_json::{Value, json};

use super::*;
use crate::model::Source;
use crate::static_pod::CONFIG_SOURCE;

fn config() -> NodeConfig {
    NodeConfig {
        node_name: "n1".into(),
        labels: BTreeMap::from([("zone".into(), "a".into()), ("cores".into(), "8".into())]),
        max_pods: 3,
        allocatable_cpu_millis: 1900,
        allocatable_memory: 1000,
        allocatable_ephemeral: 500,
        allocatable_huge_pages: BTreeMap::from([("hugepages-2Mi".into(), 8 << 20)]),
        ..NodeConfig::default()
    }
}

fn pod(uid: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": uid, "uid": uid }, "spec": spec })).unwrap()
}

fn requesting(uid: &str, requests: Value) -> Pod {
    pod(uid, json!({ "containers": [{ "name": "a", "resources": { "requests": requests } }] }))
}

fn with(pods: &[Pod]) -> Ledger {
    let mut ledger = Ledger::default();
    for pod in pods {
        ledger.reserve(pod.metadata.uid.as_deref().unwrap().into(), Requests::of(pod));
    }
    ledger
}

fn reason(pod: &Pod, ledger: &Ledger) -> &'static str {
    admit(pod, ledger, &config()).err().map_or("", |rejection| rejection.reason)
}

#[test]
fn a_missing_resource_has_the_kubelets_message() {
    let ledger = with(&[requesting("1", json!({ "cpu": "1500m", "memory": "600" }))]);
    let rejection = admit(&requesting("2", json!({ "cpu": "500m" })), &ledger, &config()).unwrap_err();
    assert_eq!(rejection.reason, "OutOfcpu");
    assert_eq!(rejection.message, "Node didn't have enough resource: cpu, requested: 500, used: 1500, capacity: 1900");
    assert_eq!(reason(&requesting("2", json!({ "cpu": "400m" })), &ledger), "");
    assert_eq!(reason(&requesting("2", json!({ "memory": "401" })), &ledger), "OutOfmemory");
    assert_eq!(reason(&requesting("2", json!({ "ephemeral-storage": "501" })), &ledger), "OutOfephemeral-storage");
    assert_eq!(reason(&requesting("2", json!({})), &ledger), "", "a pod without requests always fits");
}

#[test]
fn a_pod_that_was_too_large_to_decode_is_rejected() {
    let mut large = pod("1", json!({ "containers": [] }));
    large.status = serde_json::from_value(json!({ "reason": POD_TOO_LARGE, "message": "too many" })).unwrap();
    let rejection = admit(&large, &Ledger::default(), &config()).unwrap_err();
    assert_eq!((rejection.reason, rejection.message.as_str()), (POD_TOO_LARGE, "too many"));
    // Whoever may write statuses can't end a pod with this.
    large.spec = requesting("1", json!({})).spec;
    assert_eq!(reason(&large, &Ledger::default()), "");
}

#[test]
fn a_resource_that_nothing_provides_is_rejected() {
    let gpu = requesting("1", json!({ "nvidia.com/gpu": "1" }));
    let rejection = admit(&gpu, &Ledger::default(), &config()).unwrap_err();
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    let message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, \
                   which is unexpected";
    assert_eq!(rejection.message, message);
    assert_eq!(reason(&requesting("1", json!({ "nvidia.com/gpu": "0" })), &Ledger::default()), "");
    assert_eq!(reason(&requesting("1", json!({ "attachable-volumes-x": "1" })), &Ledger::default()), "");
    // With an API server, its scheduler decides; static pods have no scheduler.
    let in_cluster = NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..config() };
    assert_eq!(admit(&gpu, &Ledger::default(), &in_cluster), Ok(()));
    let mut manifest = gpu;
    manifest.metadata.annotations = Some(BTreeMap::from([(CONFIG_SOURCE.into(), "file".into())]));
    assert!(admit(&manifest, &Ledger::default(), &in_cluster).is_err());
}

#[test]
fn huge_pages_are_counted_by_size() {
    let pages = |uid: &str, name: &str, amount: &str| requesting(uid, json!({ name: amount }));
    let ledger = with(&[pages("1", "hugepages-2Mi", "4Mi"), pages("2", "hugepages-2Mi", "2Mi")]);
    let rejection = admit(&pages("3", "hugepages-2Mi", "4Mi"), &ledger, &config()).unwrap_err();
    assert_eq!(rejection.reason, "OutOfhugepages-2Mi");
    let message =
        "Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 6291456, capacity: 8388608";
    assert_eq!(rejection.message, message);
    assert_eq!(reason(&pages("3", "hugepages-2Mi", "2Mi"), &ledger), "");
    assert_eq!(
        reason(&pages("3", "hugepages-1Gi", "1Gi"), &ledger),
        "OutOfhugepages-1Gi",
        "a size without pages on this node"
    );
    assert_eq!(
        reason(&pages("3", "hugepages-3Mi", "3Mi"), &ledger),
        "OutOfhugepages",
        "a size that no kernel supports"
    );
    let bare = NodeConfig { allocatable_huge_pages: BTreeMap::new(), ..config() };
    let refused = admit(&pages("3", "hugepages-2Mi", "400Gi"), &Ledger::default(), &bare).unwrap_err();
    assert!(refused.message.ends_with("requested: 429496729600, used: 0, capacity: 0"), "{refused:?}");
}

#[test]
fn max_pods_is_enforced() {
    let three = with(&[requesting("1", json!({})), requesting("2", json!({})), requesting("3", json!({}))]);
    let rejection = admit(&requesting("4", json!({})), &three, &config()).unwrap_err();
    assert_eq!(rejection.reason, "OutOfpods");
    assert_eq!(rejection.message, "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3");
    assert_eq!(reason(&requesting("3", json!({})), &three), "", "a pod does not count against itself");
}

#[test]
fn a_rejected_or_finished_pod_does_not_count() {
    let mut ledger = Ledger::default();
    for round in 0..1000 {
        let uid = format!("job-{round}");
        let job = requesting(&uid, json!({ "cpu": "1" }));
        assert_eq!(reason(&job, &ledger), "", "{uid}");
        ledger.reserve(uid.as_str().into(), Requests::of(&job));
        let refused = requesting(&format!("big-{round}"), json!({ "cpu": "1" }));
        assert_eq!(reason(&refused, &ledger), "OutOfcpu");
        assert!(ledger.release(&uid) && !ledger.release(&uid));
    }
    assert!(ledger.is_empty());
}

#[test]
fn the_ledger_is_the_sum_of_the_pods_in_it() {
    let mut ledger = Ledger::default();
    let mut live: BTreeMap<u64, i64> = BTreeMap::new();
    let mut state: u64 = 42;
    for _ in 0..10_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (uid, cpu) = ((state >> 33) % 50, i64::try_from((state >> 45) % 900).unwrap());
        if state >> 63 == 0 {
            ledger.reserve(uid.to_string().into(), Requests { cpu_millis: cpu, ..Requests::default() });
            live.insert(uid, cpu);
        } else {
            assert_eq!(ledger.release(&uid.to_string()), live.remove(&uid).is_some());
        }
        let (count, sum) = ledger.used_without("");
        assert_eq!((count, sum.cpu_millis), (live.len(), live.values().sum()));
    }
}

#[test]
fn host_ports_collide_on_the_same_address_or_any() {
    let port = |uid: &str, port: Value| pod(uid, json!({ "containers": [{ "name": "a", "ports": [port] }] }));
    let ledger = with(&[
        port("1", json!({ "containerPort": 80, "hostPort": 8080 })),
        port("2", json!({ "containerPort": 80, "hostPort": 9090, "hostIP": "10.0.0.1" })),
    ]);
    for (wanted, expected) in [
        (json!({ "containerPort": 1, "hostPort": 8080 }), "NodePorts"),
        (json!({ "containerPort": 1, "hostPort": 8080, "protocol": "UDP" }), ""),
        (json!({ "containerPort": 1, "hostPort": 8080, "hostIP": "127.0.0.1" }), "NodePorts"),
        (json!({ "containerPort": 1, "hostPort": 9090, "hostIP": "10.0.0.2" }), ""),
        (json!({ "containerPort": 1, "hostPort": 9090, "hostIP": "10.0.0.1" }), "NodePorts"),
        (json!({ "containerPort": 1, "hostPort": 9090, "hostIP": "0.0.0.0" }), "NodePorts"),
        (json!({ "containerPort": 8080 }), ""),
    ] {
        assert_eq!(reason(&port("3", wanted.clone()), &ledger), expected, "{wanted}");
    }
    let init = |policy: Value| {
        let ports = json!([{ "containerPort": 1, "hostPort": 8080 }]);
        pod(
            "3",
            json!({ "containers": [], "initContainers": [{ "name": "i", "restartPolicy": policy, "ports": ports }] }),
        )
    };
    assert_eq!(reason(&init(json!("Always")), &ledger), "NodePorts");
    assert_eq!(reason(&init(Value::Null), &ledger), "");
}

#[test]
fn selectors_and_affinity_must_match() {
    let selector = |labels: Value| pod("1", json!({ "containers": [], "nodeSelector": labels }));
    let terms = |terms: Value| {
        pod(
            "1",
            json!({ "containers": [], "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } }),
        )
    };
    let expression = |key: &str, operator: &str, values: Value| {
        terms(json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]))
    };
    let field = |operator: &str, name: &str| {
        terms(json!([{ "matchFields": [{ "key": "metadata.name", "operator": operator, "values": [name] }] }]))
    };
    for (fits, wanted) in [
        (true, selector(json!({ "zone": "a" }))),
        (false, selector(json!({ "zone": "b" }))),
        (false, selector(json!({ "zone": "a", "other": "x" }))),
        (true, expression("zone", "In", json!(["b", "a"]))),
        (false, expression("zone", "In", json!(["b"]))),
        (false, expression("none", "In", json!(["b"]))),
        (true, expression("zone", "NotIn", json!(["b"]))),
        (false, expression("zone", "NotIn", json!(["a"]))),
        (true, expression("none", "NotIn", json!(["a"]))),
        (true, expression("zone", "Exists", Value::Null)),
        (false, expression("none", "Exists", Value::Null)),
        (true, expression("none", "DoesNotExist", Value::Null)),
        (false, expression("zone", "DoesNotExist", Value::Null)),
        (true, expression("cores", "Gt", json!(["4"]))),
        (false, expression("cores", "Gt", json!(["8"]))),
        (true, expression("cores", "Lt", json!(["9"]))),
        (false, expression("zone", "Lt", json!(["9"]))),
        (false, expression("none", "Gt", json!(["1"]))),
        (false, expression("zone", "Like", json!(["a"]))),
        (true, field("In", "n1")),
        (false, field("In", "n2")),
        (true, field("NotIn", "n2")),
        (false, field("NotIn", "n1")),
        (false, terms(json!([]))),
        (false, terms(json!([{}]))),
        (true, terms(json!([{}, { "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }]))),
        (
            false,
            terms(
                json!([{ "matchExpressions": [{ "key": "zone", "operator": "Exists" }, { "key": "none", "operator": "Exists" }] }]),
            ),
        ),
    ] {
        let expected = if fits { "" } else { "NodeAffinity" };
        assert_eq!(reason(&wanted, &Ledger::default()), expected, "{}", serde_json::to_string(&wanted.spec).unwrap());
    }
    let rejection = admit(&selector(json!({ "zone": "b" })), &Ledger::default(), &config()).unwrap_err();
    assert_eq!(rejection.message, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector");
}

#[test]
fn another_os_or_node_name_is_rejected() {
    let os = |name: &str| pod("1", json!({ "containers": [], "os": { "name": name } }));
    assert_eq!(reason(&os("windows"), &Ledger::default()), "PodOSNotSupported");
    assert_eq!(reason(&os("linux"), &Ledger::default()), "");
    let node = |name: &str| pod("1", json!({ "containers": [], "nodeName": name }));
    assert_eq!(reason(&node("n1"), &Ledger::default()), "");
    assert_eq!(reason(&node("n2"), &Ledger::default()), "NodeName");
    let mut labelled = requesting("1", json!({}));
    labelled.metadata.labels = Some(BTreeMap::from([("kubernetes.io/os".into(), "windows".into())]));
    assert_eq!(reason(&labelled, &Ledger::default()), "PodOSSelectorNodeLabelDoesNotMatch");
}

#[test]
fn strict_supplemental_groups_are_rejected_without_runtime_support() {
    let policy =
        |policy: &str| pod("1", json!({ "containers": [], "securityContext": { "supplementalGroupsPolicy": policy } }));
    let on = |supported| NodeConfig { supplemental_groups_policy: supported, ..config() };
    let rejection = admit(&policy("Strict"), &Ledger::default(), &on(Some(false))).unwrap_err();
    assert_eq!(rejection.reason, "SupplementalGroupsPolicyNotSupported");
    assert_eq!(rejection.message, "SupplementalGroupsPolicy=Strict is not supported in this node");
    assert_eq!(admit(&policy("Strict"), &Ledger::default(), &on(Some(true))), Ok(()));
    assert_eq!(admit(&policy("Strict"), &Ledger::default(), &on(None)), Ok(()), "the runtime has not reported yet");
    assert_eq!(admit(&policy("Merge"), &Ledger::default(), &on(Some(false))), Ok(()));
}

#[test]
fn an_unenforced_app_armor_profile_is_rejected() {
    let without = NodeConfig { app_armor: false, ..config() };
    let confined = |of_pod: &str, own: &str| {
        let profile = |kind: &str| match kind {
            "" => json!({}),
            kind => json!({ "appArmorProfile": { "type": kind } }),
        };
        pod(
            "1",
            json!({ "securityContext": profile(of_pod), "containers": [{ "name": "a", "securityContext": profile(own) }] }),
        )
    };
    let rejection = admit(&confined("", "RuntimeDefault"), &Ledger::default(), &without).unwrap_err();
    assert_eq!(rejection.reason, "AppArmor");
    assert_eq!(rejection.message, "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    for (of_pod, own, reason) in [
        ("", "", ""),
        ("", "Unconfined", ""),
        ("Localhost", "", "AppArmor"),
        ("RuntimeDefault", "Unconfined", ""),
        ("Unconfined", "Localhost", "AppArmor"),
    ] {
        let refused = admit(&confined(of_pod, own), &Ledger::default(), &without).err().map_or("", |r| r.reason);
        assert_eq!(refused, reason, "{of_pod:?} {own:?}");
        assert_eq!(super::admit(&confined(of_pod, own), &Ledger::default(), &config()), Ok(()));
    }
}
