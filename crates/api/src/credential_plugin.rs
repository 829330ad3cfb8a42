//! Credential plugins: the `exec` entry of a kubeconfig user, a program that prints a token or a client certificate
//! (`client.authentication.k8s.io`).
//!
//! It runs without a terminal and has a minute. What it prints is never logged.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::temporal::Pieces;
use kube::config::{Cluster, ExecConfig, ExecInteractiveMode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::certificate;

/// What a plugin returned: a token, a client certificate, or both.
pub(crate) struct PluginCredential {
    pub(crate) token: Option<SecretString>,
    /// Certificate and key, PEM.
    pub(crate) certificate: Option<(Vec<u8>, SecretString)>,
    /// As stated by the plugin, else the end of the certificate; `None`: never.
    pub(crate) expires: Option<Timestamp>,
}

/// Why a plugin gave no credential. Each message names the plugin's command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialPluginError {
    #[error("{command} needs a terminal (interactiveMode: Always), but there is none")]
    NeedsTerminal { command: String },
    #[error("apiVersion {version:?} is not supported: use {}", VERSIONS.join(" or "))]
    UnknownVersion { version: String },
    #[error("start {command}: {source}{hint}")]
    Start { command: String, hint: String, source: std::io::Error },
    #[error("{command}: still running after {limit:?}")]
    Timeout { command: String, limit: Duration },
    #[error("{command}: {status}{hint}")]
    Failed { command: String, status: ExitStatus, hint: String },
    #[error("{command}: {source}")]
    Wait { command: String, source: std::io::Error },
    #[error("{command}: {source}")]
    Output { command: String, source: CredentialError },
}

/// What is wrong with a plugin's output. The output may hold secrets, so it is not quoted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    #[error("its output is no ExecCredential (line {line})")]
    Syntax { line: usize },
    #[error("the ExecCredential has no status")]
    NoStatus,
    #[error("expirationTimestamp is not a timestamp")]
    Expiration,
    #[error("the ExecCredential has a certificate without key, or a key without certificate")]
    HalfPair,
    #[error("the ExecCredential has neither token nor certificate")]
    Empty,
}

/// Runs the plugin once.
///
/// `roots` are the cluster's CA certificates (PEM), inline or from a file.
pub(crate) async fn run(
    plugin: &ExecConfig,
    cluster: &Cluster,
    roots: Option<&[u8]>,
) -> Result<PluginCredential, CredentialPluginError> {
    let command = plugin.command.clone().unwrap_or_default();
    if plugin.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(CredentialPluginError::NeedsTerminal { command });
    }
    let version = plugin.api_version.as_deref().unwrap_or(VERSIONS[0]);
    if !VERSIONS.contains(&version) {
        return Err(CredentialPluginError::UnknownVersion { version: version.to_owned() });
    }
    let hint = plugin.install_hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let mut child = match plugin_command(plugin, cluster, roots, version).spawn() {
        Ok(child) => child,
        Err(source) => return Err(CredentialPluginError::Start { command, hint, source }),
    };
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let ((output, _), status) =
            tokio::join!(async { tokio::join!(drain(stdout.as_mut()), drain(stderr.as_mut())) }, child.wait());
        (output, status)
    };
    let Ok((output, status)) = tokio::time::timeout(RUN_TIMEOUT, work).await else {
        return Err(CredentialPluginError::Timeout { command, limit: RUN_TIMEOUT });
    };
    match status {
        Ok(status) if status.success() => {
            parse(&output).map_err(|source| CredentialPluginError::Output { command, source })
        }
        Ok(status) => Err(CredentialPluginError::Failed { command, status, hint }),
        Err(source) => Err(CredentialPluginError::Wait { command, source }),
    }
}

