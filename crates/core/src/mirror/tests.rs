use serde_json::json;

use super::*;

const OWNER: NodeOwner<'static> = NodeOwner { name: "node", uid: "n1" };

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
fn stored(hash: &str, uid: &str, version: &str, deleting: bool) -> Arc<Pod> {
    let mut pod = build_mirror(&static_pod(hash), OWNER);
    pod.metadata.uid = Some(uid.into());
    pod.metadata.resource_version = Some(version.into());
    if deleting {
        let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        pod.metadata.deletion_timestamp = Some(time);
    }
    Arc::new(pod)
}

fn next(mirrors: &mut Mirrors, desired: &DesiredMirror, now: Time) -> Option<(RequestId, ObjectRequest)> {
    let mut last_id = mirrors.requests.keys().last().map_or(100, |id| id.0);
    mirrors.next_request(&name(), desired, Some(OWNER), now, &mut last_id)
}

fn deletes(request: &Option<(RequestId, ObjectRequest)>) -> Option<&str> {
    match request {
        Some((_, ObjectRequest::DeleteMirror { object })) => Some(object.uid.as_str()),
        _ => None,
    }
}

#[test]
fn a_mirror_copies_its_pod_and_is_owned_by_the_node() {
    let pod = static_pod("h");
    let mirror = build_mirror(&pod, OWNER);
    assert_eq!((&mirror.spec, &mirror.metadata.labels), (&pod.spec, &pod.metadata.labels));
    assert_eq!(annotation(&mirror, CONFIG_MIRROR), Some("h"));
    assert_eq!(annotation(&mirror, CONFIG_HASH), Some("h"));
    assert_eq!((mirror.metadata.uid.as_ref(), mirror.status.as_ref()), (None, None), "set by the API server");
    let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Node", "node", "n1"));
}

#[test]
fn the_existing_mirror_is_compared_with_the_desired_one() {
    let shown = || DesiredMirror::Present(static_pod("h"));
    let cases = [
        ("same hash", Some(("h", false)), shown(), None),
        ("another hash", Some(("old", false)), shown(), Some("m")),
        ("terminating", Some(("h", true)), shown(), Some("m")),
        ("its pod terminates", Some(("old", true)), DesiredMirror::Unchanged, None),
        ("its pod is gone", Some(("h", false)), DesiredMirror::Absent, Some("m")),
        ("neither exists", None, DesiredMirror::Absent, None),
    ];
    for (what, there, desired, removed) in cases {
        let mut mirrors = Mirrors::default();
        if let Some((hash, deleting)) = there {
            mirrors.observe(stored(hash, "m", "1", deleting));
        }
        let request = next(&mut mirrors, &desired, at(1));
        assert_eq!(deletes(&request), removed, "{what}: {request:?}");
        assert_eq!(request.is_some(), removed.is_some(), "{what}: {request:?}");
    }
}

#[test]
fn a_missing_mirror_is_created_once_and_known_from_the_response() {
    let mut mirrors = Mirrors::default();
    let desired = DesiredMirror::Present(static_pod("h"));
    let (id, request) = next(&mut mirrors, &desired, at(1)).unwrap();
    assert!(matches!(request, ObjectRequest::CreateMirror { .. }));
    assert_eq!(next(&mut mirrors, &desired, at(1)), None, "one is in flight");
    mirrors.on_response(id, &Ok(Some(stored("h", "m", "2", false))), at(1));
    assert_eq!(next(&mut mirrors, &desired, at(1)), None, "it exists");
    assert_eq!(mirrors.mirror_of(&static_pod("h")).and_then(|m| m.metadata.uid.as_deref()), Some("m"));
    assert!(mirrors.mirror_of(&static_pod("other")).is_none(), "another hash");
    assert_eq!(mirrors.static_pod_name(&"m".into()), Some(&name()));
}

#[test]
fn without_a_node_object_no_mirror_is_created_but_one_may_be_deleted() {
    let mut mirrors = Mirrors::default();
    let mut last_id = 0;
    assert_eq!(
        mirrors.next_request(&name(), &DesiredMirror::Present(static_pod("h")), None, at(1), &mut last_id),
        None
    );
    mirrors.observe(stored("h", "m", "1", false));
    assert!(mirrors.next_request(&name(), &DesiredMirror::Absent, None, at(1), &mut last_id).is_some());
}

#[test]
fn a_replaced_mirror_does_not_reappear_by_a_late_event() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("old", "m1", "5", false));
    let desired = DesiredMirror::Present(static_pod("h"));
    let (id, _) = next(&mut mirrors, &desired, at(1)).unwrap();
    mirrors.on_response(id, &Ok(None), at(1));
    mirrors.observe(stored("old", "m1", "6", true));
    let (id, request) = next(&mut mirrors, &desired, at(1)).unwrap();
    assert!(matches!(request, ObjectRequest::CreateMirror { .. }), "m1 is gone: {request:?}");
    mirrors.on_response(id, &Ok(Some(stored("h", "m2", "8", false))), at(1));
    mirrors.observe(stored("old", "m1", "7", true));
    assert!(!mirrors.remove(&"m1".into()));
    assert_eq!(next(&mut mirrors, &desired, at(1)), None);
}

