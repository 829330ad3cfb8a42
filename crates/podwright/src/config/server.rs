//! The HTTPS server of the kubelet's API: address, certificates, who may use it; and the listener for `/healthz`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use podwright_server::kubelet::{AccessConfig, AuthorizationMode, HandlerSwitches, ServingSource, TlsFiles, TlsPolicy};

use super::certificates::cert_dir;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, period, text};
use crate::go_duration;

/// The kubelet's API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerConfig {
    pub(crate) address: SocketAddr,
    pub(crate) files: TlsFiles,
    pub(crate) policy: TlsPolicy,
    pub(crate) access: AccessConfig,
    pub(crate) handlers: HandlerSwitches,
    /// Streams without any byte for this long are closed; `None`: never.
    pub(crate) stream_idle: Option<Duration>,
}

/// `None`: it is not served. Without an API server it is served only if the configuration says so.
pub(super) fn read(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<ServerConfig> {
    let file = &inputs.file;
    let port = diagnostics.integer("port", file.port, 10250, 1, 65_535);
    let address = ip("address", &file.address, "0.0.0.0", diagnostics);
    let (files, policy) = (tls_files(inputs, diagnostics), tls_policy(inputs, diagnostics));
    let enabled = file.enable_server.unwrap_or(inputs.flags.kubeconfig.is_some());
    let access = access(inputs, enabled, diagnostics);
    enabled.then(|| ServerConfig {
        address: SocketAddr::new(address, u16::try_from(port).unwrap_or(10250)),
        files,
        policy,
        access,
        handlers: HandlerSwitches {
            debugging: file.enable_debugging_handlers.unwrap_or(true),
            system_logs: file.enable_system_log_handler.unwrap_or(true),
            profiling: file.enable_profiling_handler.unwrap_or(true),
            debug_flags: file.enable_debug_flags_handler.unwrap_or(true),
        },
        stream_idle: match file.streaming_connection_idle_timeout {
            None => Some(Duration::from_secs(4 * 3600)),
            Some(given) => Some(given).filter(|given| !given.is_zero()),
        },
    })
}

/// The address of the plain listener for `/healthz`; `None`: it is off.
pub(super) fn healthz(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<SocketAddr> {
    let port = diagnostics.integer("healthzPort", inputs.file.healthz_port, 10248, 0, 65_535);
    let address = ip("healthzBindAddress", &inputs.file.healthz_bind_address, "127.0.0.1", diagnostics);
    (port > 0).then(|| SocketAddr::new(address, u16::try_from(port).unwrap_or(10248)))
}

/// How often volumes are measured; `None`: never (a negative duration).
pub(super) fn volume_stats_period(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<Duration> {
    let default = Duration::from_secs(60);
    let Some(given) = text(&inputs.file.volume_stats_agg_period) else { return Some(default) };
    let (negative, length) = given.strip_prefix('-').map_or((false, given), |length| (true, length));
    match go_duration::parse(length) {
        Ok(length) if negative && !length.is_zero() => None,
        Ok(length) => Some(period(Some(length), default)),
        Err(error) => {
            diagnostics.error("volumeStatsAggPeriod", error.to_string());
            None
        }
    }
}

fn ip(field: &str, given: &Option<String>, default: &str, diagnostics: &mut Diagnostics) -> IpAddr {
    let given = text(given).unwrap_or(default);
    given.parse().unwrap_or_else(|_| {
        // The address of the HTTP server is checked by its reader.
        if field != "address" {
            diagnostics.error(field, format!("{given:?} is not an IP address"));
        }
        IpAddr::from([127, 0, 0, 1])
    })
}

fn tls_files(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> TlsFiles {
    let file = &inputs.file;
    let path = |field: &Option<String>| text(field).map(|path| inputs.file_path(path));
    let serving = match (path(&file.tls_cert_file), path(&file.tls_private_key_file)) {
        (Some(certificate), Some(key)) => ServingSource::Files { certificate, key },
        (None, None) => ServingSource::SelfSigned,
        (Some(_), None) => {
            diagnostics.error("tlsPrivateKeyFile (--tls-private-key-file)", "needed for tlsCertFile");
            ServingSource::SelfSigned
        }
        (None, Some(_)) => {
            diagnostics.error("tlsCertFile (--tls-cert-file)", "needed for tlsPrivateKeyFile");
            ServingSource::SelfSigned
        }
    };
    let serving = if file.server_tls_bootstrap.unwrap_or(false) { ServingSource::Issued } else { serving };
    let x509 = file.authentication.as_ref().and_then(|all| all.x509.as_ref());
    TlsFiles {
        serving,
        cert_dir: cert_dir(inputs),
        hostname: inputs.hostname(),
        client_ca: x509.and_then(|x509| path(&x509.client_ca_file)),
    }
}

fn tls_policy(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> TlsPolicy {
    let file = &inputs.file;
    let only_tls13 = match text(&file.tls_min_version) {
        None | Some("VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(other) => {
            diagnostics.error("tlsMinVersion", format!("{other:?} must be VersionTLS12 or VersionTLS13"));
            false
        }
    };
    let (known, cipher_suites) = (TlsPolicy::known_cipher_suites(), file.tls_cipher_suites.clone().unwrap_or_default());
    for unknown in cipher_suites.iter().filter(|name| !known.contains(name)) {
        let error = format!("{unknown:?} is not supported; supported are {}", known.join(", "));
        diagnostics.error("tlsCipherSuites", error);
    }
    TlsPolicy { only_tls13, cipher_suites }
}

fn access(inputs: &ConfigInputs<'_>, enabled: bool, diagnostics: &mut Diagnostics) -> AccessConfig {
    let (file, standalone) = (&inputs.file, inputs.flags.kubeconfig.is_none());
    let authentication = file.authentication.clone().unwrap_or_default();
    let webhook = authentication.webhook.unwrap_or_default();
    let tokens = webhook.enabled.unwrap_or(true).then(|| period(webhook.cache_ttl, Duration::from_secs(120)));
    let authorization = file.authorization.clone().unwrap_or_default();
    let times = authorization.webhook.unwrap_or_default();
    let mode = match text(&authorization.mode).unwrap_or("Webhook") {
        "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
        "Webhook" => AuthorizationMode::Webhook {
            allowed: period(times.cache_authorized_ttl, Duration::from_secs(300)),
            denied: period(times.cache_unauthorized_ttl, Duration::from_secs(30)),
        },
        other => {
            diagnostics.error("authorization.mode", format!("{other:?} must be Webhook or AlwaysAllow"));
            AuthorizationMode::AlwaysAllow
        }
    };
    if enabled && standalone && tokens.is_some() {
        let error = "the API server reviews tokens: give --kubeconfig, or set it to false";
        diagnostics.error("authentication.webhook.enabled", error);
    }
    if enabled && standalone && mode != AuthorizationMode::AlwaysAllow {
        let error = "the API server reviews access: give --kubeconfig, or set it to AlwaysAllow";
        diagnostics.error("authorization.mode", error);
    }
    let anonymous = authentication.anonymous.and_then(|anonymous| anonymous.enabled).unwrap_or(false);
    if enabled && anonymous && mode == AuthorizationMode::AlwaysAllow {
        let warning = "with authorization mode AlwaysAllow everyone in the network controls this node";
        diagnostics.warning("authentication.anonymous.enabled", warning);
    }
    AccessConfig { anonymous, tokens, authorization: mode }
}
