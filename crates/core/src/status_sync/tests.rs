use std::time::Duration;

use serde_json::{Value, json};

use super::*;

const POD: &str = "u";

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn name() -> FullName {
    FullName { namespace: "default".into(), name: "p".into() }
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn phase(phase: &str) -> PodStatus {
    status(json!({"phase": phase}))
}

fn object(uid: &str, version: &str, deleting: bool, status: &PodStatus) -> Pod {
    let mut value = json!({"metadata": {"uid": uid, "name": "p", "resourceVersion": version}});
    if deleting {
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    pod.status = Some(status.clone());
    pod
}

/// A pod whose object is known.
struct Fixture {
    sync: StatusSync,
    last_id: u64,
    finished: bool,
}

impl Fixture {
    fn new(stored: &PodStatus) -> Self {
        let mut fixture = Self { sync: StatusSync::default(), last_id: 0, finished: false };
        fixture.watch("5", false, stored);
        fixture
    }

    fn watch(&mut self, version: &str, deleting: bool, stored: &PodStatus) {
        self.sync.observe(&POD.into(), Source::Api, &object(POD, version, deleting, stored), false);
    }

    fn next(&mut self, local: &PodStatus, now: Time) -> Option<(RequestId, ObjectRequest)> {
        let local = LocalStatus { full_name: &name(), spec: None, status: local, finished: self.finished };
        self.sync.next_request(&POD.into(), local, now, &mut self.last_id).map(|(_, id, request)| (id, request))
    }

    /// What is patched now, from which phase to which.
    fn patched(&mut self, local: &PodStatus, now: Time) -> Option<(RequestId, String, String, bool)> {
        match self.next(local, now)? {
            (id, ObjectRequest::PatchStatus { base, status, urgent, .. }) => {
                Some((id, base.phase.clone().unwrap_or_default(), status.phase.clone().unwrap_or_default(), urgent))
            }
            (_, other) => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, id: RequestId, result: ObjectResult, now: Time) -> Option<String> {
        self.sync.on_response(id, &result, now).expect("the request is in flight").warning
    }

    fn accept(&mut self, id: RequestId, version: &str, stored: &PodStatus) {
        let deleting = self.sync.objects[POD].last_seen.deleting;
        assert_eq!(self.answer(id, Ok(Some(Arc::new(object(POD, version, deleting, stored)))), at(1)), None);
    }
}

fn unavailable(after: Option<u64>) -> ObjectResult {
    Err(ObjectError::Unavailable { message: "away".into(), after: after.map(Duration::from_secs) })
}

#[test]
fn one_request_is_in_flight_and_the_newest_status_wins() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, from, to, _) = fixture.patched(&phase("Running"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("Pending", "Running"));
    assert_eq!(fixture.next(&phase("Failed"), at(1)), None, "one is in flight");
    fixture.accept(id, "6", &phase("Running"));
    let (id, from, to, urgent) = fixture.patched(&phase("Failed"), at(1)).unwrap();
    assert_eq!(
        (from.as_str(), to.as_str(), urgent),
        ("Running", "Failed", true),
        "the base is the response, before the watch shows it"
    );
    fixture.accept(id, "7", &phase("Failed"));
    assert_eq!(fixture.next(&phase("Failed"), at(1)), None, "nothing differs");
}

#[test]
fn the_mirror_of_a_static_pod_that_runs_again_shows_so_and_an_object_stays_terminal() {
    for (is_mirror, phase_sent) in [(true, Some("Running")), (false, None)] {
        let mut fixture = Fixture { sync: StatusSync::default(), last_id: 0, finished: false };
        fixture.sync.observe(&POD.into(), Source::Api, &object(POD, "5", false, &phase("Failed")), is_mirror);
        let sent = fixture.patched(&phase("Running"), at(1)).map(|(_, _, to, _)| to);
        assert_eq!(sent.as_deref(), phase_sent, "is_mirror: {is_mirror}");
        assert_eq!(fixture.sync.is_idle(), phase_sent.is_none(), "a status that is being sent is awaited");
    }
}

#[test]
fn an_older_resource_version_is_no_base_and_a_newer_one_is() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    fixture.accept(id, "10", &phase("Running"));
    fixture.watch("9", false, &phase("Pending"));
    assert_eq!(fixture.next(&phase("Running"), at(1)), None, "the watch is behind");
    fixture.watch("11", false, &phase("Pending"));
    assert!(fixture.patched(&phase("Running"), at(1)).is_some(), "another component changed our field");
}

#[test]
fn a_field_that_the_store_drops_is_not_sent_forever() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let local = status(json!({"phase": "Running", "observedGeneration": 3}));
    let (id, ..) = fixture.patched(&local, at(1)).unwrap();
    // A server that does not know the field drops it.
    fixture.accept(id, "6", &phase("Running"));
    let (id, ..) = fixture.patched(&local, at(1)).expect("the base may have been old: once more");
    fixture.accept(id, "6", &phase("Running"));
    assert_eq!(fixture.next(&local, at(1)), None);
    fixture.watch("6", false, &phase("Running"));
    assert_eq!(fixture.next(&local, at(20)), None, "the watch event of our own patch changes nothing");
    let local = status(json!({"phase": "Failed", "observedGeneration": 3}));
    let (id, ..) = fixture.patched(&local, at(20)).unwrap();
    fixture.accept(id, "7", &phase("Failed"));
    assert_eq!(fixture.next(&local, at(20)), None, "the dropped field is known");
}

