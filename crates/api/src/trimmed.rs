//! Decodes objects without the fields we never use, so that `managedFields` (half of an ordinary pod) is not even allocated
//! temporarily.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use podwright_core::admission::POD_TOO_LARGE;
use podwright_core::decoded_size::{DecodedSize, DecodedTooLarge};
use podwright_core::model::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Decodes a pod. One that would take too much memory is decoded without its containers and volumes, and has the reason
/// [`POD_TOO_LARGE`] in its status, with which it is rejected. Fields of the status that can't be decoded are left out: other components
/// write there too, and the pod must be run and terminated all the same.
pub(crate) fn pod(json: &[u8]) -> Result<Pod, serde_json::Error> {
    let MeasuredPod { spec, status } = serde_json::from_slice(json)?;
    if let Err(too_large) = DecodedSize::check(&[spec, status]) {
        return oversized_pod(json, &too_large);
    }
    let read: TrimmedPod = match serde_json::from_slice(json) {
        Ok(read) => read,
        Err(error) => serde_json::from_slice(&readable::<PodStatus, PodCondition>(json, error)?)?,
    };
    Ok(Pod { metadata: read.metadata.into(), spec: read.spec, status: read.status })
}

/// A pod whose spec can't be decoded, without it.
#[derive(Debug)]
pub(crate) struct DeletedPod {
    pub(crate) pod: Pod,
    /// From its spec.
    pub(crate) node: String,
}

/// Decodes a pod that has a deletion timestamp without its spec: it must be terminated all the same. `None`: it is not deleted, or more
/// than that can't be decoded.
pub(crate) fn deleted_pod(json: &[u8]) -> Option<DeletedPod> {
    let mut object: Value = serde_json::from_slice(json).ok()?;
    let node = object.pointer("/spec/nodeName")?.as_str()?.to_owned();
    object.as_object_mut()?.remove("spec");
    let pod = pod(object.to_string().as_bytes()).ok()?;
    pod.metadata.deletion_timestamp.is_some().then_some(DeletedPod { pod, node })
}

/// Decodes a node, as [`pod`].
pub(crate) fn node(json: &[u8]) -> Result<Node, serde_json::Error> {
    let read: TrimmedNode = match serde_json::from_slice(json) {
        Ok(read) => read,
        Err(error) => serde_json::from_slice(&readable::<NodeStatus, NodeCondition>(json, error)?)?,
    };
    Ok(Node { metadata: read.metadata.into(), spec: read.spec, status: read.status })
}

/// The object without the conditions and the other fields of its status that can't be decoded; `error` if there are none.
fn readable<S: DeserializeOwned, C: DeserializeOwned>(
    json: &[u8],
    error: serde_json::Error,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut object: Value = serde_json::from_slice(json)?;
    let before = object["status"].clone();
    if let Some(conditions) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| decodes::<C>(condition));
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.retain(|name, value| decodes::<S>(&json!({name: value})));
    }
    if object["status"] == before {
        return Err(error);
    }
    tracing::debug!(%error, "fields of a status can't be decoded: left out");
    serde_json::to_vec(&object)
}

/// By way of its text: a second decoder of a status for values would only enlarge the program.
fn decodes<T: DeserializeOwned>(value: &Value) -> bool {
    serde_json::to_vec(value).is_ok_and(|text| serde_json::from_slice::<T>(&text).is_ok())
}

/// The metadata that identifies an object. Decodable even if the rest of the object is not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectIdentity {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

/// Decodes only the identifying metadata.
pub(crate) fn identity(json: &[u8]) -> Result<ObjectIdentity, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        metadata: ObjectIdentity,
    }
    serde_json::from_slice::<Object>(json).map(|object| object.metadata)
}

/// Decodes only the `kind` field.
pub(crate) fn kind(json: &[u8]) -> Result<String, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        kind: String,
    }
    serde_json::from_slice::<Object>(json).map(|object| object.kind)
}

fn oversized_pod(json: &[u8], too_large: &DecodedTooLarge) -> Result<Pod, serde_json::Error> {
    let OversizedPod { metadata, spec, status } = serde_json::from_slice(json)?;
    let message = format!("spec.{}: {too_large}", too_large.path);
    Ok(Pod {
        metadata: metadata.into(),
        spec: Some(PodSpec { node_name: spec.node_name, priority: spec.priority, ..PodSpec::default() }),
        status: Some(PodStatus {
            phase: status.phase,
            reason: Some(POD_TOO_LARGE.into()),
            message: Some(message),
            ..PodStatus::default()
        }),
    })
}

/// The parts of a pod that may be large.
#[derive(Deserialize)]
struct MeasuredPod {
    #[serde(default)]
    spec: DecodedSize,
    #[serde(default)]
    status: DecodedSize,
}

/// The fields of a pod that can't be large.
#[derive(Deserialize)]
struct OversizedPod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: OversizedSpec,
    #[serde(default)]
    status: OversizedStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OversizedSpec {
    node_name: Option<String>,
    priority: Option<i32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OversizedStatus {
    phase: Option<String>,
}

#[derive(Deserialize)]
struct TrimmedPod {
    #[serde(default)]
    metadata: Meta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Deserialize)]
