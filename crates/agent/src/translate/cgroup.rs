//! The name of a pod's cgroup as the runtime expects it.

use podwright_core::{model::Pod, qos};

use super::NodeSettings;

/// The pod's cgroup: `/kubepods/burstable/pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with systemd.
pub(crate) fn cgroup_parent(pod: &Pod, settings: &NodeSettings) -> String {
    settings.cgroup_driver.cgroup_parent(&qos::pod_cgroup_name(&settings.paths.cgroup_root, pod))
}
