//! The names under which a kubelet finds its own sandboxes and containers again: labels say whose they are, annotations
//! what is needed to end them when the pod itself is no longer known. They are the Go kubelet's, so that either can
//! take the other's node over.

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
/// Container annotation: how often it was started before, in decimal.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Container annotation: where in the container its last words are.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Container annotation: "File" or "FallbackToLogsOnError".
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Container annotation: the preStop handler as JSON; absent without one.
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Container annotation: the container's ports as JSON; absent without any.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Container annotation: the pod's deletionGracePeriodSeconds, when it had one at creation.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Container annotation: the pod's terminationGracePeriodSeconds.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Whose sandbox or container it is. Borrowed from its labels.
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
    /// Reads the labels. Nothing when one of the pod's three is missing or empty: then it is not a kubelet's.
    pub fn of(labels: &'a BTreeMap<String, String>) -> Option<Self> {
        let label = |key| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
        Some(Self {
            name: label(POD_NAME)?,
            namespace: label(POD_NAMESPACE)?,
            uid: label(POD_UID)?,
            container: label(CONTAINER_NAME),
        })
    }

    /// The labels that say this.
    pub fn to_labels(self) -> BTreeMap<String, String> {
        let pod = [(POD_NAME, self.name), (POD_NAMESPACE, self.namespace), (POD_UID, self.uid)];
        let container = self.container.map(|name| (CONTAINER_NAME, name));
        pod.into_iter().chain(container).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// Lets a pod's sandboxes through, whatever their state.
pub fn sandboxes_of_pod(uid: &str) -> PodSandboxFilter {
    PodSandboxFilter { label_selector: [(POD_UID.to_owned(), uid.to_owned())].into(), ..Default::default() }
}

/// Lets a pod's containers through, of all its sandboxes and whatever their state.
pub fn containers_of_pod(uid: &str) -> ContainerFilter {
    ContainerFilter { label_selector: [(POD_UID.to_owned(), uid.to_owned())].into(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_its_labels() {
        let web = Owner { name: "shop", namespace: "default", uid: "u-1", container: Some("web") };
        assert_eq!(Owner::of(&web.to_labels()), Some(web));
        let sandbox = Owner { container: None, ..web };
        assert_eq!(Owner::of(&sandbox.to_labels()), Some(sandbox));
        assert_eq!(sandbox.to_labels().len(), 3);
    }

    #[test]
    fn what_lacks_a_pod_label_is_not_ours() {
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
