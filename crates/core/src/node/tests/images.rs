//! An image that changes while the pod is being started.

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

/// A lab in which the pod's sandbox exists and the status of its image was requested.
fn image_requested() -> Lab {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&with_image("old")]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
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
fn the_pull_of_an_image_that_is_no_longer_wanted_creates_no_container() {
    let mut lab = image_requested();
    lab.answer(is_status, Ok(Answer::Image(None)));
    assert!(lab.calls.iter().any(|(_, _, c)| is_pull("old")(c)));
    lab.set(&[&with_image("new")]);
    assert_eq!(
        lab.answer(is_pull("old"), found("sha-old")),
        [status_of("new")],
        "the result for the old image is not used"
    );
    lab.answer(is_status, found("sha-new"));
    let next = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert!(
        matches!(&next[..], [Call::Runtime(RuntimeCall::CreateContainer { image_id, .. })] if image_id == "sha-new"),
        "{next:?}"
    );
}

#[test]
fn a_found_image_is_not_used_after_the_spec_changed() {
    let mut lab = image_requested();
    lab.answer(is_status, found("sha-old"));
    lab.set(&[&with_image("new")]);
    let next = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert_eq!(next, [status_of("new")]);
}

#[test]
fn the_back_off_of_one_image_does_not_apply_to_the_next() {
    let mut lab = image_requested();
    lab.answer(is_status, Ok(Answer::Image(None)));
    lab.answer(is_pull("old"), Err(CallError::with_reason("ErrImagePull", "no such image")));
    lab.now += Duration::from_secs(2);
    assert_eq!(lab.handle(Event::Wake), [], "it waits");
    assert_eq!(lab.set(&[&with_image("new")]), [status_of("new")]);
    let next = lab.answer(is_status, Ok(Answer::Image(None)));
    assert!(matches!(&next[..], [pull] if is_pull("new")(pull)), "{next:?}");
}

#[test]
fn no_image_is_requested_and_no_back_off_grows_while_the_runtime_is_unavailable() {
    let mut lab = image_requested();
    lab.answer(is_status, Ok(Answer::Image(None)));
    let unavailable = || CallError::Unavailable { message: "connection refused".into() };
    lab.answer(is_pull("old"), Err(unavailable()));
    assert!(!lab.events.iter().any(|e| e.reason == "Failed"), "nothing is wrong with the image: {:?}", lab.events);
    lab.handle(Event::Runtime { result: Err(unavailable()) });
    lab.handle(Event::Listed { seq: Seq(0), result: Err(unavailable()) });
    for _ in 0..30 {
        lab.now += Duration::from_secs(1);
        lab.handle(Event::Wake);
    }
    assert!(!lab.calls.iter().any(|(_, _, c)| c.is_image()), "{:?}", lab.calls);
    let calls = lab.handle(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
    assert!(calls.iter().any(is_pull("old")), "at once: {calls:?}");
}
