//! The position in the server's history up to which we have read, so that repeated or late events do not move us back.
//!
//! Resource versions are compared as numbers, which they are in every API server. One that is not a number counts as newer.

use std::collections::BTreeSet;
use std::sync::Arc;

use podwright_core::model::{Manifest, Pod, PodUid, SourceChange};

use crate::error::ApiError;
use crate::trimmed::{self, DeletedPod, ObjectIdentity};

/// The pods of this node as of the version read last.
#[derive(Debug)]
pub(super) struct PodPosition {
    node: String,
    uids: BTreeSet<PodUid>,
    /// `None`: nothing read yet, or the version was not a number.
    version: Option<u64>,
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// `ADDED` or `MODIFIED`.
    Put,
    Deleted,
}

/// One object of a list or a watch.
pub(super) enum PodItem {
    Pod(Box<Pod>),
    /// A deleted pod whose spec can't be decoded, for this reason.
    WithoutSpec(Box<DeletedPod>, String),
    /// The pod can't be decoded, for this reason; its last known state stays.
    Undecodable(ObjectIdentity, String),
}

impl PodItem {
    /// Decodes an object; `Err` if not even its identity can be decoded.
    pub(super) fn read(json: &[u8]) -> Result<Self, ApiError> {
        match trimmed::pod(json) {
            Ok(pod) if pod.metadata.uid.is_some() && pod.metadata.name.is_some() => Ok(Self::Pod(Box::new(pod))),
            Ok(_) => Err(ApiError::Malformed("a pod without name or UID".into())),
            Err(error) => match (trimmed::identity(json), trimmed::deleted_pod(json)) {
                (Ok(identity), _) if identity.uid.is_empty() || identity.name.is_empty() => {
                    Err(ApiError::Malformed(error.to_string()))
                }
                (Ok(_), Some(deleted)) => Ok(Self::WithoutSpec(Box::new(deleted), error.to_string())),
                (Ok(identity), None) => Ok(Self::Undecodable(identity, error.to_string())),
                (Err(_), _) => Err(ApiError::Malformed(error.to_string())),
            },
        }
    }
}

