use serde_json::json;

use super::*;

const OWNER: Owner<'static> = Owner { name: "node", uid: "n1" };

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn name() -> FullName {
    FullName { namespace: "default".into(), name: "p-node".into() }
}

fn static_pod(hash: &str) -> Arc<Pod> {
    let value = json!({"metadata": {"name": "p-node", "namespace": "default", "uid": hash, "labels": {"app": "x"},
            "annotations": {"kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"}},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running"}});
    Arc::new(serde_json::from_value(value).unwrap())
}

/// The API server's object.
fn kept(hash: &str, uid: &str, version: &str, deleting: bool) -> Arc<Pod> {
    let mut pod = mirror(&static_pod(hash), OWNER);
    pod.metadata.uid = Some(uid.into());
    pod.metadata.resource_version = Some(version.into());
    if deleting {
        let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        pod.metadata.deletion_timestamp = Some(time);
    }
    Arc::new(pod)
}

fn next(mirrors: &mut Mirrors, wanted: &Wanted, now: Time) -> Option<(RequestId, ObjectRequest)> {
    let mut drawn = mirrors.asked.keys().last().map_or(100, |id| id.0);
    mirrors.next(&name(), wanted, Some(OWNER), now, &mut drawn)
}

fn deletes(asked: &Option<(RequestId, ObjectRequest)>) -> Option<&str> {
    match asked {
        Some((_, ObjectRequest::DeleteMirror { object })) => Some(object.uid.as_str()),
        _ => None,
    }
}

#[test]
fn a_mirror_shows_its_pod_and_belongs_to_the_node() {
    let pod = static_pod("h");
    let mirror = mirror(&pod, OWNER);
    assert_eq!((&mirror.spec, &mirror.metadata.labels), (&pod.spec, &pod.metadata.labels));
    assert_eq!(annotation(&mirror, CONFIG_MIRROR), Some("h"));
    assert_eq!(annotation(&mirror, CONFIG_HASH), Some("h"));
    assert_eq!((mirror.metadata.uid.as_ref(), mirror.status.as_ref()), (None, None), "the API server's matters");
    let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Node", "node", "n1"));
}

#[test]
fn what_is_there_is_compared_with_what_is_wanted() {
    let shown = || Wanted::Shown(static_pod("h"));
    let cases = [
        ("as it should be", Some(("h", false)), shown(), None),
        ("another content", Some(("old", false)), shown(), Some("m")),
        ("being deleted", Some(("h", true)), shown(), Some("m")),
        ("its pod ends", Some(("old", true)), Wanted::AsIs, None),
        ("its pod is gone", Some(("h", false)), Wanted::Nothing, Some("m")),
        ("nothing and nothing", None, Wanted::Nothing, None),
    ];
    for (what, there, wanted, removed) in cases {
        let mut mirrors = Mirrors::default();
        if let Some((hash, deleting)) = there {
            mirrors.seen(kept(hash, "m", "1", deleting));
        }
        let asked = next(&mut mirrors, &wanted, at(1));
        assert_eq!(deletes(&asked), removed, "{what}: {asked:?}");
        assert_eq!(asked.is_some(), removed.is_some(), "{what}: {asked:?}");
    }
}

#[test]
fn a_missing_one_is_made_once_and_known_from_the_answer() {
    let mut mirrors = Mirrors::default();
    let wanted = Wanted::Shown(static_pod("h"));
    let (id, ask) = next(&mut mirrors, &wanted, at(1)).unwrap();
    assert!(matches!(ask, ObjectRequest::CreateMirror { .. }));
    assert_eq!(next(&mut mirrors, &wanted, at(1)), None, "one is under way");
    mirrors.answered(id, &Ok(Some(kept("h", "m", "2", false))), at(1));
    assert_eq!(next(&mut mirrors, &wanted, at(1)), None, "it is there");
    assert_eq!(mirrors.of(&static_pod("h")).and_then(|m| m.metadata.uid.as_deref()), Some("m"));
    assert!(mirrors.of(&static_pod("other")).is_none(), "it shows another content");
    assert_eq!(mirrors.name_of(&"m".into()), Some(&name()));
}

#[test]
fn without_a_node_none_is_made_and_what_is_there_may_go() {
    let mut mirrors = Mirrors::default();
    let mut drawn = 0;
    assert_eq!(mirrors.next(&name(), &Wanted::Shown(static_pod("h")), None, at(1), &mut drawn), None);
    mirrors.seen(kept("h", "m", "1", false));
    assert!(mirrors.next(&name(), &Wanted::Nothing, None, at(1), &mut drawn).is_some());
}

#[test]
fn one_that_was_replaced_is_not_seen_again_by_late_news() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("old", "m1", "5", false));
    let wanted = Wanted::Shown(static_pod("h"));
    let (id, _) = next(&mut mirrors, &wanted, at(1)).unwrap();
    mirrors.answered(id, &Ok(None), at(1));
    mirrors.seen(kept("old", "m1", "6", true));
    let (id, ask) = next(&mut mirrors, &wanted, at(1)).unwrap();
    assert!(matches!(ask, ObjectRequest::CreateMirror { .. }), "m1 is gone: {ask:?}");
    mirrors.answered(id, &Ok(Some(kept("h", "m2", "8", false))), at(1));
    mirrors.seen(kept("old", "m1", "7", true));
    assert!(!mirrors.removed(&"m1".into()));
    assert_eq!(next(&mut mirrors, &wanted, at(1)), None);
}

