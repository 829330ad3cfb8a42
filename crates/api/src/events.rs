//! Kubernetes events, sent to the API server: the count of repeated events is patched, events of an object that sends too many are
//! held back, and events that can't be sent in time are dropped.
//!
//! The sender has already combined equal events: each [`Occurrence`] is the newest state of an event, identified by its first
//! timestamp. Its first state is created as an object, later states patch the count.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use podwright_core::model::{KubeEvent, PodUid};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backoff::RetryBackoff;
use crate::client::{ApiClient, request};
use crate::error::ApiError;

mod rate_limit;

use rate_limit::{EventRateLimiter, EventSpamFilter};

/// The newest state of an event.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// An event without a UID is about the node.
    pub event: KubeEvent,
    /// `involvedObject.fieldPath`, e.g. `spec.containers{web}`; `None`: the whole pod.
    pub field_path: Option<String>,
    /// `firstTimestamp`; the same in all states of the event.
    pub first: Timestamp,
    /// `lastTimestamp`.
    pub last: Timestamp,
    /// Occurrences so far, at least 1.
    pub count: u64,
}

/// Sends events until the channel is closed.
pub async fn run(client: ApiClient, node: String, mut occurrences: mpsc::Receiver<Occurrence>) {
    let mut sink = EventSink {
        client,
        node,
        queue: EventQueue::default(),
        created: VecDeque::new(),
        spam_filter: EventSpamFilter::default(),
        rate: EventRateLimiter::new(RATE_BURST, RATE_PER_SECOND),
        backoff: RetryBackoff::new(RETRY_FIRST, RETRY_MAX),
    };
    while let Some(occurrence) = occurrences.recv().await {
        sink.enqueue(occurrence);
        while let Ok(more) = occurrences.try_recv() {
            sink.enqueue(more);
        }
        while let Some(next) = sink.queue.next() {
            sink.send(next).await;
            while let Ok(more) = occurrences.try_recv() {
                sink.enqueue(more);
            }
        }
    }
}

/// Identifies an event; occurrences with the same key are states of the same event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    uid: Option<PodUid>,
    reason: &'static str,
    first: Timestamp,
    field_path: Option<String>,
}

/// Events to send: the newest state of each, the oldest event first.
#[derive(Default)]
struct EventQueue {
    order: VecDeque<EventKey>,
    newest: BTreeMap<EventKey, Occurrence>,
    dropped: u64,
}

struct EventSink {
    client: ApiClient,
    node: String,
    queue: EventQueue,
    /// Events whose objects we created, oldest first: their count is patched.
    created: VecDeque<EventKey>,
    spam_filter: EventSpamFilter,
    rate: EventRateLimiter,
    backoff: RetryBackoff,
}

impl EventKey {
    fn of(occurrence: &Occurrence) -> Self {
        let event = &occurrence.event;
        let field_path = occurrence.field_path.clone();
        Self { uid: event.uid.clone(), reason: event.reason, first: occurrence.first, field_path }
    }
}

impl EventQueue {
    fn add(&mut self, occurrence: Occurrence) {
        let key = EventKey::of(&occurrence);
        if self.newest.contains_key(&key) {
            self.newest.insert(key, occurrence);
        } else if self.order.len() < QUEUE_MAX {
            self.order.push_back(key.clone());
            self.newest.insert(key, occurrence);
        } else {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(count = self.dropped, "event queue is full: events dropped");
            }
        }
    }

    fn next(&mut self) -> Option<Occurrence> {
        let key = self.order.pop_front()?;
        self.newest.remove(&key)
    }
}

impl EventSink {
    fn enqueue(&mut self, occurrence: Occurrence) {
        if self.spam_filter.allows(&occurrence.event.uid, Instant::now()) {
            self.queue.add(occurrence);
        } else {
            let KubeEvent { pod, reason, .. } = &occurrence.event;
            tracing::debug!(%pod, reason, "event rate of the object exceeded: event dropped");
        }
    }

    /// Sends one event, with a limited number of retries while the server is unavailable.
    async fn send(&mut self, occurrence: Occurrence) {
        let key = EventKey::of(&occurrence);
        let KubeEvent { pod, reason, .. } = &occurrence.event;
        for attempt in 1..=ATTEMPTS_MAX {
            tokio::time::sleep_until(self.rate.take(Instant::now())).await;
            match self.try_send(&key, &occurrence).await {
                Ok(()) => {
                    self.backoff.reset();
                    return;
                }
                Err(error) if is_transient(&error) => {
                    let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
                    tracing::debug!(%pod, reason, attempt, %error, "event not sent: retrying");
                    tokio::time::sleep(wait).await;
                }
                Err(error) => {
                    // Expected for a namespace that is being deleted: it accepts no events.
                    tracing::debug!(%pod, reason, %error, "event refused");
                    return;
                }
            }
        }
        tracing::warn!(%pod, reason, attempt = ATTEMPTS_MAX, "event not sent: dropped");
    }

