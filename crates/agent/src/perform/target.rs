//! The address of a hook or probe: the pod IP unless the handler names a host, and a port by number or name.

use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podwright_core::model::Pod;

use super::http::Url;
use crate::translate::NodeSettings;

/// Why a handler has no address. Messages of ports as in the Go kubelet (`probe.ResolveContainerPort`).
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("the pod has no address")]
    NoPodIp,
    #[error("couldn't find port {port:?} in container {container:?}")]
    UnknownPort { port: String, container: String },
    #[error("invalid port number: {0}")]
    InvalidPort(i64),
    #[error("unknown scheme {0:?}")]
    UnknownScheme(String),
}

/// The host of the handler, else the pod IP, else (on the host network) the node IP.
pub(super) fn host<'a>(
    own: Option<&'a str>,
    pod: &Pod,
    ips: &'a [String],
    settings: &'a NodeSettings,
) -> Result<&'a str, TargetError> {
    if let Some(host) = own.filter(|host| !host.is_empty()) {
        return Ok(host);
    }
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    let address = if ips.is_empty() && on_host { settings.host_ips.first() } else { ips.first() };
    address.map(String::as_str).ok_or(TargetError::NoPodIp)
}

/// The number of a port that is given by number or name.
pub(super) fn port(port: &IntOrString, container: &Container) -> Result<u16, TargetError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name))
                .map(|port| i64::from(port.container_port))
                .ok_or_else(|| TargetError::UnknownPort { port: name.clone(), container: container.name.clone() })?,
        },
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(TargetError::InvalidPort(number))
}

/// The URL of an HTTP handler.
pub(super) fn url(
    action: &HTTPGetAction,
    container: &Container,
    pod: &Pod,
    ips: &[String],
    settings: &NodeSettings,
) -> Result<Url, TargetError> {
    let tls = match action.scheme.as_deref().unwrap_or("HTTP") {
        scheme if scheme.eq_ignore_ascii_case("http") || scheme.is_empty() => false,
        scheme if scheme.eq_ignore_ascii_case("https") => true,
        other => return Err(TargetError::UnknownScheme(other.to_owned())),
    };
    let host = host(action.host.as_deref(), pod, ips, settings)?;
    Ok(Url::new(tls, host, port(&action.port, container)?, action.path.as_deref().unwrap_or_default()))
}

/// The headers of an HTTP handler.
pub(super) fn headers(action: &HTTPGetAction) -> Vec<(String, String)> {
    action.http_headers.iter().flatten().map(|header| (header.name.clone(), header.value.clone())).collect()
}
