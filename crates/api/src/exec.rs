//! Exec plugins: a program that says who we are (`client.authentication.k8s.io`).
//!
//! It runs without a terminal, has a minute, and what it prints never gets into a log.

use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{Cluster, ExecConfig, ExecInteractiveMode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// What a plugin gave.
pub(crate) struct Given {
    pub(crate) token: Option<SecretString>,
    /// Certificate and key, PEM.
    pub(crate) certificate: Option<(Vec<u8>, SecretString)>,
    pub(crate) expires: Option<Timestamp>,
}

/// Run it once.
///
/// `roots` are the certificates of the cluster, wherever they were read from.
pub(crate) async fn run(plugin: &ExecConfig, cluster: &Cluster, roots: Option<&[u8]>) -> Result<Given, String> {
    let name = plugin.command.as_deref().unwrap_or_default();
    if plugin.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(format!("{name} wants a terminal (interactiveMode: Always), and there is none"));
    }
    let version = plugin.api_version.as_deref().unwrap_or(VERSIONS[0]);
    if !VERSIONS.contains(&version) {
        return Err(format!("apiVersion {version:?} is not known: {} are", VERSIONS.join(" and ")));
    }
    let mut child = command(plugin, cluster, roots, version)
        .spawn()
        .map_err(|error| format!("start {name}: {error}{}", hint(plugin)))?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let ((said, _), status) =
            tokio::join!(async { tokio::join!(drain(out.as_mut()), drain(err.as_mut())) }, child.wait());
        (said, status)
    };
    let (said, status) =
        tokio::time::timeout(LIMIT, work).await.map_err(|_| format!("{name}: no end within {LIMIT:?}"))?;
    match status {
        Ok(status) if status.success() => parse(&said).map_err(|error| format!("{name}: {error}")),
        Ok(status) => Err(format!("{name}: {status}{}", hint(plugin))),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn command(plugin: &ExecConfig, cluster: &Cluster, roots: Option<&[u8]>, version: &str) -> Command {
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
        let named = fields.into_iter().filter(|(_, value)| !value.is_null());
        spec["cluster"] = named.map(|(name, value)| (name.to_owned(), value)).collect();
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

/// Read to the end; what is beyond the bound is thrown away.
async fn drain(from: Option<&mut (impl tokio::io::AsyncRead + Unpin)>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(from) = from else { return kept };
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        let room = OUTPUT_MAX.saturating_sub(kept.len());
        kept.extend_from_slice(&chunk[..n.min(room)]);
    }
    kept
}

fn parse(said: &[u8]) -> Result<Given, String> {
    // Its words may be secrets: only the place of what is wrong is told.
    let place = |error: serde_json::Error| format!("what it printed is no ExecCredential (line {})", error.line());
    let credential: Credential = serde_json::from_slice(said).map_err(place)?;
    let status = credential.status.ok_or("it gave no status")?;
    let expires = status.expiration_timestamp.map(|at| at.parse::<Timestamp>()).transpose();
    let expires = expires.map_err(|_| "expirationTimestamp is no time")?;
    let certificate = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into())),
        (None, None) => None,
        _ => return Err("it gave a certificate without key, or a key without certificate".into()),
    };
    let token = status.token.filter(|token| !token.is_empty()).map(SecretString::from);
    if token.is_none() && certificate.is_none() {
        return Err("it gave neither token nor certificate".into());
    }
    let ends = certificate.as_ref().and_then(|(pem, _)| crate::kubeconfig::not_after(pem));
    Ok(Given { token, certificate, expires: expires.or(ends) })
}

fn hint(plugin: &ExecConfig) -> String {
    plugin.install_hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default()
}

#[derive(Deserialize)]
struct Credential {
    status: Option<CredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    token: Option<String>,
    expiration_timestamp: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The part of a cluster's entry that is meant for plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";
const LIMIT: Duration = Duration::from_secs(60);
const OUTPUT_MAX: usize = 1 << 20;
