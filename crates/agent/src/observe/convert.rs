//! The runtime's words in core's. Runtimes answer garbage now and then: numbers out of range become the most careful value.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{ContainerSeen, RunState, SandboxSeen};
use podwright_cri::labels::{self, Owner};
use podwright_cri::v1;

pub(super) fn is_ready(state: i32) -> bool {
    state == i32::from(v1::PodSandboxState::SandboxReady)
}

/// What we do not know may have a process.
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
        created_at: moment(listed.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips: Vec::new(),
        id: listed.id.into(),
    }
}

/// The first one is the pod's. One that is no address makes all of them doubtful.
pub(super) fn addresses(network: Option<v1::PodSandboxNetworkStatus>) -> Vec<String> {
    let Some(network) = network else { return Vec::new() };
    let all = [network.ip].into_iter().chain(network.additional_ips.into_iter().map(|more| more.ip));
    let all: Vec<String> = all.filter(|ip| !ip.is_empty()).collect();
    if all.iter().all(|ip| ip.parse::<IpAddr>().is_ok()) { all } else { Vec::new() }
}

/// One container from its status; `words` are its own last ones. Nothing without a kubelet's labels.
pub(super) fn container(
    listed: &v1::Container,
    status: v1::ContainerStatus,
    words: Option<String>,
) -> Option<ContainerSeen> {
    let name = Owner::of(&listed.labels)?.container?;
    let state = run_state(status.state);
    let exited = state == RunState::Exited;
    let note = |key: &str| status.annotations.get(key).or_else(|| listed.annotations.get(key));
    let grace = note(labels::POD_TERMINATION_GRACE_PERIOD).and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let attempt = status.metadata.as_ref().or(listed.metadata.as_ref()).map_or(0, |metadata| metadata.attempt);
    // The Go kubelet trusts its annotation; they only differ if somebody else made the container.
    let attempt = note(labels::RESTART_COUNT).and_then(|text| text.parse().ok()).unwrap_or(attempt);
    let user = status.user.and_then(|user| user.linux);
    let image = status.image.unwrap_or_default();
    Some(ContainerSeen {
        id: listed.id.as_str().into(),
        sandbox: listed.pod_sandbox_id.as_str().into(),
        name: name.into(),
        attempt,
        hash: note(labels::CONTAINER_HASH).cloned(),
        created_at: moment(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: moment(status.started_at).filter(|_| state != RunState::Created),
        finished_at: moment(status.finished_at).filter(|_| exited),
        exit_code: if exited { status.exit_code } else { 0 },
        grace,
        pre_stop: note(labels::PRE_STOP_HANDLER).cloned(),
        message: match words {
            Some(words) if status.message.is_empty() => words,
            Some(words) => format!("{}: {words}", status.message),
            None => status.message,
        },
        reason: status.reason,
        image: if image.image.is_empty() { image.user_specified_image } else { image.image },
        image_id: status.image_ref,
        user: user.map(|user| (user.uid, user.gid, user.supplemental_groups)),
        state,
    })
}

/// Nanoseconds since the epoch; 0 is "has not happened".
fn moment(nanos: i64) -> Option<Timestamp> {
    if nanos == 0 { None } else { Timestamp::from_nanosecond(i128::from(nanos)).ok() }
}
