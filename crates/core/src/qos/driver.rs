//! How the cgroup drivers name the cgroups of pods.
//!
//! ```text
//! name      kubepods, burstable, podA-B
//! cgroupfs  /kubepods/burstable/podA-B
//! systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA_B.slice
//! ```
//! In the name of a slice a dash separates parent and child, so dashes inside a component become underscores (Go kubelet:
//! `CgroupName.ToSystemd`).

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

    /// The directories from the root of a hierarchy down to the cgroup of this name.
    pub fn directories(self, name: &[String]) -> Vec<String> {
        match self {
            Self::Cgroupfs => name.to_vec(),
            Self::Systemd => (1..=name.len()).map(|depth| slice_name(&name[..depth])).collect(),
        }
    }

    /// The cgroup of this name as the runtime expects it in `cgroup_parent`: a path, or the name of a slice.
    pub fn cgroup_parent(self, name: &[String]) -> String {
        match self {
            Self::Cgroupfs => format!("/{}", name.join("/")),
            Self::Systemd => slice_name(name),
        }
    }

    /// The UID of the pod whose cgroup is this directory of a QoS class; `None` if it is not a pod's.
    pub fn pod_uid(self, class: &[String], directory: &str) -> Option<String> {
        let uid = match self {
            Self::Cgroupfs => directory.strip_prefix("pod")?.to_owned(),
            Self::Systemd => {
                let child = directory.strip_suffix(SLICE)?.strip_prefix(&slice_stem(class))?;
                child.strip_prefix("-pod")?.replace('_', "-")
            }
        };
        Some(uid).filter(|uid| !uid.is_empty())
    }
}

/// The systemd slice of this name; `-.slice` for the root.
pub fn slice_name(name: &[String]) -> String {
    match name {
        [] => format!("-{SLICE}"),
        name => slice_stem(name) + SLICE,
    }
}

fn slice_stem(name: &[String]) -> String {
    let parts: Vec<String> = name.iter().map(|part| part.replace('-', "_")).collect();
    parts.join("-")
}

const SLICE: &str = ".slice";

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parts: &[&str]) -> Vec<String> {
        parts.iter().map(|part| (*part).to_owned()).collect()
    }

    /// The names of `TestCgroupNameToSystemd` in the Go kubelet, and those of pods.
    #[test]
    fn slices_are_named_as_by_the_go_kubelet() {
        let table: [(&[&str], &str); 9] = [
            (&[], ""),
            (&["Burstable"], "/Burstable.slice"),
            (&["Burstable", "pod_123"], "/Burstable.slice/Burstable-pod_123.slice"),
            (&["test", "a", "b"], "/test.slice/test-a.slice/test-a-b.slice"),
            (&["test-a-b"], "/test_a_b.slice"),
            (&["system", "slice"], "/system.slice/system-slice.slice"),
            (&["kubepods", "podA-B"], "/kubepods.slice/kubepods-podA_B.slice"),
            (
                &["kubepods", "burstable", "podA-B"],
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA_B.slice",
            ),
            (&["my-root", "kubepods"], "/my_root.slice/my_root-kubepods.slice"),
        ];
        for (parts, expected) in table {
            let directories = CgroupDriver::Systemd.directories(&name(parts));
            let path: String = directories.iter().map(|directory| format!("/{directory}")).collect();
            assert_eq!(path, expected, "{parts:?}");
        }
        assert_eq!(slice_name(&[]), "-.slice");
    }

    #[test]
    fn the_uid_is_read_back_from_the_directory_of_a_pod() {
        let classes = [name(&["kubepods"]), name(&["kubepods", "burstable"]), name(&["my-root", "kubepods"])];
        for class in &classes {
            for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
                for uid in ["1f2e-3d", "0123456789abcdef"] {
                    let pod = [class.clone(), vec![format!("pod{uid}")]].concat();
                    let directory = driver.directories(&pod).pop().unwrap();
                    assert_eq!(driver.pod_uid(class, &directory).as_deref(), Some(uid), "{driver:?} {directory}");
                }
            }
        }
        let kubepods = &classes[0];
        for other in
            ["kubepods-burstable.slice", "kubepods-burstable-podA.slice", "kubepods-pod.slice", "podA", "x.slice"]
        {
            assert_eq!(CgroupDriver::Systemd.pod_uid(kubepods, other), None, "{other}");
        }
        for other in ["burstable", "pod", "kubepods-podA.slice"] {
            assert_eq!(CgroupDriver::Cgroupfs.pod_uid(kubepods, other), None, "{other}");
        }
    }
}
