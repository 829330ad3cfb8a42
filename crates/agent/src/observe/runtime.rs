//! Status of the runtime itself: whether it and its network are ready, its features, its cgroup driver.

use std::time::Duration;

use podwright_core::model::{CallError, RuntimeHandler, RuntimeReady};
use podwright_cri::{Code, CriError, RuntimeService, v1};

use super::Observer;
use crate::translate::{CgroupDriver, RuntimeFeatures};

impl Observer {
    /// Reads version and status of the runtime. An error means that the runtime does not answer.
    pub async fn check_runtime(&self) -> Result<RuntimeReady, CallError> {
        self.check_held()?;
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
        problems: problems(&conditions),
        handlers: response.runtime_handlers.iter().map(handler).collect(),
        supplemental_groups_policy: response.features.is_some_and(|features| features.supplemental_groups_policy),
    }
}

/// Conditions that only this runtime has, as `RecordsWritten` of the embedded engine: for those who look at the node.
fn problems(conditions: &[v1::RuntimeCondition]) -> Vec<String> {
    let required = |condition: &&v1::RuntimeCondition| ["RuntimeReady", "NetworkReady"].contains(&&*condition.r#type);
    let failed = conditions.iter().filter(|condition| !condition.status && !required(condition));
    let text = |condition: &v1::RuntimeCondition| {
        let mut text = format!("{}: {}", condition.r#type, condition.message);
        text.truncate(text.floor_char_boundary(PROBLEM_BYTES_MAX));
        text
    };
    failed.take(PROBLEMS_MAX).map(text).collect()
}

fn handler(handler: &v1::RuntimeHandler) -> RuntimeHandler {
    let features = handler.features.unwrap_or_default();
    RuntimeHandler {
        name: handler.name.clone(),
        recursive_read_only_mounts: features.recursive_read_only_mounts,
        user_namespaces: features.user_namespaces,
    }
}

/// Why the cgroup driver of the runtime is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupDriverError {
    /// The runtime does not answer. That says nothing about its driver.
    #[error("read the cgroup driver of the runtime")]
    Call(#[source] CriError),
    /// A value of the protocol that this agent does not know.
    #[error("the runtime reports the unknown cgroup driver {0}")]
    Unknown(i32),
}

/// The cgroup driver of the runtime, which the agent has to share: both manage the cgroups of the same processes. `None` if the
/// runtime does not report it; then the configuration decides (Go kubelet: `getCgroupDriverFromCRI`).
///
/// A failed call is never an answer: with another driver than before, every pod's cgroup is missing and every pod is restarted.
pub async fn runtime_cgroup_driver(
    runtime: &dyn RuntimeService,
    limit: Duration,
) -> Result<Option<CgroupDriver>, CgroupDriverError> {
    let answer = match runtime.runtime_config(limit).await {
        Ok(answer) => answer,
        Err(error) if error.code == Code::Unimplemented => return Ok(None),
        Err(error) => return Err(CgroupDriverError::Call(error)),
    };
    let Some(linux) = answer.linux else { return Ok(None) };
    match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => Ok(Some(CgroupDriver::Systemd)),
        Ok(v1::CgroupDriver::Cgroupfs) => Ok(Some(CgroupDriver::Cgroupfs)),
        Err(_) => Err(CgroupDriverError::Unknown(linux.cgroup_driver)),
    }
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

/// containerd has two conditions of its own, the embedded engine too.
const PROBLEMS_MAX: usize = 8;
/// Of its type and message.
const PROBLEM_BYTES_MAX: usize = 1024;

/// A runtime check that takes longer has failed.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);
