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
struct Lab {
    sync: StatusSync,
    drawn: u64,
    finished: bool,
}

impl Lab {
    fn new(kept: &PodStatus) -> Self {
        let mut lab = Self { sync: StatusSync::default(), drawn: 0, finished: false };
        lab.watch("5", false, kept);
        lab
    }

    fn watch(&mut self, version: &str, deleting: bool, kept: &PodStatus) {
        self.sync.seen(&POD.into(), Source::Api, &object(POD, version, deleting, kept), false);
    }

    fn next(&mut self, ours: &PodStatus, now: Time) -> Option<(RequestId, ObjectRequest)> {
        let ours = Ours { full_name: &name(), spec: None, status: ours, finished: self.finished };
        self.sync.next(&POD.into(), ours, now, &mut self.drawn).map(|(_, id, ask)| (id, ask))
    }

    /// What is patched now, from which phase to which.
    fn patched(&mut self, ours: &PodStatus, now: Time) -> Option<(RequestId, String, String, bool)> {
        match self.next(ours, now)? {
            (id, ObjectRequest::PatchStatus { base, status, urgent, .. }) => {
                Some((id, base.phase.clone().unwrap_or_default(), status.phase.clone().unwrap_or_default(), urgent))
            }
            (_, other) => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, id: RequestId, result: ObjectResult, now: Time) -> Option<String> {
        self.sync.answered(id, &result, now).expect("it was asked").told
    }

    fn taken(&mut self, id: RequestId, version: &str, kept: &PodStatus) {
        let deleting = self.sync.objects[POD].kept.deleting;
        assert_eq!(self.answer(id, Ok(Some(Arc::new(object(POD, version, deleting, kept)))), at(1)), None);
    }
}

fn unavailable(after: Option<u64>) -> ObjectResult {
    Err(ObjectError::Unavailable { message: "away".into(), after: after.map(Duration::from_secs) })
}

#[test]
fn one_ask_at_a_time_and_the_newest_wins() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, from, to, _) = lab.patched(&phase("Running"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("Pending", "Running"));
    assert_eq!(lab.next(&phase("Failed"), at(1)), None, "one is under way");
    lab.taken(id, "6", &phase("Running"));
    let (id, from, to, urgent) = lab.patched(&phase("Failed"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str(), urgent), ("Running", "Failed", true), "from the answer, without a look");
    lab.taken(id, "7", &phase("Failed"));
    assert_eq!(lab.next(&phase("Failed"), at(1)), None, "nothing differs");
}

#[test]
fn old_news_is_no_base_and_news_is() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    lab.taken(id, "10", &phase("Running"));
    lab.watch("9", false, &phase("Pending"));
    assert_eq!(lab.next(&phase("Running"), at(1)), None, "the watch is behind");
    lab.watch("11", false, &phase("Pending"));
    assert!(lab.patched(&phase("Running"), at(1)).is_some(), "somebody changed what is ours");
}

#[test]
fn what_a_keeper_makes_of_a_status_is_taken_for_what_it_is() {
    let mut lab = Lab::new(&phase("Pending"));
    let ours = status(json!({"phase": "Running", "observedGeneration": 3}));
    let (id, ..) = lab.patched(&ours, at(1)).unwrap();
    // A server that does not know the field drops it.
    lab.taken(id, "6", &phase("Running"));
    let (id, ..) = lab.patched(&ours, at(1)).expect("the base may have been old: once more");
    lab.taken(id, "6", &phase("Running"));
    assert_eq!(lab.next(&ours, at(1)), None);
    lab.watch("6", false, &phase("Running"));
    assert_eq!(lab.next(&ours, at(20)), None, "its own echo is nothing new");
    let ours = status(json!({"phase": "Failed", "observedGeneration": 3}));
    let (id, ..) = lab.patched(&ours, at(20)).unwrap();
    lab.taken(id, "7", &phase("Failed"));
    assert_eq!(lab.next(&ours, at(20)), None, "what it does not take is known by now");
}

