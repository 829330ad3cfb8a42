//! Tests of the Node object and its patches.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;

fn facts() -> NodeFacts {
    NodeFacts {
        name: "n".into(),
        labels: [("kubernetes.io/hostname", "n"), ("kubernetes.io/os", "linux"), ("disk", "ssd")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        taints: vec![Taint { key: "t".into(), effect: "NoSchedule".into(), ..Taint::default() }],
        addresses: vec!["10.0.0.1".into(), "fd00::1".into()],
        hostname: "host".into(),
        capacity: Resources {
            cpu_millis: 2000,
            memory: 24 << 30,
            ephemeral_storage: 1001,
            pods: 110,
            huge_pages: [("hugepages-2Mi".to_owned(), 0)].into(),
        },
        allocatable: Resources { cpu_millis: 1500, ..Resources::default() },
        ..NodeFacts::default()
    }
}

fn runtime() -> RuntimeFacts {
    RuntimeFacts {
        version: "containerd://2.1.9".into(),
        handlers: vec![RuntimeHandler { name: "runc".into(), user_namespaces: true, ..RuntimeHandler::default() }],
        images: vec![(vec!["small".into()], 1), (vec!["big".into()], 2), (vec![], 3)],
        ..RuntimeFacts::default()
    }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(secs)
}

fn json_of(of: &NodeStatus) -> Value {
    serde_json::to_value(of).unwrap()
}

#[test]
fn a_new_object_is_complete() {
    let node = initial(&facts(), &runtime(), at(5));
    assert_eq!(node.metadata.labels.as_ref().map(BTreeMap::len), Some(3));
    assert_eq!(node.spec.unwrap().taints.unwrap()[0].key, "t");
    let status = json_of(&node.status.unwrap());
    assert_eq!(status["capacity"]["cpu"], "2");
    assert_eq!(status["capacity"]["memory"], "25165824Ki");
    assert_eq!(status["capacity"]["ephemeral-storage"], "1001");
    assert_eq!(status["capacity"]["hugepages-2Mi"], "0");
    assert_eq!(status["allocatable"]["cpu"], "1500m");
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
                           {"type": "Hostname", "address": "host"}]);
    assert_eq!(status["addresses"], addresses);
    assert_eq!(status["images"], json!([{"names": ["big"], "sizeBytes": 2}, {"names": ["small"], "sizeBytes": 1}]));
    let few = NodeFacts { images_max: Some(1), ..facts() };
    let few = super::status(&few, &runtime(), None, at(5));
    assert_eq!(few.images.map(|images| images.len()), Some(1), "the largest");
    assert_eq!(status["nodeInfo"]["containerRuntimeVersion"], "containerd://2.1.9");
    assert!(status.get("daemonEndpoints").is_none());
    let serving = NodeFacts { kubelet_port: Some(10250), ..facts() };
    let serving = super::status(&serving, &runtime(), None, at(5));
    assert_eq!(json_of(&serving)["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 10250}}));
    let without = super::status(&facts(), &runtime(), None, at(5));
    let patch = status_patch(&without, &serving, false);
    assert_eq!(patch, Some(json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}})));
    let mut stored = without.clone();
    stored.daemon_endpoints = serde_json::from_value(json!({"kubeletEndpoint": {"Port": 0}})).unwrap();
    assert_eq!(status_patch(&stored, &without, false), None, "the server stores zero for none");
    let ready = &status["conditions"][3];
    assert_eq!(
        (&ready["type"], &ready["status"], &ready["reason"]),
        (&json!("Ready"), &json!("True"), &json!("KubeletReady"))
    );
}

#[test]
fn ready_follows_the_runtime_and_transition_times_are_kept() {
    let first = status(&facts(), &runtime(), None, at(5));
    let ready = |status: &NodeStatus| status.conditions.as_ref().unwrap()[3].clone();
    let again = status(&facts(), &runtime(), Some(&first), at(50));
    assert_eq!(ready(&again).last_transition_time, Some(Time(at(5))));
    assert_eq!(ready(&again).last_heartbeat_time, Some(Time(at(50))));

    let down = RuntimeFacts { network: Some("no network".into()), ..runtime() };
    let down = status(&facts(), &down, Some(&again), at(60));
    assert_eq!((ready(&down).status.as_str(), ready(&down).message.as_deref()), ("False", Some("no network")));
    assert_eq!(ready(&down).last_transition_time, Some(Time(at(60))));
    let both = RuntimeFacts { network: Some("b".into()), ready: Some("a".into()), ..runtime() };
    assert_eq!(readiness(&both).unwrap_err().to_string(), "[a, b]");
}

