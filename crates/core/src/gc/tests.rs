use jiff::Timestamp;

use super::*;
use crate::model::{ContainerSeen, SandboxSeen};

fn sandbox(id: &str, ready: bool) -> SandboxSeen {
    SandboxSeen { id: id.into(), attempt: 0, ready, created_at: Timestamp::UNIX_EPOCH, ips: vec![] }
}

fn container(id: &str, sandbox: &str, name: &str, state: RunState) -> ContainerSeen {
    ContainerSeen {
        id: id.into(),
        sandbox: sandbox.into(),
        name: name.into(),
        attempt: 0,
        hash: None,
        state,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: String::new(),
        image_id: String::new(),
        grace: None,
        pre_stop: None,
        user: None,
    }
}

fn removed(plan: &GcPlan) -> Vec<&str> {
    plan.remove_containers
        .iter()
        .map(|(_, id)| id.as_str())
        .chain(plan.remove_sandboxes.iter().map(SandboxId::as_str))
        .collect()
}

fn some_pod() -> PodSeen {
    use RunState::{Created, Exited, Running, Unknown};
    PodSeen {
        sandboxes: vec![sandbox("s3", true), sandbox("s2", false), sandbox("s1", false)],
        containers: vec![
            container("a4", "s3", "a", Running),
            container("a3", "s3", "a", Exited),
            container("a2", "s3", "a", Exited),
            container("a1", "s2", "a", Exited),
            container("b3", "s3", "b", Created),
            container("b2", "s3", "b", Created),
            container("b1", "s3", "b", Exited),
            container("c2", "s3", "c", Exited),
            container("c1", "s3", "c", Unknown),
        ],
    }
}

#[test]
fn the_newest_dead_instance_of_each_container_stays() {
    let plan = dead_containers(&some_pod(), |_| true, false, true);
    assert_eq!(removed(&plan), ["a2", "a1", "b2", "s1"], "s2 still has a1");
    assert_eq!(plan.remove_containers[0].0.as_str(), "a");
    let plan = dead_containers(&some_pod(), |_| true, false, false);
    assert_eq!(removed(&plan), ["a3", "a2", "a1", "b2", "b1", "c2", "s1"], "b3 may be about to start");
}

#[test]
fn all_dead_containers_are_removed_with_the_pod() {
    let plan = dead_containers(&some_pod(), |_| true, true, true);
    assert_eq!(
        removed(&plan),
        ["a3", "a2", "b3", "b2", "b1", "c2", "s2", "s1"],
        "what may run stays; s2 takes a1 along"
    );
}

#[test]
fn nothing_is_removed_before_its_exit_is_journaled() {
    let plan = dead_containers(&some_pod(), |id| id.as_str() == "a1", true, true);
    assert_eq!(
        removed(&plan),
        ["b3", "b2", "s2", "s1"],
        "a container that never ran has no exit; s2 is removed with a1"
    );
    assert_eq!(removed(&dead_containers(&some_pod(), |_| false, true, true)), ["b3", "b2", "s1"], "a1 keeps s2");
    assert_eq!(removed(&dead_containers(&some_pod(), |_| false, false, true)), ["b2", "s1"]);
}

#[test]
fn an_empty_sandbox_is_removed_unless_it_is_the_newest() {
    let only = |ready| PodSeen { sandboxes: vec![sandbox("s1", ready)], containers: vec![] };
    assert_eq!(dead_containers(&only(false), |_| true, false, true), GcPlan::default());
    assert_eq!(removed(&dead_containers(&only(false), |_| true, true, true)), ["s1"]);
    let plan = dead_containers(&only(true), |_| true, true, true);
    assert_eq!(plan, GcPlan::default(), "a ready one must be stopped first");
    let two_ready = PodSeen { sandboxes: vec![sandbox("s2", true), sandbox("s1", true)], containers: vec![] };
    assert_eq!(dead_containers(&two_ready, |_| true, false, true), GcPlan::default());
}

fn image(id: &str, size: u64, first: u64, used: u64) -> ImageSeen {
    let (first_seen, last_used) = (Duration::from_secs(first), Duration::from_secs(used));
    ImageSeen { id: id.into(), size, first_seen, last_used, in_use: false, pinned: false }
}

const NOW: Time = Duration::from_secs(10_000);

fn full(percent: u64) -> DiskUse {
    DiskUse { capacity: 1000, available: 1000 - percent * 10 }
}

#[test]
fn images_are_removed_by_last_use_down_to_the_low_threshold() {
    let images = [image("new", 100, 1, 900), image("old", 30, 1, 100), image("mid", 30, 1, 500)];
    let plan = unused_images(&images, full(85), &ImagePolicy::default(), NOW);
    assert_eq!((plan.remove, plan.wanted, plan.freed), (vec!["old".into(), "mid".into()], 50, 60));
    assert_eq!(unused_images(&images, full(84), &ImagePolicy::default(), NOW), ImagePlan::default());
    let plan = unused_images(&images, full(99), &ImagePolicy::default(), NOW);
    assert_eq!((plan.remove.len(), plan.wanted, plan.freed), (3, 190, 160), "says what it could not free");
    assert_eq!(unused_images(&images, DiskUse { capacity: 0, available: 0 }, &ImagePolicy::default(), NOW).wanted, 0);
}

#[test]
fn images_in_use_pinned_or_young_stay() {
    let mut used = image("used", 500, 1, 1);
    used.in_use = true;
    let mut pinned = image("pinned", 500, 1, 1);
    pinned.pinned = true;
    let young = image("young", 500, 9_881, 9_881);
    let fit = image("fit", 10, 9_880, 9_880);
    let plan = unused_images(&[used, pinned, young, fit], full(100), &ImagePolicy::default(), NOW);
    assert_eq!(plan.remove, ["fit"]);
}

#[test]
fn images_unused_for_too_long_are_removed_regardless_of_disk_usage() {
    let policy = ImagePolicy { max_age: Some(Duration::from_secs(1000)), ..ImagePolicy::default() };
    let mut used = image("used", 1, 1, 1);
    used.in_use = true;
    let images = [image("stale", 1, 1, 8_999), image("fresh", 1, 1, 9_000), used];
    assert_eq!(unused_images(&images, full(1), &policy, NOW).remove, ["stale"]);
}
