//! Which containers use which images, for users who remove images.

use std::collections::BTreeMap;
use std::path::Path;

use crate::store::{ContainerRecord, SandboxRecord, peek_records};

/// A container that was created from an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUser {
    /// The id of the image.
    pub image_id: String,
    /// `namespace/name`; the id of the sandbox if that is not known.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
}

impl ImageUser {
    /// `sandbox`: `None` if it is gone.
    pub(crate) fn new(container: &ContainerRecord, sandbox: Option<&SandboxRecord>) -> Self {
        let pod = sandbox.and_then(|sandbox| sandbox.config.metadata.as_ref());
        let pod = pod.map_or_else(|| container.sandbox_id.clone(), |pod| format!("{}/{}", pod.namespace, pod.name));
        let name = container.config.metadata.as_ref().map(|metadata| metadata.name.clone()).unwrap_or_default();
        Self { image_id: container.image_id.clone(), pod, container: name }
    }
}

/// The users of images by the records of an engine that does not run. Records that can not be read are left out.
pub fn image_users_on_disk(root: &Path) -> Vec<ImageUser> {
    let records = peek_records(root);
    let sandboxes: BTreeMap<String, SandboxRecord> = records.sandboxes.into_iter().map(|(id, r)| (id.0, r)).collect();
    let containers = records.containers.iter();
    containers.map(|(_, container)| ImageUser::new(container, sandboxes.get(&container.sandbox_id))).collect()
}

#[cfg(test)]
mod tests {
    use podwright_cri::v1;

    use super::*;
    use crate::machine::{ContainerId, ContainerRecordState, SandboxId, SandboxRecordState, SandboxResources};
    use crate::store::EngineStore;

    #[test]
    fn users_are_known_without_the_engine_and_damaged_records_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = EngineStore::open(dir.path()).unwrap();
        let metadata = v1::PodSandboxMetadata { name: "web".into(), namespace: "default".into(), ..Default::default() };
        let sandbox = SandboxRecord {
            config: v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() },
            handler: String::new(),
            created_at_ns: 1,
            addresses: vec![],
            namespaces: vec![],
            state: SandboxRecordState::NotReady(SandboxResources::default()),
        };
        store.write_sandbox(&SandboxId("s1".into()), &sandbox).unwrap();
        let container = |sandbox: &str| ContainerRecord {
            config: v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
                ..Default::default()
            },
            sandbox_id: sandbox.into(),
            image_id: "sha256:1".into(),
            layers: vec![],
            created_at_ns: 2,
            started_at_ns: 0,
            stop_signal: 15,
            chain: vec![],
            image_name: "web:1".into(),
            image_ref: String::new(),
            user: None,
            state: ContainerRecordState::Created,
        };
        for (id, sandbox) in [("c1", "s1"), ("c2", "gone"), ("c3", "s1")] {
            store.write_container(&ContainerId(id.into()), &container(sandbox)).unwrap();
        }
        let damaged = dir.path().join("engine/containers/c3/record");
        std::fs::write(&damaged, "damaged").unwrap();
        let pods: Vec<String> = image_users_on_disk(dir.path()).into_iter().map(|user| user.pod).collect();
        assert_eq!(pods, ["default/web", "gone"]);
        assert!(damaged.exists());
        assert!(image_users_on_disk(&dir.path().join("none")).is_empty());
    }
}
