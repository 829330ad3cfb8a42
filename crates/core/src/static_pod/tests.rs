use serde_json::json;

use super::*;

fn seen() -> Timestamp {
    "2026-11-20T08:00:00.123456789Z".parse().unwrap()
}

fn read(value: Value) -> Result<Vec<Manifest>, ManifestError> {
    from_value(value, Source::File, "/etc/manifests/web.yaml", "Node-A", seen())
}

fn one(value: Value) -> Pod {
    let mut manifests = read(value).unwrap();
    assert_eq!(manifests.len(), 1);
    Arc::unwrap_or_clone(manifests.remove(0).pod)
}

fn web() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "a", "image": "nginx:1" }] },
    })
}

fn with(path: &str, value: Value) -> Value {
    let mut document = web();
    *document
        .pointer_mut(path.rsplit_once('/').unwrap().0)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .entry(path.rsplit_once('/').unwrap().1)
        .or_insert(Value::Null) = value;
    document
}

fn uid(value: Value) -> String {
    one(value).metadata.uid.unwrap()
}

#[test]
fn a_manifest_becomes_a_static_pod_of_the_node() {
    let pod = one(web());
    let meta = &pod.metadata;
    assert_eq!(meta.name.as_deref(), Some("web-node-a"));
    assert_eq!(meta.namespace.as_deref(), Some("default"));
    let uid = meta.uid.clone().unwrap();
    assert!(uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit()), "{uid}");
    let annotations = meta.annotations.as_ref().unwrap();
    assert_eq!(annotations[CONFIG_HASH], uid);
    assert_eq!(annotations[CONFIG_SOURCE], "file");
    assert_eq!(annotations[CONFIG_SEEN], "2026-11-20T08:00:00.123456789Z");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("Node-A"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"), "defaults are filled in");
    let tolerations = serde_json::to_value(&spec.tolerations).unwrap();
    assert_eq!(tolerations, json!([{ "operator": "Exists", "effect": "NoExecute" }]));
    assert_eq!(serde_json::to_value(&pod.status).unwrap(), json!({ "phase": "Pending" }));
}

#[test]
fn the_uid_stays_the_same_from_release_to_release() {
    // Changing this restarts every static pod of every node that is upgraded.
    assert_eq!(uid(web()), "040c48be8ac2cf3983f6224454c7f32a");
}

#[test]
fn the_uid_depends_on_content_and_origin() {
    let first = uid(web());
    let reordered: Value = serde_json::from_str(
        r#"{"spec":{"containers":[{"image":"nginx:1","name":"a"}]},"metadata":{"name":"web","creationTimestamp":null},
            "kind":"Pod","apiVersion":"v1","status":{"phase":"Running"}}"#,
    )
    .unwrap();
    assert_eq!(uid(reordered), first, "key order, nulls and status don't count");
    let in_a_list = json!({ "apiVersion": "v1", "kind": "PodList", "items": [web()] });
    assert_eq!(uid(in_a_list), first, "the position in the file does not count");
    assert_ne!(uid(with("/spec/containers/0/image", json!("nginx:2"))), first);
    let other = |source, origin: &str, node: &str| {
        from_value(web(), source, origin, node, seen()).unwrap()[0].pod.metadata.uid.clone().unwrap()
    };
    assert_eq!(other(Source::File, "/etc/manifests/web.yaml", "Node-A"), first);
    assert_ne!(other(Source::File, "/etc/manifests/web2.yaml", "Node-A"), first);
    assert_ne!(other(Source::File, "/etc/manifests/web.yaml", "node-b"), first);
    assert_ne!(other(Source::Url, "/etc/manifests/web.yaml", "Node-A"), first);
}

#[test]
fn a_uid_in_the_manifest_is_kept_and_the_content_still_hashed() {
    let first = one(with("/metadata/uid", json!("fixed-1")));
    let hash = |pod: &Pod| pod.metadata.annotations.as_ref().unwrap()[CONFIG_HASH].clone();
    assert_eq!(first.metadata.uid.as_deref(), Some("fixed-1"));
    let mut edited = with("/metadata/uid", json!("fixed-1"));
    edited["spec"]["containers"][0]["image"] = json!("nginx:2");
    let edited = one(edited);
    assert_eq!(edited.metadata.uid.as_deref(), Some("fixed-1"));
    assert_ne!(hash(&first), hash(&edited));
}

