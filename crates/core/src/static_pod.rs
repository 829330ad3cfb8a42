//! From a manifest to a static pod: decode, set UID, name and node, apply defaults, validate.
//!
//! The UID of a static pod is a hash of its origin and content, so an edited manifest is another pod. The content is hashed from
//! the parsed document, not from our types, so that comments, the order of keys and our releases do not change it. The UID becomes
//! the name of a directory and a cgroup; one that a manifest sets must be valid for that.

mod findings;
mod identity;
mod impossible;
mod kinds;
mod references;
mod submitted;
mod unknown;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodStatus, Toleration};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::defaults::default_pod;
use crate::model::{Manifest, Pod, Source};
use crate::validate::{FieldError, validate_pod};

pub use findings::{FindingKind, warnings_in};
use identity::content_hash;
pub(crate) use identity::{generated_uid, take_running_uid};
pub use identity::{manifest_hash, runs_manifest};
pub use kinds::instead_of;
pub use references::api_reference;
pub use submitted::read_submitted;
pub use unknown::{unknown_fields, unknown_in};

/// Annotation: the hash of the manifest's content.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation: the pod's source.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when the manifest was first read.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation of a mirror pod: the hash of its static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation: the hash of the manifest of a pod that has the UID, and with it the [`CONFIG_HASH`], which another agent gave it; and of
/// every sandbox of a static pod that this agent made.
pub const MANIFEST_HASH: &str = "podwright.dev/manifest-hash";

/// Why a manifest is rejected. A document is accepted only if all its pods are valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// Not a mapping.
    #[error("a manifest must be a mapping with apiVersion, kind, metadata and spec, but this is {0}")]
    NotAnObject(&'static str),
    /// A file of docker compose.
    #[error("this is a compose file: a node runs Pods, so write one Pod with the containers of `services`")]
    Compose,
    /// Another kind of object.
    #[error("{path}kind {kind:?} of apiVersion {api_version:?} can't run on a node: {}", instead_of(kind))]
    Kind {
        /// Path of the list item, ending in a dot; empty without a list.
        path: String,
        /// Kind in the manifest.
        kind: String,
        /// apiVersion in the manifest.
        api_version: String,
    },
    /// Nested too deeply.
    #[error("the manifest is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// A field has the wrong type.
    #[error("{path}: {message}")]
    Decode {
        /// Path of the field.
        path: String,
        /// What is wrong with the field.
        message: String,
    },
    /// Validation failed.
    #[error("pod {pod:?} is invalid: {}", join(.errors))]
    Invalid {
        /// Name in the manifest.
        pod: String,
        /// All validation errors.
        errors: Vec<FieldError>,
    },
    /// It refers to an object of the API.
    #[error("pod {pod:?} is static and may not refer to {what}: remove {path}")]
    Reference {
        /// Name in the manifest.
        pod: String,
        /// Path of the field.
        path: String,
        /// Kind of the referenced object.
        what: &'static str,
    },
}

/// The static pods of one document; an empty document has none.
pub fn from_value(
    value: Value,
    source: Source,
    origin: &str,
    node_name: &str,
    seen: Timestamp,
) -> Result<Vec<Manifest>, ManifestError> {
    let context = ManifestContext { source, origin, node_name, seen };
    let one = |(path, document)| context.read_pod(document, path).map_err(|mut errors| errors.remove(0).1);
    whole(value)?.into_iter().map(one).collect()
}

/// As [`from_value`], with all errors of all pods of the document by field.
pub fn read_value(
    value: Value,
    source: Source,
    origin: &str,
    node_name: &str,
    seen: Timestamp,
) -> Result<Vec<Manifest>, Vec<FieldError>> {
    let context = ManifestContext { source, origin, node_name, seen };
    let (mut pods, mut errors) = (Vec::new(), Vec::new());
    for (path, document) in whole(value).map_err(|error| findings::of(&error, ""))? {
        match context.read_pod(document, path) {
            Ok(pod) => pods.push(pod),
            Err(wrong) => errors.extend(wrong.iter().flat_map(|(path, error)| findings::of(error, path))),
        }
        if errors.len() >= unknown::MAX_FINDINGS {
            break;
        }
    }
    if errors.is_empty() { Ok(pods) } else { Err(errors) }
}

/// Source of a document and the node of its pods.
struct ManifestContext<'a> {
    source: Source,
    origin: &'a str,
    node_name: &'a str,
    seen: Timestamp,
}