#[test]
fn a_patch_made_from_old_news_is_mended_by_the_next() {
    let mut lab = Lab::new(&phase("Running"));
    // The list was old: the object has got a reason since, of which this patch knows nothing.
    let ours = status(json!({"phase": "Running", "message": "m"}));
    let (id, ..) = lab.patched(&ours, at(1)).unwrap();
    lab.taken(id, "9", &status(json!({"phase": "Running", "message": "m", "reason": "stale"})));
    let (_, ask) = lab.next(&ours, at(1)).unwrap();
    assert!(matches!(ask, ObjectRequest::PatchStatus { base, .. } if base.reason.is_some()));
}

#[test]
fn readiness_and_ends_are_urgent() {
    let ready = |word: &str| status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": word}]}));
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
    for (kept, ours, wanted) in cases {
        assert_eq!(Lab::new(&kept).patched(&ours, at(1)).map(|p| p.3), Some(wanted), "{kept:?} {ours:?}");
    }
}

#[test]
fn what_failed_is_tried_again_and_nothing_is_lost() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    lab.answer(id, unavailable(None), at(1));
    assert_eq!(lab.next(&phase("Running"), at(1)), None, "not at once");
    let wake = lab.sync.wake().unwrap();
    assert!(wake <= at(2), "soon: {wake:?}");
    assert_eq!(lab.sync.due(at(2)), [PodUid::from(POD)]);
    let (id, ..) = lab.patched(&phase("Failed"), at(2)).unwrap();
    lab.answer(id, unavailable(Some(30)), at(2));
    assert_eq!(lab.next(&phase("Failed"), at(31)), None, "it asked for half a minute");
    for _ in 0..20 {
        let (id, ..) = lab.patched(&phase("Failed"), at(500)).unwrap();
        lab.answer(id, unavailable(None), at(480));
    }
    assert!(lab.patched(&phase("Failed"), at(500)).is_some(), "the wait is capped");
}

#[test]
fn a_refused_status_is_told_once_and_another_one_is_said_at_once() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    let refused = || Err(ObjectError::Refused("no".into()));
    assert!(lab.answer(id, refused(), at(1)).is_some_and(|told| told.contains("no")));
    assert_eq!(lab.next(&phase("Running"), at(30)), None);
    let (id, ..) = lab.patched(&phase("Failed"), at(30)).unwrap();
    assert_eq!(lab.answer(id, refused(), at(30)), None, "people have heard it");
    assert!(lab.patched(&phase("Failed"), at(91)).is_some());
}

#[test]
fn an_object_that_is_not_there_hears_nothing_until_its_source_says_more_or_all_are_compared() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    lab.answer(id, Err(ObjectError::NotFound), at(1));
    assert_eq!(lab.next(&phase("Failed"), at(100)), None);
    lab.sync.due(at(100));
    let (id, ..) = lab.patched(&phase("Running"), at(100)).expect("its source still has it");
    lab.answer(id, Err(ObjectError::NotFound), at(100));
    lab.watch("6", false, &phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(100)).unwrap();
    lab.answer(id, Err(ObjectError::OtherUid), at(100));
    lab.watch("7", false, &phase("Pending"));
    assert_eq!(lab.next(&phase("Running"), at(200)), None, "the name is another's");
}

