//! The host: cgroups, directories, volumes and logs, by pod.

use std::collections::{BTreeMap, BTreeSet};

use podwright_core::model::{HostCall, Name, PodUid};

/// What all pods have on the host.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pods: BTreeMap<PodUid, HostPod>,
    /// Images that no container uses fill the disk.
    pub unused_images: bool,
}

/// What one pod has on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostPod {
    /// The pod's cgroup exists.
    pub cgroup: bool,
    /// The pod's directories exist.
    pub dirs: bool,
    /// There are log files.
    pub logs: bool,
    /// Mounted volumes.
    pub volumes: BTreeSet<Name>,
}

impl Host {
    /// Changes what one pod has.
    pub fn change(&mut self, uid: &PodUid, f: impl FnOnce(&mut HostPod)) {
        let pod = self.pods.entry(uid.clone()).or_default();
        f(pod);
        if *pod == HostPod::default() {
            self.pods.remove(uid);
        }
    }

    /// Performs a host call.
    pub(crate) fn apply(&mut self, uid: &PodUid, call: &HostCall) {
        match call {
            HostCall::MakeCgroup => self.change(uid, |h| h.cgroup = true),
            HostCall::MakeDirs => self.change(uid, |h| h.dirs = true),
            HostCall::PrepareContainer { .. } => self.change(uid, |h| h.logs = true),
            HostCall::MountVolume { volume } => self.change(uid, |h| {
                h.volumes.insert(volume.clone());
            }),
            HostCall::ResizeCgroup { .. } | HostCall::ReadMemory { .. } => {}
            HostCall::RemoveCgroup => self.change(uid, |h| h.cgroup = false),
            HostCall::RemoveVolumes => self.change(uid, |h| h.volumes.clear()),
            HostCall::RemoveDirs => self.change(uid, |h| h.dirs = false),
            HostCall::RemoveLogs => self.change(uid, |h| h.logs = false),
        }
    }

    /// Removes everything of one pod.
    pub fn remove_all(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// What one pod has.
    pub fn get(&self, uid: &PodUid) -> Option<&HostPod> {
        self.pods.get(uid)
    }

    /// Pods that have anything on the host.
    pub fn pod_uids(&self) -> BTreeSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// Mounts and cgroups do not survive a reboot.
    pub fn reboot(&mut self) {
        for pod in self.pods.values_mut() {
            pod.cgroup = false;
            pod.volumes.clear();
        }
        self.pods.retain(|_, pod| *pod != HostPod::default());
    }
}
