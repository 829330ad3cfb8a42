//! The node's Lease: renewed on a separate connection, so that other traffic can not delay it and make the node look dead.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::node::RegisteredNode;

/// Renews the lease of `node` while the Node object exists, until the sender of `object` is dropped.
///
/// The lease is valid for `duration` and renewed four times in that time (Kubernetes: nodeLeaseRenewIntervalFraction).
pub async fn run(
    client: ApiClient,
    node: String,
    duration: Duration,
    mut object: watch::Receiver<Option<RegisteredNode>>,
) {
    let interval = duration / 4;
    let mut failures = 0u32;
    // The lease is owned by the Node object.
    while let Some(owner) = object.wait_for(Option::is_some).await.ok().and_then(|object| object.clone()) {
        let began = Instant::now();
        let mut next = began + interval;
        match renew(&client, &node, duration, &owner.uid).await {
            Ok(()) => {
                if failures >= WARN_AFTER {
                    tracing::info!(node, attempt = failures, "node lease is renewed again");
                }
                failures = 0;
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == WARN_AFTER {
                    tracing::warn!(node, attempt = failures, %error, "node lease renewal failed: retrying");
                }
                if failures.is_multiple_of(RECONNECT_AFTER) {
                    // The connection may be dead without a TCP reset.
                    client.reset();
                }
                next = Instant::now() + RETRY.max(error.retry_after().unwrap_or_default()).min(interval);
            }
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            changed = object.changed() => if changed.is_err() { return },
        }
    }
}

async fn renew(client: &ApiClient, node: &str, duration: Duration, owner: &str) -> Result<(), ApiError> {
    let path = format!("{LEASES}/{node}");
    let body = json!({"spec": spec(node, duration)}).to_string().into_bytes();
    let content = Some(("application/merge-patch+json", body));
    match client.call(request(Method::PATCH, &path, content), CALL_TIMEOUT).await {
        Err(error) if error.is_not_found() => create(client, node, duration, owner).await,
        other => other.map(|_| ()),
    }
}

async fn create(client: &ApiClient, node: &str, duration: Duration, owner: &str) -> Result<(), ApiError> {
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": node, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}],
        },
        "spec": spec(node, duration),
    });
    let content = Some(("application/json", lease.to_string().into_bytes()));
    client.call(request(Method::POST, LEASES, content), CALL_TIMEOUT).await.map(|_| ())
}

fn spec(node: &str, duration: Duration) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    json!({"holderIdentity": node, "leaseDurationSeconds": duration.as_secs(), "renewTime": now})
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// Consecutive failures before a warning is logged.
const WARN_AFTER: u32 = 3;
/// A new connection is opened after every so many consecutive failures.
const RECONNECT_AFTER: u32 = 3;
