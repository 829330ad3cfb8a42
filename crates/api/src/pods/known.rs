//! How far we have read the server's history, so that nothing it says twice, or late, moves us back.
//!
//! Versions are compared as numbers, which they are in every API server. One that isn't a number is believed.

use std::collections::BTreeSet;
use std::sync::Arc;

use podwright_core::model::{Manifest, Pod, PodUid, SourceChange};

use crate::trimmed::{self, Who};

/// See the module.
#[derive(Debug)]
pub(super) struct Known {
    node: String,
    uids: BTreeSet<PodUid>,
    position: Option<u64>,
}

/// One line of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Deleted,
}

/// One object of an answer.
pub(super) enum Object {
    Pod(Box<Pod>),
    /// It can't be read; what is known of it stays.
    Broken(Who, String),
}

impl Object {
    /// Read one; `Err` if not even its name can be read.
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        match trimmed::pod(json) {
            Ok(pod) if pod.metadata.uid.is_some() && pod.metadata.name.is_some() => Ok(Self::Pod(Box::new(pod))),
            Ok(_) => Err("a pod without name or UID".into()),
            Err(error) => match trimmed::who(json) {
                Ok(who) if !who.uid.is_empty() => Ok(Self::Broken(who, error.to_string())),
                _ => Err(error.to_string()),
            },
        }
    }
}

impl Known {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.into(), uids: BTreeSet::new(), position: None }
    }

    /// A list of this version is older than what we know.
    pub(super) fn is_behind(&self, version: &str) -> bool {
        matches!((number(version), self.position), (Some(version), Some(position)) if version < position)
    }

    /// Take a whole list in.
    pub(super) fn set(&mut self, objects: Vec<Object>, version: &str) -> SourceChange {
        let (mut pods, mut broken) = (vec![], vec![]);
        self.uids.clear();
        for object in objects {
            match object {
                Object::Pod(pod) if self.is_ours(&pod) => {
                    self.uids.extend(uid(&pod));
                    pods.push(manifest(*pod));
                }
                Object::Pod(_) => {}
                Object::Broken(who, error) => {
                    tracing::warn!(pod = %origin(&who.namespace, &who.name), error, "a pod can't be read: it stays as it is");
                    self.uids.insert(who.uid.as_str().into());
                    broken.push((origin(&who.namespace, &who.name), error));
                }
            }
        }
        self.position = number(version);
        SourceChange::Set { pods, broken }
    }

    /// Take one change in; `None`: nothing follows from it.
    pub(super) fn change(&mut self, kind: Kind, object: Object) -> Option<SourceChange> {
        let (uid, version) = match &object {
            Object::Pod(pod) => (uid(pod)?, pod.metadata.resource_version.clone().unwrap_or_default()),
            Object::Broken(who, _) => (PodUid::from(who.uid.as_str()), who.resource_version.clone()),
        };
        if matches!((number(&version), self.position), (Some(version), Some(position)) if version <= position) {
            tracing::debug!(%uid, version, "old news of a pod");
            return None;
        }
        self.pass(&version);
        match (kind, object) {
            (Kind::Deleted, _) => self.uids.remove(&uid).then_some(SourceChange::Remove(uid)),
            (Kind::Put, Object::Pod(pod)) if self.is_ours(&pod) => {
                self.uids.insert(uid);
                Some(SourceChange::Put(manifest(*pod)))
            }
            (Kind::Put, Object::Pod(_)) => None,
            (Kind::Put, Object::Broken(who, error)) => {
                tracing::warn!(pod = %origin(&who.namespace, &who.name), error, "a pod can't be read: it stays as it is");
                None
            }
        }
    }

    /// We have read up to this version.
    pub(super) fn pass(&mut self, version: &str) {
        self.position = self.position.max(number(version));
    }

    fn is_ours(&self, pod: &Pod) -> bool {
        let of = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let ours = of == Some(&self.node);
        if !ours {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(pod = name, node = of.unwrap_or("none"), "the server sent a pod of another node: ignored");
        }
        ours
    }
}

fn manifest(pod: Pod) -> Manifest {
    let meta = &pod.metadata;
    let origin = origin(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    Manifest { pod: Arc::new(pod), origin }
}

/// Each pod has a place of its own, so that one that can't be read keeps what is known of it.
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

    fn object(uid: &str, version: u64, node: &str) -> Object {
        let json = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version.to_string()},
                          "spec": {"nodeName": node, "containers": []}});
        Object::read(json.to_string().as_bytes()).unwrap()
    }

    fn broken(uid: &str, version: u64) -> Object {
        let json = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version.to_string()},
                          "spec": {"nodeName": 1}});
        Object::read(json.to_string().as_bytes()).unwrap()
    }

    fn known() -> Known {
        let mut known = Known::new("here");
        let first = known.set(vec![object("a", 5, "here"), object("b", 7, "here")], "10");
        assert!(matches!(first, SourceChange::Set { pods, .. } if pods.len() == 2));
        known
    }

    #[test]
    fn old_news_moves_nothing() {
        let mut known = known();
        assert!(known.change(Kind::Put, object("a", 9, "here")).is_none());
        assert!(known.change(Kind::Deleted, object("a", 10, "here")).is_none());
        assert!(matches!(known.change(Kind::Put, object("a", 11, "here")), Some(SourceChange::Put(_))));
        assert!(matches!(known.change(Kind::Deleted, object("a", 12, "here")), Some(SourceChange::Remove(_))));
        // It is not brought back by a late word of its life.
        assert!(known.change(Kind::Put, object("a", 11, "here")).is_none());
        assert!(known.is_behind("11") && !known.is_behind("12") && !known.is_behind("opaque"));
    }

    #[test]
    fn a_bookmark_moves_the_position() {
        let mut known = known();
        known.pass("20");
        assert!(known.change(Kind::Put, object("a", 15, "here")).is_none());
        known.pass("3");
        assert!(known.is_behind("19"));
    }

    #[test]
    fn pods_of_other_nodes_are_ignored() {
        let mut known = known();
        assert!(known.change(Kind::Put, object("x", 11, "there")).is_none());
        assert!(known.change(Kind::Deleted, object("x", 12, "there")).is_none());
    }

    #[test]
    fn a_pod_that_cannot_be_read_stays_and_can_be_deleted() {
        let mut known = known();
        assert!(known.change(Kind::Put, broken("a", 11)).is_none());
        let set = known.set(vec![broken("a", 11), object("b", 7, "here")], "12");
        let SourceChange::Set { pods, broken: files } = set else { panic!() };
        assert_eq!((pods.len(), files[0].0.as_str()), (1, "api:n/a"));
        assert!(
            matches!(known.change(Kind::Deleted, broken("a", 13)), Some(SourceChange::Remove(uid)) if uid.as_str() == "a")
        );
        assert!(Object::read(b"{}").is_err() && Object::read(b"nonsense").is_err());
    }
}
