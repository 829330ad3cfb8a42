//! Aggregates Kubernetes events: equal events are counted, many similar ones are combined, the oldest are dropped at a limit.
//!
//! Go kubelet: `EventCorrelator` of client-go.

use std::collections::VecDeque;
use std::time::Duration;

use podwright_core::model::{KubeEvent, Now, Pod};
use tokio::sync::broadcast;

/// Events stored over all pods.
const EVENTS_MAX: usize = 1000;
/// Events stored of one pod: a noisy pod must not push out the events of others.
const EVENTS_PER_POD_MAX: usize = 100;
/// Kubernetes: after this many events of one kind with different messages, further ones are combined.
const SIMILAR_MAX: usize = 10;
/// Kubernetes: the interval in which similar events are counted.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Kubernetes: prefix of the message of a combined event.
const COMBINED: &str = "(combined from similar events): ";

/// Kubernetes: NoteLengthLimit, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Kubernetes: the end of a truncated message.
const CUT: &str = " ...";

/// An event with its occurrences.
#[derive(Clone, Debug)]
pub struct CorrelatedEvent {
    /// The event; of combined events the newest one.
    pub event: KubeEvent,
    /// The part of the pod it is about, such as `spec.containers{web}`; `None`: the pod as a whole.
    pub field_path: Option<String>,
    /// First occurrence. Its wall time is unique among the stored events: the name of the API object is made of it.
    pub first: Now,
    /// Last occurrence.
    pub last: Now,
    /// Number of occurrences.
    pub count: u64,
}

/// Broadcasts every event as it is stored. A slow subscriber misses some.
#[derive(Debug)]
pub(super) struct EventFeed(pub(super) broadcast::Sender<CorrelatedEvent>);

impl Default for EventFeed {
    fn default() -> Self {
        Self(broadcast::Sender::new(EVENTS_MAX))
    }
}

/// The stored events, the oldest first.
#[derive(Debug, Default)]
pub(super) struct EventCorrelator(VecDeque<CorrelatedEvent>);

impl EventCorrelator {
    pub(super) fn all(&self) -> Vec<CorrelatedEvent> {
        self.0.iter().cloned().collect()
    }

    /// Stores an event and returns its aggregate; `pod` says which kind of container it is about.
    pub(super) fn add(&mut self, event: &KubeEvent, pod: Option<&Pod>, now: Now) -> CorrelatedEvent {
        let event = &KubeEvent { message: truncated(&event.message), ..event.clone() };
        if let Some(stored) = self.0.iter_mut().rev().find(|stored| stored.event == *event) {
            (stored.last, stored.count) = (now, stored.count + 1);
            return stored.clone();
        }
        let similar = |stored: &CorrelatedEvent| {
            let (a, b) = (&stored.event, event);
            (&a.uid, &a.container, a.reason, a.warning) == (&b.uid, &b.container, b.reason, b.warning)
        };
        let recent = |stored: &&CorrelatedEvent| similar(stored) && stored.last.boot + SIMILAR_WITHIN > now.boot;
        let mut event = event.clone();
        if self.0.iter().filter(recent).count() >= SIMILAR_MAX {
            event.message = truncated(&format!("{COMBINED}{}", event.message));
            let combined =
                self.0.iter_mut().find(|stored| similar(stored) && stored.event.message.starts_with(COMBINED));
            if let Some(stored) = combined {
                (stored.event, stored.last, stored.count) = (event, now, stored.count + 1);
                return stored.clone();
            }
        }
        self.evict_for(&event);
        let field_path = event.container.as_ref().map(|name| field_path(pod, name.as_str()));
        let stored = CorrelatedEvent { event, field_path, first: self.unique_time(now), last: now, count: 1 };
        self.0.push_back(stored.clone());
        stored
    }

    /// Moves the wall time forward until no stored event has it as its first occurrence.
    fn unique_time(&self, mut now: Now) -> Now {
        while self.0.iter().rev().any(|stored| stored.first.wall == now.wall) {
            now.wall += Duration::from_nanos(1);
        }
        now
    }

    fn evict_for(&mut self, event: &KubeEvent) {
        if self.0.iter().filter(|stored| stored.event.uid == event.uid).count() >= EVENTS_PER_POD_MAX {
            let oldest = self.0.iter().position(|stored| stored.event.uid == event.uid);
            oldest.and_then(|at| self.0.remove(at));
        } else if self.0.len() >= EVENTS_MAX {
            self.0.pop_front();
        }
    }
}

/// A message that is too long is cut at a character (Go: `truncateMessage` of the scheduler; the kubelet does not cut its messages).
fn truncated(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MESSAGE_BYTES_MAX - CUT.len());
    format!("{}{CUT}", &message[..end])
}