#[test]
fn a_mirror_made_anew_gets_everything_and_an_answer_for_the_old_one_is_nothing() {
    let mut lab = Lab::new(&phase("Pending"));
    let (old, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    lab.sync.seen(&POD.into(), Source::Api, &object("m2", "1", false, &PodStatus::default()), true);
    let (_, from, to, _) = lab.patched(&phase("Running"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("", "Running"));
    assert_eq!(lab.sync.answered(old, &Ok(None), at(1)), None);
}

#[test]
fn an_object_goes_only_when_all_is_over_and_known() {
    // deleted, finished, what the store knows, what we know
    let cases = [
        ("running", true, false, "Running", "Running", false),
        ("not finished", true, false, "Failed", "Failed", false),
        ("not deleted", false, true, "Failed", "Failed", false),
        ("its end is not known yet", true, true, "Running", "Failed", false),
        ("all is over, and there was nothing to patch", true, true, "Failed", "Failed", true),
    ];
    for (what, deleted, finished, kept, ours, wanted) in cases {
        let mut lab = Lab::new(&phase("Pending"));
        lab.watch("6", deleted, &phase(kept));
        lab.finished = finished;
        let asked = lab.next(&phase(ours), at(1));
        assert_eq!(matches!(asked, Some((_, ObjectRequest::Delete { .. }))), wanted, "{what}: {asked:?}");
    }
}

#[test]
fn an_answer_from_before_the_deletion_does_not_take_it_back() {
    let mut lab = Lab::new(&phase("Pending"));
    let (id, ..) = lab.patched(&phase("Running"), at(1)).unwrap();
    // A store without versions: what comes last is believed.
    lab.watch("", true, &phase("Running"));
    let before = Arc::new(object(POD, "", false, &phase("Running")));
    assert_eq!(lab.answer(id, Ok(Some(before)), at(1)), None);
    lab.finished = true;
    let (id, ..) = lab.patched(&phase("Failed"), at(2)).unwrap();
    lab.taken(id, "", &phase("Failed"));
    assert!(matches!(lab.next(&phase("Failed"), at(2)), Some((_, ObjectRequest::Delete { .. }))));
}

#[test]
fn the_last_patch_comes_before_the_delete_and_a_failed_delete_is_tried_again() {
    let mut lab = Lab::new(&phase("Running"));
    lab.watch("6", true, &phase("Running"));
    lab.finished = true;
    let (id, _, to, urgent) = lab.patched(&phase("Succeeded"), at(1)).unwrap();
    assert_eq!((to.as_str(), urgent), ("Succeeded", true));
    lab.taken(id, "7", &phase("Succeeded"));
    let (id, ask) = lab.next(&phase("Succeeded"), at(1)).unwrap();
    assert!(matches!(ask, ObjectRequest::Delete { object } if object.uid.as_str() == POD));
    lab.answer(id, unavailable(None), at(1));
    let (id, ask) = lab.next(&phase("Succeeded"), at(10)).unwrap();
    assert!(matches!(ask, ObjectRequest::Delete { .. }));
    lab.answer(id, Err(ObjectError::NotFound), at(10));
    assert_eq!(lab.next(&phase("Succeeded"), at(10)), None, "its source says when it is gone");
    lab.sync.due(at(20));
    let (id, ask) = lab.next(&phase("Succeeded"), at(20)).expect("it has not said so");
    assert!(matches!(ask, ObjectRequest::Delete { .. }));
    lab.answer(id, Ok(None), at(20));
    assert_eq!(lab.next(&phase("Succeeded"), at(100)), None, "done");
}

#[test]
fn a_refused_delete_is_told_once_and_tried_again_late() {
    let mut lab = Lab::new(&phase("Failed"));
    lab.watch("6", true, &phase("Failed"));
    lab.finished = true;
    let refused = || Err(ObjectError::Refused("no".into()));
    let (id, _) = lab.next(&phase("Failed"), at(1)).unwrap();
    assert!(lab.answer(id, refused(), at(1)).is_some());
    assert_eq!(lab.next(&phase("Failed"), at(30)), None);
    let (id, _) = lab.next(&phase("Failed"), at(61)).unwrap();
    assert_eq!(lab.answer(id, refused(), at(61)), None);
}

#[test]
fn a_mirror_is_never_deleted_as_a_pod_is() {
    let mut lab = Lab::new(&phase("Pending"));
    lab.sync.seen(&POD.into(), Source::Api, &object("m", "6", true, &phase("Failed")), true);
    lab.finished = true;
    assert_eq!(lab.next(&phase("Failed"), at(1)), None);
}

#[test]
fn everything_is_compared_every_ten_seconds() {
    let mut lab = Lab::new(&phase("Running"));
    assert_eq!(lab.sync.due(at(100)), [PodUid::from(POD)]);
    assert_eq!(lab.sync.wake(), Some(at(110)));
    assert!(lab.sync.due(at(109)).is_empty());
    assert_eq!(lab.sync.due(at(110)), [PodUid::from(POD)]);
    lab.sync.forget(&POD.into());
    assert_eq!(lab.sync.wake(), None, "without objects nothing is compared");
}

#[test]
fn in_a_crowd_ordinary_news_waits_and_goes_with_what_can_not() {
    let (mut sync, mut drawn) = (StatusSync::default(), 0);
    let ready = |word: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": word}]});
    let (plain, not_ready, ready) = (phase("Running"), status(ready("False")), status(ready("True")));
    let pods: Vec<PodUid> = (10..40).map(|n| PodUid::from(format!("u{n}").as_str())).collect();
    let mut tell = |sync: &mut StatusSync, pod: &PodUid, status: &PodStatus, now| {
        let ours = Ours { full_name: &name(), spec: None, status, finished: false };
        let (_, id, _) = sync.next(pod, ours, now, &mut drawn)?;
        let kept = Arc::new(object(pod.as_str(), "9", false, status));
        sync.answered(id, &Ok(Some(kept)), now).map(|answered| answered.uid)
    };
    sync.compare_at = at(100);
    for pod in &pods {
        sync.seen(pod, Source::Api, &object(pod.as_str(), "5", false, &plain), false);
    }
    assert_eq!(pods.iter().filter(|pod| tell(&mut sync, pod, &not_ready, at(1)).is_some()).count(), 10);
    assert_eq!(tell(&mut sync, &pods[20], &ready, at(1)).as_ref(), Some(&pods[20]), "others wait for this");
    let turn = sync.wake().expect("many wait");
    assert!(turn > at(1) && turn < at(2));
    assert_eq!(sync.due(turn), pods[10..11]);
    assert_eq!(tell(&mut sync, &pods[11], &not_ready, turn), None, "it is not its turn");
    assert_eq!(tell(&mut sync, &pods[10], &not_ready, turn).as_ref(), Some(&pods[10]));
    let mut told = 0;
    for second in 2..8 {
        told +=
            sync.due(at(second)).iter().filter(|pod| tell(&mut sync, pod, &not_ready, at(second)).is_some()).count();
    }
    assert_eq!(told, 18, "each once, and the one that was ready not again");
    assert_eq!(sync.wake(), Some(at(100)));
}

#[test]
fn a_keeper_that_is_back_is_told_at_once_but_not_what_it_refused() {
    let mut lab = Lab::new(&phase("Pending"));
    lab.sync.compare_at = at(1000);
    for second in 1..5 {
        let (id, ..) = lab.patched(&phase("Running"), at(second * 100)).unwrap();
        lab.answer(id, unavailable(None), at(second * 100));
        lab.sync.due(at(second * 100 + 99));
    }
    let (id, ..) = lab.patched(&phase("Running"), at(500)).unwrap();
    lab.answer(id, unavailable(None), at(500));
    assert!(lab.sync.wake() > Some(at(502)), "it has been away for long");
    lab.sync.store_reconnected(Source::Local, at(501));
    assert!(lab.sync.wake() > Some(at(502)), "that is another");
    lab.sync.store_reconnected(Source::Api, at(501));
    assert_eq!(lab.sync.wake(), Some(at(501)));
    assert_eq!(lab.sync.due(at(501)), [PodUid::from(POD)]);
    let (id, ..) = lab.patched(&phase("Running"), at(501)).unwrap();
    assert!(lab.answer(id, Err(ObjectError::Refused("no".into())), at(501)).is_some());
    lab.sync.store_reconnected(Source::Api, at(502));
    assert!(lab.sync.wake() > Some(at(510)));
}

#[test]
fn the_answer_to_a_patch_is_its_base_unless_something_newer_was_shown_since() {
    // What the source shows between ask and answer, the version of the answer, and whether the status is sent once more.
    let cases = [
        ("nothing: the answer is the newest", None, "6", false),
        ("nothing: history was set back, and its versions are small", None, "2", false),
        ("old news", Some("3"), "2", false),
        ("something newer than the answer", Some("7"), "6", true),
        ("something older than the answer", Some("6"), "7", false),
    ];
    for (what, shown, answer, again) in cases {
        let mut lab = Lab::new(&phase("Running"));
        let (id, ..) = lab.patched(&phase("Failed"), at(1)).unwrap();
        if let Some(version) = shown {
            lab.watch(version, false, &phase("Running"));
        }
        lab.taken(id, answer, &phase("Failed"));
        assert_eq!(lab.next(&phase("Failed"), at(1)).is_some(), again, "{what}");
    }
}

#[test]
fn after_history_was_set_back_smaller_versions_are_news_and_deletions_are_forgotten() {
    let mut lab = Lab::new(&phase("Running"));
    lab.watch("100", true, &phase("Failed"));
    lab.sync.history_reset(Source::Local);
    lab.watch("50", false, &phase("Running"));
    assert_eq!(lab.next(&phase("Failed"), at(1)), None, "that was another store");
    lab.sync.history_reset(Source::Api);
    lab.watch("50", false, &phase("Running"));
    lab.finished = true;
    let (id, from, to, _) = lab.patched(&phase("Failed"), at(1)).unwrap();
    assert_eq!((from.as_str(), to.as_str()), ("Running", "Failed"));
    lab.taken(id, "51", &phase("Failed"));
    assert_eq!(lab.next(&phase("Failed"), at(1)), None, "nobody has deleted it in this history");
    lab.watch("52", true, &phase("Failed"));
    assert!(matches!(lab.next(&phase("Failed"), at(1)), Some((_, ObjectRequest::Delete { .. }))));
}

#[test]
fn news_is_worth_what_others_make_of_it() {
    use Urgency::{Begins, Ordinary, Urgent};
    let with = |phase: &str, ip: &str, state: &str| {
        status(json!({"phase": phase, "podIP": ip, "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {state: {"startedAt": "2026-01-01T00:00:00Z"}}}]}))
    };
    let cases = [
        (with("Pending", "", "waiting"), with("Running", "10.0.0.1", "running"), Begins),
        (with("Pending", "", "waiting"), with("Pending", "10.0.0.1", "waiting"), Ordinary),
        (with("Pending", "", "waiting"), with("Pending", "10.0.0.1", "running"), Begins),
        (with("Running", "", "running"), with("Running", "10.0.0.1", "running"), Begins),
        (with("Running", "10.0.0.1", "running"), with("Running", "10.0.0.1", "waiting"), Ordinary),
        (with("Pending", "", "waiting"), phase("Failed"), Urgent),
    ];
    for (base, status, wanted) in cases {
        assert_eq!(urgency(&base, &status), wanted, "{base:?} {status:?}");
    }
}

#[test]
fn pods_that_begin_have_a_quick_line_of_their_own() {
    let (mut sync, mut drawn) = (StatusSync::default(), 0);
    let pods: Vec<PodUid> = (100..250).map(|n| PodUid::from(format!("u{n}").as_str())).collect();
    let waiting = status(json!({"phase": "Pending", "reason": "x"}));
    let mut asks = |sync: &mut StatusSync, pod: &PodUid, status: &PodStatus, now| {
        let ours = Ours { full_name: &name(), spec: None, status, finished: false };
        let asked = sync.next(pod, ours, now, &mut drawn);
        asked.map(|(_, id, _)| {
            let kept = Arc::new(object(pod.as_str(), "9", false, status));
            sync.answered(id, &Ok(Some(kept)), now);
        })
    };
    sync.compare_at = at(100);
    for pod in &pods {
        sync.seen(pod, Source::Api, &object(pod.as_str(), "5", false, &phase("Pending")), false);
    }
    let told = pods.iter().filter(|pod| asks(&mut sync, pod, &waiting, at(1)).is_some()).count();
    assert_eq!(told, 10, "ordinary news is slow");
    let told = pods.iter().filter(|pod| asks(&mut sync, pod, &phase("Running"), at(1)).is_some()).count();
    assert_eq!(told, 50, "whoever waited there has changed the line");
    let mut told = 0;
    for millis in (1000..3010).step_by(10) {
        let now = Duration::from_millis(millis);
        told += sync.due(now).iter().filter(|pod| asks(&mut sync, pod, &phase("Running"), now).is_some()).count();
    }
    assert_eq!(told, 100, "all within two seconds, each once");
    assert_eq!(sync.wake(), Some(at(100)), "nobody waits in the other line");
}
