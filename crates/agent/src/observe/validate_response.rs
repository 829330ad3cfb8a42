//! Validates responses of the runtime. An invalid response fails the observation: nothing is decided from it, and the last
//! observed state stays valid.
//!
//! Errors name the invalid field and the id. Objects without the labels of a kubelet are ignored.

use std::collections::BTreeSet;

use podwright_cri::labels::{self, Owner};
use podwright_cri::{CriError, v1};

/// Every sandbox of a pod has a unique id, metadata, and a known state.
pub(super) fn sandboxes(listed: &[v1::PodSandbox]) -> Result<(), CriError> {
    let invalid =
        |id: &str, what: &str| CriError::malformed("ListPodSandbox", format!("sandbox {}: {what}", short(id)));
    let mut ids = BTreeSet::new();
    for sandbox in listed.iter().filter(|sandbox| Owner::of(&sandbox.labels).is_some()) {
        let id = sandbox.id.as_str();
        check_id(id)
            .and_then(|()| if ids.insert(id) { Ok(()) } else { Err("listed twice") })
            .map_err(|e| invalid(id, e))?;
        let metadata = sandbox.metadata.as_ref().ok_or_else(|| invalid(id, "no metadata"))?;
        check_attempt(metadata.attempt).map_err(|e| invalid(id, e))?;
        check_sandbox_state(sandbox.state).map_err(|e| invalid(id, e))?;
    }
    Ok(())
}

/// Every container of a pod has a unique id, a sandbox, and a known state.
pub(super) fn containers(listed: &[v1::Container]) -> Result<(), CriError> {
    let invalid =
        |id: &str, what: &str| CriError::malformed("ListContainers", format!("container {}: {what}", short(id)));
    let mut ids = BTreeSet::new();
    for container in listed.iter().filter(|container| Owner::of(&container.labels).is_some()) {
        let id = container.id.as_str();
        check_id(id)
            .and_then(|()| if ids.insert(id) { Ok(()) } else { Err("listed twice") })
            .map_err(|e| invalid(id, e))?;
        check_id(&container.pod_sandbox_id).map_err(|_| invalid(id, "no sandbox"))?;
        check_container_state(container.state).map_err(|e| invalid(id, e))?;
    }
    Ok(())
}

/// The status of the requested sandbox.
pub(super) fn sandbox_status(
    response: v1::PodSandboxStatusResponse,
    id: &str,
) -> Result<v1::PodSandboxStatus, CriError> {
    let invalid = |what: &str| CriError::malformed("PodSandboxStatus", format!("sandbox {}: {what}", short(id)));
    let status = response.status.ok_or_else(|| invalid("no status"))?;
    check_sandbox_state(status.state).map_err(invalid)?;
    Ok(status)
}

/// The status of the requested container, with long texts cut.
pub(super) fn container_status(
    response: v1::ContainerStatusResponse,
    id: &str,
) -> Result<v1::ContainerStatus, CriError> {
    let invalid = |what: &str| CriError::malformed("ContainerStatus", format!("container {}: {what}", short(id)));
    let mut status = response.status.ok_or_else(|| invalid("no status"))?;
    check_container_state(status.state).map_err(invalid)?;
    check_attempt(status.metadata.as_ref().map_or(0, |metadata| metadata.attempt)).map_err(invalid)?;
    let restarts = status.annotations.get(labels::RESTART_COUNT).and_then(|text| text.parse().ok());
    check_attempt(restarts.unwrap_or(0)).map_err(invalid)?;
    // These are copied into pod statuses and journal records.
    for text in [&mut status.message, &mut status.reason, &mut status.image_ref, &mut status.image_id] {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
    Ok(status)
}

fn check_id(id: &str) -> Result<(), &'static str> {
    match id.len() {
        0 => Err("no id"),
        n if n > ID_BYTES_MAX => Err("id too long"),
        _ => Ok(()),
    }
}

/// The next attempt is this one plus 1.
fn check_attempt(attempt: u32) -> Result<(), &'static str> {
    if attempt < ATTEMPT_MAX { Ok(()) } else { Err("attempt out of range") }
}

fn check_sandbox_state(state: i32) -> Result<(), &'static str> {
    v1::PodSandboxState::try_from(state).map(|_| ()).map_err(|_| "unknown state")
}

fn check_container_state(state: i32) -> Result<(), &'static str> {
    v1::ContainerState::try_from(state).map(|_| ()).map_err(|_| "unknown state")
}

fn short(id: &str) -> &str {
    &id[..id.floor_char_boundary(ID_SHOWN)]
}

/// Real ids have 64 bytes.
const ID_BYTES_MAX: usize = 1024;
const ID_SHOWN: usize = 64;
/// A restart every second for 30 years stays below this.
const ATTEMPT_MAX: u32 = 1 << 30;
/// The limit of all error messages.
const TEXT_BYTES_MAX: usize = podwright_cri::error::MESSAGE_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str) -> v1::PodSandbox {
        let labels = Owner { name: "p", namespace: "n", uid: "u", container: None }.to_labels();
        v1::PodSandbox { id: id.into(), metadata: Some(Default::default()), labels, ..Default::default() }
    }

    fn container(id: &str) -> v1::Container {
        let labels = Owner { name: "p", namespace: "n", uid: "u", container: Some("c") }.to_labels();
        v1::Container { id: id.into(), pod_sandbox_id: "s".into(), labels, ..Default::default() }
    }

    #[test]
    fn invalid_entries_are_named_and_objects_without_labels_are_ignored() {
        let error = |list: &[v1::PodSandbox]| sandboxes(list).map_err(|e| (e.in_doubt(), e.message)).err();
        assert_eq!(error(&[sandbox("a"), sandbox("b"), v1::PodSandbox::default()]), None);
        assert_eq!(error(&[sandbox("")]).unwrap().1, "sandbox : no id");
        assert_eq!(error(&[sandbox("a"), sandbox("a")]).unwrap().1, "sandbox a: listed twice");
        assert_eq!(error(&[v1::PodSandbox { metadata: None, ..sandbox("a") }]).unwrap().1, "sandbox a: no metadata");
        assert_eq!(error(&[v1::PodSandbox { state: 7, ..sandbox("a") }]).unwrap().1, "sandbox a: unknown state");
        let error = |list: &[v1::Container]| containers(list).map_err(|e| e.message).err();
        assert_eq!(error(&[container("a"), v1::Container::default()]), None);
        assert_eq!(error(&[container(&"x".repeat(2000))]).unwrap().len(), "container : id too long".len() + 64);
        assert_eq!(
            error(&[v1::Container { pod_sandbox_id: String::new(), ..container("a") }]).unwrap(),
            "container a: no sandbox"
        );
        assert!(error(&[v1::Container { state: -1, ..container("a") }]).is_some());
    }

    #[test]
    fn a_status_is_required_and_its_texts_are_bounded() {
        assert!(
            container_status(v1::ContainerStatusResponse::default(), "c").unwrap_err().message.contains("no status")
        );
        assert!(
            sandbox_status(v1::PodSandboxStatusResponse::default(), "s").unwrap_err().message.contains("no status")
        );
        let with = |attempt| {
            let metadata = Some(v1::ContainerMetadata { attempt, ..Default::default() });
            let status = v1::ContainerStatus { metadata, message: "ä".repeat(5000), ..Default::default() };
            container_status(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }, "c")
        };
        assert_eq!(with(3).unwrap().message.len(), TEXT_BYTES_MAX);
        assert!(with(u32::MAX).is_err());
    }
}
