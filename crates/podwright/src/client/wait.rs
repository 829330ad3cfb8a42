//! `podwright wait`, and waiting for the termination of pods: with a watch, not by polling.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::watch_stream::WatchReader;
use super::{Client, ClientError, RETRY_DELAY, encode, find, path};
use crate::cli::{WaitCondition, WaitFlags};

/// Waits for each pod in turn.
pub(super) async fn wait(flags: &WaitFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    for name in &flags.pods {
        let waited = timeout(flags.timeout, one(&client, flags, name)).await;
        match waited {
            Ok(shown) => println!("pod/{} {}", shown?, flags.condition.result_text()),
            Err(_) => {
                let name = name.strip_prefix("pod/").unwrap_or(name);
                return Err(ClientError::TimedOut(format!("the condition on pods/{name}")));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn one(client: &Client, flags: &WaitFlags, name: &str) -> Result<String, ClientError> {
    let namespace = flags.namespace();
    let pod = match find(client, namespace, name).await {
        Err(error) if error.is_not_found() && flags.condition == WaitCondition::Delete => return Ok(name.to_owned()),
        Err(error) if error.is_not_found() && flags.condition == WaitCondition::Create => {
            let bare = name.strip_prefix("pod/").unwrap_or(name);
            return until(client, namespace, None, |kind, pod| {
                let full = pod.metadata.name.as_deref().unwrap_or_default();
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
                kind != "DELETED" && super::is_named(full, bare, node)
            })
            .await;
        }
        found => found?,
    };
    if flags.condition == WaitCondition::Delete {
        gone(client, &pod, None).await?;
        return Ok(pod.metadata.name.unwrap_or_default());
    }
    let uid = pod.metadata.uid.clone();
    let name = pod.metadata.name.clone().unwrap_or_default();
    until(client, namespace, Some(&name), |kind, pod| {
        kind != "DELETED"
            && pod.metadata.uid == uid
            && flags.condition.is_met(&serde_json::to_value(pod).unwrap_or_default())
    })
    .await
}

/// Waits until this pod, by UID, does not exist any more.
pub(super) async fn gone(client: &Client, pod: &Pod, limit: Option<Duration>) -> Result<(), ClientError> {
    until_of(client, pod, limit, |_| false).await
}

/// Waits until this pod has terminated.
pub(super) async fn stopped(client: &Client, pod: &Pod, limit: Duration) -> Result<(), ClientError> {
    let ended = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        podwright_core::model::is_terminal(phase)
    };
    until_of(client, pod, Some(limit), ended).await
}

/// Waits until the pod, by UID, is gone or `enough` holds.
async fn until_of(
    client: &Client,
    pod: &Pod,
    limit: Option<Duration>,
    enough: impl Fn(&Pod) -> bool,
) -> Result<(), ClientError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let same = |other: &Pod| other.metadata.uid == pod.metadata.uid;
    // The watch begins at the version that was read: a deletion between the two requests is not missed.
    let watched = async {
        loop {
            let now = match client.get::<Pod>(&format!("{}/{}", path("pods", Some(namespace)), encode(name))).await {
                Err(error) if error.is_not_found() => return Ok(()),
                now => now?,
            };
            if !same(&now) || enough(&now) {
                return Ok(());
            }
            let version = now.metadata.resource_version.unwrap_or_default();
            let done = |kind: &str, pod: &Pod| (kind == "DELETED" && same(pod)) || !same(pod) || enough(pod);
            if follow(client, namespace, Some(name), &version, done).await?.is_some() {
                return Ok(());
            }
        }
    };
    let Some(limit) = limit else { return watched.await };
    let late = |_| ClientError::TimedOut(format!("the termination of pods/{name}"));
    timeout(limit, watched).await.map_err(late)?
}

/// Watches until a change matches. Returns the name of its pod.
async fn until(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
    matches: impl Fn(&str, &Pod) -> bool,
) -> Result<String, ClientError> {
    loop {
        if let Some(name) = follow(client, namespace, name, "", &matches).await? {
            return Ok(name);
        }
    }
}

/// Watches until a change matches. `None`: the watch was closed, and the caller must read the state again.
async fn follow(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
    version: &str,
    matches: impl Fn(&str, &Pod) -> bool,
) -> Result<Option<String>, ClientError> {
    let mut query = "watch=true".to_owned();
    if !version.is_empty() {
        query.push_str(&format!("&resourceVersion={}", encode(version)));
    }
    if let Some(name) = name {
        query.push_str(&format!("&fieldSelector=metadata.name%3D{}", encode(name)));
    }
    let mut stream = WatchReader::new(client.follow(&format!("{}?{query}", path("pods", Some(namespace)))).await?);
    loop {
        match stream.next::<Pod>(client).await {
            Ok(Some((kind, pod))) if matches(&kind, &pod) => return Ok(Some(pod.metadata.name.unwrap_or_default())),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) if error.watch_resume().is_some() => break,
            Err(error) => return Err(error),
        }
    }
    sleep(RETRY_DELAY).await;
    Ok(None)
}

impl WaitCondition {
    /// The condition is true for this pod.
    fn is_met(&self, pod: &Value) -> bool {
        match self {
            Self::Create => true,
            Self::Delete => false,
            Self::Condition { kind, status } => pod["status"]["conditions"].as_array().is_some_and(|all| {
                let same = |c: &Value| c["type"].as_str().is_some_and(|k| k.eq_ignore_ascii_case(kind));
                all.iter().any(|c| same(c) && c["status"].as_str().is_some_and(|s| s.eq_ignore_ascii_case(status)))
            }),
            Self::Field { path, value } => {
                let found = path.iter().try_fold(pod, |at, step| match step.parse::<usize>() {
                    Ok(index) if at.is_array() => at.get(index),
                    _ => at.get(step),
                });
                let text = match found {
                    None | Some(Value::Null) => return false,
                    Some(Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                };
                value.as_ref().is_none_or(|expected| text == *expected)
            }
        }
    }

    /// What is printed after the name of the pod.
    fn result_text(&self) -> &'static str {
        match self {
            Self::Delete => "deleted",
            _ => "condition met",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_evaluated() {
        let pod = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 2}]}});
        for (text, met) in [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=False", false),
            ("condition=Initialized", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath={.status.phase}=Pending", false),
            ("jsonpath={.status.containerStatuses[0].restartCount}=2", true),
            ("jsonpath='{.status.podIP}'", false),
        ] {
            assert_eq!(text.parse::<WaitCondition>().unwrap().is_met(&pod), met, "{text}");
        }
        for invalid in ["", "Ready", "condition=", "jsonpath=.status"] {
            assert!(invalid.parse::<WaitCondition>().is_err(), "{invalid}");
        }
    }
}
