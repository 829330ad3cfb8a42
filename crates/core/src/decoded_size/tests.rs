use k8s_openapi::api::core::v1::{
    ContainerPort, DownwardAPIVolumeFile, KeyToPath, PodAffinityTerm, PodCondition, Toleration,
    TopologySpreadConstraint, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use serde_json::{Value, json};

use super::*;

fn pod(container: Value, volumes: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "b"}, container], "volumes": volumes}})
}

fn check(document: &Value) -> Result<(), DecodedTooLarge> {
    DecodedSize::check(&[serde_json::from_str(&document.to_string()).unwrap()])
}

fn variables(count: usize) -> Value {
    (0..count).map(|n| json!({"name": format!("V{n}"), "value": "x"})).collect()
}

#[test]
fn many_small_items_are_refused_with_the_name_of_their_list() {
    let volumes: Value = (0..10_000).map(|n| json!({"name": format!("v{n}")})).collect();
    let cases = [
        (pod(json!({"env": variables(80_000)}), json!([])), "spec.containers[1].env"),
        (pod(json!({"env": variables(10)}), volumes), "spec.volumes"),
        (pod(json!({"ports": vec![json!({}); 60_000]}), json!([])), "spec.containers[1].ports"),
        (pod(json!({"args": vec!["a"; 300_000]}), json!([])), "spec.containers[1].args"),
        (json!({"kind": "List", "items": vec![pod(json!({}), json!([])); 3_000]}), "items"),
        (json!({"a": "x".repeat(DECODED_BYTES_MAX)}), ""),
    ];
    for (document, path) in cases {
        let error = check(&document).unwrap_err();
        assert_eq!(error.path, path, "{error}");
        assert!(error.to_string().contains("more than the limit of 16 MiB: "), "{error}");
    }
}

#[test]
fn ordinary_and_large_pods_are_within_the_limit() {
    let long: Value = (0..4_000).map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(200)})).collect();
    for document in [
        json!(null),
        pod(json!({"env": variables(14_000)}), json!([])),
        pod(json!({"env": long}), json!([])),
        json!({"kind": "List", "items": vec![pod(json!({"env": variables(2)}), json!([])); 500]}),
        pod(
            json!({}),
            json!([{"name": "v", "projected": {"sources": [{"configMap": {"name": "c",
            "items": vec![json!({"key": "k", "path": "p"}); 10_000]}}]}}]),
        ),
    ] {
        assert_eq!(check(&document), Ok(()));
    }
}

#[test]
fn documents_of_one_text_are_counted_together() {
    let one: DecodedSize =
        serde_json::from_str(&pod(json!({"env": variables(10_000)}), json!([])).to_string()).unwrap();
    assert_eq!(DecodedSize::check(std::slice::from_ref(&one)), Ok(()));
    assert_eq!(DecodedSize::check(&[one.clone(), one]).unwrap_err().path, "spec.containers[1].env");
}

/// A type that grows needs a row in `item_bytes`.
#[test]
fn items_of_other_lists_are_small() {
    let sizes = [
        size_of::<ContainerPort>(),
        size_of::<DownwardAPIVolumeFile>(),
        size_of::<KeyToPath>(),
        size_of::<ManagedFieldsEntry>(),
        size_of::<OwnerReference>(),
        size_of::<PodAffinityTerm>(),
        size_of::<PodCondition>(),
        size_of::<Toleration>(),
        size_of::<TopologySpreadConstraint>(),
        size_of::<VolumeMount>(),
        size_of::<WeightedPodAffinityTerm>(),
    ];
    assert!(sizes.iter().all(|size| *size <= ITEM_BYTES), "{sizes:?}");
}