#[test]
fn a_node_that_shuts_down_is_not_ready() {
    let ready = |runtime: &RuntimeFacts| {
        let node = initial(&facts(), runtime, at(5));
        let ready = node.status.as_ref().unwrap().conditions.as_ref().unwrap()[3].clone();
        (ready.status, ready.message.unwrap_or_default(), announces_shutdown(&node))
    };
    let shuts_down = RuntimeFacts { shutting_down: true, ..runtime() };
    assert_eq!(ready(&shuts_down), ("False".into(), "node is shutting down".into(), true));
    let and_more = RuntimeFacts { network: Some("no network".into()), ..shuts_down };
    assert_eq!(ready(&and_more), ("False".into(), "[no network, node is shutting down]".into(), true));
    assert_eq!(ready(&RuntimeFacts { shutting_down: false, ..and_more }), ("False".into(), "no network".into(), false));
}

#[test]
fn only_differences_are_sent_and_conditions_of_others_stay() {
    let had = status(&facts(), &runtime(), None, at(5));
    let same = status(&facts(), &runtime(), Some(&had), at(9));
    assert_eq!(status_patch(&had, &same, false), None);
    let beat = status_patch(&had, &same, true).unwrap();
    assert_eq!(beat["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);

    // The node controller says Unknown, a network plugin has a condition, a device plugin a resource.
    let mut others = had.clone();
    let conditions = others.conditions.as_mut().unwrap();
    conditions[3].status = "Unknown".into();
    conditions.push(NodeCondition {
        type_: "NetworkUnavailable".into(),
        status: "False".into(),
        ..NodeCondition::default()
    });
    others.capacity.as_mut().unwrap().insert("vendor/gpu".into(), Quantity("1".into()));
    let wanted = status(&facts(), &runtime(), Some(&others), at(9));
    let patch = status_patch(&others, &wanted, false).unwrap();
    assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 4);
    assert_eq!(patch["status"]["conditions"][3]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    assert!(patch["status"].get("capacity").is_none());

    let mut moved = had.clone();
    moved.addresses.as_mut().unwrap().remove(1);
    let patch = status_patch(&moved, &same, false).unwrap();
    assert_eq!(patch["status"]["addresses"][0], json!({"$patch": "replace"}));
    assert_eq!(patch["status"]["addresses"].as_array().unwrap().len(), 4);
    let mut none = had.clone();
    none.images = Some(vec![]);
    let none_wanted = NodeStatus { images: None, ..had.clone() };
    assert_eq!(status_patch(&none, &none_wanted, false), None);
}

#[test]
fn an_existing_object_keeps_its_labels_and_taints() {
    let mut had = initial(&facts(), &runtime(), at(5));
    assert_eq!(registration_patch(&had, &facts()), None);
    let labels = had.metadata.labels.as_mut().unwrap();
    labels.remove("disk");
    labels.insert("kubernetes.io/os".into(), "plan9".into());
    had.metadata.annotations = None;
    had.spec = None;
    let patch = registration_patch(&had, &facts()).unwrap();
    let wanted =
        json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}, "annotations": {ATTACH_ANNOTATION: "true"}}});
    assert_eq!(patch, wanted);
}

#[test]
fn normalised_quantities_are_equal() {
    let wanted = status(&facts(), &runtime(), None, at(5));
    let mut had = wanted.clone();
    for amounts in [&mut had.capacity, &mut had.allocatable] {
        for amount in amounts.iter_mut().flat_map(|amounts| amounts.values_mut()) {
            *amount = Quantity(amount.0.parse::<crate::quantity::Amount>().unwrap().to_string());
        }
    }
    assert_eq!(json_of(&had)["capacity"]["memory"], "24Gi");
    assert_eq!(status_patch(&had, &wanted, false), None);
    had.capacity.as_mut().unwrap().insert("memory".into(), Quantity("23Gi".into()));
    assert_eq!(status_patch(&had, &wanted, false).unwrap(), json!({"status": {"capacity": {"memory": "25165824Ki"}}}));
}

#[test]
fn node_info_of_another_agent_is_removed() {
    let wanted = status(&facts(), &runtime(), None, at(5));
    let mut had = json_of(&wanted);
    had["nodeInfo"]["swap"] = json!({"capacity": 5});
    let had: NodeStatus = serde_json::from_value(had).unwrap();
    let patch = status_patch(&had, &wanted, false).unwrap();
    assert_eq!(patch["status"]["nodeInfo"]["swap"], Value::Null);
    assert!(patch["status"]["nodeInfo"].as_object().unwrap().contains_key("swap"), "removed fields are named");
}

#[test]
fn pressure_conditions_have_the_reasons_of_the_go_kubelet() {
    let mut pressed = runtime();
    pressed.pressures = BTreeSet::from([NodePressure::Memory, NodePressure::Disk]);
    let status = status(&facts(), &pressed, None, Timestamp::UNIX_EPOCH);
    let conditions = status.conditions.unwrap();
    let shown: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref())).collect();
    let expected = [
        ("MemoryPressure", "True", Some("KubeletHasInsufficientMemory")),
        ("DiskPressure", "True", Some("KubeletHasDiskPressure")),
        ("PIDPressure", "False", Some("KubeletHasSufficientPID")),
        ("Ready", "True", Some("KubeletReady")),
    ];
    assert_eq!(shown, expected);
}
