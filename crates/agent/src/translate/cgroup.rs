//! The name of a pod's cgroup, in the runtime's spelling.

use podwright_core::{model::Pod, qos};

use super::NodeFacts;

/// Who manages cgroups: it decides how they are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Plain directories.
    Cgroupfs,
    /// Slices of systemd.
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
pub fn cgroup_parent(pod: &Pod, facts: &NodeFacts) -> String {
    let components = qos::pod_cgroup_name(&facts.paths.cgroup_root, pod);
    match facts.cgroup_driver {
        CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
        // In a slice's name a dash means "inside of", so those of the uid become underscores.
        CgroupDriver::Systemd => {
            let escaped: Vec<String> = components.iter().map(|part| part.replace('-', "_")).collect();
            format!("{}.slice", escaped.join("-"))
        }
    }
}
