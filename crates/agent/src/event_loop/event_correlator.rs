//! Events as people see them: equal ones are counted, floods of similar ones are combined, and old ones make room.

use std::collections::VecDeque;
use std::time::Duration;

use podwright_core::model::{KubeEvent, Now, Pod};
use tokio::sync::broadcast;

/// Events kept over all pods.
const KEPT_MAX: usize = 1000;
/// Events kept of one pod: a noisy one must not push out the others'.
const KEPT_OF_POD_MAX: usize = 100;
/// Kubernetes: so many of one kind with different words, and the rest are combined.
const SIMILAR_MAX: usize = 10;
/// Kubernetes: similar ones count as such within this time.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Kubernetes: how combined ones begin.
const COMBINED: &str = "(combined from similar events): ";

/// An event as it is kept.
#[derive(Clone, Debug)]
pub struct CorrelatedEvent {
    /// What happened; the newest words, if similar ones were combined.
    pub event: KubeEvent,
    /// The part of the pod it is about: `spec.containers{web}`.
    pub field_path: Option<String>,
    /// The first time.
    pub first: Now,
    /// The last time.
    pub last: Now,
    /// How often.
    pub count: u64,
}

/// Tells of every event as it is kept. Who is slow misses some.
#[derive(Debug)]
pub(super) struct EventFeed(pub(super) broadcast::Sender<CorrelatedEvent>);

impl Default for EventFeed {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT_MAX))
    }
}

/// The events kept, the oldest first.
#[derive(Debug, Default)]
pub(super) struct EventCorrelator(VecDeque<CorrelatedEvent>);

impl EventCorrelator {
    pub(super) fn all(&self) -> Vec<CorrelatedEvent> {
        self.0.iter().cloned().collect()
    }

    /// Keep it; `pod` tells which kind of container it is about. What is kept of it now.
    pub(super) fn add(&mut self, event: &KubeEvent, pod: Option<&Pod>, now: Now) -> CorrelatedEvent {
        if let Some(kept) = self.0.iter_mut().rev().find(|kept| kept.event == *event) {
            (kept.last, kept.count) = (now, kept.count + 1);
            return kept.clone();
        }
        let alike = |kept: &CorrelatedEvent| {
            let (a, b) = (&kept.event, event);
            (&a.uid, &a.container, a.reason, a.warning) == (&b.uid, &b.container, b.reason, b.warning)
        };
        let recent = |kept: &&CorrelatedEvent| alike(kept) && kept.last.boot + SIMILAR_WITHIN > now.boot;
        let mut event = event.clone();
        if self.0.iter().filter(recent).count() >= SIMILAR_MAX {
            event.message = format!("{COMBINED}{}", event.message);
            let combined = self.0.iter_mut().find(|kept| alike(kept) && kept.event.message.starts_with(COMBINED));
            if let Some(kept) = combined {
                (kept.event, kept.last, kept.count) = (event, now, kept.count + 1);
                return kept.clone();
            }
        }
        self.make_room(&event);
        let field_path = event.container.as_ref().map(|name| field_path(pod, name.as_str()));
        let kept = CorrelatedEvent { event, field_path, first: self.own_moment(now), last: now, count: 1 };
        self.0.push_back(kept.clone());
        kept
    }

    /// An event's name is made of its first moment: no two begin in the same, also when they are told at once.
    fn own_moment(&self, mut now: Now) -> Now {
        while self.0.iter().rev().any(|kept| kept.first.wall == now.wall) {
            now.wall += Duration::from_nanos(1);
        }
        now
    }

    fn make_room(&mut self, event: &KubeEvent) {
        if self.0.iter().filter(|kept| kept.event.uid == event.uid).count() >= KEPT_OF_POD_MAX {
            let oldest = self.0.iter().position(|kept| kept.event.uid == event.uid);
            oldest.and_then(|at| self.0.remove(at));
        } else if self.0.len() >= KEPT_MAX {
            self.0.pop_front();
        }
    }
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
            uid: uid.into(),
            pod: FullName { namespace: "default".into(), name: uid.into() },
            container: Some("c".into()),
            warning: true,
            reason: "Failed",
            message: message.into(),
        }
    }

    #[test]
    fn equal_events_are_counted_with_their_first_and_last_time() {
        let mut kept = EventCorrelator::default();
        for secs in 1..=3 {
            kept.add(&event("a", "no"), None, now(secs));
        }
        kept.add(&event("a", "yes"), None, now(4));
        let all = kept.all();
        assert_eq!(all.iter().map(|k| k.count).collect::<Vec<_>>(), [3, 1]);
        assert_eq!((all[0].first, all[0].last), (now(1), now(3)));
    }

    #[test]
    fn events_told_at_once_have_moments_of_their_own() {
        let mut kept = EventCorrelator::default();
        let firsts: BTreeSet<_> =
            (0..5).map(|n| kept.add(&event("a", &format!("{n}")), None, now(1)).first.wall).collect();
        assert_eq!(firsts.len(), 5);
    }

    #[test]
    fn a_flood_of_different_words_is_combined_and_ten_quiet_minutes_end_it() {
        let mut kept = EventCorrelator::default();
        for n in 0..50 {
            kept.add(&event("a", &format!("try {n}")), None, now(n));
        }
        let all = kept.all();
        assert_eq!(all.len(), SIMILAR_MAX + 1);
        assert_eq!((all[10].event.message.as_str(), all[10].count), ("(combined from similar events): try 49", 40));
        kept.add(&event("a", "much later"), None, now(5000));
        assert_eq!(kept.all().last().map(|k| k.event.message.clone()).as_deref(), Some("much later"));
    }

    #[test]
    fn a_noisy_pod_pushes_out_its_own_and_all_together_are_bounded() {
        let mut kept = EventCorrelator::default();
        kept.add(&event("quiet", "one"), None, now(0));
        for n in 0..500 {
            kept.add(&event("noisy", &format!("{n}")), None, now(n * 100));
        }
        assert_eq!(kept.all().len(), KEPT_OF_POD_MAX + 1);
        assert_eq!(kept.all()[0].event.uid.as_str(), "quiet");
        for n in 0..2000 {
            kept.add(&event(&format!("pod{n}"), "one"), None, now(n));
        }
        assert_eq!(kept.all().len(), KEPT_MAX);
    }

    #[test]
    fn the_field_says_which_kind_of_container() {
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
