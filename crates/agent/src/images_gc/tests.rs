//! With a fake runtime: removed images, kept images, and events.

use podwright_core::model::{PodRecord, PodSnapshot, Source};
use podwright_cri::Code;
use serde_json::json;

use super::*;
use crate::perform::fakes::{FakeRuntime, Step};

const GIB: u64 = 1 << 30;

fn fake() -> Arc<FakeRuntime> {
    let fake = FakeRuntime::default();
    let image = |id: &str, tag: &str, pinned: bool| v1::Image {
        id: id.into(),
        repo_tags: vec![tag.into()],
        size: GIB,
        pinned,
        ..Default::default()
    };
    for found in [
        image("sha256:used", "r/used:1", false),
        image("sha256:dead", "r/dead:1", false),
        image("sha256:pinned", "r/pinned:1", true),
        image("sha256:pause", "r/pause:3.9", false),
        image("sha256:idle", "r/idle:1", false),
        image("sha256:idle2", "r/idle:2", false),
    ] {
        fake.images.lock().unwrap().insert(found.id.clone(), found);
    }
    let container = |image: &str, image_ref: &str, state: v1::ContainerState| v1::Container {
        image: Some(v1::ImageSpec { image: image.into(), ..Default::default() }),
        image_ref: image_ref.into(),
        state: state.into(),
        ..Default::default()
    };
    *fake.containers.lock().unwrap() = vec![
        container("r/used:1", "", v1::ContainerState::ContainerRunning),
        container("", "sha256:dead", v1::ContainerState::ContainerExited),
    ];
    Arc::new(fake)
}

/// A collector for a disk of ten GiB with `used` GiB in use.
fn gc(fake: &Arc<FakeRuntime>, used: u64) -> ImageGc {
    let measure: Measure = Arc::new(move |path| {
        assert_eq!(path, Path::new("/images"));
        Box::pin(async move { Ok(DiskUse { capacity: 10 * GIB, available: (10 - used) * GIB }) })
    });
    ImageGc::new(fake.clone(), fake.clone(), measure, ImagePolicy::default(), Duration::from_secs(1))
}

fn minutes(n: u64) -> Time {
    Duration::from_secs(n * 60)
}

fn removals(fake: &FakeRuntime) -> Vec<String> {
    fake.calls().into_iter().filter_map(|call| call.strip_prefix("RemoveImage ").map(str::to_owned)).collect()
}

#[tokio::test]
async fn only_unused_images_are_removed_and_only_from_a_full_disk() {
    let fake = fake();
    let mut half_full = gc(&fake, 5);
    for n in 0..3 {
        assert_eq!(half_full.collect(minutes(5 * n)).await.unwrap(), Collection::default());
    }
    let mut full = gc(&fake, 10);
    let young = full.collect(minutes(0)).await.unwrap();
    assert_eq!((young.removed.len(), young.wanted), (0, 2 * GIB), "a new image may be about to be used");
    let round = full.collect(minutes(5)).await.unwrap();
    assert_eq!(round.removed, ["sha256:idle", "sha256:idle2"]);
    assert_eq!((round.freed, round.wanted, round.failed.len()), (2 * GIB, 2 * GIB, 0));
    assert_eq!(removals(&fake), ["sha256:idle", "sha256:idle2"]);
    assert_eq!(full.event_for(&Ok(round), "node"), None);
}

#[tokio::test]
async fn the_longest_unused_image_is_removed_first() {
    let fake = fake();
    let mut gc = gc(&fake, 9);
    gc.collect(minutes(0)).await.unwrap_or_default();
    // The image that is first by name is in use for a while.
    fake.containers.lock().unwrap()[1].image_ref = "sha256:idle".into();
    fake.images.lock().unwrap().remove("sha256:dead");
    let mut young = ImageGc { policy: ImagePolicy { min_age: minutes(60), ..gc.policy }, ..gc };
    young.collect(minutes(30)).await.unwrap();
    fake.containers.lock().unwrap().pop();
    assert_eq!(young.collect(minutes(90)).await.unwrap().removed, ["sha256:idle2"]);
}

#[tokio::test]
async fn the_sandbox_image_is_kept_by_the_reported_or_the_usual_name() {
    let names = ["sha256:x", "registry/odd:1"];
    let info = |text: &str| BTreeMap::from([("config".to_owned(), text.to_owned())]);
    let reported = sandbox_image(&info("{\"sandboxImage\": \"registry/odd:1\"}"));
    assert!(is_sandbox_image(&names, reported.as_deref()));
    assert!(!is_sandbox_image(&["registry/pause:1"], reported.as_deref()), "another image of that name is not kept");
    assert_eq!(sandbox_image(&info("no json")), None);
    assert!(is_sandbox_image(&["registry.k8s.io/pause:3.9"], None) && !is_sandbox_image(&names, None));
}

