//! The name of a pod's cgroup as the runtime expects it.

use podwright_core::{model::Pod, qos};

use super::NodeSettings;

/// The manager of cgroups, which determines the form of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Plain directories.
    Cgroupfs,
    /// Systemd slices.
    Systemd,
}

impl CgroupDriver {
    /// The value of `cgroupDriver`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// The pod's cgroup: `/kubepods/burstable/pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with systemd.
pub(crate) fn cgroup_parent(pod: &Pod, settings: &NodeSettings) -> String {
    let components = qos::pod_cgroup_name(&settings.paths.cgroup_root, pod);
    match settings.cgroup_driver {
        CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
        // A dash in a slice name separates parent and child, so the dashes of the UID become underscores.
        CgroupDriver::Systemd => {
            let escaped: Vec<String> = components.iter().map(|part| part.replace('-', "_")).collect();
            format!("{}.slice", escaped.join("-"))
        }
    }
}
