//! An image that changes under a pod that is being brought up.

use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::model::*;

fn with_image(image: &str) -> Manifest {
    let Manifest { pod, origin } = pod("a", "1");
    let mut pod = Pod::clone(&pod);
    pod.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    Manifest { pod: Arc::new(pod), origin }
}

fn found(id: &str) -> Result<Answer, CallError> {
    Ok(Answer::Image(Some(ImageFacts { id: id.into(), ..ImageFacts::default() })))
}

/// A lab in which the pod's sandbox is there and its first image is asked for.
fn asking() -> Lab {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&with_image("old")]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.see(&seen(None));
    lab
}

fn is_pull(of: &str) -> impl Fn(&Call) -> bool {
    move |c| matches!(c, Call::Runtime(RuntimeCall::PullImage { image, .. }) if image == of)
}

fn is_status(c: &Call) -> bool {
    matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. }))
}

fn status_of(image: &str) -> Call {
    Call::Runtime(RuntimeCall::ImageStatus { name: "c".into(), image: image.into() })
}

#[test]
fn a_pull_of_what_is_wanted_no_more_makes_no_container() {
    let mut lab = asking();
    lab.answer(is_status, Ok(Answer::Image(None)));
    assert!(lab.calls.iter().any(|(_, _, c)| is_pull("old")(c)));
    lab.set(&[&with_image("new")]);
    assert_eq!(lab.answer(is_pull("old"), found("sha-old")), [status_of("new")], "the old one says nothing of it");
    lab.answer(is_status, found("sha-new"));
    let next = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert!(
        matches!(&next[..], [Call::Runtime(RuntimeCall::CreateContainer { image_id, .. })] if image_id == "sha-new"),
        "{next:?}"
    );
}

#[test]
fn an_image_that_was_found_is_forgotten_with_the_wish_for_it() {
    let mut lab = asking();
    lab.answer(is_status, found("sha-old"));
    lab.set(&[&with_image("new")]);
    let next = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert_eq!(next, [status_of("new")]);
}

#[test]
fn the_back_off_of_one_image_is_not_the_next_ones() {
    let mut lab = asking();
    lab.answer(is_status, Ok(Answer::Image(None)));
    lab.answer(is_pull("old"), Err(CallError::with_reason("ErrImagePull", "no such image")));
    lab.now += Duration::from_secs(2);
    assert_eq!(lab.tell(Event::Wake), [], "it waits");
    assert_eq!(lab.set(&[&with_image("new")]), [status_of("new")]);
    let next = lab.answer(is_status, Ok(Answer::Image(None)));
    assert!(matches!(&next[..], [pull] if is_pull("new")(pull)), "{next:?}");
}

#[test]
fn while_the_runtime_is_away_no_image_is_asked_for_and_no_back_off_grows() {
    let mut lab = asking();
    lab.answer(is_status, Ok(Answer::Image(None)));
    let away = || CallError::Unavailable { message: "connection refused".into() };
    lab.answer(is_pull("old"), Err(away()));
    assert!(!lab.events.iter().any(|e| e.reason == "Failed"), "nothing is wrong with the image: {:?}", lab.events);
    lab.tell(Event::Runtime { result: Err(away()) });
    lab.tell(Event::Listed { seq: Seq(0), result: Err(away()) });
    for _ in 0..30 {
        lab.now += Duration::from_secs(1);
        lab.tell(Event::Wake);
    }
    assert!(!lab.calls.iter().any(|(_, _, c)| c.is_image()), "{:?}", lab.calls);
    let asked = lab.tell(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
    assert!(asked.iter().any(is_pull("old")), "at once: {asked:?}");
}
