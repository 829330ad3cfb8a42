//! The Node object: made, or brought to what this node is, then kept at what the runtime says.
//!
//! Its status is sent when it changes, and from time to time as a sign of life; the Lease is the quick one.

mod news;

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

use crate::backoff::Backoff;
use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::trimmed;
use news::News;

/// What to do about this node's object.
pub struct Registration {
    /// What the node is.
    pub facts: NodeFacts,
    /// Make the object if it isn't there (`--register-node`); else it is waited for.
    pub register: bool,
    /// The object is compared so often, whatever was heard (`nodeStatusUpdateFrequency`).
    pub check_every: Duration,
    /// A status that did not change is sent so often (`nodeStatusReportFrequency`).
    pub report_every: Duration,
    /// Who hears what happens to the node. What nobody takes is lost.
    pub events: Option<mpsc::Sender<NodeEvent>>,
}

impl Registration {
    /// With the kubelet's usual times.
    pub fn new(facts: NodeFacts, register: bool) -> Self {
        Self { facts, register, check_every: CHECK_EVERY, report_every: REPORT_EVERY, events: None }
    }
}

/// What others need to know of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Its UID.
    pub uid: String,
    /// Its labels, whoever gave them to it.
    pub labels: BTreeMap<String, String>,
    /// It is being deleted.
    pub is_going: bool,
}

/// Register the node and keep its status; ends when nobody looks at the runtime any more. `object` tells of the object while
/// there is one.
pub async fn run(
    cluster: Cluster,
    registration: Registration,
    mut runtime: watch::Receiver<RuntimeFacts>,
    presence: watch::Sender<Option<Registered>>,
) {
    let mut news = News::new(&cluster, &registration.facts.name);
    let backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
    let mut object = NodeObject { cluster, registration, backoff, sent: None, version: 0, unschedulable: false };
    let node = loop {
        let facts = runtime.borrow_and_update().clone();
        match object.registered(&facts).await {
            Ok(node) => break node,
            Err(error) => object.failed("register the node", &error).await,
        }
        if runtime.has_changed().is_err() {
            return;
        }
    };
    tracing::info!(node = object.name(), "the node is registered");
    presence.send_replace(registered(&node));
    let mut known = Some(node);
    if object.sent.is_none() {
        // It may say Ready, and rightly so: that stands until the runtime has had the time to answer.
        let _ = tokio::time::timeout(FIRST_WORD_MAX, runtime.wait_for(RuntimeFacts::is_known)).await;
    }
    loop {
        let facts = runtime.borrow_and_update().clone();
        match object.keep(known.take(), &facts).await {
            Ok(found) => {
                object.worked();
                presence.send_if_modified(|object| std::mem::replace(object, found.clone()) != found);
            }
            Err(error) => {
                if error.is_not_found() {
                    // Whoever deleted it meant it: as with the kubelet, only a new start makes it again.
                    presence.send_if_modified(|object| object.take().is_some());
                }
                object.failed("update the node's status", &error).await;
                continue;
            }
        }
        let Some(heard) = object.wait(&mut runtime, &mut news).await else { return };
        known = heard;
    }
}

struct NodeObject {
    cluster: Cluster,
    registration: Registration,
    backoff: Backoff,
    /// When conditions were last sent.
    sent: Option<Instant>,
    /// The newest version of the object that the server answered with.
    version: u64,
    /// Pods were kept away from the node when it was last read.
    unschedulable: bool,
}

impl NodeObject {
    /// The object, made or mended.
    async fn registered(&mut self, runtime: &RuntimeFacts) -> Result<Node, ApiError> {
        let mut forbidden = None;
        if self.registration.register {
            let node = node_status::initial(&self.registration.facts, runtime, Timestamp::now());
            let body = serde_json::to_vec(&node).map_err(|error| ApiError::Garbage(error.to_string()))?;
            let made = request(Method::POST, "/api/v1/nodes", Some(("application/json", body)));
            match self.cluster.call(made, LIMIT).await {
                Ok(body) => {
                    self.sent = Some(Instant::now());
                    let status = node.status.unwrap_or_default();
                    self.tell(node_status::changes(self.name(), None, &status));
                    return self.read(&body);
                }
                Err(ApiError::Answer { code: 409, .. }) => {}
                // Who may not make it may still have one (Kubernetes: tryRegisterWithAPIServer).
                Err(error) if error.code() == Some(403) => forbidden = Some(error),
                Err(error) => return Err(error),
            }
        }
        let had = match (self.get("").await, forbidden) {
            (Err(error), Some(forbidden)) if error.is_not_found() => return Err(forbidden),
            (had, _) => had?,
        };
        match node_status::registration_patch(&had, &self.registration.facts) {
            Some(patch) if self.registration.register => self.patch("", &patch).await,
            _ => Ok(had),
        }
    }

