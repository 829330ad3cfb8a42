//! Runs one probe: exec, HTTP, TCP or gRPC.
//!
//! *Unknown* means that the probe could not be run; it counts neither as success nor as failure.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use podwright_core::expansion::{EXPANDED_BYTES_MAX, Part, expand, parts};
use podwright_core::model::{Answer, CallError, ContainerId, Name, Pod, ProbeKind, ProbeVerdict, find_container};
use podwright_cri::Code;
use podwright_cri::v1::ExecSyncRequest;
use tokio::time::timeout;

use super::handlers::Handlers;
use super::http::{self, Dialer, HttpError, Url};
use super::target::TargetError;
use super::{grpc, target, warn};

/// The fields of `RuntimeCall::Probe`.
pub(super) struct ProbeCall {
    pub(super) kind: ProbeKind,
    pub(super) name: Name,
    pub(super) id: ContainerId,
    pub(super) ips: Vec<String>,
}

/// Why a probe could not be run.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("missing probe handler for container {container:?}")]
    NoHandler { container: Name },
    #[error("exec.command[{index}]: the command expands to more than {EXPANDED_BYTES_MAX} bytes")]
    CommandTooLarge { index: usize },
}

impl Handlers {
    pub(super) async fn run_probe(&self, pod: &Pod, call: &ProbeCall, limit: Duration) -> Result<Answer, CallError> {
        let Some(found) = find_container(pod, call.name.as_str()) else {
            return Err(CallError::failed(format!("the pod has no container {:?}", call.name)));
        };
        let container = &*found.container;
        let probe = match call.kind {
            ProbeKind::Startup => &container.startup_probe,
            ProbeKind::Readiness => &container.readiness_probe,
            ProbeKind::Liveness => &container.liveness_probe,
        };
        let Some(probe) = probe else {
            return Err(CallError::failed(format!("container {:?} has no {:?} probe", call.name, call.kind)));
        };
        let timeout = Duration::from_secs(u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1));
        let verdict = self.verdict(pod, container, probe, call, timeout.min(limit)).await;
        Ok(Answer::Probe(verdict.unwrap_or_else(|error| ProbeVerdict::Unknown(error.to_string()))))
    }

    /// `Err`: the probe could not be run.
    async fn verdict(
        &self,
        pod: &Pod,
        container: &Container,
        probe: &Probe,
        call: &ProbeCall,
        limit: Duration,
    ) -> Result<ProbeVerdict, ProbeError> {
        if let Some(action) = &probe.exec {
            let command = action.command.as_deref().unwrap_or_default();
            return Ok(self.exec_probe(container, &call.id, command, limit).await);
        }
        if let Some(action) = &probe.http_get {
            let url = target::url(action, container, pod, &call.ips, &self.settings)?;
            let (verdict, redirected) = http_probe(&self.dialer(pod), &url, action, limit).await;
            if let Some(body) = redirected {
                let kind = call.kind;
                let message = format!("{kind:?} probe warning: Probe terminated redirects, Response body: {body}");
                warn(&self.events, pod, Some(&call.name), "ProbeWarning", message);
            }
            return Ok(verdict);
        }
        if let Some(action) = &probe.tcp_socket {
            let host = target::host(action.host.as_deref(), pod, &call.ips, &self.settings)?;
            return Ok(tcp_probe(&self.dialer(pod), host, target::port(&action.port, container)?, limit).await);
        }
        if let Some(action) = &probe.grpc {
            let host = target::host(None, pod, &call.ips, &self.settings)?;
            let port = u16::try_from(action.port).map_err(|_| TargetError::InvalidPort(action.port.into()))?;
            let authority = Url::new(false, host, port, "").authority();
            let service = action.service.as_deref().unwrap_or_default();
            return Ok(match timeout(limit, grpc::check(&authority, service, limit)).await {
                Ok(Ok(())) => ProbeVerdict::Success,
                Ok(Err(error)) => ProbeVerdict::Failure(error.to_string()),
                Err(_) => ProbeVerdict::Failure(format!("timeout: health rpc did not complete within {limit:?}")),
            });
        }
        Err(ProbeError::NoHandler { container: call.name.clone() })
    }

    async fn exec_probe(
        &self,
        container: &Container,
        id: &ContainerId,
        command: &[String],
        limit: Duration,
    ) -> ProbeVerdict {
        let cmd = match expanded_command(container, command) {
            Ok(cmd) => cmd,
            Err(error) => return ProbeVerdict::Unknown(error.to_string()),
        };
        let replaced: Vec<(String, &String)> =
            cmd.iter().cloned().zip(command).filter(|(expanded, written)| expanded != *written).collect();
        let request = ExecSyncRequest {
            container_id: id.as_str().to_owned(),
            cmd,
            timeout: i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX),
        };
        // The call gets more time than the command, so that the runtime can report the timeout itself.
        match self.runtime.exec_sync(request, limit + EXEC_RESPONSE_TIME).await {
            Ok(response) if response.exit_code == 0 => ProbeVerdict::Success,
            Ok(response) => ProbeVerdict::Failure(output(&response.stdout, &response.stderr)),
            Err(error) if error.code == Code::DeadlineExceeded => {
                let text = command.join(" ");
                ProbeVerdict::Failure(format!("command timed out: {text:?} timed out after {limit:?}"))
            }
            // Runtimes quote the command; values of variables must not reach an event.
            Err(error) => ProbeVerdict::Unknown(as_written(error.to_string(), &replaced)),
        }
    }
}

