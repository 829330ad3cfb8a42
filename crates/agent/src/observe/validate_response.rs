//! Does an answer make sense? A look that does not is a failed look: nothing is decided on it, and what was known stays known.
//!
//! What is wrong is said, with the id it is wrong with. What belongs to nobody we know is not looked at.

use std::collections::BTreeSet;

use podwright_cri::labels::{self, Owner};
use podwright_cri::{CriError, v1};

/// Every sandbox of a pod has an id of its own, metadata, and a state that exists.
pub(super) fn sandboxes(listed: &[v1::PodSandbox]) -> Result<(), CriError> {
    let wrong = |id: &str, what: &str| CriError::malformed("ListPodSandbox", format!("sandbox {}: {what}", short(id)));
    let mut ids = BTreeSet::new();
    for sandbox in listed.iter().filter(|sandbox| Owner::of(&sandbox.labels).is_some()) {
        let id = sandbox.id.as_str();
        check_id(id)
            .and_then(|()| if ids.insert(id) { Ok(()) } else { Err("twice in one list") })
            .map_err(|e| wrong(id, e))?;
        let metadata = sandbox.metadata.as_ref().ok_or_else(|| wrong(id, "no metadata"))?;
        check_attempt(metadata.attempt).map_err(|e| wrong(id, e))?;
        check_sandbox_state(sandbox.state).map_err(|e| wrong(id, e))?;
    }
    Ok(())
}

/// Every container of a pod has an id of its own, a sandbox, and a state that exists.
pub(super) fn containers(listed: &[v1::Container]) -> Result<(), CriError> {
    let wrong =
        |id: &str, what: &str| CriError::malformed("ListContainers", format!("container {}: {what}", short(id)));
    let mut ids = BTreeSet::new();
    for container in listed.iter().filter(|container| Owner::of(&container.labels).is_some()) {
        let id = container.id.as_str();
        check_id(id)
            .and_then(|()| if ids.insert(id) { Ok(()) } else { Err("twice in one list") })
            .map_err(|e| wrong(id, e))?;
        check_id(&container.pod_sandbox_id).map_err(|_| wrong(id, "no sandbox"))?;
        check_container_state(container.state).map_err(|e| wrong(id, e))?;
    }
    Ok(())
}

/// The status that was asked for.
pub(super) fn sandbox_status(
    answer: v1::PodSandboxStatusResponse,
    asked: &str,
) -> Result<v1::PodSandboxStatus, CriError> {
    let wrong = |what: &str| CriError::malformed("PodSandboxStatus", format!("sandbox {}: {what}", short(asked)));
    let status = answer.status.ok_or_else(|| wrong("no status"))?;
    check_sandbox_state(status.state).map_err(wrong)?;
    Ok(status)
}

/// The status that was asked for.
pub(super) fn container_status(
    answer: v1::ContainerStatusResponse,
    asked: &str,
) -> Result<v1::ContainerStatus, CriError> {
    let wrong = |what: &str| CriError::malformed("ContainerStatus", format!("container {}: {what}", short(asked)));
    let mut status = answer.status.ok_or_else(|| wrong("no status"))?;
    check_container_state(status.state).map_err(wrong)?;
    check_attempt(status.metadata.as_ref().map_or(0, |metadata| metadata.attempt)).map_err(wrong)?;
    let restarts = status.annotations.get(labels::RESTART_COUNT).and_then(|text| text.parse().ok());
    check_attempt(restarts.unwrap_or(0)).map_err(wrong)?;
    // These end up in statuses and records.
    for text in [&mut status.message, &mut status.reason, &mut status.image_ref, &mut status.image_id] {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
    Ok(status)
}

fn check_id(id: &str) -> Result<(), &'static str> {
    match id.len() {
        0 => Err("no id"),
        n if n > ID_BYTES_MAX => Err("an id that is too long"),
        _ => Ok(()),
    }
}

/// The next one is counted on from it.
fn check_attempt(attempt: u32) -> Result<(), &'static str> {
    if attempt < ATTEMPT_MAX { Ok(()) } else { Err("an attempt beyond all counting") }
}

fn check_sandbox_state(state: i32) -> Result<(), &'static str> {
    v1::PodSandboxState::try_from(state).map(|_| ()).map_err(|_| "a state that does not exist")
}

fn check_container_state(state: i32) -> Result<(), &'static str> {
    v1::ContainerState::try_from(state).map(|_| ()).map_err(|_| "a state that does not exist")
}

fn short(id: &str) -> &str {
    &id[..id.floor_char_boundary(ID_SHOWN)]
}

/// Real ones have 64.
const ID_BYTES_MAX: usize = 1024;
const ID_SHOWN: usize = 64;
/// Protobuf gives 32 bits; a restart each second for 30 years stays below this.
const ATTEMPT_MAX: u32 = 1 << 30;
/// As much as any message of ours.
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
    fn what_makes_no_sense_is_named_and_strangers_may_be_as_they_are() {
        let told = |list: &[v1::PodSandbox]| sandboxes(list).map_err(|e| (e.in_doubt(), e.message)).err();
        assert_eq!(told(&[sandbox("a"), sandbox("b"), v1::PodSandbox::default()]), None);
        assert_eq!(told(&[sandbox("")]).unwrap().1, "sandbox : no id");
        assert_eq!(told(&[sandbox("a"), sandbox("a")]).unwrap().1, "sandbox a: twice in one list");
        assert_eq!(told(&[v1::PodSandbox { metadata: None, ..sandbox("a") }]).unwrap().1, "sandbox a: no metadata");
        assert_eq!(
            told(&[v1::PodSandbox { state: 7, ..sandbox("a") }]).unwrap().1,
            "sandbox a: a state that does not exist"
        );
        let told = |list: &[v1::Container]| containers(list).map_err(|e| e.message).err();
        assert_eq!(told(&[container("a"), v1::Container::default()]), None);
        assert_eq!(
            told(&[container(&"x".repeat(2000))]).unwrap().len(),
            "container : an id that is too long".len() + 64
        );
        assert_eq!(
            told(&[v1::Container { pod_sandbox_id: String::new(), ..container("a") }]).unwrap(),
            "container a: no sandbox"
        );
        assert!(told(&[v1::Container { state: -1, ..container("a") }]).is_some());
    }

    #[test]
    fn a_status_is_there_and_its_texts_have_an_end() {
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
