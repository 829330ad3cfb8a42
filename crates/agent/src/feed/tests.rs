use std::time::Duration;

use podwright_core::model::{Cause, Life, PodRecord, SavedTime, Termination};
use serde_json::json;

use super::*;

fn pod(uid: &str, name: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"uid": uid, "name": name, "namespace": "default"}, "spec": {"containers": []},
                     "status": {"phase": "Pending"}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn record(uid: &str, source: Source, phase: Option<&str>) -> PodRecord {
    PodRecord {
        origin: Some(format!("/m/{uid}.yaml")),
        life: Life::Syncing,
        status: phase.map(|phase| PodStatus { phase: Some(phase.into()), ..PodStatus::default() }),
        ..PodRecord::new(uid.into(), source, pod(uid, uid), Timestamp::UNIX_EPOCH)
    }
}

fn kinds(feed: &PodFeed, after: u64) -> Vec<String> {
    let describe = |change: &PodChange| match (&change.old, &change.new) {
        (None, Some(new)) => format!("+{} {}", new.name(), phase(new)),
        (Some(_), Some(new)) => format!("~{} {}", new.name(), phase(new)),
        (Some(old), None) => format!("-{}", old.name()),
        (None, None) => unreachable!("neither old nor new"),
    };
    feed.changes_after(after, 100).unwrap().iter().map(describe).collect()
}

fn phase(view: &PodView) -> &str {
    view.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("none")
}

#[test]
fn only_differences_make_a_change_and_versions_only_rise() {
    let feed = PodFeed::default();
    let start = feed.version();
    feed.publish(&PodSnapshot::of(&record("a", Source::File, None)));
    let first = feed.by_name("default", "a").unwrap();
    feed.publish(&PodSnapshot::of(&record("a", Source::File, None)));
    feed.publish(&PodSnapshot::of(&PodRecord { sandbox_attempts: 7, ..record("a", Source::File, None) }));
    feed.publish(&PodSnapshot::of(&record("a", Source::File, Some("Running"))));
    feed.publish(&PodSnapshot::of(&record("a", Source::File, Some("Running"))));
    feed.unpublish(&"a".into());
    feed.unpublish(&"a".into());
    assert_eq!(kinds(&feed, start), ["+a none", "~a Running", "-a"]);
    assert!(first.version > start && feed.version() == start + 3);
    assert_eq!(first.origin.as_deref(), Some("/m/a.yaml"));
    assert!(feed.list().1.is_empty());
}

#[test]
fn a_stored_pod_is_shown_with_the_status_of_the_event_loop() {
    let feed = PodFeed::default();
    let start = feed.version();
    let shown = feed.put_object(pod("a", "a"), Source::Local, None);
    assert_eq!((phase(&shown), shown.version), ("Pending", start + 1));
    feed.publish(&PodSnapshot::of(&record("a", Source::Local, None)));
    feed.publish(&PodSnapshot::of(&record("a", Source::Local, Some("Running"))));
    // An older status from the store does not replace the published one.
    feed.put_object(pod("a", "a"), Source::Local, None);
    assert_eq!(kinds(&feed, start), ["+a Pending", "~a Running"]);
    // Dropping the record does not remove the object; its deletion from the store does, for good.
    feed.unpublish(&"a".into());
    assert!(feed.get(&"a".into()).is_some());
    feed.remove_object(&"a".into());
    feed.publish(&PodSnapshot::of(&record("a", Source::Local, Some("Failed"))));
    assert!(feed.get(&"a".into()).is_none());
    feed.unpublish(&"a".into());
    assert_eq!(kinds(&feed, start + 2), ["-a"]);
}

#[test]
fn a_watch_behind_the_ring_gets_an_error() {
    let feed = PodFeed::default();
    feed.start_after(1000);
    for n in 0..RING_MAX + 10 {
        feed.publish(&PodSnapshot::of(&record(&format!("p{n}"), Source::File, None)));
    }
    assert_eq!(feed.changes_after(1000, 1).unwrap_err(), ResourceExpired { requested: 1000, oldest: 1010 });
    assert_eq!(feed.changes_after(1010, 10_000).unwrap().len(), RING_MAX);
    assert_eq!(feed.changes_after(1010, 3).unwrap().last().unwrap().version, 1013);
    assert!(feed.changes_after(feed.version(), 10).unwrap().is_empty());
    assert!(feed.changes_after(feed.version() + 1, 10).is_err(), "a version that was never given out");
    assert!(feed.changes_after(0, 10).is_err());
}

#[test]
fn the_newest_pod_of_a_name_wins_and_a_removed_one_has_a_deletion_timestamp() {
    let feed = PodFeed::default();
    let deadline = SavedTime { boot_id: String::new(), boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
    let termination = Termination {
        exceeded_limit: false,
        cause: Cause::Removed,
        admitted: true,
        deleted: true,
        grace: Duration::from_secs(7),
        deadline,
        status_override: None,
        restart_requested: false,
    };
    feed.publish(&PodSnapshot::of(&PodRecord {
        pod: pod("old", "web"),
        life: Life::Terminating(termination),
        ..record("old", Source::File, None)
    }));
    feed.publish(&PodSnapshot::of(&PodRecord { pod: pod("new", "web"), ..record("new", Source::File, None) }));
    assert_eq!(feed.by_name("default", "web").unwrap().uid().as_str(), "new");
    let old = serde_json::to_value(&*feed.get(&"old".into()).unwrap()).unwrap();
    assert_eq!(old["metadata"]["deletionTimestamp"], "1970-01-01T00:00:00Z");
    assert_eq!(old["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!((&old["kind"], &old["metadata"]["resourceVersion"]), (&json!("Pod"), &json!("2")));
    assert_eq!(feed.list().1.len(), 2);
}