impl ManifestContext<'_> {
    /// One pod, or its errors: at least one, each with the path of the list item.
    fn read_pod(&self, document: Value, path: String) -> Result<Manifest, Vec<(String, ManifestError)>> {
        let hash = content_hash(&document, self.source, self.origin, self.node_name);
        let mut pod = decode(&document, &path).map_err(|error| vec![(path.clone(), error)])?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut wrong = check_as_written(&pod, &name);
        make_static(&mut pod, self.source, self.node_name, hash, self.seen);
        let written = written_requests(&pod);
        default_pod(&mut pod);
        let mut errors = validate_pod(&pod);
        retain_written(&mut errors, &written);
        show_written_name(&mut errors, &pod, &name);
        // spec.nodeName is set by us, not by the manifest.
        errors.retain(|error| error.path != "spec.nodeName");
        errors.retain(|error| !wrong.iter().flat_map(|w| findings::of(w, "")).any(|known| known.path == error.path));
        if !errors.is_empty() {
            wrong.push(ManifestError::Invalid { pod: name, errors });
        }
        if wrong.is_empty() {
            return Ok(Manifest { pod: Arc::new(pod), origin: self.origin.into() });
        }
        Err(wrong.into_iter().map(|error| (path.clone(), error)).collect())
    }
}

/// The paths of all requests of containers. Defaults add requests that are equal to limits: an error there is one of the limit.
fn written_requests(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let lists = [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or(&[])),
    ];
    let mut written = BTreeSet::new();
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let requests = container.resources.iter().flat_map(|resources| resources.requests.iter().flatten());
            written.extend(requests.map(|(name, _)| format!("spec.{list}[{index}].resources.requests[{name}]")));
        }
    }
    written
}

/// Drops errors of requests that the manifest does not have, if the limit that they come from has an error too.
fn retain_written(errors: &mut Vec<FieldError>, written: &BTreeSet<String>) {
    let paths: BTreeSet<String> = errors.iter().map(|error| error.path.clone()).collect();
    errors.retain(|error| {
        let limit = error.path.replace("].resources.requests[", "].resources.limits[");
        limit == error.path || written.contains(&error.path) || !paths.contains(&limit)
    });
}

/// The name of the node is added to the name of a static pod; an error shows the name in the manifest.
fn show_written_name(errors: &mut [FieldError], pod: &Pod, written: &str) {
    let full = format!("{:?}", pod.metadata.name.as_deref().unwrap_or_default());
    for error in errors.iter_mut().filter(|error| error.path == "metadata.name") {
        error.message = error.message.replace(&full, &format!("{written:?}"));
    }
}

fn whole(value: Value) -> Result<Vec<(String, Value)>, ManifestError> {
    if !within_depth(&value, MAX_DEPTH) {
        return Err(ManifestError::TooDeep);
    }
    documents(value)
}

/// The pods in a document, each with the path of its list item and with kind and apiVersion.
fn documents(value: Value) -> Result<Vec<(String, Value)>, ManifestError> {
    let paths: Vec<String> = pods_in(&value)?.into_iter().map(|(path, _)| path).collect();
    let items = match value {
        Value::Object(mut object) if type_of(&object).0 != "Pod" => {
            let is_pod_list = type_of(&object).0 == "PodList";
            let mut items = object.remove("items").and_then(|mut items| items.as_array_mut().map(std::mem::take));
            for item in items.iter_mut().flatten().filter_map(Value::as_object_mut).filter(|_| is_pod_list) {
                item.entry("kind").or_insert_with(|| "Pod".into());
                item.entry("apiVersion").or_insert_with(|| "v1".into());
            }
            items.unwrap_or_default()
        }
        pod => vec![pod],
    };
    // An empty document has no path.
    Ok(paths.into_iter().zip(items).collect())
}

/// The pods in a document as they are written, each with the path of its list item.
fn pods_in(value: &Value) -> Result<Vec<(String, &Value)>, ManifestError> {
    let object = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(object) => object,
        Value::Array(_) => return Err(ManifestError::NotAnObject("a list")),
        Value::String(_) => return Err(ManifestError::NotAnObject("a text")),
        Value::Number(_) => return Err(ManifestError::NotAnObject("a number")),
        Value::Bool(_) => return Err(ManifestError::NotAnObject("a truth value")),
    };
    let (kind, api_version) = type_of(object);
    if (kind, api_version) == ("Pod", "v1") {
        return Ok(vec![(String::new(), value)]);
    }
    if kind.is_empty() && api_version.is_empty() && object.get("services").is_some_and(Value::is_object) {
        return Err(ManifestError::Compose);
    }
    if !matches!((kind, api_version), ("PodList" | "List", "v1")) {
        let (kind, api_version) = (kind.to_owned(), api_version.to_owned());
        return Err(ManifestError::Kind { path: String::new(), kind, api_version });
    }
    let items: &[Value] = match object.get("items") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items,
        Some(_) => {
            return Err(ManifestError::Decode { path: "items".into(), message: "must be a list of pods".into() });
        }
    };
    let mut found = Vec::new();
    for (index, pod) in items.iter().enumerate() {
        let path = format!("items[{index}].");
        let Value::Object(item) = pod else {
            return Err(ManifestError::Decode { path: format!("items[{index}]"), message: "must be a pod".into() });
        };
        // Items of a PodList need no kind and apiVersion.
        let implied = |key: &str| kind == "PodList" && !item.contains_key(key);
        let (of_item, version) = type_of(item);
        let of_item = if implied("kind") { "Pod" } else { of_item };
        let version = if implied("apiVersion") { "v1" } else { version };
        if (of_item, version) != ("Pod", "v1") {
            return Err(ManifestError::Kind { path, kind: of_item.to_owned(), api_version: version.to_owned() });
        }
        found.push((path, pod));
    }
    Ok(found)
}

