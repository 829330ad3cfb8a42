//! Lifecycle hooks: exec, HTTP, TCP, sleep.
//!
//! The error of a failed hook does not contain the output of its command: it may be secret, and the error goes into events.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler};
use podwright_core::model::{Answer, CallError, ContainerId, HookKind, Name, Pod, find_container};
use podwright_cri::v1::ExecSyncRequest;
use tokio::time::timeout;

use super::handlers::Handlers;
use super::{http, probe, read_failure, target, warn};
use crate::pod_spec::display_name;

/// The fields of `RuntimeCall::Hook`.
pub(super) struct HookCall {
    pub(super) kind: HookKind,
    pub(super) name: Name,
    pub(super) id: ContainerId,
    pub(super) handler: Option<String>,
    pub(super) ips: Vec<String>,
}

impl Handlers {
    /// Runs one hook until it ends or its time limit passes.
    pub(super) async fn run_hook(&self, pod: &Pod, call: &HookCall, limit: Duration) -> Result<Answer, CallError> {
        let (handler, container) =
            handler(pod, call).map_err(|error| CallError::with_reason(reason(call.kind), error.to_string()))?;
        let Some(handler) = handler else { return Ok(Answer::Done) };
        let failed = match timeout(limit, self.handle(pod, &container, &handler, call, limit)).await {
            Ok(Ok(())) => return Ok(Answer::Done),
            Ok(Err(failed)) => failed,
            Err(_) => CallError::failed(format!("not finished within {limit:?}")),
        };
        let what = describe(&handler);
        let message = format!(
            "{what} for Container {:?} in Pod {:?} failed - error: {}",
            call.name.as_str(),
            display_name(pod),
            failed.message()
        );
        Err(match failed {
            CallError::Failed { .. } => CallError::with_reason(reason(call.kind), message),
            other => other.map_message(|_| message),
        })
    }

    async fn handle(
        &self,
        pod: &Pod,
        container: &Container,
        handler: &LifecycleHandler,
        call: &HookCall,
        limit: Duration,
    ) -> Result<(), CallError> {
        let failed = |error: HookError| CallError::failed(error.to_string());
        if let Some(action) = &handler.exec {
            return self.exec_hook(&call.id, action.command.as_deref().unwrap_or_default(), limit).await;
        }
        if let Some(action) = &handler.http_get {
            let url = target::url(action, container, pod, &call.ips, &self.settings).map_err(|e| failed(e.into()))?;
            return self.http_hook(pod, &url, action).await.map_err(failed);
        }
        if let Some(action) = &handler.tcp_socket {
            let host =
                target::host(action.host.as_deref(), pod, &call.ips, &self.settings).map_err(|e| failed(e.into()))?;
            let port = target::port(&action.port, container).map_err(|e| failed(e.into()))?;
            let connected = self.dialer(pod).connect(host, port).await;
            let address = format!("{host}:{port}");
            return connected.map(drop).map_err(|source| failed(HookError::Connect { address, source }));
        }
        if let Some(action) = &handler.sleep {
            let seconds = u64::try_from(action.seconds).unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            return Ok(());
        }
        Err(failed(HookError::NoHandler))
    }

    async fn exec_hook(&self, id: &ContainerId, command: &[String], limit: Duration) -> Result<(), CallError> {
        let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        let request = ExecSyncRequest {
            container_id: id.as_str().to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let response = self.runtime.exec_sync(request, limit).await.map_err(|error| read_failure(None, &error))?;
        if response.exit_code == 0 {
            return Ok(());
        }
        let output = probe::output(&response.stdout, &response.stderr);
        tracing::debug!(container_id = id.as_str(), note = output, "hook command failed");
        Err(CallError::failed(format!("command '{}' exited with {}", command.join(" "), response.exit_code)))
    }

    /// Every response is a success, whatever its status code. If the server answers a TLS handshake with plain HTTP, the request is
    /// repeated without TLS, as in the Go kubelet.
    async fn http_hook(&self, pod: &Pod, url: &http::Url, action: &HTTPGetAction) -> Result<(), HookError> {
        let (headers, dialer) = (target::headers(action), self.dialer(pod));
        match http::follow(&dialer, url, &headers, "lifecycle").await {
            Ok(response) => {
                tracing::debug!(%url, status = response.status, "hook request finished");
                Ok(())
            }
            Err(http::HttpError::Body { .. }) => Ok(()),
            Err(error) if error.is_plain_http() => {
                let plain = http::Url { tls: false, ..url.clone() };
                match http::follow(&dialer, &plain, &http::without_authorization(&headers), "lifecycle").await {
                    Ok(_) | Err(http::HttpError::Body { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                let message = format!(
                    "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                    plain.authority()
                );
                warn(&self.events, pod, None, "LifecycleHTTPFallback", message);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error("the handler in the container's annotation is not valid JSON: {0}")]
    Annotation(serde_json::Error),
    #[error(transparent)]
    Target(#[from] target::TargetError),
    #[error(transparent)]
    Http(#[from] http::HttpError),
    #[error("dial tcp {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("the hook has no handler")]
    NoHandler,
}

/// The handler of the spec, or the one in the container's annotation if the spec no longer has the container.
fn handler(pod: &Pod, call: &HookCall) -> Result<(Option<LifecycleHandler>, Container), HookError> {
    if let Some(found) = find_container(pod, call.name.as_str()) {
        let container = found.container.into_owned();
        let lifecycle = container.lifecycle.as_ref();
        let handler = match call.kind {
            HookKind::PostStart => lifecycle.and_then(|l| l.post_start.clone()),
            HookKind::PreStop => lifecycle.and_then(|l| l.pre_stop.clone()),
        };
        return Ok((handler, container));
    }
    let container = Container { name: call.name.as_str().to_owned(), ..Container::default() };
    let Some(text) = &call.handler else { return Ok((None, container)) };
    let handler = serde_json::from_slice(text.as_bytes()).map_err(HookError::Annotation)?;
    Ok((Some(handler), container))
}

fn describe(handler: &LifecycleHandler) -> String {
    if let Some(exec) = &handler.exec {
        return format!("Exec lifecycle hook ([{}])", exec.command.as_deref().unwrap_or_default().join(" "));
    }
    if let Some(get) = &handler.http_get {
        return format!("HTTP lifecycle hook ({})", get.path.as_deref().unwrap_or_default());
    }
    if let Some(sleep) = &handler.sleep {
        return format!("Sleep lifecycle hook ({})", sleep.seconds);
    }
    "Lifecycle hook".into()
}

/// Kubernetes: ErrPostStartHook; a failed preStop hook has only an event.
fn reason(kind: HookKind) -> &'static str {
    match kind {
        HookKind::PostStart => "PostStartHookError",
        HookKind::PreStop => "FailedPreStopHook",
    }
}
