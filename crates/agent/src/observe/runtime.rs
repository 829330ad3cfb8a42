//! The runtime's own word on itself: is it there, is its network ready, what can it do, who manages its cgroups.

use std::time::Duration;

use podwright_core::model::{CallError, RuntimeHandler, RuntimeReady};
use podwright_cri::{Code, CriError, RuntimeService, v1};

use super::Observer;
use crate::perform::read_failure;
use crate::translate::{CgroupDriver, RuntimeFeatures};

impl Observer {
    /// Asks how it is. An error means that nobody answers.
    pub async fn check_runtime(&self) -> Result<RuntimeReady, CallError> {
        let limit = self.limit.min(CHECK_TIME_MAX);
        let answers = async { Ok((self.version(limit).await?, self.runtime.status(false, limit).await?)) };
        let (version, answer) = answers.await.map_err(|error| {
            self.forget_version();
            CallError { unavailable: true, ..read_failure("", &error) }
        })?;
        self.features.set(features(&answer));
        Ok(word(version, answer))
    }

    async fn version(&self, limit: Duration) -> Result<v1::VersionResponse, CriError> {
        let known = self.version.lock().expect("nobody panics with it").clone();
        match known {
            Some(version) => Ok(version),
            None => {
                let version = self.runtime.version(limit).await?;
                *self.version.lock().expect("nobody panics with it") = Some(version.clone());
                Ok(version)
            }
        }
    }

    /// The runtime may come back as another one.
    pub(super) fn forget_version(&self) {
        *self.version.lock().expect("nobody panics with it") = None;
    }
}

/// What the runtime says of itself, in the kubelet's words.
fn word(version: v1::VersionResponse, answer: v1::StatusResponse) -> RuntimeReady {
    let conditions = answer.status.unwrap_or_default().conditions;
    let lacks = |kind: &str, what: &str| match conditions.iter().find(|condition| condition.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(v1::RuntimeCondition { reason, message, .. }) => {
            Some(format!("{what} not ready: {kind}=false reason:{reason} message:{message}"))
        }
        None => Some(format!("{what} not ready: the runtime does not say that it is")),
    };
    let network = lacks("NetworkReady", "container runtime network");
    let mut name = version.runtime_name;
    // It begins every container id in every status.
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    RuntimeReady {
        name,
        version: version.runtime_version,
        not_ready: lacks("RuntimeReady", "container runtime"),
        network: network.is_none(),
        message: network.unwrap_or_default(),
        handlers: answer.runtime_handlers.iter().map(handler).collect(),
        supplemental_groups_policy: answer.features.is_some_and(|features| features.supplemental_groups_policy),
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

/// Two who would both move the same processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cgroup drivers differ: cgroupDriver of this agent is {ours:?}, the container runtime's is {runtimes:?}. Set the \
     runtime's to {ours} and restart it (containerd: SystemdCgroup = false; CRI-O: cgroup_manager = \"cgroupfs\"): this \
     agent has no systemd driver yet"
)]
pub struct CgroupDriverMismatch {
    /// Our setting.
    pub ours: &'static str,
    /// The runtime's.
    pub runtimes: &'static str,
}

/// Compares our cgroup driver with the runtime's. Runtimes that cannot be asked, or do not answer, are taken as they are.
pub async fn check_cgroup_driver(
    runtime: &dyn RuntimeService,
    ours: CgroupDriver,
    limit: Duration,
) -> Result<(), CgroupDriverMismatch> {
    let answer = match runtime.runtime_config(limit).await {
        Ok(answer) => answer,
        Err(error) => {
            if error.code != Code::Unimplemented {
                tracing::warn!(%error, "the runtime did not tell its cgroup driver");
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

/// Whether the runtime follows `supplementalGroupsPolicy`, for the first pods: they may come before the first look at its health.
pub async fn supports_supplemental_groups_policy(runtime: &dyn RuntimeService, limit: Duration) -> Option<bool> {
    let answer = runtime.status(false, limit).await.ok()?;
    Some(features(&answer).supplemental_groups_policy)
}

/// Of the default handler: the only one pods are given.
fn features(answer: &v1::StatusResponse) -> RuntimeFeatures {
    let handler = answer.runtime_handlers.iter().find(|handler| handler.name.is_empty());
    let of_handler = handler.and_then(|handler| handler.features).unwrap_or_default();
    RuntimeFeatures {
        user_namespaces: of_handler.user_namespaces,
        recursive_read_only: of_handler.recursive_read_only_mounts,
        supplemental_groups_policy: answer.features.is_some_and(|features| features.supplemental_groups_policy),
    }
}

/// `containerd`, `cri-o`: real names are short.
const NAME_BYTES_MAX: usize = 63;

/// A health check that takes longer has its answer.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);