#[tokio::test]
async fn a_failed_removal_is_reported_and_the_others_continue() {
    let fake = fake();
    let mut gc = gc(&fake, 10);
    gc.collect(minutes(0)).await.unwrap();
    fake.next("RemoveImage", Step::Fail(CriError::new(Code::Other, "RemoveImage", "in use")));
    let round = gc.collect(minutes(5)).await;
    let done = round.as_ref().unwrap();
    assert_eq!((done.removed.len(), done.failed.len(), done.freed), (1, 1, GIB));
    let event = gc.event_for(&round, "node").expect("too little was freed");
    assert_eq!((event.reason, &*event.pod.name, &*event.pod.namespace), ("FreeDiskSpaceFailed", "node", ""));
    assert!(event.message.contains("sha256:idle") && event.message.contains("in use"), "{}", event.message);
}

#[tokio::test(start_paused = true)]
async fn a_failing_runtime_removes_nothing_and_is_reported_the_second_time() {
    let fake = fake();
    let mut gc = gc(&fake, 10);
    gc.collect(minutes(0)).await.unwrap();
    for (n, expected) in [(1, None), (2, Some("ImageGCFailed"))] {
        fake.next("ListContainers", Step::Hang);
        let round = gc.collect(minutes(5 * n)).await;
        assert!(round.is_err());
        assert_eq!(gc.event_for(&round, "node").map(|event| event.reason), expected);
    }
    assert_eq!(removals(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn a_threshold_of_100_percent_disables_it_unless_there_is_a_maximum_age() {
    let fake = fake();
    let with = |high_percent, max_age| ImageGc {
        policy: ImagePolicy { high_percent, max_age, ..gc(&fake, 1).policy },
        ..gc(&fake, 1)
    };
    assert!(with(100, None).policy.is_off());
    assert!(!with(100, Some(minutes(1))).policy.is_off() && !with(99, None).policy.is_off());
    let mut by_age = with(100, Some(minutes(20)));
    assert_eq!(by_age.collect(minutes(0)).await.unwrap().removed.len(), 0);
    assert_eq!(by_age.collect(minutes(21)).await.unwrap().removed, ["sha256:idle", "sha256:idle2"]);
}

/// Publishes a pod with this image.
fn publish(feed: &PodFeed, uid: &str, image: &str, phase: &str) {
    let pod = serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }))
    .unwrap();
    let status = serde_json::from_value(json!({"phase": phase})).unwrap();
    let record = PodRecord::new(uid.into(), Source::Api, Arc::new(pod), jiff::Timestamp::UNIX_EPOCH);
    feed.publish(&PodSnapshot::of(&PodRecord { status: Some(status), ..record }));
}

#[tokio::test]
async fn for_disk_space_all_unused_images_go_except_young_ones_and_those_of_starting_pods() {
    let fake = fake();
    let feed = Arc::new(PodFeed::default());
    publish(&feed, "starting", "r/idle:1", "Pending");
    publish(&feed, "ended", "r/idle:2", "Failed");
    let mut gc = gc(&fake, 1).with_pods(Arc::clone(&feed));
    let first = gc.reclaim(minutes(10)).await.unwrap();
    assert_eq!((first.removed, first.freed), (vec!["sha256:idle2".to_owned()], GIB), "it is older than the agent");
    fake.images.lock().unwrap().remove("sha256:idle2");
    let young = v1::Image { id: "sha256:young".into(), size: GIB, ..Default::default() };
    fake.images.lock().unwrap().insert(young.id.clone(), young);
    assert_eq!(gc.reclaim(minutes(11)).await.unwrap().removed, [""; 0], "it may be about to be used");
    assert_eq!(gc.reclaim(minutes(13)).await.unwrap().removed, ["sha256:young"]);
    fake.images.lock().unwrap().remove("sha256:young");
    publish(&feed, "starting", "r/idle:1", "Succeeded");
    assert_eq!(gc.reclaim(minutes(14)).await.unwrap().removed, ["sha256:idle"]);
}

#[test]
fn images_of_pods_are_known_by_the_names_of_the_runtime() {
    let feed = PodFeed::default();
    publish(&feed, "short", "busybox", "Running");
    publish(
        &feed,
        "digest",
        "r.io/a/b:1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "Running",
    );
    let names = images_of_pods(&feed.list().1);
    assert!(names.contains("docker.io/library/busybox:latest"), "{names:?}");
    let digest = "r.io/a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    assert!(names.contains(digest), "{names:?}");
}
