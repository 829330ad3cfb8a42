//! The Node object: created or corrected at start, then its status follows the node's facts and the runtime's state.
//!
//! The status is patched when it changes, and every few minutes as a heartbeat; the Lease is the frequent heartbeat.

mod node_watch;

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use podwright_core::node_status::{self, NodeEvent, NodeFacts, RuntimeFacts};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backoff::RetryBackoff;
use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::trimmed;
use node_watch::NodeWatch;

/// How to register this node and report its status.
pub struct NodeRegistration {
    /// Name, labels, capacity and the other constant facts.
    pub facts: NodeFacts,
    /// Create the object if it does not exist (`--register-node`); else wait for it.
    pub register: bool,
    /// Interval at which the object is compared without a watch event (`nodeStatusUpdateFrequency`).
    pub check_every: Duration,
    /// Interval at which an unchanged status is sent (`nodeStatusReportFrequency`).
    pub report_every: Duration,
    /// Receives the node's events; events are dropped when the channel is full.
    pub events: Option<mpsc::Sender<NodeEvent>>,
}

impl NodeRegistration {
    /// With the kubelet's default intervals.
    pub fn new(facts: NodeFacts, register: bool) -> Self {
        Self { facts, register, check_every: CHECK_EVERY, report_every: REPORT_EVERY, events: None }
    }
}

/// What the rest of the agent needs of the Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredNode {
    /// Owner of the Lease.
    pub uid: String,
    /// All labels, those set by others included.
    pub labels: BTreeMap<String, String>,
    /// `spec.podCIDRs`, which the controller manager may assign.
    pub pod_cidrs: Vec<String>,
    /// The object has a deletion timestamp.
    pub deleting: bool,
    /// Its status says that the node shuts down.
    pub announces_shutdown: bool,
}

/// Registers the node and keeps its status up to date; ends when the sender of `runtime` is dropped. `presence` is `None` while
/// the object does not exist.
pub async fn run(
    client: ApiClient,
    registration: NodeRegistration,
    mut runtime: watch::Receiver<RuntimeFacts>,
    presence: watch::Sender<Option<RegisteredNode>>,
) {
    let mut node_watch = NodeWatch::new(&client, &registration.facts.name);
    let backoff = RetryBackoff::new(RETRY_FIRST, RETRY_MAX);
    let mut sync = NodeSync { client, registration, backoff, sent: None, version: 0, unschedulable: false };
    let node = loop {
        let facts = runtime.borrow_and_update().clone();
        match sync.register(&facts).await {
            Ok(node) => break node,
            Err(error) => sync.failed("register", &error).await,
        }
        if runtime.has_changed().is_err() {
            return;
        }
    };
    tracing::info!(node = sync.name(), "node is registered");
    presence.send_replace(registered(&node));
    let mut known = Some(node);
    if sync.sent.is_none() {
        // The existing object may be Ready, from before a restart: it stays so until the runtime has had time to answer.
        let _ = tokio::time::timeout(FIRST_RUNTIME_STATUS_MAX, runtime.wait_for(RuntimeFacts::is_known)).await;
    }
    loop {
        let facts = runtime.borrow_and_update().clone();
        match sync.sync_status(known.take(), &facts).await {
            Ok(found) => {
                sync.succeeded();
                presence.send_if_modified(|object| std::mem::replace(object, found.clone()) != found);
            }
            Err(error) => {
                if error.is_not_found() {
                    // It was deleted on purpose: as with the kubelet, only a restart of the agent creates it again.
                    presence.send_if_modified(|object| object.take().is_some());
                }
                sync.failed("update status", &error).await;
                continue;
            }
        }
        let Some(changed) = sync.wait(&mut runtime, &mut node_watch).await else { return };
        known = changed;
    }
}

struct NodeSync {
    client: ApiClient,
    registration: NodeRegistration,
    backoff: RetryBackoff,
    /// When conditions were last sent; `None`: not since the start.
    sent: Option<Instant>,
    /// The newest version of the object in a response.
    version: u64,
    /// `spec.unschedulable` when the object was last read.
    unschedulable: bool,
}

impl NodeSync {
    /// Creates the object, or reads it and corrects what registration owns; returns it.
    async fn register(&mut self, runtime: &RuntimeFacts) -> Result<Node, ApiError> {
        let mut forbidden = None;
        if self.registration.register {
            let node = node_status::initial(&self.registration.facts, runtime, Timestamp::now());
            let body = serde_json::to_vec(&node).map_err(|error| ApiError::Malformed(error.to_string()))?;
            let create = request(Method::POST, "/api/v1/nodes", Some(("application/json", body)));
            match self.client.call(create, CALL_TIMEOUT).await {
                Ok(body) => {
                    self.sent = Some(Instant::now());
                    let status = node.status.unwrap_or_default();
                    self.send_events(node_status::changes(self.name(), None, &status));
                    return self.read(&body);
                }
                Err(ApiError::Status { code: 409, .. }) => {}
                // The object may exist even if we may not create it (Kubernetes: tryRegisterWithAPIServer).
                Err(error) if error.code() == Some(403) => forbidden = Some(error),
                Err(error) => return Err(error),
            }
        }
        let existing = match (self.get("").await, forbidden) {
            (Err(error), Some(forbidden)) if error.is_not_found() => return Err(forbidden),
            (existing, _) => existing?,
        };
        match node_status::registration_patch(&existing, &self.registration.facts) {
            Some(patch) if self.registration.register => self.patch("", &patch).await,
            _ => Ok(existing),
        }
    }

