//! `podwright wait`, and waiting for the termination of pods: with a watch, not by polling.

use std::process::ExitCode;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::select::{is_shortened, none_selected, select};
use super::watch_stream::WatchReader;
use super::{Client, ClientError, RETRY_DELAY, encode, find, path};
use crate::cli::{WaitCondition, WaitFlags};

/// A command that waits longer than this prints what for.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(5);
/// New instances appear within milliseconds; those that the node lacks resources for may not appear at all.
const REPLACEMENT_MAX: Duration = Duration::from_secs(10);
/// Watches at the same time: the agent serves a limited number of streams to all its clients.
const WATCHES_MAX: usize = 32;
/// The explanation is only an addition to a message.
const HEADLINE_MAX: Duration = Duration::from_secs(2);

/// Waits for each pod in turn.
pub(super) async fn wait(flags: &WaitFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let named = flags.selection.names()?.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let targets: Vec<(String, String)> = match (named.is_empty(), flags.selection.scope.namespace()) {
        (false, Some(namespace)) => named.into_iter().map(|name| (namespace.to_owned(), name)).collect(),
        _ => {
            let pods = select(&client, &flags.selection).await?;
            let full = |pod: Pod| {
                (pod.metadata.namespace.unwrap_or_else(|| "default".into()), pod.metadata.name.unwrap_or_default())
            };
            pods.into_iter().map(full).collect()
        }
    };
    if targets.is_empty() {
        eprintln!("{}", none_selected(&flags.selection));
        return Ok(ExitCode::FAILURE);
    }
    for (namespace, name) in &targets {
        let what = format!("the condition on pods/{name}");
        let waited = announced(&client, namespace, name, &what, one(&client, flags, namespace, name));
        match timeout(flags.timeout, waited).await {
            Ok(shown) => println!("pod/{} {}", shown?, flags.condition.result_text()),
            Err(_) => {
                let reason = headline(&client, namespace, name).await;
                return Err(ClientError::TimedOut { what, reason });
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits, and prints to stderr what for if it takes long.
async fn announced<T>(client: &Client, namespace: &str, name: &str, what: &str, waited: impl Future<Output = T>) -> T {
    tokio::pin!(waited);
    tokio::select! {
        done = &mut waited => return done,
        () = sleep(ANNOUNCE_AFTER) => {}
    }
    let reason = headline(client, namespace, name).await.map(|reason| format!(": {reason}")).unwrap_or_default();
    eprintln!("waiting for {what}{reason}");
    waited.await
}

/// The first line of `podwright explain`, which names the cause; `None` if the agent does not know the pod.
async fn headline(client: &Client, namespace: &str, name: &str) -> Option<String> {
    let path = format!("/podwright/v1/explain?pod={}", encode(&format!("{namespace}/{name}")));
    let text = timeout(HEADLINE_MAX, client.get_bytes(&path)).await.ok()?.ok()?;
    let line = String::from_utf8_lossy(&text).lines().next().map(str::to_owned);
    line.filter(|line| !line.is_empty())
}

async fn one(client: &Client, flags: &WaitFlags, namespace: &str, name: &str) -> Result<String, ClientError> {
    let pod = match find(client, namespace, name).await {
        Err(error) if error.is_not_found() && flags.condition == WaitCondition::Delete => return Ok(name.to_owned()),
        Err(error) if error.is_not_found() && flags.condition == WaitCondition::Create => {
            return until(client, namespace, None, |kind, pod| {
                let same = pod.metadata.name.as_deref() == Some(name) || is_shortened(pod, name);
                kind != "DELETED" && same
            })
            .await;
        }
        found => found?,
    };
    if flags.condition == WaitCondition::Delete {
        watch_until(client, &pod, |_| false).await?;
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
pub(super) async fn stopped(client: &Client, pod: &Pod, limit: Option<Duration>) -> Result<(), ClientError> {
    until_of(client, pod, limit, has_terminated).await
}

/// Why a pod that is to run has not been admitted.
pub(super) fn held_reason(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Pending"))?;
    status.reason.as_deref().filter(|reason| !reason.is_empty())
}

/// Waits until new instances have replaced these terminated pods: in between, the agent knows no pods of their names. The limit is one
/// for all of them.
pub(super) async fn replaced(client: &Client, pods: &[&Pod]) -> Vec<ClientError> {
    let mut errors = vec![];
    let all = stream::iter(pods).map(|pod| one_replaced(client, pod)).buffer_unordered(WATCHES_MAX);
    let all = all.for_each(|result| {
        errors.extend(result.err());
        std::future::ready(())
    });
    let _ = timeout(REPLACEMENT_MAX, all).await;
    errors
}

async fn one_replaced(client: &Client, pod: &Pod) -> Result<(), ClientError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
    // The new instance of a static pod has the same UID.
    let new = |kind: &str, other: &Pod| {
        kind != "DELETED" && (other.metadata.uid != pod.metadata.uid || !has_terminated(other))
    };
    match follow(client, namespace, pod.metadata.name.as_deref(), version, new).await {
        Err(error) if error.watch_resume().is_none() => Err(error),
        _ => Ok(()),
    }
}

/// The phase of the pod is terminal.
pub(super) fn has_terminated(pod: &Pod) -> bool {
    podwright_core::model::is_terminal(pod.status.as_ref().and_then(|status| status.phase.as_deref()))
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
    let what = format!("the termination of pods/{name}");
    let watched = announced(client, namespace, name, &what, watch_until(client, pod, enough));
    let Some(limit) = limit else { return watched.await };
    match timeout(limit, watched).await {
        Ok(waited) => waited,
        Err(_) => Err(ClientError::TimedOut { reason: headline(client, namespace, name).await, what }),
    }
}

/// The watch begins at the version that was read: a deletion between the two requests is not missed.
async fn watch_until(client: &Client, pod: &Pod, enough: impl Fn(&Pod) -> bool) -> Result<(), ClientError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let same = |other: &Pod| other.metadata.uid == pod.metadata.uid;
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
