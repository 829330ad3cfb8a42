//! The address of the HTTP server, and the DNS settings of pods.

use std::net::{IpAddr, SocketAddr};

use super::DnsConfig;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, text};

pub(super) fn listen(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<SocketAddr> {
    let port = diagnostics.integer("readOnlyPort", inputs.file.read_only_port, 0, 0, 65_535);
    let address = text(&inputs.file.address).unwrap_or("0.0.0.0");
    let from_file = match address.parse::<IpAddr>() {
        Ok(ip) => (port > 0).then(|| SocketAddr::new(ip, u16::try_from(port).unwrap_or(u16::MAX))),
        Err(_) => {
            diagnostics.error("address", format!("{address:?} is not an IP address"));
            None
        }
    };
    let listen = inputs.flags.listen.or(from_file)?;
    let field = if inputs.flags.listen.is_some() { "--listen" } else { "readOnlyPort" };
    match listen.ip().is_loopback() {
        false => diagnostics.warning(
            field,
            format!("{listen} shows pods and metrics to the network without authentication; use a loopback address"),
        ),
        true if field == "readOnlyPort" => {
            diagnostics
                .warning(field, "shows pods and metrics to every local user, without values of environment variables");
        }
        true => {}
    }
    Some(listen)
}

pub(super) fn dns(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> DnsConfig {
    let file = &inputs.file;
    let servers = file.cluster_dns.clone().unwrap_or_default();
    for server in servers.iter().filter(|server| server.parse::<IpAddr>().is_err()) {
        diagnostics.error("clusterDNS", format!("{server:?} is not an IP address"));
    }
    let resolv_conf = match file.resolv_conf.as_deref() {
        // An explicit empty path turns it off.
        Some("") => None,
        Some(path) => Some(inputs.file_path(path)),
        None => Some("/etc/resolv.conf".into()),
    };
    DnsConfig { servers, domain: file.cluster_domain.clone().unwrap_or_default(), resolv_conf }
}