/// The command of an exec probe. Only values written in the spec are expanded; others are empty (Go kubelet:
/// `ExpandContainerCommandOnlyStatic`).
fn expanded_command(container: &Container, command: &[String]) -> Result<Vec<String>, ProbeError> {
    let references = command.iter().flat_map(|text| parts(text)).filter_map(|part| match part {
        Part::Reference(name) => Some((name, None)),
        Part::Text(_) => None,
    });
    let mut values: HashMap<&str, Option<&str>> = references.collect();
    if !values.is_empty() {
        for var in container.env.iter().flatten() {
            if let Some(value) = values.get_mut(var.name.as_str()) {
                *value = Some(var.value.as_deref().unwrap_or_default());
            }
        }
    }
    let mut left = EXPANDED_BYTES_MAX;
    let one = |(index, text): (usize, &String)| {
        let expanded = expand(text, |name| values.get(name).copied().flatten(), left);
        let expanded = expanded.map_err(|_| ProbeError::CommandTooLarge { index })?;
        left -= expanded.len();
        Ok(expanded)
    };
    command.iter().enumerate().map(one).collect()
}

/// The message with expanded arguments replaced by those of the spec.
fn as_written(message: String, replaced: &[(String, &String)]) -> String {
    let shown = replaced.iter().filter(|(expanded, _)| !expanded.is_empty());
    shown.fold(message, |message, (expanded, written)| message.replace(expanded.as_str(), written))
}

/// The verdict, and the body if it is a redirect to another host: that is a success with a warning event.
async fn http_probe(
    dialer: &Dialer<'_>,
    url: &Url,
    action: &HTTPGetAction,
    limit: Duration,
) -> (ProbeVerdict, Option<String>) {
    let verdict = match timeout(limit, http::follow(dialer, url, &target::headers(action), "probe")).await {
        Ok(Ok(response)) => match response.status {
            300..400 => return (ProbeVerdict::Success, Some(String::from_utf8_lossy(&response.body).into_owned())),
            200..300 => ProbeVerdict::Success,
            // Without the body, which may contain what an event should not show.
            status => ProbeVerdict::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        // As in the Go kubelet, an error within the body is not a failure of the probe.
        Ok(Err(error @ HttpError::Body { .. })) => ProbeVerdict::Unknown(error.to_string()),
        Ok(Err(error)) => ProbeVerdict::Failure(error.to_string()),
        Err(_) => ProbeVerdict::Failure(format!("Get {:?}: no answer within {limit:?}", url.to_string())),
    };
    (verdict, None)
}

async fn tcp_probe(dialer: &Dialer<'_>, host: &str, port: u16, limit: Duration) -> ProbeVerdict {
    let address = Url::new(false, host, port, "").authority();
    match timeout(limit, dialer.connect(host, port)).await {
        Ok(Ok(_)) => ProbeVerdict::Success,
        Ok(Err(error)) => ProbeVerdict::Failure(format!("dial tcp {address}: {error}")),
        Err(_) => ProbeVerdict::Failure(format!("dial tcp {address}: i/o timeout")),
    }
}

/// stdout and stderr as text, cut at `OUTPUT_BYTES_MAX`.
pub(super) fn output(stdout: &[u8], stderr: &[u8]) -> String {
    let bytes: Vec<u8> = stdout.iter().chain(stderr).copied().take(OUTPUT_BYTES_MAX).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Kubernetes: `maxReadLength`, the part of the output that is kept.
const OUTPUT_BYTES_MAX: usize = 10 * 1024;

/// Time that the runtime has to respond after the timeout of the command.
const EXEC_RESPONSE_TIME: Duration = Duration::from_secs(2);
