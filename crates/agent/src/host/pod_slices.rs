//! The cgroups of pods and QoS classes as slices of systemd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_core::qos::slice_name;
use podwright_linux::cgroup::{CgroupResources, CgroupVersion};
use tokio::sync::Mutex;

use super::slice_properties::{allowed_cpus, slice_properties};
use super::systemd::{SystemdError, SystemdManager};

/// The slices of pods. Names are lists of components, as the cgroupfs driver has them.
#[derive(Clone, Debug)]
pub(super) struct PodSlices {
    systemd: Arc<SystemdManager>,
    cgroup: CgroupVersion,
    /// Held while a weight is computed and sent, so that the last one sent is the newest.
    weighing: Arc<Mutex<()>>,
}

impl PodSlices {
    pub(super) fn new(systemd: Arc<SystemdManager>, cgroup: CgroupVersion) -> Self {
        Self { systemd, cgroup, weighing: Arc::default() }
    }

    /// Starts the slice of all pods, or changes its limits. `cpus` lists those of the node.
    pub(super) async fn create_kubepods(
        &self,
        names: &[String],
        limits: &CgroupResources,
        cpus: Option<String>,
        deadline: Instant,
    ) -> Result<(), SystemdError> {
        self.create(names, limits, deadline).await?;
        if self.cgroup == CgroupVersion::V1 {
            return Ok(());
        }
        let version = self.systemd.version(remaining(deadline)).await?;
        let Some(property) = cpus.and_then(|cpus| allowed_cpus(&cpus, version)) else { return Ok(()) };
        self.systemd.set_properties(&slice_name(names), &[property], remaining(deadline)).await
    }

    /// Starts the slice and sets its limits. One that exists gets the limits.
    async fn create(&self, name: &[String], limits: &CgroupResources, deadline: Instant) -> Result<(), SystemdError> {
        self.start(name, deadline).await?;
        self.set(name, limits, deadline).await
    }

    /// Starts the slice. One that exists stays as it is.
    pub(super) async fn start(&self, name: &[String], deadline: Instant) -> Result<(), SystemdError> {
        let parent = slice_name(&name[..name.len().saturating_sub(1)]);
        self.systemd.start_slice(&slice_name(name), &parent, remaining(deadline)).await
    }

    /// Sets the limits of a slice that exists.
    pub(super) async fn set(
        &self,
        name: &[String],
        limits: &CgroupResources,
        deadline: Instant,
    ) -> Result<(), SystemdError> {
        let version = self.systemd.version(remaining(deadline)).await?;
        let properties = slice_properties(limits, self.cgroup, version);
        self.systemd.set_properties(&slice_name(name), &properties, remaining(deadline)).await
    }

    /// Sets the CPU weight of a slice that exists. Waits for another weight that is sent, until the deadline.
    pub(super) async fn weigh(
        &self,
        name: &[String],
        shares: impl Fn() -> u64 + Send,
        deadline: Instant,
    ) -> Result<(), SystemdError> {
        let limit = remaining(deadline);
        let timeout = |_| SystemdError::Timeout { method: "SetUnitProperties", unit: slice_name(name), limit };
        let _newest = tokio::time::timeout(limit, self.weighing.lock()).await.map_err(timeout)?;
        let weight = CgroupResources { cpu_shares: Some(shares()), ..CgroupResources::default() };
        self.set(name, &weight, deadline).await
    }

    /// Stops the slice, if it exists.
    pub(super) async fn stop(&self, name: &[String], deadline: Instant) -> Result<(), SystemdError> {
        self.systemd.stop_slice(&slice_name(name), remaining(deadline)).await
    }
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts connections and never answers.
    async fn silent_bus(dir: &std::path::Path) -> SystemdManager {
        let socket = dir.join("bus");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let mut accepted = vec![];
            while let Ok((stream, _)) = listener.accept().await {
                accepted.push(stream);
            }
        });
        SystemdManager::unconnected(&socket)
    }

    #[tokio::test]
    async fn a_bus_that_does_not_answer_delays_calls_only_until_their_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let slices = PodSlices::new(Arc::new(silent_bus(dir.path()).await), CgroupVersion::V2);
        let name = ["kubepods".to_owned()];
        let deadline = || Instant::now() + Duration::from_millis(100);
        let calls = async {
            let set = slices.set(&name, &CgroupResources::default(), deadline()).await;
            assert!(matches!(set, Err(SystemdError::Timeout { .. })), "{set:?}");
            let (first, second) =
                tokio::join!(slices.weigh(&name, || 2, deadline()), slices.weigh(&name, || 2, deadline()));
            assert!(matches!(first, Err(SystemdError::Timeout { .. })), "{first:?}");
            assert!(matches!(second, Err(SystemdError::Timeout { .. })), "{second:?}");
            let held = slices.weighing.lock().await;
            let waiting = slices.weigh(&name, || 2, deadline()).await;
            assert!(matches!(waiting, Err(SystemdError::Timeout { .. })), "{waiting:?}");
            drop(held);
        };
        tokio::time::timeout(Duration::from_secs(20), calls).await.expect("every call ends at its deadline");
    }
}
