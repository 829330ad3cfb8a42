//! Events for people, sent to the API: counted up where they repeat, held back where one object makes too many, and dropped
//! before they could be in anybody's way.
//!
//! Whoever hands them in has put equal ones together: each [`Occurrence`] is an event's newest state, told apart by its first
//! moment. The first time it is created, later its count is patched.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use podwright_core::model::{KubeEvent, PodUid};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{Cluster, request};
use crate::error::ApiError;

mod limits;

use limits::{Bucket, Spam};

/// An event as it stands now.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// What happened. Without a UID it is about the node.
    pub event: KubeEvent,
    /// The part of the pod it is about.
    pub field_path: Option<String>,
    /// The first time.
    pub first: Timestamp,
    /// The last time.
    pub last: Timestamp,
    /// How often.
    pub count: u64,
}

/// Send what comes until nobody sends any more.
pub async fn run(cluster: Cluster, node: String, mut occurrences: mpsc::Receiver<Occurrence>) {
    let mut sink = Sink {
        cluster,
        node,
        waiting: Waiting::default(),
        created: VecDeque::new(),
        spam: Spam::default(),
        rate: Bucket::new(RATE_BURST, RATE_PER_SECOND),
        backoff: Backoff::new(RETRY_FIRST, RETRY_MAX),
    };
    while let Some(occurrence) = occurrences.recv().await {
        sink.take(occurrence);
        while let Ok(more) = occurrences.try_recv() {
            sink.take(more);
        }
        while let Some(next) = sink.waiting.next() {
            sink.send(next).await;
            while let Ok(more) = occurrences.try_recv() {
                sink.take(more);
            }
        }
    }
}

/// What makes two occurrences one event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    uid: PodUid,
    reason: &'static str,
    first: Timestamp,
    field_path: Option<String>,
}

/// Events to be sent: the newest state of each, the oldest event first.
#[derive(Default)]
struct Waiting {
    order: VecDeque<Key>,
    newest: BTreeMap<Key, Occurrence>,
    dropped: u64,
}

struct Sink {
    cluster: Cluster,
    node: String,
    waiting: Waiting,
    /// Events that are there already and may be counted up.
    created: VecDeque<Key>,
    spam: Spam,
    rate: Bucket,
    backoff: Backoff,
}

impl Key {
    fn of(occurrence: &Occurrence) -> Self {
        let event = &occurrence.event;
        let field_path = occurrence.field_path.clone();
        Self { uid: event.uid.clone(), reason: event.reason, first: occurrence.first, field_path }
    }
}

impl Waiting {
    fn add(&mut self, occurrence: Occurrence) {
        let key = Key::of(&occurrence);
        if self.newest.contains_key(&key) {
            self.newest.insert(key, occurrence);
        } else if self.order.len() < WAITING_MAX {
            self.order.push_back(key.clone());
            self.newest.insert(key, occurrence);
        } else {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(dropped = self.dropped, "too many events: some are not sent");
            }
        }
    }

    fn next(&mut self) -> Option<Occurrence> {
        let key = self.order.pop_front()?;
        self.newest.remove(&key)
    }
}

impl Sink {
    fn take(&mut self, occurrence: Occurrence) {
        if self.spam.allows(&occurrence.event.uid, Instant::now()) {
            self.waiting.add(occurrence);
        } else {
            tracing::debug!(pod = %occurrence.event.pod, reason = occurrence.event.reason, "too many events of one object");
        }
    }

    /// Send one; a server that is away is waited for, but not for ever.
    async fn send(&mut self, occurrence: Occurrence) {
        let key = Key::of(&occurrence);
        for _ in 0..TRIES {
            tokio::time::sleep_until(self.rate.take(Instant::now())).await;
            match self.try_send(&key, &occurrence).await {
                Ok(()) => {
                    self.backoff.reset();
                    return;
                }
                Err(error) if may_pass(&error) => {
                    let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
                    tracing::debug!(%error, "an event can't be sent now");
                    tokio::time::sleep(wait).await;
                }
                Err(error) => {
                    // A namespace that ends takes no events: nothing to worry about.
                    tracing::debug!(pod = %occurrence.event.pod, reason = occurrence.event.reason, %error, "an event was refused");
                    return;
                }
            }
        }
        tracing::warn!(pod = %occurrence.event.pod, reason = occurrence.event.reason, "an event could not be sent: dropped");
    }

