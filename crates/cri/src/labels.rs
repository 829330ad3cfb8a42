//! The labels and annotations of the kubelet on sandboxes and containers: labels identify the pod, annotations hold what is
//! needed to terminate a container when the pod itself is no longer known. They are those of the Go kubelet, so that either can
//! take over the other's node.

use std::collections::BTreeMap;

use crate::v1::{ContainerFilter, PodSandboxFilter};

/// Label of sandboxes and containers: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label of sandboxes and containers: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label of sandboxes and containers: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label of containers: the container's name in the pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Container annotation: the hash of the container's spec, in hexadecimal.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Container annotation: the restart count, in decimal.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Container annotation: the path of the termination message in the container.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Container annotation: "File" or "FallbackToLogsOnError".
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Container annotation: the preStop handler as JSON; absent if there is none.
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Container annotation: the container's ports as JSON; absent if there are none.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Container annotation: the pod's deletionGracePeriodSeconds, if it was set when the container was created.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Container annotation: the pod's terminationGracePeriodSeconds.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The pod, and container, that a sandbox or container belongs to. Borrowed from its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The pod's name.
    pub name: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's UID.
    pub uid: &'a str,
    /// The container's name; absent on a sandbox.
    pub container: Option<&'a str>,
}

impl<'a> Owner<'a> {
    /// Reads the labels. `None` if one of the pod's three is missing or empty: then no kubelet created it.
    pub fn of(labels: &'a BTreeMap<String, String>) -> Option<Self> {
        let label = |key| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
        Some(Self {
            name: label(POD_NAME)?,
            namespace: label(POD_NAMESPACE)?,
            uid: label(POD_UID)?,
            container: label(CONTAINER_NAME),
        })
    }

    /// The labels for this owner.
    pub fn to_labels(self) -> BTreeMap<String, String> {
        let pod = [(POD_NAME, self.name), (POD_NAMESPACE, self.namespace), (POD_UID, self.uid)];
        let container = self.container.map(|name| (CONTAINER_NAME, name));
        pod.into_iter().chain(container).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// A filter for a pod's sandboxes in any state.
pub fn sandboxes_of_pod(uid: &str) -> PodSandboxFilter {
    PodSandboxFilter { label_selector: [(POD_UID.to_owned(), uid.to_owned())].into(), ..Default::default() }
}

/// A filter for a pod's containers in any state, of all its sandboxes.
pub fn containers_of_pod(uid: &str) -> ContainerFilter {
    ContainerFilter { label_selector: [(POD_UID.to_owned(), uid.to_owned())].into(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_back_from_its_labels() {
        let web = Owner { name: "shop", namespace: "default", uid: "u-1", container: Some("web") };
        assert_eq!(Owner::of(&web.to_labels()), Some(web));
        let sandbox = Owner { container: None, ..web };
        assert_eq!(Owner::of(&sandbox.to_labels()), Some(sandbox));
        assert_eq!(sandbox.to_labels().len(), 3);
    }

    #[test]
    fn without_a_pod_label_there_is_no_owner() {
        let whole = Owner { name: "shop", namespace: "default", uid: "u-1", container: Some("web") }.to_labels();
        for key in [POD_NAME, POD_NAMESPACE, POD_UID] {
            let mut labels = whole.clone();
            labels.insert(key.into(), String::new());
            assert_eq!(Owner::of(&labels), None, "{key} empty");
            labels.remove(key);
            assert_eq!(Owner::of(&labels), None, "{key} missing");
        }
    }
}
