//! Converts CRI types to core's. Values out of range become the most conservative value.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{ContainerSeen, RunState, SandboxSeen};
use podwright_cri::labels::{self, Owner};
use podwright_cri::v1;

pub(super) fn is_ready(state: i32) -> bool {
    state == i32::from(v1::PodSandboxState::SandboxReady)
}

/// An unknown state may have a running process.
pub(super) fn run_state(state: i32) -> RunState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => RunState::Created,
        Ok(v1::ContainerState::ContainerRunning) => RunState::Running,
        Ok(v1::ContainerState::ContainerExited) => RunState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => RunState::Unknown,
    }
}

pub(super) fn sandbox(listed: v1::PodSandbox) -> SandboxSeen {
    SandboxSeen {
        ready: is_ready(listed.state),
        attempt: listed.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: timestamp(listed.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips: Vec::new(),
        id: listed.id.into(),
    }
}

/// The first one is the pod IP. If one of them is not an IP address, none is used.
pub(super) fn addresses(network: Option<v1::PodSandboxNetworkStatus>) -> Vec<String> {
    let Some(network) = network else { return Vec::new() };
    let all = [network.ip].into_iter().chain(network.additional_ips.into_iter().map(|more| more.ip));
    let all: Vec<String> = all.filter(|ip| !ip.is_empty()).collect();
    if all.iter().all(|ip| ip.parse::<IpAddr>().is_ok()) { all } else { Vec::new() }
}

/// One container from its status and its termination message. `None` if it lacks the labels of a kubelet.
pub(super) fn container(
    listed: &v1::Container,
    status: v1::ContainerStatus,
    termination_message: Option<String>,
) -> Option<ContainerSeen> {
    let name = Owner::of(&listed.labels)?.container?;
    let state = run_state(status.state);
    let exited = state == RunState::Exited;
    let annotation = |key: &str| status.annotations.get(key).or_else(|| listed.annotations.get(key));
    let grace =
        annotation(labels::POD_TERMINATION_GRACE_PERIOD).and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let attempt = status.metadata.as_ref().or(listed.metadata.as_ref()).map_or(0, |metadata| metadata.attempt);
    // The Go kubelet uses its annotation; the two differ only if another program created the container.
    let attempt = annotation(labels::RESTART_COUNT).and_then(|text| text.parse().ok()).unwrap_or(attempt);
    let user = status.user.and_then(|user| user.linux);
    let image = status.image.unwrap_or_default();
    Some(ContainerSeen {
        id: listed.id.as_str().into(),
        sandbox: listed.pod_sandbox_id.as_str().into(),
        name: name.into(),
        attempt,
        hash: annotation(labels::CONTAINER_HASH).cloned(),
        created_at: timestamp(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: timestamp(status.started_at).filter(|_| state != RunState::Created),
        finished_at: timestamp(status.finished_at).filter(|_| exited),
        exit_code: if exited { status.exit_code } else { 0 },
        grace,
        pre_stop: annotation(labels::PRE_STOP_HANDLER).cloned(),
        message: match termination_message {
            Some(message) if status.message.is_empty() => message,
            Some(message) => format!("{}: {message}", status.message),
            None => status.message,
        },
        reason: status.reason,
        image: if image.image.is_empty() { image.user_specified_image } else { image.image },
        image_id: status.image_ref,
        user: user.map(|user| (user.uid, user.gid, user.supplemental_groups)),
        state,
    })
}

/// From nanoseconds since the epoch; 0 means that it has not happened.
fn timestamp(nanos: i64) -> Option<Timestamp> {
    if nanos == 0 { None } else { Timestamp::from_nanosecond(i128::from(nanos)).ok() }
}