    /// Compares once and patches the status if needed; `known` is the object if it was just read.
    async fn sync_status(
        &mut self,
        known: Option<Node>,
        runtime: &RuntimeFacts,
    ) -> Result<Option<RegisteredNode>, ApiError> {
        let current = match known {
            Some(node) => node,
            // From the server's watch cache, which spares etcd a read every few seconds per node.
            None => self.get("?resourceVersion=0").await?,
        };
        let (object, seen) = (registered(&current), version(&current));
        let schedulable = node_status::schedulable(&self.registration.facts.name, &mut self.unschedulable, &current);
        self.send_events(schedulable);
        let current = current.status.unwrap_or_default();
        let due = self.sent.is_none_or(|sent| sent.elapsed() >= self.registration.report_every);
        let wanted = node_status::status(&self.registration.facts, runtime, Some(&current), Timestamp::now());
        let Some(patch) = node_status::status_patch(&current, &wanted, due) else { return Ok(object) };
        log_readiness_change(self.name(), &current, &wanted);
        let patched = self.patch("/status", &patch).await?;
        let object = if version(&patched) >= seen { registered(&patched) } else { object };
        self.send_events(node_status::changes(self.name(), Some(&current), &wanted));
        // Only conditions are a heartbeat: a patch of other fields does not postpone the next one.
        if patch["status"].get("conditions").is_some() {
            self.sent = Some(Instant::now());
        }
        Ok(object)
    }

    /// Waits for a reason to compare again; returns the object if a watch event brought it. `None`: the sender of `runtime` was
    /// dropped.
    async fn wait(
        &self,
        runtime: &mut watch::Receiver<RuntimeFacts>,
        node_watch: &mut NodeWatch,
    ) -> Option<Option<Node>> {
        // Others write into the object, too: the node controller sets conditions to Unknown while the node is unreachable.
        let mut check = pin!(tokio::time::sleep(self.registration.check_every));
        loop {
            tokio::select! {
                changed = runtime.changed() => return changed.is_ok().then_some(None),
                () = &mut check => return Some(None),
                changed = node_watch.next() => match changed {
                    // Usually the result of our own patch.
                    Some(node) if version(&node) <= self.version => {}
                    changed => return Some(changed),
                },
            }
        }
    }

    async fn get(&mut self, query: &str) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{query}", self.name());
        let body = self.client.call(request(Method::GET, &path, None), CALL_TIMEOUT).await?;
        self.read(&body)
    }

    async fn patch(&mut self, subresource: &str, patch: &Value) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{subresource}", self.name());
        let content = ("application/strategic-merge-patch+json", patch.to_string().into_bytes());
        let body = self.client.call(request(Method::PATCH, &path, Some(content)), CALL_TIMEOUT).await?;
        self.read(&body)
    }

    fn read(&mut self, body: &[u8]) -> Result<Node, ApiError> {
        let node = trimmed::node(body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        // Without a UID the object would count as deleted.
        if node.metadata.uid.is_none() {
            return Err(ApiError::Malformed("a node without UID".into()));
        }
        self.version = self.version.max(version(&node));
        Ok(node)
    }

    fn send_events(&self, events: impl IntoIterator<Item = NodeEvent>) {
        for event in events {
            let _ = self.registration.events.as_ref().map(|to| to.try_send(event));
        }
    }

    fn name(&self) -> &str {
        &self.registration.facts.name
    }

    fn succeeded(&mut self) {
        if self.backoff.failures() > 0 {
            tracing::info!(node = self.name(), attempt = self.backoff.failures(), "node object is updated again");
        }
        self.backoff.reset();
    }

    async fn failed(&mut self, call: &str, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        let (node, attempt) = (self.name(), self.backoff.failures());
        if attempt == 1 {
            tracing::warn!(node, call, attempt, %error, "node object update failed: retrying");
        } else {
            tracing::debug!(node, call, attempt, %error, "node object update failed: retrying");
        }
        tokio::time::sleep(wait).await;
    }
}

fn log_readiness_change(node: &str, current: &NodeStatus, wanted: &NodeStatus) {
    let ready = |status: &NodeStatus| {
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
        condition.map(|c| (c.status.clone(), c.message.clone().unwrap_or_default()))
    };
    let new = ready(wanted);
    if new.as_ref().map(|(status, _)| status) != ready(current).as_ref().map(|(status, _)| status)
        && let Some((status, message)) = new
    {
        tracing::info!(node, status, note = message, "node readiness changed");
    }
}

fn registered(node: &Node) -> Option<RegisteredNode> {
    let uid = node.metadata.uid.clone()?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let deleting = node.metadata.deletion_timestamp.is_some();
    let pod_cidrs = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
    let announces_shutdown = node_status::announces_shutdown(node);
    Some(RegisteredNode { uid, labels, pod_cidrs, deleting, announces_shutdown })
}

fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// A working runtime answers in milliseconds; core reports one that does not answer as down within six seconds.
const FIRST_RUNTIME_STATUS_MAX: Duration = Duration::from_secs(7);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(7);
/// The kubelet's `nodeStatusUpdateFrequency`.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The kubelet's `nodeStatusReportFrequency`.
const REPORT_EVERY: Duration = Duration::from_secs(300);
