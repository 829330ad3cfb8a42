//! The node's Lease: renewed every ten seconds or so on a connection of its own, so that nothing else can make the node look dead.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::node::Registered;

/// Renew the lease of `node` while its object is there, until `object` is dropped.
///
/// The lease says that the node is alive for `duration`, and is renewed four times as often (Kubernetes:
/// nodeLeaseRenewIntervalFraction).
pub async fn run(cluster: Cluster, node: String, duration: Duration, mut object: watch::Receiver<Option<Registered>>) {
    let every = duration / 4;
    let mut failures = 0u32;
    // Without the object there is nothing to be alive.
    while let Some(owner) = object.wait_for(Option::is_some).await.ok().and_then(|object| object.clone()) {
        let began = Instant::now();
        let mut next = began + every;
        match renew(&cluster, &node, duration, &owner.uid).await {
            Ok(()) => {
                if failures >= TOLD_AFTER {
                    tracing::info!(failures, "the node's lease is renewed again");
                }
                failures = 0;
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == TOLD_AFTER {
                    tracing::warn!(%error, "the node's lease can't be renewed: trying on");
                }
                if failures.is_multiple_of(FRESH_AFTER) {
                    // A connection that only seems alive is not tried for ever.
                    cluster.reset();
                }
                next = Instant::now() + RETRY.max(error.retry_after().unwrap_or_default()).min(every);
            }
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            changed = object.changed() => if changed.is_err() { return },
        }
    }
}

async fn renew(cluster: &Cluster, node: &str, duration: Duration, owner: &str) -> Result<(), ApiError> {
    let path = format!("{LEASES}/{node}");
    let body = json!({"spec": spec(node, duration)}).to_string().into_bytes();
    let content = Some(("application/merge-patch+json", body));
    match cluster.call(request(Method::PATCH, &path, content), LIMIT).await {
        Err(error) if error.is_not_found() => create(cluster, node, duration, owner).await,
        other => other.map(|_| ()),
    }
}

async fn create(cluster: &Cluster, node: &str, duration: Duration, owner: &str) -> Result<(), ApiError> {
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": node, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}],
        },
        "spec": spec(node, duration),
    });
    let content = Some(("application/json", lease.to_string().into_bytes()));
    cluster.call(request(Method::POST, LEASES, content), LIMIT).await.map(|_| ())
}

fn spec(node: &str, duration: Duration) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    json!({"holderIdentity": node, "leaseDurationSeconds": duration.as_secs(), "renewTime": now})
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LIMIT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// One failure is no news.
const TOLD_AFTER: u32 = 3;
/// After so many in a row a new connection is made.
const FRESH_AFTER: u32 = 3;
