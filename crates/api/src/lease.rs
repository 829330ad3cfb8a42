//! The node's Lease: renewed every ten seconds on a connection of its own, so that nothing else can make the node look dead.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{Cluster, request};
use crate::error::ApiError;

/// Renew the lease of `node` once its object's UID is known, until `uid` is dropped.
pub async fn run(cluster: Cluster, node: String, mut uid: watch::Receiver<Option<String>>) {
    let (mut failures, mut next) = (0u32, Instant::now());
    // Without the object there is nothing to be alive.
    while let Some(owner) = uid.wait_for(Option::is_some).await.ok().and_then(|uid| uid.clone()) {
        match renew(&cluster, &node, &owner).await {
            Ok(()) => {
                if failures >= TOLD_AFTER {
                    tracing::info!(failures, "the node's lease is renewed again");
                }
                failures = 0;
                next = (next + EVERY).max(Instant::now());
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == TOLD_AFTER {
                    tracing::warn!(%error, "the node's lease can't be renewed: trying on");
                }
                if failures % FRESH_AFTER == 0 {
                    // A connection that only seems alive is not tried for ever.
                    cluster.reset();
                }
                next = Instant::now() + RETRY.max(error.retry_after().unwrap_or_default()).min(EVERY);
            }
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            changed = uid.changed() => if changed.is_err() { return },
        }
    }
}

async fn renew(cluster: &Cluster, node: &str, owner: &str) -> Result<(), ApiError> {
    let path = format!("{LEASES}/{node}");
    let body = json!({"spec": spec(node)}).to_string().into_bytes();
    let content = Some(("application/merge-patch+json", body));
    match cluster.call(request(Method::PATCH, &path, content), LIMIT).await {
        Err(error) if error.is_not_found() => create(cluster, node, owner).await,
        other => other.map(|_| ()),
    }
}

async fn create(cluster: &Cluster, node: &str, owner: &str) -> Result<(), ApiError> {
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": node, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}],
        },
        "spec": spec(node),
    });
    let content = Some(("application/json", lease.to_string().into_bytes()));
    cluster.call(request(Method::POST, LEASES, content), LIMIT).await.map(|_| ())
}

fn spec(node: &str) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    json!({"holderIdentity": node, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now})
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// The kubelet's `nodeLeaseDurationSeconds`.
const DURATION_SECONDS: u32 = 40;
/// A quarter of it.
const EVERY: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// One failure is no news.
const TOLD_AFTER: u32 = 3;
/// After so many in a row a new connection is made.
const FRESH_AFTER: u32 = 3;