fn plugin_command(plugin: &ExecConfig, cluster: &Cluster, roots: Option<&[u8]>, version: &str) -> Command {
    let mut spec = json!({"interactive": false});
    if plugin.provide_cluster_info {
        let base64 = |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        let extension = cluster.extensions.iter().flatten().find(|extension| extension.name == EXTENSION);
        let fields = [
            ("server", json!(cluster.server)),
            ("tls-server-name", json!(cluster.tls_server_name)),
            ("insecure-skip-tls-verify", json!(cluster.insecure_skip_tls_verify)),
            ("certificate-authority-data", json!(roots.map(base64))),
            ("proxy-url", json!(cluster.proxy_url)),
            ("config", json!(extension.map(|extension| &extension.extension))),
        ];
        let set = fields.into_iter().filter(|(_, value)| !value.is_null());
        spec["cluster"] = set.map(|(name, value)| (name.to_owned(), value)).collect();
    }
    let info = json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec});
    let mut command = Command::new(plugin.command.as_deref().unwrap_or_default());
    command.args(plugin.args.iter().flatten());
    for pair in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (pair.get("name"), pair.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Reads to the end; bytes beyond the bound are discarded.
async fn drain(from: Option<&mut (impl tokio::io::AsyncRead + Unpin)>) -> Vec<u8> {
    let mut output = Vec::new();
    let Some(from) = from else { return output };
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        let free = OUTPUT_MAX.saturating_sub(output.len());
        output.extend_from_slice(&chunk[..n.min(free)]);
    }
    output
}

pub(crate) fn parse(output: &[u8]) -> Result<PluginCredential, CredentialError> {
    let syntax = |error: serde_json::Error| CredentialError::Syntax { line: error.line() };
    let credential: ExecCredential = serde_json::from_slice(output).map_err(syntax)?;
    let status = credential.status.ok_or(CredentialError::NoStatus)?;
    let expires = status.expiration_timestamp.as_deref().map(expiration).transpose()?;
    let certificate = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into())),
        (None, None) => None,
        _ => return Err(CredentialError::HalfPair),
    };
    let token = status.token.filter(|token| !token.is_empty()).map(SecretString::from);
    if token.is_none() && certificate.is_none() {
        return Err(CredentialError::Empty);
    }
    let not_after = certificate.as_ref().and_then(|(pem, _)| certificate::not_after(pem));
    Ok(PluginCredential { token, certificate, expires: expires.or(not_after) })
}

/// A time that stands for "never" (Go's zero time, or the end of the year 9999, which is later than the last timestamp) is the last one.
fn expiration(text: &str) -> Result<Timestamp, CredentialError> {
    if text == ZERO_TIME {
        return Ok(Timestamp::MAX);
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let pieces = Pieces::parse(text).map_err(|_| CredentialError::Expiration)?;
    match (pieces.date().year(), pieces.time(), pieces.offset()) {
        (9999, Some(_), Some(_)) => Ok(Timestamp::MAX),
        _ => Err(CredentialError::Expiration),
    }
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    token: Option<String>,
    expiration_timestamp: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Go: `metav1.Time{}`.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The extension of a kubeconfig cluster that is passed to plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
const OUTPUT_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_without_end_never_expires() {
        let never = ["9999-12-31T23:59:59Z", "9999-12-30T22:00:01Z", "9999-12-31T23:59:59.999+01:00", ZERO_TIME];
        for (text, expires) in never.map(|text| (text, Timestamp::MAX)).into_iter().chain([
            ("2040-01-01T00:00:00Z", "2040-01-01T00:00:00Z".parse().unwrap()),
            ("9999-12-30T21:00:00Z", "9999-12-30T21:00:00Z".parse().unwrap()),
        ]) {
            let output = json!({"status": {"token": "t", "expirationTimestamp": text}}).to_string();
            assert_eq!(parse(output.as_bytes()).map(|credential| credential.expires).unwrap(), Some(expires), "{text}");
        }
        for wrong in
            ["", "tomorrow", "9999-12-31", "9999-12-31T23:59:59", "10000-01-01T00:00:00Z", "9999-13-31T23:59:59Z"]
        {
            let output = json!({"status": {"token": "t", "expirationTimestamp": wrong}}).to_string();
            assert!(matches!(parse(output.as_bytes()), Err(CredentialError::Expiration)), "{wrong}");
        }
    }
}