#[test]
fn a_uid_that_is_not_a_valid_directory_name_is_rejected() {
    for bad in ["../../etc", "a/b", "a.b", "a b", "ü", "a\0", &"x".repeat(129)] {
        let error = read(with("/metadata/uid", json!(bad))).unwrap_err().to_string();
        assert!(error.contains("metadata.uid") && error.contains("letters, digits and dashes"), "{error}");
    }
    assert_eq!(uid(with("/metadata/uid", json!("x".repeat(128)))).len(), 128);
    assert_eq!(uid(with("/metadata/uid", json!(""))).len(), 32, "an empty UID counts as unset");
}

#[test]
fn fields_of_the_api_server_are_removed() {
    let mut document = web();
    document["metadata"] = json!({
        "name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "resourceVersion": "5",
        "annotations": { CONFIG_MIRROR: "x", "mine": "stays" },
    });
    document["spec"]["tolerations"] = json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 }, { "key": "k", "operator": "Exists" }]);
    let pod = one(document);
    assert_eq!(pod.metadata.deletion_timestamp, None);
    assert_eq!(pod.metadata.deletion_grace_period_seconds, None);
    assert_eq!(pod.metadata.resource_version, None);
    let annotations = pod.metadata.annotations.unwrap();
    assert!(!annotations.contains_key(CONFIG_MIRROR) && annotations["mine"] == "stays");
    assert_eq!(
        serde_json::to_value(pod.spec.unwrap().tolerations).unwrap(),
        json!([{ "operator": "Exists", "effect": "NoExecute" }, { "key": "k", "operator": "Exists" }])
    );
}

#[test]
fn a_list_is_accepted_or_rejected_whole() {
    let bare = json!({ "metadata": { "name": "b" }, "spec": { "containers": [{ "name": "a", "image": "x" }] } });
    let list = read(json!({ "apiVersion": "v1", "kind": "PodList", "items": [web(), bare] })).unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(list[1].origin, "/etc/manifests/web.yaml");
    assert_eq!(read(json!({ "apiVersion": "v1", "kind": "List", "items": [web()] })).unwrap().len(), 1);
    assert_eq!(read(Value::Null).unwrap(), []);
    assert_eq!(read(json!({ "apiVersion": "v1", "kind": "PodList" })).unwrap(), []);
    let mut broken = web();
    broken["metadata"]["name"] = json!("a/b");
    assert!(read(json!({ "apiVersion": "v1", "kind": "List", "items": [web(), broken] })).is_err(), "all or none");
}