    async fn try_send(&mut self, key: &EventKey, occurrence: &Occurrence) -> Result<(), ApiError> {
        let body = event_object(occurrence, &self.node);
        let namespace = body["metadata"]["namespace"].as_str().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if self.created.contains(key) {
            let patch =
                json!({"count": body["count"], "lastTimestamp": body["lastTimestamp"], "message": body["message"]});
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            let content = ("application/strategic-merge-patch+json", patch.to_string().into_bytes());
            match self.client.call(request(Method::PATCH, &path, Some(content)), CALL_TIMEOUT).await {
                // The server deletes events after an hour.
                Err(error) if error.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
        let content = ("application/json", body.to_string().into_bytes());
        match self.client.call(request(Method::POST, &path, Some(content)), CALL_TIMEOUT).await {
            // It exists: an earlier attempt of ours that seemed to fail created it.
            Err(ApiError::Status { code: 409, .. }) | Ok(_) => {}
            Err(error) => return Err(error),
        }
        if !self.created.contains(key) {
            self.created.push_back(key.clone());
            if self.created.len() > CREATED_MAX {
                self.created.pop_front();
            }
        }
        Ok(())
    }
}

/// Whether a retry may succeed.
fn is_transient(error: &ApiError) -> bool {
    match error {
        ApiError::Status { code, .. } => matches!(code, 401 | 429 | 500..=599),
        ApiError::Unreachable(_) | ApiError::Timeout(_) | ApiError::Malformed(_) => true,
    }
}

/// The Event object, with the fields that the kubelet sets.
fn event_object(occurrence: &Occurrence, node: &str) -> Value {
    let event = &occurrence.event;
    let of_node = event.is_about_node();
    let namespace = if of_node { "default" } else { &event.pod.namespace };
    let about = if of_node {
        json!({"kind": "Node", "name": node, "uid": node})
    } else {
        json!({
            "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": &*event.pod.name,
            "uid": event.uid.as_ref().map(PodUid::as_str), "fieldPath": occurrence.field_path,
        })
    };
    let seconds = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut metadata = json!({"name": name(occurrence), "namespace": namespace});
    if !event.annotations.is_empty() {
        metadata["annotations"] = event.annotations.iter().map(|(key, value)| (*key, value.as_str())).collect();
    }
    json!({
        "kind": "Event", "apiVersion": "v1",
        "metadata": metadata,
        "involvedObject": about,
        "reason": event.reason,
        "message": event.message.chars().take(MESSAGE_MAX).collect::<String>(),
        "type": if event.warning { "Warning" } else { "Normal" },
        "count": i32::try_from(occurrence.count).unwrap_or(i32::MAX),
        "firstTimestamp": seconds(occurrence.first),
        "lastTimestamp": seconds(occurrence.last),
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

/// The pod's name and the first timestamp: the same for all states of the event.
fn name(occurrence: &Occurrence) -> String {
    let pod = &occurrence.event.pod.name;
    let suffix = format!("{:016x}", occurrence.first.as_nanosecond());
    let prefix: String = pod.chars().take(NAME_MAX - suffix.len() - 1).collect();
    format!("{}.{suffix}", prefix.trim_end_matches(['.', '-']))
}

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Kubernetes: maxTriesPerEvent.
const ATTEMPTS_MAX: u32 = 12;
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
const QUEUE_MAX: usize = 1000;
const CREATED_MAX: usize = 1000;
const NAME_MAX: usize = 253;
const MESSAGE_MAX: usize = 16 << 10;
/// The kubelet's `eventBurst` and `eventRecordQPS`.
const RATE_BURST: f64 = 100.0;
const RATE_PER_SECOND: f64 = 50.0;

#[cfg(test)]
mod tests {
    use podwright_core::model::FullName;

    use super::*;

    fn occurrence(uid: &str, count: u64) -> Occurrence {
        let pod = FullName { namespace: "ns".into(), name: "web".into() };
        let event = KubeEvent {
            annotations: vec![],
            uid: Some(uid.into()),
            pod,
            container: Some("c".into()),
            warning: true,
            reason: "BackOff",
            message: "no".into(),
        };
        let first = Timestamp::UNIX_EPOCH + Duration::from_millis(1500);
        let field_path = Some("spec.containers{c}".into());
        Occurrence { event, field_path, first, last: first + Duration::from_secs(count), count }
    }

    #[test]
    fn the_event_object_has_the_kubelets_fields() {
        let body = event_object(&occurrence("u", 3), "n");
        assert_eq!(body["metadata"], json!({"name": "web.0000000059682f00", "namespace": "ns"}));
        let about = json!({"kind": "Pod", "apiVersion": "v1", "namespace": "ns", "name": "web", "uid": "u",
                           "fieldPath": "spec.containers{c}"});
        assert_eq!(body["involvedObject"], about);
        assert_eq!(body["source"], json!({"component": "kubelet", "host": "n"}));
        assert_eq!((&body["count"], &body["type"]), (&json!(3), &json!("Warning")));
        assert_eq!(
            (&body["firstTimestamp"], &body["lastTimestamp"]),
            (&json!("1970-01-01T00:00:01Z"), &json!("1970-01-01T00:00:04Z"))
        );
    }

    #[test]
    fn node_events_are_in_the_default_namespace_and_long_names_are_truncated() {
        let mut of_node = occurrence("u", 1);
        (of_node.field_path, of_node.event.uid) = (None, None);
        of_node.event.pod = FullName { namespace: "".into(), name: "n".into() };
        let of_node = event_object(&of_node, "n");
        assert_eq!(of_node["involvedObject"], json!({"kind": "Node", "name": "n", "uid": "n"}));
        assert_eq!(of_node["metadata"]["namespace"], "default");
        let mut long = occurrence("u", 1);
        long.event.pod.name = "a".repeat(253).as_str().into();
        assert_eq!(name(&long).len(), NAME_MAX);
    }

    #[test]
    fn the_queue_holds_the_newest_state_of_an_event_and_is_bounded() {
        let mut queue = EventQueue::default();
        queue.add(occurrence("u", 1));
        queue.add(occurrence("u", 2));
        assert_eq!(queue.next().map(|o| o.count), Some(2));
        assert!(queue.next().is_none());
        for n in 0..2 * QUEUE_MAX {
            queue.add(occurrence(&n.to_string(), 1));
        }
        assert_eq!((queue.order.len(), queue.newest.len()), (QUEUE_MAX, QUEUE_MAX));
        assert_eq!(queue.dropped as usize, QUEUE_MAX);
    }
}