/// `kind` and `apiVersion`; empty if they are missing.
fn type_of(object: &Map<String, Value>) -> (&str, &str) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    (text("kind"), text("apiVersion"))
}

fn decode(document: &Value, path: &str) -> Result<Pod, ManifestError> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let field = error.path().to_string();
        ManifestError::Decode {
            path: format!("{path}{field}"),
            message: findings::user_message(&error.into_inner().to_string()),
        }
    })
}

/// Errors in the manifest before the node sets its fields.
fn check_as_written(pod: &Pod, name: &str) -> Vec<ManifestError> {
    let mut errors = Vec::new();
    let mut wrong = |path: &str, message: String| errors.push(FieldError { path: path.into(), message });
    if name.is_empty() {
        wrong("metadata.name", "must be given: a static pod's name is not generated".into());
    }
    if let Some(uid) = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty() && !is_safe_uid(uid)) {
        let shown: String = uid.chars().take(80).collect();
        wrong(
            "metadata.uid",
            format!("{shown:?} must be at most {MAX_UID} letters, digits and dashes; or remove it, and one is made"),
        );
    }
    if pod.spec.as_ref().and_then(|s| s.ephemeral_containers.as_ref()).is_some_and(|list| !list.is_empty()) {
        wrong("spec.ephemeralContainers", "can't be given in a manifest: write them as containers".into());
    }
    let mut wrong = Vec::new();
    if !errors.is_empty() {
        wrong.push(ManifestError::Invalid { pod: name.into(), errors });
    }
    wrong.extend(api_reference(pod).map(|(path, what)| ManifestError::Reference { pod: name.into(), path, what }));
    wrong
}

/// Sets the fields that make it a static pod of this node.
fn make_static(pod: &mut Pod, source: Source, node_name: &str, hash: String, seen: Timestamp) {
    let meta = &mut pod.metadata;
    // Fields of the API server are removed: a deletionTimestamp would terminate the pod before it starts.
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.generation = None;
    meta.managed_fields = None;
    meta.resource_version = None;
    meta.self_link = None;
    if meta.uid.as_deref().unwrap_or_default().is_empty() {
        meta.uid = Some(hash.clone());
    }
    meta.name = meta.name.take().map(|name| format!("{name}-{}", node_name.to_lowercase()));
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".into());
    }
    let annotations = meta.annotations.get_or_insert_default();
    annotations.remove(CONFIG_MIRROR);
    annotations.remove(MANIFEST_HASH);
    annotations.insert(CONFIG_HASH.into(), hash);
    annotations.insert(CONFIG_SOURCE.into(), source.as_str().into());
    annotations.insert(CONFIG_SEEN.into(), seen.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.into());
    tolerate_no_execute(spec.tolerations.get_or_insert_default());
    pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
}

/// Static pods tolerate every NoExecute taint, because no other node can run them.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let all = Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Toleration::default() };
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let same =
        |t: &Toleration| t.operator == all.operator && t.effect == all.effect && empty(&t.key) && empty(&t.value);
    match tolerations.iter_mut().find(|t| same(t)) {
        // Unlimited.
        Some(found) => *found = all,
        None => tolerations.push(all),
    }
}

fn is_safe_uid(uid: &str) -> bool {
    uid.len() <= MAX_UID && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn within_depth(value: &Value, levels: usize) -> bool {
    match value {
        Value::Object(object) => levels > 0 && object.values().all(|field| within_depth(field, levels - 1)),
        Value::Array(list) => levels > 0 && list.iter().all(|item| within_depth(item, levels - 1)),
        _ => true,
    }
}

fn join(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A pod needs about 15.
const MAX_DEPTH: usize = 64;
/// It becomes the name of a directory; a UUID has 36 characters.
const MAX_UID: usize = 128;

#[cfg(test)]
mod tests;