#[test]
fn other_kinds_are_rejected() {
    for (document, expected) in [
        (json!({ "apiVersion": "apps/v1", "kind": "Deployment" }), r#"kind "Deployment" of apiVersion "apps/v1""#),
        (json!({ "apiVersion": "v1", "kind": "ConfigMap" }), r#"kind "ConfigMap""#),
        (json!({ "apiVersion": "v2", "kind": "Pod" }), r#"apiVersion "v2""#),
        (json!({ "metadata": {} }), r#"kind """#),
        (
            json!({ "apiVersion": "v1", "kind": "List", "items": [{ "apiVersion": "v1", "kind": "Service" }] }),
            "items[0].kind",
        ),
        (json!({ "apiVersion": "v1", "kind": "List", "items": [web()["spec"]] }), "items[0].kind"),
        (json!({ "apiVersion": "v1", "kind": "PodList", "items": [7] }), "items[0]: must be a pod"),
        (json!({ "apiVersion": "v1", "kind": "PodList", "items": "x" }), "items: must be a list"),
        (json!([web()]), "this is a list"),
        (json!("text"), "this is a text"),
    ] {
        let error = read(document).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    for (path, value, expected) in [
        ("/spec/containers/0/image", json!(5), "spec.containers[0].image: "),
        ("/spec/containers", json!("x"), "spec.containers: "),
        ("/spec/terminationGracePeriodSeconds", json!("30s"), "spec.terminationGracePeriodSeconds: "),
        ("/spec/hostNetwork", json!("yes"), "spec.hostNetwork: "),
        ("/metadata/labels", json!({ "a": 1 }), "metadata.labels.a: "),
        ("/spec/containers/0/env", json!([{ "name": "A", "value": 1 }]), "spec.containers[0].env[0].value: "),
    ] {
        let error = read(with(path, value)).unwrap_err();
        assert!(matches!(error, ManifestError::Decode { .. }), "{error}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": [web(), with("/spec/containers", json!(1))] });
    assert!(read(list).unwrap_err().to_string().starts_with("items[1].spec.containers: "));
}

#[test]
fn numbers_may_be_written_for_quantities() {
    let pod = one(with("/spec/containers/0/resources", json!({ "limits": { "cpu": 0.5, "memory": 1_073_741_824 } })));
    let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
    assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("500m", "1073741824"));
}

#[test]
fn names_are_validated() {
    for name in ["", "a/b", "../x", "UPPER", "-a", "a_b", "a..b", &"x".repeat(250)] {
        assert!(read(with("/metadata/name", json!(name))).is_err(), "{name:?}");
    }
    for namespace in ["a/b", "..", "A", "a.b"] {
        assert!(read(with("/metadata/namespace", json!(namespace))).is_err(), "{namespace:?}");
    }
    let error = read(with("/spec/terminationGracePeriodSeconds", json!(-1))).unwrap_err().to_string();
    assert!(error.contains("spec.terminationGracePeriodSeconds"), "{error}");
    assert!(read(with("/spec/ephemeralContainers", json!([{ "name": "d", "image": "x" }]))).is_err());
}

#[test]
fn references_to_api_objects_are_rejected() {
    let volume = |source: &str, value: Value| with("/spec/volumes", json!([{ "name": "v", source: value }]));
    let projected = |source: Value| volume("projected", json!({ "sources": [source] }));
    for (document, path) in [
        (with("/spec/serviceAccountName", json!("x")), "spec.serviceAccountName"),
        (with("/spec/serviceAccount", json!("x")), "spec.serviceAccount"),
        (with("/spec/imagePullSecrets", json!([{ "name": "x" }])), "spec.imagePullSecrets"),
        (with("/spec/resourceClaims", json!([{ "name": "x" }])), "spec.resourceClaims"),
        (
            with("/spec/containers/0/envFrom", json!([{ "secretRef": { "name": "x" } }])),
            "spec.containers[0].envFrom[0].secretRef",
        ),
        (
            with(
                "/spec/containers/0/env",
                json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "x", "key": "k" } } }]),
            ),
            "spec.containers[0].env[0].valueFrom.configMapKeyRef",
        ),
        (volume("configMap", json!({ "name": "x" })), "spec.volumes[0].configMap"),
        (volume("secret", json!({ "secretName": "x" })), "spec.volumes[0].secret"),
        (volume("persistentVolumeClaim", json!({ "claimName": "x" })), "spec.volumes[0].persistentVolumeClaim"),
        (volume("csi", json!({ "driver": "x" })), "spec.volumes[0].csi"),
        (volume("cephfs", json!({ "monitors": [], "secretRef": { "name": "x" } })), "spec.volumes[0].cephfs.secretRef"),
        (
            projected(json!({ "serviceAccountToken": { "path": "x" } })),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        (projected(json!({ "configMap": { "name": "x" } })), "spec.volumes[0].projected.sources[0].configMap"),
    ] {
        match read(document).unwrap_err() {
            ManifestError::Reference { path: found, .. } => assert_eq!(found, path),
            other => panic!("{path}: {other}"),
        }
    }
    let fine = json!({ "downwardAPI": { "items": [{ "path": "n", "fieldRef": { "fieldPath": "metadata.name" } }] } });
    read(projected(fine)).unwrap();
    read(with("/spec/imagePullSecrets", json!([]))).unwrap();
}

#[test]
fn unknown_fields_are_found_by_their_path() {
    let mut document = web();
    document["metadata"]["managedBy"] = json!("me");
    document["spec"]["containers"][0]["foo"] = json!({ "bar": 1 });
    document["spec"]["containers"][0]["nothing"] = Value::Null;
    document["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": 1, "example.com/x": 2 } });
    document["spec"]["resartPolicy"] = json!("Never");
    document["status"] = json!({ "phase": "Running" });
    let expected = ["metadata.managedBy", "spec.containers[0].foo", "spec.resartPolicy"];
    assert_eq!(unknown_fields(&document, &one(document.clone())), expected);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [web(), document] });
    assert_eq!(unknown_in(&list), expected.map(|path| format!("items[1].{path}")));
    assert!(unknown_fields(&web(), &one(web())).is_empty());
}

#[test]
fn a_document_nested_too_deeply_is_rejected() {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    assert_eq!(read(with("/spec/x", deep)).unwrap_err(), ManifestError::TooDeep);
}