#[test]
fn a_failure_is_retried_with_backoff_and_reported_once() {
    let mut mirrors = Mirrors::default();
    let desired = DesiredMirror::Present(static_pod("h"));
    let (id, _) = next(&mut mirrors, &desired, at(1)).unwrap();
    let warning = mirrors.on_response(id, &Err(ObjectError::OtherUid), at(1)).unwrap().1;
    assert!(warning.is_some_and(|t| t.contains("another pod")));
    assert_eq!(next(&mut mirrors, &desired, at(1)), None);
    let wake = mirrors.wake().unwrap();
    assert!((at(2)..=at(3)).contains(&wake), "{wake:?}");
    mirrors.due(wake);
    assert!(mirrors.take_dirty().contains(&name()));
    let (id, _) = next(&mut mirrors, &desired, wake).unwrap();
    assert_eq!(mirrors.on_response(id, &Err(ObjectError::OtherUid), wake).unwrap().1, None, "reported already");
    mirrors.observe(stored("h", "m", "9", false));
    assert_eq!(next(&mut mirrors, &desired, wake), None);
    assert_eq!(mirrors.wake(), None, "nothing to retry");
}

#[test]
fn a_reconnected_api_server_gets_the_request_at_once() {
    let mut mirrors = Mirrors::default();
    let desired = DesiredMirror::Present(static_pod("h"));
    for second in [1, 100, 200, 300, 400] {
        let (id, _) = next(&mut mirrors, &desired, at(second)).unwrap();
        let away = ObjectError::Unavailable { message: "away".into(), after: None };
        mirrors.on_response(id, &Err(away), at(second));
        mirrors.due(at(second + 99));
        mirrors.take_dirty();
    }
    let (id, _) = next(&mut mirrors, &desired, at(500)).unwrap();
    mirrors.on_response(id, &Err(ObjectError::Unavailable { message: "away".into(), after: None }), at(500));
    assert!(mirrors.wake() > Some(at(510)));
    mirrors.store_reconnected(at(501));
    assert_eq!(mirrors.wake(), Some(at(501)));
    mirrors.due(at(501));
    assert!(mirrors.take_dirty().contains(&name()) && next(&mut mirrors, &desired, at(501)).is_some());
}

#[test]
fn a_mirror_that_exists_despite_not_found_is_deleted_again() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("old", "m1", "5", false));
    let desired = DesiredMirror::Present(static_pod("h"));
    let mut now = at(1);
    let mut waits = vec![];
    for _ in 0..3 {
        let (id, request) = next(&mut mirrors, &desired, now).unwrap();
        assert!(matches!(request, ObjectRequest::DeleteMirror { .. }), "{request:?}");
        mirrors.on_response(id, &Err(ObjectError::NotFound), now);
        let (id, request) = next(&mut mirrors, &desired, now).unwrap();
        assert!(matches!(request, ObjectRequest::CreateMirror { .. }), "{request:?}");
        mirrors.on_response(id, &Err(ObjectError::OtherUid), now);
        let wake = mirrors.wake().unwrap();
        waits.push(wake - now);
        now = wake;
        mirrors.due(now);
    }
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
}

#[test]
fn an_orphan_that_is_still_shown_after_not_found_is_deleted_again() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("h", "m", "1", false));
    let request = next(&mut mirrors, &DesiredMirror::Absent, at(1));
    assert_eq!(deletes(&request), Some("m"));
    mirrors.on_response(request.unwrap().0, &Err(ObjectError::NotFound), at(1));
    mirrors.observe(stored("h", "m", "1", false));
    assert_eq!(next(&mut mirrors, &DesiredMirror::Absent, at(1)), None);
    let wake = mirrors.wake().unwrap();
    mirrors.take_dirty();
    mirrors.due(wake);
    assert!(mirrors.take_dirty().contains(&name()));
    let request = next(&mut mirrors, &DesiredMirror::Absent, wake);
    assert_eq!(deletes(&request), Some("m"));
    mirrors.on_response(request.unwrap().0, &Err(ObjectError::NotFound), wake);
    assert!(mirrors.remove(&"m".into()));
    assert_eq!(next(&mut mirrors, &DesiredMirror::Absent, wake), None);
    assert_eq!(mirrors.wake(), None, "it is gone");
}

#[test]
fn a_list_replaces_all_mirrors() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("h", "m", "9", false));
    mirrors.take_dirty();
    mirrors.set(vec![]);
    assert!(mirrors.take_dirty().contains(&name()));
    assert!(matches!(
        next(&mut mirrors, &DesiredMirror::Present(static_pod("h")), at(1)),
        Some((_, ObjectRequest::CreateMirror { .. }))
    ));
}

#[test]
fn after_a_history_reset_a_mirror_of_a_smaller_version_counts() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("h", "m1", "100", false));
    mirrors.set(vec![stored("h", "m1", "50", true)]);
    assert!(
        deletes(&next(&mut mirrors, &DesiredMirror::Present(static_pod("h")), at(1))).is_none(),
        "an older version"
    );
    mirrors.history_reset();
    mirrors.set(vec![stored("h", "m1", "50", true)]);
    assert_eq!(deletes(&next(&mut mirrors, &DesiredMirror::Present(static_pod("h")), at(1))), Some("m1"));
}

#[test]
fn a_created_mirror_counts_regardless_of_the_version_of_its_predecessor() {
    let mut mirrors = Mirrors::default();
    mirrors.observe(stored("old", "m1", "100", false));
    let desired = DesiredMirror::Present(static_pod("h"));
    let (id, _) = next(&mut mirrors, &desired, at(1)).unwrap();
    mirrors.on_response(id, &Ok(None), at(1));
    let (id, request) = next(&mut mirrors, &desired, at(1)).unwrap();
    assert!(matches!(request, ObjectRequest::CreateMirror { .. }));
    mirrors.on_response(id, &Ok(Some(stored("h", "m2", "50", false))), at(1));
    assert!(next(&mut mirrors, &desired, at(1)).is_none(), "it exists");
}