#[test]
fn a_patch_from_a_stale_base_is_corrected_by_the_next() {
    let mut fixture = Fixture::new(&phase("Running"));
    // The list was old: the object has got a reason since, which is not in the base of this patch.
    let local = status(json!({"phase": "Running", "message": "m"}));
    let (id, ..) = fixture.patched(&local, at(1)).unwrap();
    fixture.accept(id, "9", &status(json!({"phase": "Running", "message": "m", "reason": "stale"})));
    let (_, request) = fixture.next(&local, at(1)).unwrap();
    assert!(matches!(request, ObjectRequest::PatchStatus { base, .. } if base.reason.is_some()));
}

#[test]
fn readiness_and_terminal_phases_are_urgent() {
    let ready = |ready: &str| status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}));
    let cases = [
        (phase("Pending"), phase("Running"), false),
        (ready("False"), ready("True"), true),
        (ready("True"), ready("False"), true),
        (
            ready("True"),
            status(json!({"phase": "Running", "reason": "x", "conditions": [{"type": "Ready", "status": "True"}]})),
            false,
        ),
        (phase("Running"), phase("Succeeded"), true),
    ];
    for (stored, local, wanted) in cases {
        assert_eq!(Fixture::new(&stored).patched(&local, at(1)).map(|p| p.3), Some(wanted), "{stored:?} {local:?}");
    }
}

#[test]
fn a_failed_request_is_retried_with_the_newest_status() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    fixture.answer(id, unavailable(None), at(1));
    assert_eq!(fixture.next(&phase("Running"), at(1)), None, "not at once");
    let wake = fixture.sync.wake().unwrap();
    assert!(wake <= at(2), "soon: {wake:?}");
    assert_eq!(fixture.sync.due(at(2)), [PodUid::from(POD)]);
    let (id, ..) = fixture.patched(&phase("Failed"), at(2)).unwrap();
    fixture.answer(id, unavailable(Some(30)), at(2));
    assert_eq!(fixture.next(&phase("Failed"), at(31)), None, "Retry-After is 30 s");
    for _ in 0..20 {
        let (id, ..) = fixture.patched(&phase("Failed"), at(500)).unwrap();
        fixture.answer(id, unavailable(None), at(480));
    }
    assert!(fixture.patched(&phase("Failed"), at(500)).is_some(), "the wait is capped");
}

#[test]
fn a_refused_status_is_reported_once_and_a_new_one_is_sent_at_once() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    let refused = || Err(ObjectError::Refused("no".into()));
    assert!(fixture.answer(id, refused(), at(1)).is_some_and(|warning| warning.contains("no")));
    assert_eq!(fixture.next(&phase("Running"), at(30)), None);
    let (id, ..) = fixture.patched(&phase("Failed"), at(30)).unwrap();
    assert_eq!(fixture.answer(id, refused(), at(30)), None, "reported already");
    assert!(fixture.patched(&phase("Failed"), at(91)).is_some());
}

#[test]
fn an_object_that_was_not_found_gets_no_patch_until_the_watch_or_a_comparison() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    fixture.answer(id, Err(ObjectError::NotFound), at(1));
    assert_eq!(fixture.next(&phase("Failed"), at(100)), None);
    fixture.sync.due(at(100));
    let (id, ..) = fixture.patched(&phase("Running"), at(100)).expect("its source still has it");
    fixture.answer(id, Err(ObjectError::NotFound), at(100));
    fixture.watch("6", false, &phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(100)).unwrap();
    fixture.answer(id, Err(ObjectError::OtherUid), at(100));
    fixture.watch("7", false, &phase("Pending"));
    assert_eq!(fixture.next(&phase("Running"), at(200)), None, "another object has this name");
}