fn field_path(pod: Option<&Pod>, name: &str) -> String {
    let spec = pod.and_then(|pod| pod.spec.as_ref());
    let init = spec.is_some_and(|s| s.init_containers.iter().flatten().any(|c| c.name == name));
    let ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == name));
    match (init, ephemeral) {
        (true, _) => format!("spec.initContainers{{{name}}}"),
        (_, true) => format!("spec.ephemeralContainers{{{name}}}"),
        _ => format!("spec.containers{{{name}}}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use podwright_core::model::FullName;

    use super::*;

    fn now(secs: u64) -> Now {
        Now { boot: Duration::from_secs(secs), wall: jiff::Timestamp::UNIX_EPOCH + Duration::from_secs(secs) }
    }

    fn event(uid: &str, message: &str) -> KubeEvent {
        KubeEvent {
            annotations: vec![],
            uid: Some(uid.into()),
            pod: FullName { namespace: "default".into(), name: uid.into() },
            container: Some("c".into()),
            warning: true,
            reason: "Failed",
            message: message.into(),
        }
    }

    #[test]
    fn equal_events_are_counted_with_their_first_and_last_time() {
        let mut stored = EventCorrelator::default();
        for secs in 1..=3 {
            stored.add(&event("a", "no"), None, now(secs));
        }
        stored.add(&event("a", "yes"), None, now(4));
        let all = stored.all();
        assert_eq!(all.iter().map(|k| k.count).collect::<Vec<_>>(), [3, 1]);
        assert_eq!((all[0].first, all[0].last), (now(1), now(3)));
    }

    #[test]
    fn events_of_the_same_moment_get_distinct_first_times() {
        let mut stored = EventCorrelator::default();
        let firsts: BTreeSet<_> =
            (0..5).map(|n| stored.add(&event("a", &format!("{n}")), None, now(1)).first.wall).collect();
        assert_eq!(firsts.len(), 5);
    }

    #[test]
    fn many_different_messages_are_combined_until_ten_minutes_pass_without_one() {
        let mut stored = EventCorrelator::default();
        for n in 0..50 {
            stored.add(&event("a", &format!("try {n}")), None, now(n));
        }
        let all = stored.all();
        assert_eq!(all.len(), SIMILAR_MAX + 1);
        assert_eq!((all[10].event.message.as_str(), all[10].count), ("(combined from similar events): try 49", 40));
        stored.add(&event("a", "much later"), None, now(5000));
        assert_eq!(stored.all().last().map(|k| k.event.message.clone()).as_deref(), Some("much later"));
    }

    #[test]
    fn a_noisy_pod_pushes_out_its_own_events_and_the_total_is_bounded() {
        let mut stored = EventCorrelator::default();
        stored.add(&event("quiet", "one"), None, now(0));
        for n in 0..500 {
            stored.add(&event("noisy", &format!("{n}")), None, now(n * 100));
        }
        assert_eq!(stored.all().len(), EVENTS_PER_POD_MAX + 1);
        assert_eq!(stored.all()[0].event.uid, Some("quiet".into()));
        for n in 0..2000 {
            stored.add(&event(&format!("pod{n}"), "one"), None, now(n));
        }
        assert_eq!(stored.all().len(), EVENTS_MAX);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let mut stored = EventCorrelator::default();
        let length = |stored: &CorrelatedEvent| stored.event.message.len();
        assert_eq!(length(&stored.add(&event("a", &"x".repeat(1024)), None, now(1))), 1024);
        let cut = stored.add(&event("a", &"ü".repeat(1024)), None, now(1));
        assert_eq!(cut.event.message, format!("{} ...", "ü".repeat(510)));
        assert_eq!(stored.add(&event("a", &"ü".repeat(1024)), None, now(2)).count, 2, "equal events are counted");
        for n in 0..20 {
            let combined = stored.add(&event("a", &format!("{n}{}", "x".repeat(2000))), None, now(3));
            assert_eq!(length(&combined), 1024);
        }
    }

    #[test]
    fn the_field_path_names_the_kind_of_container() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}],
                     "ephemeralContainers": [{"name": "e"}]}
        }))
        .unwrap();
        assert_eq!(field_path(Some(&pod), "i"), "spec.initContainers{i}");
        assert_eq!(field_path(Some(&pod), "e"), "spec.ephemeralContainers{e}");
        assert_eq!(field_path(Some(&pod), "c"), "spec.containers{c}");
        assert_eq!(field_path(None, "x"), "spec.containers{x}");
    }
}