    async fn try_send(&mut self, key: &Key, occurrence: &Occurrence) -> Result<(), ApiError> {
        let body = body(occurrence, &self.node);
        let namespace = body["metadata"]["namespace"].as_str().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if self.created.contains(key) {
            let patch =
                json!({"count": body["count"], "lastTimestamp": body["lastTimestamp"], "message": body["message"]});
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            let content = ("application/strategic-merge-patch+json", patch.to_string().into_bytes());
            match self.cluster.call(request(Method::PATCH, &path, Some(content)), LIMIT).await {
                // Events are forgotten after an hour.
                Err(error) if error.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
        let content = ("application/json", body.to_string().into_bytes());
        match self.cluster.call(request(Method::POST, &path, Some(content)), LIMIT).await {
            // It is there: an earlier try of ours did it after all.
            Err(ApiError::Answer { code: 409, .. }) | Ok(_) => {}
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

/// Trying again may help.
fn may_pass(error: &ApiError) -> bool {
    match error {
        ApiError::Answer { code, .. } => matches!(code, 401 | 429 | 500..=599),
        ApiError::Unreachable(_) | ApiError::Timeout(_) | ApiError::Garbage(_) => true,
    }
}

/// The object, as the kubelet would make it.
fn body(occurrence: &Occurrence, node: &str) -> Value {
    let event = &occurrence.event;
    let of_node = event.uid.as_str().is_empty();
    let namespace = if of_node { "default" } else { &event.pod.namespace };
    let about = if of_node {
        json!({"kind": "Node", "name": node, "uid": node})
    } else {
        json!({
            "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": &*event.pod.name,
            "uid": event.uid.as_str(), "fieldPath": occurrence.field_path,
        })
    };
    let seconds = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "kind": "Event", "apiVersion": "v1",
        "metadata": {"name": name(occurrence), "namespace": namespace},
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

/// The object's name and the first moment: the same each time it is sent.
fn name(occurrence: &Occurrence) -> String {
    let pod = &occurrence.event.pod.name;
    let moment = format!("{:016x}", occurrence.first.as_nanosecond());
    let fits: String = pod.chars().take(NAME_MAX - moment.len() - 1).collect();
    format!("{}.{moment}", fits.trim_end_matches(['.', '-']))
}

const LIMIT: Duration = Duration::from_secs(10);
const TRIES: u32 = 12;
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
const WAITING_MAX: usize = 1000;
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
            uid: uid.into(),
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
    fn the_object_is_the_kubelets() {
        let body = body(&occurrence("u", 3), "n");
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
    fn the_nodes_events_are_in_default_and_long_names_fit() {
        let mut of_node = occurrence("", 1);
        of_node.field_path = None;
        let of_node = body(&of_node, "n");
        assert_eq!(of_node["involvedObject"], json!({"kind": "Node", "name": "n", "uid": "n"}));
        assert_eq!(of_node["metadata"]["namespace"], "default");
        let mut long = occurrence("u", 1);
        long.event.pod.name = "a".repeat(253).as_str().into();
        assert_eq!(name(&long).len(), NAME_MAX);
    }

    #[test]
    fn the_newest_state_waits_once_and_the_queue_is_bounded() {
        let mut waiting = Waiting::default();
        waiting.add(occurrence("u", 1));
        waiting.add(occurrence("u", 2));
        assert_eq!(waiting.next().map(|o| o.count), Some(2));
        assert!(waiting.next().is_none());
        for n in 0..2 * WAITING_MAX {
            waiting.add(occurrence(&n.to_string(), 1));
        }
        assert_eq!((waiting.order.len(), waiting.newest.len()), (WAITING_MAX, WAITING_MAX));
        assert_eq!(waiting.dropped as usize, WAITING_MAX);
    }
}
