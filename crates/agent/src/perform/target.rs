//! Where a hook or a probe goes: the pod's address unless it names another, a port by number or by name.

use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podwright_core::model::Pod;

use super::http::Url;
use crate::translate::NodeSettings;

/// The address to go to: the handler's own host, else the pod's, else (on the host's network) the node's.
pub(super) fn host<'a>(
    own: Option<&'a str>,
    pod: &Pod,
    ips: &'a [String],
    facts: &'a NodeSettings,
) -> Result<&'a str, String> {
    if let Some(host) = own.filter(|host| !host.is_empty()) {
        return Ok(host);
    }
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    let address = if ips.is_empty() && on_host { facts.host_ips.first() } else { ips.first() };
    address.map(String::as_str).ok_or_else(|| "the pod has no address".into())
}

/// The port's number.
pub(super) fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
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
                .ok_or_else(|| format!("couldn't find port {name:?} in container {:?}", container.name))?,
        },
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

/// Where an HTTP handler goes.
pub(super) fn url(
    action: &HTTPGetAction,
    container: &Container,
    pod: &Pod,
    ips: &[String],
    facts: &NodeSettings,
) -> Result<Url, String> {
    let tls = match action.scheme.as_deref().unwrap_or("HTTP") {
        scheme if scheme.eq_ignore_ascii_case("http") || scheme.is_empty() => false,
        scheme if scheme.eq_ignore_ascii_case("https") => true,
        other => return Err(format!("unknown scheme {other:?}")),
    };
    let host = host(action.host.as_deref(), pod, ips, facts)?;
    Ok(Url::new(tls, host, port(&action.port, container)?, action.path.as_deref().unwrap_or_default()))
}

/// A handler's headers.
pub(super) fn headers(action: &HTTPGetAction) -> Vec<(String, String)> {
    action.http_headers.iter().flatten().map(|header| (header.name.clone(), header.value.clone())).collect()
}
