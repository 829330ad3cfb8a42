//! Status of the runtime itself: whether it and its network are ready, its features, its cgroup driver.

use std::time::Duration;

use podwright_core::model::{CallError, RuntimeHandler, RuntimeReady};
use podwright_cri::{Code, CriError, RuntimeService, v1};

use super::Observer;
use crate::translate::{CgroupDriver, RuntimeFeatures};

impl Observer {
    /// Reads version and status of the runtime. An error means that the runtime does not answer.
    pub async fn check_runtime(&self) -> Result<RuntimeReady, CallError> {
        let limit = self.limit.min(CHECK_TIME_MAX);
        let requests = async { Ok((self.version(limit).await?, self.runtime.status(false, limit).await?)) };
        let (version, status) = requests.await.map_err(|error: CriError| {
            self.forget_version();
            CallError::Unavailable { message: error.to_string() }
        })?;
        self.features.set(features(&status));
        Ok(readiness(version, status))
    }

    async fn version(&self, limit: Duration) -> Result<v1::VersionResponse, CriError> {
        let known = self.version.lock().expect("no panic under this lock").clone();
        match known {
            Some(version) => Ok(version),
            None => {
                let version = self.runtime.version(limit).await?;
                *self.version.lock().expect("no panic under this lock") = Some(version.clone());
                Ok(version)
            }
        }
    }

    /// Called when the connection was lost: the runtime may come back as another version.
    pub(super) fn forget_version(&self) {
        *self.version.lock().expect("no panic under this lock") = None;
    }
}

/// The runtime conditions with the messages of the kubelet.
fn readiness(version: v1::VersionResponse, response: v1::StatusResponse) -> RuntimeReady {
    let conditions = response.status.unwrap_or_default().conditions;
    let not_ready = |kind: &str, what: &str| match conditions.iter().find(|condition| condition.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(v1::RuntimeCondition { reason, message, .. }) => {
            Some(format!("{what} not ready: {kind}=false reason:{reason} message:{message}"))
        }
        None => Some(format!("{what} not ready: the runtime does not report {kind}")),
    };
    let network = not_ready("NetworkReady", "container runtime network");
    let mut name = version.runtime_name;
    // It is the prefix of every containerID in pod statuses.
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    RuntimeReady {
        name,
        version: version.runtime_version,
        not_ready: not_ready("RuntimeReady", "container runtime"),
        network: network.is_none(),
        message: network.unwrap_or_default(),
        handlers: response.runtime_handlers.iter().map(handler).collect(),
        supplemental_groups_policy: response.features.is_some_and(|features| features.supplemental_groups_policy),
    }
}

fn handler(handler: &v1::RuntimeHandler) -> RuntimeHandler {
    let features = handler.features.unwrap_or_default();
    RuntimeHandler {
        name: handler.name.clone(),
        recursive_read_only_mounts: features.recursive_read_only_mounts,
        user_namespaces: features.user_namespaces,
    }
}

/// The agent and the runtime would both manage the cgroups of the same processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cgroup drivers differ: cgroupDriver of this agent is {ours:?}, the container runtime's is {runtimes:?}. Set the \
     runtime's to {ours} and restart it (containerd: SystemdCgroup = false; CRI-O: cgroup_manager = \"cgroupfs\"): this \
     agent has no systemd driver yet"
)]
pub struct CgroupDriverMismatch {
    /// `cgroupDriver` of this agent.
    pub ours: &'static str,
    /// The driver that the runtime reports.
    pub runtimes: &'static str,
}

/// Compares our cgroup driver with the runtime's. Succeeds if the runtime does not report its driver.
pub async fn check_cgroup_driver(
    runtime: &dyn RuntimeService,
    ours: CgroupDriver,
    limit: Duration,
) -> Result<(), CgroupDriverMismatch> {
    let answer = match runtime.runtime_config(limit).await {
        Ok(answer) => answer,
        Err(error) => {
            if error.code != Code::Unimplemented {
                tracing::warn!(%error, "reading the cgroup driver of the runtime failed");
            }
            return Ok(());
        }
    };
    let Some(linux) = answer.linux else { return Ok(()) };
    let runtimes = match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => CgroupDriver::Systemd,
        Ok(v1::CgroupDriver::Cgroupfs) => CgroupDriver::Cgroupfs,
        Err(_) => return Ok(()),
    };
    if runtimes == ours {
        return Ok(());
    }
    Err(CgroupDriverMismatch { ours: ours.as_str(), runtimes: runtimes.as_str() })
}

/// Whether the runtime supports `supplementalGroupsPolicy`, for pods admitted before the first runtime check. `None`: no answer.
pub async fn supports_supplemental_groups_policy(runtime: &dyn RuntimeService, limit: Duration) -> Option<bool> {
    let answer = runtime.status(false, limit).await.ok()?;
    Some(features(&answer).supplemental_groups_policy)
}

/// Features of the default handler, the only one that pods use.
fn features(answer: &v1::StatusResponse) -> RuntimeFeatures {
    let handler = answer.runtime_handlers.iter().find(|handler| handler.name.is_empty());
    let of_handler = handler.and_then(|handler| handler.features).unwrap_or_default();
    RuntimeFeatures {
        user_namespaces: of_handler.user_namespaces,
        recursive_read_only: of_handler.recursive_read_only_mounts,
        supplemental_groups_policy: answer.features.is_some_and(|features| features.supplemental_groups_policy),
    }
}

/// Real names (`containerd`, `cri-o`) are shorter.
const NAME_BYTES_MAX: usize = 63;

/// A runtime check that takes longer has failed.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);