    /// One comparison; `known` is the object if it was just read.
    async fn keep(&mut self, known: Option<Node>, runtime: &RuntimeFacts) -> Result<Option<Registered>, ApiError> {
        let had = match known {
            Some(node) => node,
            // From the server's memory: its disk need not be asked that often.
            None => self.get("?resourceVersion=0").await?,
        };
        let object = registered(&had);
        let closed = node_status::schedulable(&self.registration.facts.name, &mut self.unschedulable, &had);
        self.tell(closed);
        let had = had.status.unwrap_or_default();
        let due = self.sent.is_none_or(|sent| sent.elapsed() >= self.registration.report_every);
        let wanted = node_status::status(&self.registration.facts, runtime, Some(&had), Timestamp::now());
        let Some(patch) = node_status::status_patch(&had, &wanted, due) else { return Ok(object) };
        tell_of_change(&had, &wanted);
        self.patch("/status", &patch).await?;
        self.tell(node_status::changes(self.name(), Some(&had), &wanted));
        // Only conditions are a sign of life: with anything else, they are due when they were.
        if patch["status"].get("conditions").is_some() {
            self.sent = Some(Instant::now());
        }
        Ok(object)
    }

    /// Wait for a reason to compare again; the object if it is known. `None`: nobody looks at the runtime any more.
    async fn wait(&self, runtime: &mut watch::Receiver<RuntimeFacts>, news: &mut News) -> Option<Option<Node>> {
        // Others write into the object, too: a node that was away is Unknown until it is mended.
        let mut look = pin!(tokio::time::sleep(self.registration.check_every));
        loop {
            tokio::select! {
                changed = runtime.changed() => return changed.is_ok().then_some(None),
                () = &mut look => return Some(None),
                heard = news.next() => match heard {
                    // Our own word, as a rule.
                    Some(node) if version(&node) <= self.version => {}
                    heard => return Some(heard),
                },
            }
        }
    }

    async fn get(&mut self, query: &str) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{query}", self.name());
        let body = self.cluster.call(request(Method::GET, &path, None), LIMIT).await?;
        self.read(&body)
    }

    async fn patch(&mut self, of: &str, patch: &Value) -> Result<Node, ApiError> {
        let path = format!("/api/v1/nodes/{}{of}", self.name());
        let content = ("application/strategic-merge-patch+json", patch.to_string().into_bytes());
        let body = self.cluster.call(request(Method::PATCH, &path, Some(content)), LIMIT).await?;
        self.read(&body)
    }

    fn read(&mut self, body: &[u8]) -> Result<Node, ApiError> {
        let node = trimmed::node(body).map_err(|error| ApiError::Garbage(error.to_string()))?;
        // Without it the node would seem to be deleted.
        if node.metadata.uid.is_none() {
            return Err(ApiError::Garbage("a node without UID".into()));
        }
        self.version = self.version.max(version(&node));
        Ok(node)
    }

    fn tell(&self, events: impl IntoIterator<Item = NodeEvent>) {
        for event in events {
            let _ = self.registration.events.as_ref().map(|to| to.try_send(event));
        }
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

fn registered(node: &Node) -> Option<Registered> {
    let uid = node.metadata.uid.clone()?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    Some(Registered { uid, labels, is_going: node.metadata.deletion_timestamp.is_some() })
}

fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

const LIMIT: Duration = Duration::from_secs(15);
/// A runtime that answers does so in milliseconds; of one that does not, core says within six seconds that it is down.
const FIRST_WORD_MAX: Duration = Duration::from_secs(7);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(7);
/// The kubelet's `nodeStatusUpdateFrequency`.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The kubelet's `nodeStatusReportFrequency`.
const REPORT_EVERY: Duration = Duration::from_secs(300);
