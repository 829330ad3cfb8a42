//! The Node object: made, or brought to what this node is, then kept at what the runtime says.
//!
//! Its status is sent when it changes, and every five minutes as a sign of life; the Lease is the quick one.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use podwright_core::node_status::{self, NodeFacts, RuntimeFacts};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::trimmed;

/// What to do about this node's object.
pub struct Registration {
    /// What the node is.
    pub facts: NodeFacts,
    /// Make the object if it isn't there (`--register-node`); else it is waited for.
    pub register: bool,
}

/// Register the node and keep its status; ends when nobody looks at the runtime any more. `uid` gets the object's UID while
/// there is one.
pub async fn run(
    cluster: Cluster,
    registration: Registration,
    mut runtime: watch::Receiver<RuntimeFacts>,
    uid: watch::Sender<Option<String>>,
) {
    let mut keeper = Keeper { cluster, registration, backoff: Backoff::new(RETRY_FIRST, RETRY_MAX), sent: None };
    let node = loop {
        let facts = runtime.borrow_and_update().clone();
        match keeper.registered(&facts).await {
            Ok(node) => break node,
            Err(error) => keeper.failed("register the node", &error).await,
        }
        if runtime.has_changed().is_err() {
            return;
        }
    };
    tracing::info!(node = keeper.name(), "the node is registered");
    uid.send_replace(node.metadata.uid.clone());
    let mut known = Some(node);
    loop {
        let facts = runtime.borrow_and_update().clone();
        match keeper.keep(known.take(), &facts).await {
            Ok(found) => {
                keeper.worked();
                uid.send_if_modified(|uid| std::mem::replace(uid, found.clone()) != found);
            }
            Err(error) => {
                if error.is_not_found() {
                    // Whoever deleted it meant it: as with the kubelet, only a new start makes it again.
                    uid.send_if_modified(|uid| uid.take().is_some());
                }
                keeper.failed("update the node's status", &error).await;
                continue;
            }
        }
        tokio::select! {
            changed = runtime.changed() => if changed.is_err() { return },
            // Others write into the object, too: a node that was away is Unknown until it is mended.
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

struct Keeper {
    cluster: Cluster,
    registration: Registration,
    backoff: Backoff,
    /// When a status was last sent.
    sent: Option<Instant>,
}

impl Keeper {
    /// The object, made or mended.
    async fn registered(&mut self, runtime: &RuntimeFacts) -> Result<Node, ApiError> {
        let facts = &self.registration.facts;
        if self.registration.register {
            let node = node_status::initial(facts, runtime, Timestamp::now());
            let body = serde_json::to_vec(&node).map_err(|error| ApiError::Garbage(error.to_string()))?;
            let made = request(Method::POST, "/api/v1/nodes", Some(("application/json", body)));
            match self.cluster.call(made, LIMIT).await {
                Ok(body) => {
                    self.sent = Some(Instant::now());
                    return read(&body);
                }
                Err(ApiError::Answer { code: 409, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let had = self.get("").await?;
        match node_status::registration_patch(&had, facts) {
            Some(patch) if self.registration.register => self.patch("", &patch).await,
            _ => Ok(had),
        }
    }

    /// One comparison; `known` is the object if it was just read. The object's UID.
    async fn keep(&mut self, known: Option<Node>, runtime: &RuntimeFacts) -> Result<Option<String>, ApiError> {
        let had = match known {
            Some(node) => node,
            // From the server's memory: its disk need not be asked that often.
            None => self.get("?resourceVersion=0").await?,
        };
        let uid = had.metadata.uid;
        let had = had.status.unwrap_or_default();
        let due = self.sent.is_none_or(|sent| sent.elapsed() >= REPORT_EVERY);
        let wanted = node_status::status(&self.registration.facts, runtime, Some(&had), Timestamp::now());
        let Some(patch) = node_status::status_patch(&had, &wanted, due) else { return Ok(uid) };
        tell_of_change(&had, &wanted);
        self.patch("/status", &patch).await?;
        self.sent = Some(Instant::now());
        Ok(uid)
    }

    async fn get(&self, query: &str) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{query}", self.name());
        read(&self.cluster.call(request(Method::GET, &path, None), LIMIT).await?)
    }

    async fn patch(&self, of: &str, patch: &Value) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{of}", self.name());
        let content = ("application/strategic-merge-patch+json", patch.to_string().into_bytes());
        read(&self.cluster.call(request(Method::PATCH, &path, Some(content)), LIMIT).await?)
    }

    fn name(&self) -> &str {
        &self.registration.facts.name
    }

    fn worked(&mut self) {
        if self.backoff.failures() > 0 {
            tracing::info!(node = self.name(), "the node's object can be kept again");
        }
        self.backoff.reset();
    }

    async fn failed(&mut self, what: &str, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        if self.backoff.failures() == 1 {
            tracing::warn!(%error, "can't {what}: trying on");
        } else {
            tracing::debug!(%error, "can't {what}");
        }
        tokio::time::sleep(wait).await;
    }
}

fn tell_of_change(had: &NodeStatus, wanted: &NodeStatus) {
    let ready = |status: &NodeStatus| {
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
        condition.map(|c| (c.status.clone(), c.message.clone().unwrap_or_default()))
    };
    let now = ready(wanted);
    if now.as_ref().map(|(status, _)| status) != ready(had).as_ref().map(|(status, _)| status)
        && let Some((status, message)) = now
    {
        tracing::info!(ready = status, message, "the node's readiness changed");
    }
}

fn read(body: &[u8]) -> Result<Node, ApiError> {
    let node = trimmed::node(body).map_err(|error| ApiError::Garbage(error.to_string()))?;
    // Without it the node would seem to be deleted.
    if node.metadata.uid.is_none() {
        return Err(ApiError::Garbage("a node without UID".into()));
    }
    Ok(node)
}

const LIMIT: Duration = Duration::from_secs(15);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(7);
/// The kubelet's `nodeStatusUpdateFrequency`.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The kubelet's `nodeStatusReportFrequency`.
const REPORT_EVERY: Duration = Duration::from_secs(300);