struct TrimmedNode {
    metadata: Meta,
    spec: Option<NodeSpec>,
    status: Option<NodeStatus>,
}

/// `ObjectMeta` without `managedFields` and the obsolete `selfLink`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> Self {
        Self {
            annotations: meta.annotations,
            creation_timestamp: meta.creation_timestamp,
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            deletion_timestamp: meta.deletion_timestamp,
            finalizers: meta.finalizers,
            generate_name: meta.generate_name,
            generation: meta.generation,
            labels: meta.labels,
            name: meta.name,
            namespace: meta.namespace,
            owner_references: meta.owner_references,
            resource_version: meta.resource_version,
            uid: meta.uid,
            managed_fields: None,
            self_link: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_managed_fields_is_kept() {
        let object = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3, "generateName": "a-",
                "labels": {"l": "1"}, "annotations": {"x": "y"}, "finalizers": ["f"],
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o", "controller": true}],
            },
            "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        let mut full = object.clone();
        full["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:name": {}}}}]);
        full["spec"]["fieldOfNextYear"] = json!({"deep": [1, 2, 3]});
        let read = pod(full.to_string().as_bytes()).unwrap();
        let whole: Pod = serde_json::from_value(object).unwrap();
        assert_eq!(read, whole);
    }

    #[test]
    fn a_status_that_can_not_be_decoded_does_not_hide_the_rest_of_an_object() {
        let condition = |kind: &str, at: &str| json!({"type": kind, "status": "True", "lastTransitionTime": at});
        let conditions = json!([condition("Ready", "2026-01-01T00:00:00Z"), condition("x/y", "9999-12-31T23:59:59Z")]);
        let mut object = json!({
            "metadata": {"name": "a", "uid": "u", "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5},
            "spec": {"nodeName": "node", "containers": []},
            "status": {"phase": "Failed", "conditions": conditions, "startTime": "9999-12-31T23:59:59Z"},
        });
        let read = pod(object.to_string().as_bytes()).unwrap();
        assert_eq!(read.metadata.deletion_grace_period_seconds, Some(5));
        assert!(read.metadata.deletion_timestamp.is_some());
        let status = read.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Failed"), "a pod that has ended is not started again");
        let left: Vec<String> = status.conditions.into_iter().flatten().map(|condition| condition.type_).collect();
        assert_eq!((left, status.start_time), (vec!["Ready".to_owned()], None));
        object["spec"] = json!({"podCIDR": "10.0.0.0/24"});
        object["status"] = json!({"conditions": conditions});
        let read = node(object.to_string().as_bytes()).unwrap();
        assert_eq!(read.status.unwrap().conditions.map(|left| left.len()), Some(1));
        object["spec"] = json!({"containers": "none"});
        assert!(pod(object.to_string().as_bytes()).is_err(), "a spec is decoded as a whole");
    }

    #[test]
    fn a_pod_that_takes_too_much_memory_is_decoded_without_its_lists() {
        let env: Vec<_> = (0..30_000).map(|n| json!({"name": format!("V{n}"), "value": "x"})).collect();
        let object = json!({"metadata": {"name": "a", "uid": "u"}, "status": {"phase": "Pending"},
            "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "i", "env": env}]}});
        let read = pod(object.to_string().as_bytes()).unwrap();
        let (spec, status) = (read.spec.unwrap(), read.status.unwrap());
        assert_eq!((spec.node_name.as_deref(), spec.containers.len()), (Some("node"), 0));
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Pending"), Some(POD_TOO_LARGE)));
        let message = status.message.unwrap();
        assert!(message.starts_with("spec.containers[0].env: the manifest takes "), "{message}");
    }

    #[test]
    fn a_deleted_pod_is_decoded_without_a_spec_that_can_not_be() {
        let mut object = json!({
            "metadata": {"name": "a", "uid": "u", "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5},
            "spec": {"nodeName": "node", "containers": "none"},
            "status": {"phase": "Running", "startTime": "9999-12-31T23:59:59Z"},
        });
        let DeletedPod { pod, node } = deleted_pod(object.to_string().as_bytes()).unwrap();
        assert_eq!((node.as_str(), pod.metadata.deletion_grace_period_seconds), ("node", Some(5)));
        assert_eq!((pod.spec, pod.status.unwrap().phase.as_deref()), (None, Some("Running")));
        object["metadata"]["deletionTimestamp"] = json!(null);
        assert!(deleted_pod(object.to_string().as_bytes()).is_none(), "it goes on as it is known");
    }

    #[test]
    fn the_identity_of_a_malformed_object_can_be_decoded() {
        let object = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "9"},
                            "spec": {"containers": "none"}})
        .to_string();
        assert!(pod(object.as_bytes()).is_err());
        let identity = identity(object.as_bytes()).unwrap();
        assert_eq!((identity.uid.as_str(), identity.resource_version.as_str()), ("u", "9"));
    }
}