#[test]
fn failures_wait_are_told_once_and_end() {
    let mut mirrors = Mirrors::default();
    let wanted = Wanted::Shown(static_pod("h"));
    let (id, _) = next(&mut mirrors, &wanted, at(1)).unwrap();
    let told = mirrors.answered(id, &Err(ObjectError::OtherUid), at(1)).unwrap().1;
    assert!(told.is_some_and(|t| t.contains("another pod")));
    assert_eq!(next(&mut mirrors, &wanted, at(1)), None);
    let wake = mirrors.wake().unwrap();
    assert!((at(2)..=at(3)).contains(&wake), "{wake:?}");
    mirrors.due(wake);
    assert!(mirrors.take_touched().contains(&name()));
    let (id, _) = next(&mut mirrors, &wanted, wake).unwrap();
    assert_eq!(mirrors.answered(id, &Err(ObjectError::OtherUid), wake).unwrap().1, None, "told already");
    mirrors.seen(kept("h", "m", "9", false));
    assert_eq!(next(&mut mirrors, &wanted, wake), None);
    assert_eq!(mirrors.wake(), None, "all is well");
}

#[test]
fn a_server_that_is_back_is_asked_at_once() {
    let mut mirrors = Mirrors::default();
    let wanted = Wanted::Shown(static_pod("h"));
    for second in [1, 100, 200, 300, 400] {
        let (id, _) = next(&mut mirrors, &wanted, at(second)).unwrap();
        let away = ObjectError::Unavailable { message: "away".into(), after: None };
        mirrors.answered(id, &Err(away), at(second));
        mirrors.due(at(second + 99));
        mirrors.take_touched();
    }
    let (id, _) = next(&mut mirrors, &wanted, at(500)).unwrap();
    mirrors.answered(id, &Err(ObjectError::Unavailable { message: "away".into(), after: None }), at(500));
    assert!(mirrors.wake() > Some(at(510)));
    mirrors.store_reconnected(at(501));
    assert_eq!(mirrors.wake(), Some(at(501)));
    mirrors.due(at(501));
    assert!(mirrors.take_touched().contains(&name()) && next(&mut mirrors, &wanted, at(501)).is_some());
}

#[test]
fn one_that_was_said_to_be_gone_and_is_not_is_removed_again() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("old", "m1", "5", false));
    let wanted = Wanted::Shown(static_pod("h"));
    let mut now = at(1);
    let mut waits = vec![];
    for _ in 0..3 {
        let (id, ask) = next(&mut mirrors, &wanted, now).unwrap();
        assert!(matches!(ask, ObjectRequest::DeleteMirror { .. }), "{ask:?}");
        mirrors.answered(id, &Err(ObjectError::NotFound), now);
        let (id, ask) = next(&mut mirrors, &wanted, now).unwrap();
        assert!(matches!(ask, ObjectRequest::CreateMirror { .. }), "{ask:?}");
        mirrors.answered(id, &Err(ObjectError::OtherUid), now);
        let wake = mirrors.wake().unwrap();
        waits.push(wake - now);
        now = wake;
        mirrors.due(now);
    }
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
}

#[test]
fn an_orphan_that_was_said_to_be_gone_and_is_shown_on_is_removed_again() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("h", "m", "1", false));
    let asked = next(&mut mirrors, &Wanted::Nothing, at(1));
    assert_eq!(deletes(&asked), Some("m"));
    mirrors.answered(asked.unwrap().0, &Err(ObjectError::NotFound), at(1));
    mirrors.seen(kept("h", "m", "1", false));
    assert_eq!(next(&mut mirrors, &Wanted::Nothing, at(1)), None);
    let wake = mirrors.wake().unwrap();
    mirrors.take_touched();
    mirrors.due(wake);
    assert!(mirrors.take_touched().contains(&name()));
    let asked = next(&mut mirrors, &Wanted::Nothing, wake);
    assert_eq!(deletes(&asked), Some("m"));
    mirrors.answered(asked.unwrap().0, &Err(ObjectError::NotFound), wake);
    assert!(mirrors.removed(&"m".into()));
    assert_eq!(next(&mut mirrors, &Wanted::Nothing, wake), None);
    assert_eq!(mirrors.wake(), None, "it is gone indeed");
}

#[test]
fn a_list_is_everything() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("h", "m", "9", false));
    mirrors.take_touched();
    mirrors.set(vec![]);
    assert!(mirrors.take_touched().contains(&name()));
    assert!(matches!(
        next(&mut mirrors, &Wanted::Shown(static_pod("h")), at(1)),
        Some((_, ObjectRequest::CreateMirror { .. }))
    ));
}

#[test]
fn after_history_was_set_back_a_mirror_of_a_smaller_version_is_news() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("h", "m1", "100", false));
    mirrors.set(vec![kept("h", "m1", "50", true)]);
    assert!(deletes(&next(&mut mirrors, &Wanted::Shown(static_pod("h")), at(1))).is_none(), "old news");
    mirrors.history_reset();
    mirrors.set(vec![kept("h", "m1", "50", true)]);
    assert_eq!(deletes(&next(&mut mirrors, &Wanted::Shown(static_pod("h")), at(1))), Some("m1"));
}

#[test]
fn a_mirror_that_was_made_is_there_whatever_the_version_of_the_one_before() {
    let mut mirrors = Mirrors::default();
    mirrors.seen(kept("old", "m1", "100", false));
    let wanted = Wanted::Shown(static_pod("h"));
    let (id, _) = next(&mut mirrors, &wanted, at(1)).unwrap();
    mirrors.answered(id, &Ok(None), at(1));
    let (id, ask) = next(&mut mirrors, &wanted, at(1)).unwrap();
    assert!(matches!(ask, ObjectRequest::CreateMirror { .. }));
    mirrors.answered(id, &Ok(Some(kept("h", "m2", "50", false))), at(1));
    assert!(next(&mut mirrors, &wanted, at(1)).is_none(), "it is there");
}
