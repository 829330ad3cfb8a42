//! Status and events of a pod that does not start.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Volume;

use super::lab::*;
use crate::model::*;

fn with_volume() -> Manifest {
    let manifest = pod("a", "1");
    let mut changed = Pod::clone(&manifest.pod);
    let volume = Volume { name: "v".into(), ..Volume::default() };
    changed.spec.as_mut().unwrap().volumes = Some(vec![volume]);
    Manifest { pod: Arc::new(changed), ..manifest }
}

fn waiting(lab: &Lab) -> (String, String) {
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let state = status.container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    (state.reason.unwrap(), state.message.unwrap_or_default())
}

#[test]
fn a_failed_volume_is_shown_in_the_status_until_it_is_mounted() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&with_volume()]);
    lab.host_is_ready();
    assert_eq!(waiting(&lab), ("ContainerCreating".into(), String::new()));
    let is_mount = |c: &Call| matches!(c, Call::Host(HostCall::MountVolume { .. }));
    lab.answer(is_mount, Err(CallError::with_reason("FailedMount", "no such device")));
    assert_eq!(waiting(&lab), ("ContainerCreating".into(), "FailedMount: no such device".into()));
    lab.now += std::time::Duration::from_secs(2);
    lab.handle(Event::Wake);
    lab.ok(is_mount);
    assert_eq!(waiting(&lab), ("ContainerCreating".into(), String::new()));
}

#[test]
fn a_quarantined_pod_has_a_condition_in_its_status() {
    let mut lab = Lab::new(Listing::default());
    let mut broken = pod("b", "b");
    Arc::make_mut(&mut broken.pod).spec = None;
    let change = SourceChange::Set { pods: vec![broken], broken: vec![] };
    let mut out = Out::default();
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let caught = lab.node.handle_guarded(Event::Source { source: Source::File, change }, now, &mut out);
    assert_eq!(caught.len(), 1);
    let kept = out
        .effects
        .iter()
        .filter(|e| matches!(e, Effect::SaveQuarantinedRecord { record } if record.uid.as_str() == "b"));
    assert_eq!(kept.count(), 1, "its record is saved for the investigation of the bug");
    let status = lab.node.workers().get(&PodUid::from("b")).unwrap().record().status.clone().unwrap();
    let condition = status.conditions.clone().unwrap().pop().unwrap();
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("podwright.dev/Quarantined", "True"));
    let shown =
        out.effects.iter().rev().find_map(|e| if let Effect::StatusChanged(pod) = e { Some(pod) } else { None });
    assert!(
        shown.is_some_and(|pod| pod.uid.as_str() == "b" && pod.status.as_deref() == Some(&status)),
        "clients see it"
    );
    let mut out = Out::default();
    let kill = Event::Kill { uid: "b".into(), grace: None, evicted: None };
    assert!(lab.node.handle_guarded(kill, now, &mut out).is_empty());
    assert!(!out.effects.iter().any(|e| matches!(e, Effect::Call { .. })), "nothing is done for it: {:?}", out.effects);
}

#[test]
fn a_missing_image_that_may_not_be_pulled_is_reported_once_by_two_events() {
    let mut lab = Lab::new(Listing::default());
    let manifest = pod("a", "1");
    let mut never = Pod::clone(&manifest.pod);
    never.spec.as_mut().unwrap().containers[0].image_pull_policy = Some("Never".into());
    lab.set(&[&Manifest { pod: Arc::new(never), ..manifest }]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    for _ in 0..2 {
        lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })), Ok(Answer::Image(None)));
        lab.now += std::time::Duration::from_secs(60);
        lab.handle(Event::Wake);
    }
    let message = r#"Container image "img" is not present with pull policy of Never"#;
    let reported: Vec<_> = lab.events.iter().filter(|e| e.warning).map(|e| (e.reason, e.message.as_str())).collect();
    assert_eq!(reported, [("ErrImageNeverPull", message), ("Failed", "Error: ErrImageNeverPull")]);
    assert_eq!(waiting(&lab), ("ErrImageNeverPull".into(), message.into()));
}

#[test]
fn a_pod_that_exceeds_its_active_deadline_is_reported_once() {
    let mut lab = Lab::new(Listing::default());
    let manifest = pod("a", "1");
    let mut short = Pod::clone(&manifest.pod);
    short.spec.as_mut().unwrap().active_deadline_seconds = Some(5);
    lab.set(&[&Manifest { pod: Arc::new(short), ..manifest }]);
    lab.host_is_ready();
    for _ in 0..3 {
        lab.now += std::time::Duration::from_secs(6);
        lab.handle(Event::Wake);
    }
    let reported: Vec<_> = lab.events.iter().filter(|e| e.reason == "DeadlineExceeded").collect();
    assert!(matches!(reported[..], [event] if !event.warning && event.container.is_none()), "{reported:?}");
}

#[test]
fn failed_calls_are_retried_when_the_event_stream_returns_unless_it_flaps() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    let is_run = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. }));
    let round = |lab: &mut Lab| {
        assert_eq!(lab.answer(is_run, Err(CallError::failed("server is not initialized yet"))), []);
        assert_eq!(lab.handle(Event::EventStream { up: false }), []);
        // The failure is definite: an observation shows no sandbox.
        if !lab.observations.is_empty() {
            lab.observe(&PodSeen::default());
        }
        lab.handle(Event::EventStream { up: true })
    };
    assert_eq!(round(&mut lab), [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })], "the runtime was restarted");
    lab.now += std::time::Duration::from_secs(1);
    assert_eq!(round(&mut lab), [], "a stream that flaps");
}