impl PodPosition {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.into(), uids: BTreeSet::new(), version: None }
    }

    /// Whether this version is older than the one read last.
    pub(super) fn is_behind(&self, version: &str) -> bool {
        matches!((number(version), self.version), (Some(version), Some(newest)) if version < newest)
    }

    /// Replaces all pods by those of a list.
    pub(super) fn set(&mut self, items: Vec<PodItem>, version: &str) -> SourceChange {
        let (mut pods, mut broken) = (vec![], vec![]);
        self.uids.clear();
        for item in items {
            match item {
                PodItem::Pod(pod) if self.is_ours(&pod, node_of(&pod)) => {
                    self.uids.extend(uid(&pod));
                    pods.push(manifest(*pod));
                }
                PodItem::WithoutSpec(deleted, error) if self.is_ours(&deleted.pod, Some(&deleted.node)) => {
                    warn_without_spec(&deleted.pod, &error);
                    self.uids.extend(uid(&deleted.pod));
                    pods.push(manifest(deleted.pod));
                }
                PodItem::Pod(_) | PodItem::WithoutSpec(..) => {}
                PodItem::Undecodable(identity, error) => {
                    warn_undecodable(&identity, &error);
                    self.uids.insert(identity.uid.as_str().into());
                    broken.push((origin(&identity.namespace, &identity.name), error));
                }
            }
        }
        self.version = number(version);
        SourceChange::Set { pods, broken }
    }

    /// Applies one change; `None`: the pods of this node stay the same.
    pub(super) fn change(&mut self, kind: ChangeKind, item: PodItem) -> Option<SourceChange> {
        let (uid, version) = match &item {
            PodItem::Pod(pod) => (uid(pod)?, version(pod)),
            PodItem::WithoutSpec(deleted, _) => (uid(&deleted.pod)?, version(&deleted.pod)),
            PodItem::Undecodable(identity, _) => {
                (PodUid::from(identity.uid.as_str()), identity.resource_version.clone())
            }
        };
        if matches!((number(&version), self.version), (Some(version), Some(newest)) if version <= newest) {
            tracing::debug!(%uid, resource_version = version, "stale pod event ignored");
            return None;
        }
        self.advance(&version);
        match (kind, item) {
            (ChangeKind::Deleted, _) => self.uids.remove(&uid).then_some(SourceChange::Remove(uid)),
            (ChangeKind::Put, PodItem::Pod(pod)) if self.is_ours(&pod, node_of(&pod)) => {
                self.uids.insert(uid);
                Some(SourceChange::Put(manifest(*pod)))
            }
            (ChangeKind::Put, PodItem::WithoutSpec(deleted, error))
                if self.is_ours(&deleted.pod, Some(&deleted.node)) =>
            {
                warn_without_spec(&deleted.pod, &error);
                self.uids.insert(uid);
                Some(SourceChange::Put(manifest(deleted.pod)))
            }
            (ChangeKind::Put, PodItem::Pod(_) | PodItem::WithoutSpec(..)) => None,
            (ChangeKind::Put, PodItem::Undecodable(identity, error)) => {
                warn_undecodable(&identity, &error);
                None
            }
        }
    }

    /// Records that everything up to this version was read.
    pub(super) fn advance(&mut self, version: &str) {
        self.version = self.version.max(number(version));
    }

    fn is_ours(&self, pod: &Pod, node: Option<&str>) -> bool {
        let ours = node == Some(&self.node);
        if !ours {
            tracing::warn!(pod = full_name(pod), node, "API server sent a pod of another node: ignored");
        }
        ours
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn version(pod: &Pod) -> String {
    pod.metadata.resource_version.clone().unwrap_or_default()
}

fn full_name(pod: &Pod) -> String {
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

fn warn_without_spec(pod: &Pod, error: &str) {
    let uid = pod.metadata.uid.as_deref();
    tracing::warn!(pod = full_name(pod), uid, error, "deleted pod can't be decoded: it is terminated as it is known");
}

fn warn_undecodable(identity: &ObjectIdentity, error: &str) {
    let pod = format!("{}/{}", identity.namespace, identity.name);
    tracing::warn!(pod, uid = identity.uid, error, "pod can't be decoded: its last known state stays");
}

fn manifest(pod: Pod) -> Manifest {
    let meta = &pod.metadata;
    let origin = origin(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    Manifest { pod: Arc::new(pod), origin }
}

/// Each pod is an origin of its own, so that one that can't be decoded keeps its last known state.
fn origin(namespace: &str, name: &str) -> String {
    format!("api:{namespace}/{name}")
}

fn uid(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::from)
}

fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(uid: &str, version: u64, node: &str) -> PodItem {
        let json = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version.to_string()},
                          "spec": {"nodeName": node, "containers": []}});
        PodItem::read(json.to_string().as_bytes()).unwrap()
    }

    fn undecodable(uid: &str, version: u64) -> PodItem {
        let json = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version.to_string()},
                          "spec": {"nodeName": 1}});
        PodItem::read(json.to_string().as_bytes()).unwrap()
    }

    fn deleted(uid: &str, version: u64, node: &str) -> PodItem {
        let json = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version.to_string(),
                                       "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5},
                          "spec": {"nodeName": node, "containers": "none"}});
        PodItem::read(json.to_string().as_bytes()).unwrap()
    }

    fn position() -> PodPosition {
        let mut position = PodPosition::new("here");
        let first = position.set(vec![item("a", 5, "here"), item("b", 7, "here")], "10");
        assert!(matches!(first, SourceChange::Set { pods, .. } if pods.len() == 2));
        position
    }

    #[test]
    fn stale_events_are_ignored() {
        let mut position = position();
        assert!(position.change(ChangeKind::Put, item("a", 9, "here")).is_none());
        assert!(position.change(ChangeKind::Deleted, item("a", 10, "here")).is_none());
        assert!(matches!(position.change(ChangeKind::Put, item("a", 11, "here")), Some(SourceChange::Put(_))));
        assert!(matches!(position.change(ChangeKind::Deleted, item("a", 12, "here")), Some(SourceChange::Remove(_))));
        // A late event from before the deletion does not bring the pod back.
        assert!(position.change(ChangeKind::Put, item("a", 11, "here")).is_none());
        assert!(position.is_behind("11") && !position.is_behind("12") && !position.is_behind("opaque"));
    }

    #[test]
    fn a_bookmark_advances_the_position() {
        let mut position = position();
        position.advance("20");
        assert!(position.change(ChangeKind::Put, item("a", 15, "here")).is_none());
        position.advance("3");
        assert!(position.is_behind("19"));
    }

    #[test]
    fn pods_of_other_nodes_are_ignored() {
        let mut position = position();
        assert!(position.change(ChangeKind::Put, item("x", 11, "there")).is_none());
        assert!(position.change(ChangeKind::Deleted, item("x", 12, "there")).is_none());
    }

    #[test]
    fn a_pod_that_can_not_be_decoded_stays_and_can_be_deleted() {
        let mut position = position();
        assert!(position.change(ChangeKind::Put, undecodable("a", 11)).is_none());
        let set = position.set(vec![undecodable("a", 11), item("b", 7, "here")], "12");
        let SourceChange::Set { pods, broken: files } = set else { panic!() };
        assert_eq!((pods.len(), files[0].0.as_str()), (1, "api:n/a"));
        assert!(
            matches!(position.change(ChangeKind::Deleted, undecodable("a", 13)), Some(SourceChange::Remove(uid)) if uid.as_str() == "a")
        );
        assert!(PodItem::read(b"{}").is_err() && PodItem::read(b"nonsense").is_err());
    }

    #[test]
    fn the_deletion_of_a_pod_that_can_not_be_decoded_is_seen() {
        let is_deleted = |manifest: &Manifest| manifest.pod.metadata.deletion_timestamp.is_some();
        let mut position = position();
        let change = position.change(ChangeKind::Put, deleted("a", 11, "here"));
        assert!(matches!(&change, Some(SourceChange::Put(manifest)) if is_deleted(manifest)), "{change:?}");
        assert!(position.change(ChangeKind::Put, deleted("x", 12, "there")).is_none(), "a pod of another node");
        let set = position.set(vec![deleted("a", 11, "here"), deleted("x", 12, "there"), item("b", 7, "here")], "13");
        let SourceChange::Set { pods, broken } = set else { panic!() };
        assert_eq!((pods.iter().filter(|pod| is_deleted(pod)).count(), pods.len(), broken.len()), (1, 2, 0));
        assert!(matches!(
            position.change(ChangeKind::Deleted, deleted("a", 14, "here")),
            Some(SourceChange::Remove(_))
        ));
    }
}
