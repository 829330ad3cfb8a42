//! The machine: cgroups, directories, volumes and logs, by pod.

use std::collections::{BTreeMap, BTreeSet};

use podwright_core::model::{Name, PodUid};

/// What pods have on the machine.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pods: BTreeMap<PodUid, HostPod>,
}

/// What one pod has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostPod {
    /// Its cgroup.
    pub cgroup: bool,
    /// Its directories.
    pub dirs: bool,
    /// Its logs.
    pub logs: bool,
    /// Mounted volumes.
    pub volumes: BTreeSet<Name>,
}

impl Host {
    /// Change one pod's things.
    pub fn change(&mut self, uid: &PodUid, f: impl FnOnce(&mut HostPod)) {
        let pod = self.pods.entry(uid.clone()).or_default();
        f(pod);
        if *pod == HostPod::default() {
            self.pods.remove(uid);
        }
    }

    /// Everything of one pod goes.
    pub fn sweep(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// One pod's things.
    pub fn get(&self, uid: &PodUid) -> Option<&HostPod> {
        self.pods.get(uid)
    }

    /// Pods that have something here.
    pub fn found(&self) -> BTreeSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// Mounts and cgroups do not outlive the kernel.
    pub fn reboot(&mut self) {
        for pod in self.pods.values_mut() {
            pod.cgroup = false;
            pod.volumes.clear();
        }
        self.pods.retain(|_, pod| *pod != HostPod::default());
    }
}