#[test]
fn a_mirror_created_again_gets_a_full_patch_and_a_response_for_the_old_one_is_ignored() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (old, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    fixture.sync.observe(&POD.into(), Source::Api, &object("m2", "1", false, &PodStatus::default()), true);
    let (_, from, to, _) = fixture.patched(&phase("Running"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("", "Running"));
    assert_eq!(fixture.sync.on_response(old, &Ok(None), at(1)), None);
}

#[test]
fn an_object_is_deleted_only_after_its_pod_finished_and_the_store_has_the_terminal_phase() {
    // deleted, finished, phase in the store, our phase
    let cases = [
        ("running", true, false, "Running", "Running", false),
        ("not finished", true, false, "Failed", "Failed", false),
        ("not deleted", false, true, "Failed", "Failed", false),
        ("its end is not known yet", true, true, "Running", "Failed", false),
        ("all is over, and there was nothing to patch", true, true, "Failed", "Failed", true),
    ];
    for (what, deleted, finished, stored, local, wanted) in cases {
        let mut fixture = Fixture::new(&phase("Pending"));
        fixture.watch("6", deleted, &phase(stored));
        fixture.finished = finished;
        let request = fixture.next(&phase(local), at(1));
        assert_eq!(matches!(request, Some((_, ObjectRequest::Delete { .. }))), wanted, "{what}: {request:?}");
    }
}

#[test]
fn an_answer_from_before_the_deletion_does_not_take_it_back() {
    let mut fixture = Fixture::new(&phase("Pending"));
    let (id, ..) = fixture.patched(&phase("Running"), at(1)).unwrap();
    // A store without versions: what comes last is believed.
    fixture.watch("", true, &phase("Running"));
    let before = Arc::new(object(POD, "", false, &phase("Running")));
    assert_eq!(fixture.answer(id, Ok(Some(before)), at(1)), None);
    fixture.finished = true;
    let (id, ..) = fixture.patched(&phase("Failed"), at(2)).unwrap();
    fixture.accept(id, "", &phase("Failed"));
    assert!(matches!(fixture.next(&phase("Failed"), at(2)), Some((_, ObjectRequest::Delete { .. }))));
}

#[test]
fn the_last_patch_comes_before_the_delete_and_a_failed_delete_is_tried_again() {
    let mut fixture = Fixture::new(&phase("Running"));
    fixture.watch("6", true, &phase("Running"));
    fixture.finished = true;
    let (id, _, to, urgent) = fixture.patched(&phase("Succeeded"), at(1)).unwrap();
    assert_eq!((to.as_str(), urgent), ("Succeeded", true));
    fixture.accept(id, "7", &phase("Succeeded"));
    let (id, request) = fixture.next(&phase("Succeeded"), at(1)).unwrap();
    assert!(matches!(request, ObjectRequest::Delete { object } if object.uid.as_str() == POD));
    fixture.answer(id, unavailable(None), at(1));
    let (id, request) = fixture.next(&phase("Succeeded"), at(10)).unwrap();
    assert!(matches!(request, ObjectRequest::Delete { .. }));
    fixture.answer(id, Err(ObjectError::NotFound), at(10));
    assert_eq!(fixture.next(&phase("Succeeded"), at(10)), None, "the watch will show its deletion");
    fixture.sync.due(at(20));
    let (id, request) = fixture.next(&phase("Succeeded"), at(20)).expect("the watch has not shown its deletion");
    assert!(matches!(request, ObjectRequest::Delete { .. }));
    fixture.answer(id, Ok(None), at(20));
    assert_eq!(fixture.next(&phase("Succeeded"), at(100)), None, "done");
}

#[test]
fn a_refused_delete_is_reported_once_and_retried_after_a_minute() {
    let mut fixture = Fixture::new(&phase("Failed"));
    fixture.watch("6", true, &phase("Failed"));
    fixture.finished = true;
    let refused = || Err(ObjectError::Refused("no".into()));
    let (id, _) = fixture.next(&phase("Failed"), at(1)).unwrap();
    assert!(fixture.answer(id, refused(), at(1)).is_some());
    assert_eq!(fixture.next(&phase("Failed"), at(30)), None);
    let (id, _) = fixture.next(&phase("Failed"), at(61)).unwrap();
    assert_eq!(fixture.answer(id, refused(), at(61)), None);
}

#[test]
fn a_mirror_is_never_deleted_when_its_pod_finishes() {
    let mut fixture = Fixture::new(&phase("Pending"));
    fixture.sync.observe(&POD.into(), Source::Api, &object("m", "6", true, &phase("Failed")), true);
    fixture.finished = true;
    assert_eq!(fixture.next(&phase("Failed"), at(1)), None);
}

#[test]
fn all_objects_are_compared_every_ten_seconds() {
    let mut fixture = Fixture::new(&phase("Running"));
    assert_eq!(fixture.sync.due(at(100)), [PodUid::from(POD)]);
    assert_eq!(fixture.sync.wake(), Some(at(110)));
    assert!(fixture.sync.due(at(109)).is_empty());
    assert_eq!(fixture.sync.due(at(110)), [PodUid::from(POD)]);
    fixture.sync.forget(&POD.into());
    assert_eq!(fixture.sync.wake(), None, "there are no objects to compare");
}

#[test]
fn ordinary_updates_are_limited_and_go_along_with_urgent_ones() {
    let (mut sync, mut last_id) = (StatusSync::default(), 0);
    let ready = |ready: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
    let (plain, not_ready, ready) = (phase("Running"), status(ready("False")), status(ready("True")));
    let pods: Vec<PodUid> = (10..40).map(|n| PodUid::from(format!("u{n}").as_str())).collect();
    let mut sync_pod = |sync: &mut StatusSync, pod: &PodUid, status: &PodStatus, now| {
        let local = LocalStatus { full_name: &name(), spec: None, status, finished: false };
        let (_, id, _) = sync.next_request(pod, local, now, &mut last_id)?;
        let stored = Arc::new(object(pod.as_str(), "9", false, status));
        sync.on_response(id, &Ok(Some(stored)), now).map(|answered| answered.uid)
    };
    sync.compare_at = at(100);
    for pod in &pods {
        sync.observe(pod, Source::Api, &object(pod.as_str(), "5", false, &plain), false);
    }
    assert_eq!(pods.iter().filter(|pod| sync_pod(&mut sync, pod, &not_ready, at(1)).is_some()).count(), 10);
    assert_eq!(sync_pod(&mut sync, &pods[20], &ready, at(1)).as_ref(), Some(&pods[20]), "urgent");
    let next = sync.wake().expect("pods wait");
    assert!(next > at(1) && next < at(2));
    assert_eq!(sync.due(next), pods[10..11]);
    assert_eq!(sync_pod(&mut sync, &pods[11], &not_ready, next), None, "no permit yet");
    assert_eq!(sync_pod(&mut sync, &pods[10], &not_ready, next).as_ref(), Some(&pods[10]));
    let mut sent = 0;
    for second in 2..8 {
        sent += sync
            .due(at(second))
            .iter()
            .filter(|pod| sync_pod(&mut sync, pod, &not_ready, at(second)).is_some())
            .count();
    }
    assert_eq!(sent, 18, "each once, and the ready one not again");
    assert_eq!(sync.wake(), Some(at(100)));
}

#[test]
fn a_reconnected_store_is_patched_at_once_except_for_a_refused_status() {
    let mut fixture = Fixture::new(&phase("Pending"));
    fixture.sync.compare_at = at(1000);
    for second in 1..5 {
        let (id, ..) = fixture.patched(&phase("Running"), at(second * 100)).unwrap();
        fixture.answer(id, unavailable(None), at(second * 100));
        fixture.sync.due(at(second * 100 + 99));
    }
    let (id, ..) = fixture.patched(&phase("Running"), at(500)).unwrap();
    fixture.answer(id, unavailable(None), at(500));
    assert!(fixture.sync.wake() > Some(at(502)), "the back-off has grown");
    fixture.sync.store_reconnected(Source::Local, at(501));
    assert!(fixture.sync.wake() > Some(at(502)), "another store");
    fixture.sync.store_reconnected(Source::Api, at(501));
    assert_eq!(fixture.sync.wake(), Some(at(501)));
    assert_eq!(fixture.sync.due(at(501)), [PodUid::from(POD)]);
    let (id, ..) = fixture.patched(&phase("Running"), at(501)).unwrap();
    assert!(fixture.answer(id, Err(ObjectError::Refused("no".into())), at(501)).is_some());
    fixture.sync.store_reconnected(Source::Api, at(502));
    assert!(fixture.sync.wake() > Some(at(510)));
}

#[test]
fn the_response_is_the_next_base_unless_the_watch_has_shown_a_newer_version() {
    // The version that the watch shows between request and response, that of the response, whether the status is sent again.
    let cases = [
        ("nothing: the response is the newest", None, "6", false),
        ("nothing: history was reset and versions are smaller", None, "2", false),
        ("an older version", Some("3"), "2", false),
        ("newer than the response", Some("7"), "6", true),
        ("older than the response", Some("6"), "7", false),
    ];
    for (what, shown, answer, again) in cases {
        let mut fixture = Fixture::new(&phase("Running"));
        let (id, ..) = fixture.patched(&phase("Failed"), at(1)).unwrap();
        if let Some(version) = shown {
            fixture.watch(version, false, &phase("Running"));
        }
        fixture.accept(id, answer, &phase("Failed"));
        assert_eq!(fixture.next(&phase("Failed"), at(1)).is_some(), again, "{what}");
    }
}

#[test]
fn after_a_history_reset_smaller_versions_count_and_deletions_are_forgotten() {
    let mut fixture = Fixture::new(&phase("Running"));
    fixture.watch("100", true, &phase("Failed"));
    fixture.sync.history_reset(Source::Local);
    fixture.watch("50", false, &phase("Running"));
    assert_eq!(fixture.next(&phase("Failed"), at(1)), None, "the history of another store was reset");
    fixture.sync.history_reset(Source::Api);
    fixture.watch("50", false, &phase("Running"));
    fixture.finished = true;
    let (id, from, to, _) = fixture.patched(&phase("Failed"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("Running", "Failed"));
    fixture.accept(id, "51", &phase("Failed"));
    assert_eq!(fixture.next(&phase("Failed"), at(1)), None, "it is not deleted in this history");
    fixture.watch("52", true, &phase("Failed"));
    assert!(matches!(fixture.next(&phase("Failed"), at(1)), Some((_, ObjectRequest::Delete { .. }))));
}

#[test]
fn urgency_of_a_patch() {
    use Urgency::{Ordinary, Started, Urgent};
    let with = |phase: &str, ip: &str, state: &str| {
        status(json!({"phase": phase, "podIP": ip, "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {state: {"startedAt": "2026-01-01T00:00:00Z"}}}]}))
    };
    let cases = [
        (with("Pending", "", "waiting"), with("Running", "10.0.0.1", "running"), Started),
        (with("Pending", "", "waiting"), with("Pending", "10.0.0.1", "waiting"), Ordinary),
        (with("Pending", "", "waiting"), with("Pending", "10.0.0.1", "running"), Started),
        (with("Running", "", "running"), with("Running", "10.0.0.1", "running"), Started),
        (with("Running", "10.0.0.1", "running"), with("Running", "10.0.0.1", "waiting"), Ordinary),
        (with("Pending", "", "waiting"), phase("Failed"), Urgent),
    ];
    for (base, status, wanted) in cases {
        assert_eq!(urgency(&base, &status), wanted, "{base:?} {status:?}");
    }
}

#[test]
fn pods_that_start_have_a_faster_limiter() {
    let (mut sync, mut last_id) = (StatusSync::default(), 0);
    let pods: Vec<PodUid> = (100..250).map(|n| PodUid::from(format!("u{n}").as_str())).collect();
    let waiting = status(json!({"phase": "Pending", "reason": "x"}));
    let mut sync_pod = |sync: &mut StatusSync, pod: &PodUid, status: &PodStatus, now| {
        let local = LocalStatus { full_name: &name(), spec: None, status, finished: false };
        let request = sync.next_request(pod, local, now, &mut last_id);
        request.map(|(_, id, _)| {
            let stored = Arc::new(object(pod.as_str(), "9", false, status));
            sync.on_response(id, &Ok(Some(stored)), now);
        })
    };
    sync.compare_at = at(100);
    for pod in &pods {
        sync.observe(pod, Source::Api, &object(pod.as_str(), "5", false, &phase("Pending")), false);
    }
    let sent = pods.iter().filter(|pod| sync_pod(&mut sync, pod, &waiting, at(1)).is_some()).count();
    assert_eq!(sent, 10, "ordinary updates are limited");
    let sent = pods.iter().filter(|pod| sync_pod(&mut sync, pod, &phase("Running"), at(1)).is_some()).count();
    assert_eq!(sent, 50, "pods that waited moved to the faster limiter");
    let mut sent = 0;
    for millis in (1000..3010).step_by(10) {
        let now = Duration::from_millis(millis);
        sent += sync.due(now).iter().filter(|pod| sync_pod(&mut sync, pod, &phase("Running"), now).is_some()).count();
    }
    assert_eq!(sent, 100, "all within two seconds, each once");
    assert_eq!(sync.wake(), Some(at(100)), "no pod waits for the other limiter");
}
