//! What a stream connects to: a container or the sandbox of a pod, and the ports of a port-forward. Shared by the kubelet's API and
//! the local API.

use http::HeaderMap;
use http::header::UPGRADE;
use podwright_agent::feed::PodView;
use podwright_cri::CriError;
use podwright_cri::labels::Owner;

use crate::log::status_of;
use crate::streaming_proxy::{StreamingRuntime, is_upgrade};

/// The runtime's id of the container, if it is running.
pub(crate) fn running_container(view: &PodView, name: &str) -> Option<String> {
    let status = status_of(view, name)?;
    status.state.as_ref()?.running.as_ref()?;
    let id = status.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id).to_owned())
}

/// The container was started with a terminal, which cannot change after its start.
pub(crate) fn has_tty(view: &PodView, name: &str) -> bool {
    let Some(spec) = &view.object.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    let usual = spec.containers.iter().chain(init).map(|container| (&container.name, container.tty));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| (&container.name, container.tty));
    usual.chain(ephemeral).any(|(known, tty)| known == name && tty == Some(true))
}

/// The newest ready sandbox of the pod; `None`: it has none.
pub(crate) async fn ready_sandbox(runtime: &dyn StreamingRuntime, view: &PodView) -> Result<Option<String>, CriError> {
    let (sandboxes, _) = runtime.running().await?;
    let uid = view.uid();
    let own =
        sandboxes.iter().filter(|sandbox| Owner::of(&sandbox.labels).is_some_and(|owner| owner.uid == uid.as_str()));
    Ok(own.max_by_key(|sandbox| sandbox.created_at).map(|sandbox| sandbox.id.clone()))
}

/// Why the ports of a request cannot be forwarded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("query parameter \"port\" is required")]
    Missing,
    #[error("query parameter \"port\" cannot be empty")]
    Empty,
    #[error("unable to parse {0:?} as a port")]
    Invalid(String),
    #[error("port {0:?} must be > 0")]
    Zero(String),
}

/// The ports of the query parameters `port`, each one number or several with commas.
pub(crate) fn ports(given: &[String]) -> Result<Vec<i32>, PortError> {
    if given.is_empty() {
        return Err(PortError::Missing);
    }
    let mut ports = Vec::new();
    for text in given {
        if text.is_empty() {
            return Err(PortError::Empty);
        }
        for part in text.split(',') {
            match part.parse::<u16>() {
                Ok(0) => return Err(PortError::Zero(text.clone())),
                Ok(port) => ports.push(port.into()),
                Err(_) => return Err(PortError::Invalid(text.clone())),
            }
        }
    }
    Ok(ports)
}

/// The client asks for an upgrade to a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    is_upgrade(headers) && upgrade.eq_ignore_ascii_case("websocket")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_above_zero() {
        let of = |all: &[&str]| ports(&all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["80", "443,8080"]), Ok(vec![80, 443, 8080]));
        assert_eq!(of(&[]), Err(PortError::Missing));
        assert_eq!(of(&[""]), Err(PortError::Empty));
        assert_eq!(of(&["0"]), Err(PortError::Zero("0".into())));
        for wrong in ["65536", "-1", "80,", "http"] {
            assert_eq!(of(&[wrong]), Err(PortError::Invalid(wrong.into())), "{wrong}");
        }
    }
}
