//! The runtime's own word on itself: is it there, is its network ready, what can it do, who manages its cgroups.

use std::time::Duration;

use podwright_core::model::{CallError, RuntimeReady};
use podwright_cri::{Code, RuntimeService, v1};

use super::Observer;
use crate::perform::harmless;
use crate::translate::{CgroupDriver, RuntimeFeatures};

impl Observer {
    /// Asks how it is. An error means that nothing can be asked of it now.
    pub async fn check_runtime(&self) -> Result<RuntimeReady, CallError> {
        let away = |error| CallError { unavailable: true, ..harmless("", &error) };
        let limit = self.limit.min(CHECK_TIME_MAX);
        let version = self.runtime.version(limit).await.map_err(away)?;
        let answer = self.runtime.status(false, limit).await.map_err(away)?;
        self.features.set(features(&answer));
        let conditions = answer.status.unwrap_or_default().conditions;
        let find = |kind: &str| conditions.iter().find(|condition| condition.r#type == kind);
        let told = |condition: &v1::RuntimeCondition| format!("{}: {}", condition.reason, condition.message);
        match find("RuntimeReady") {
            Some(condition) if condition.status => {}
            other => {
                let why = other.map_or_else(|| "the runtime does not say that it is ready".to_owned(), told);
                let message = format!("container runtime is not ready: {why}");
                return Err(CallError { unavailable: true, ..CallError::new("", message) });
            }
        }
        let network = find("NetworkReady");
        let mut name = version.runtime_name;
        // It begins every container id in every status.
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        Ok(RuntimeReady {
            name,
            network: network.is_some_and(|condition| condition.status),
            message: match network {
                Some(condition) if condition.status => String::new(),
                Some(condition) => format!("container runtime network not ready: {}", told(condition)),
                None => "container runtime network not ready: the runtime does not say that it is".into(),
            },
        })
    }
}

/// Two who would both move the same processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cgroup drivers differ: cgroupDriver of this agent is {ours:?}, the container runtime's is {runtimes:?} \
     (containerd: SystemdCgroup; CRI-O: cgroup_manager). Set cgroupDriver: {runtimes} in the agent's configuration \
     (or --cgroup-driver={runtimes}), or change the runtime's setting to {ours} and restart it"
)]
pub struct DriverMismatch {
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
) -> Result<(), DriverMismatch> {
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
    Err(DriverMismatch { ours: ours.as_str(), runtimes: runtimes.as_str() })
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
