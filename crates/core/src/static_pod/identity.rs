//! Which pod a manifest is: the UID that this agent makes from it, and the one under which another agent runs it.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{CONFIG_HASH, CONFIG_SOURCE, MANIFEST_HASH};
use crate::hash::container_hash;
use crate::model::{Pod, PodListed, Source, spec_of};

/// The hash of the manifest of a static pod: its UID, unless the manifest has one or another agent gave it one. `None`: the pod is not
/// static.
pub fn manifest_hash(pod: &Pod) -> Option<&str> {
    let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name).map(String::as_str);
    let source = annotation(CONFIG_SOURCE).and_then(Source::parse)?;
    annotation(MANIFEST_HASH).or_else(|| annotation(CONFIG_HASH)).filter(|_| source.is_static())
}

/// The UID of a static pod, if it was made from its manifest: another agent makes another one.
pub(crate) fn generated_uid(pod: &Pod) -> Option<&str> {
    let hash = pod.metadata.annotations.as_ref()?.get(CONFIG_HASH)?;
    pod.metadata.uid.as_deref().filter(|uid| uid == hash)
}

/// The pod in the runtime is that of this manifest: by the hash of the manifest if this agent made it; of another agent, by the
/// names and images of its containers.
pub fn runs_manifest(listed: &PodListed, manifest: &Pod) -> bool {
    match &listed.manifest_hash {
        Some(hash) => manifest_hash(manifest) == Some(hash.as_str()),
        None => spec_of(manifest).containers.iter().all(|c| listed.container_hashes.contains(&container_hash(c))),
    }
}

/// Gives the pod the UID under which another agent runs it.
pub(crate) fn take_running_uid(pod: &mut Pod, running: &str) {
    let own = pod.metadata.uid.replace(running.to_owned()).unwrap_or_default();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    // The mirror pod that exists has this hash.
    annotations.insert(CONFIG_HASH.into(), running.to_owned());
    annotations.insert(MANIFEST_HASH.into(), own);
}

/// Hash of origin and content of the manifest, without its UID and status.
pub(super) fn content_hash(document: &Value, source: Source, origin: &str, node_name: &str) -> String {
    let mut hash = Sha256::new_with_prefix(json!([node_name, source.as_str(), origin]).to_string());
    canonical(document, &[&["status"], &["metadata", "uid"]], &mut hash);
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes the canonical text of a document: sorted keys, no null fields, none of the fields with these paths. Keys are sorted here
/// because the order of maps is a build option of the JSON library.
fn canonical(value: &Value, without: &[&[&str]], hash: &mut Sha256) {
    match value {
        Value::Object(object) => {
            let left_out = |key: &str| without.contains(&[key].as_slice());
            let mut fields: Vec<_> = object.iter().filter(|(key, field)| !field.is_null() && !left_out(key)).collect();
            fields.sort_by_key(|(key, _)| *key);
            hash.update("{");
            for (key, field) in fields {
                hash.update(Value::from(key.as_str()).to_string());
                hash.update(":");
                let below: Vec<&[&str]> =
                    without.iter().filter(|path| path.first() == Some(&key.as_str())).map(|path| &path[1..]).collect();
                canonical(field, &below, hash);
                hash.update(",");
            }
            hash.update("}");
        }
        Value::Array(list) => {
            hash.update("[");
            for item in list {
                canonical(item, &[], hash);
                hash.update(",");
            }
            hash.update("]");
        }
        plain => hash.update(plain.to_string()),
    }
}
