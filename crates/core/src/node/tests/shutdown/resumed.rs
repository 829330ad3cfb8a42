//! Pods that only this node knows run again after a shutdown.

use super::*;

/// The sandbox and the container that run, by attempt.
fn attempts(node: &ShutdownLab, uid: &str) -> (Option<u32>, Option<u32>) {
    let seen = &node.runtime[&PodUid::from(uid)];
    let sandbox = seen.sandboxes.iter().find(|sandbox| sandbox.ready).map(|sandbox| sandbox.attempt);
    let container = seen.containers.iter().find(|c| c.state == RunState::Running).map(|c| c.attempt);
    (sandbox, container)
}

#[test]
fn a_pod_of_this_node_gets_a_new_sandbox_when_the_shutdown_is_cancelled() {
    let pods = [("static", 0, Source::File), ("local", 0, Source::Local)];
    let mut node = ShutdownLab::running(&pods);
    assert_eq!((attempts(&node, "static"), attempts(&node, "local")), ((Some(0), Some(0)), (Some(0), Some(0))));
    node.after(60);
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    assert_eq!((attempts(&node, "static"), attempts(&node, "local")), ((None, None), (None, None)));
    node.handle(Event::Shutdown { request: None });
    for uid in ["static", "local"] {
        assert_eq!(attempts(&node, uid), (Some(1), Some(1)), "{uid}");
    }
    let containers = node.status("static").container_statuses.unwrap();
    assert_eq!((containers[0].restart_count, containers[0].state.as_ref().unwrap().running.is_some()), (1, true));
}

#[test]
fn the_mirror_pod_of_the_terminated_instance_does_not_end_the_new_one() {
    let mut node = ShutdownLab::running(&[("static", 0, Source::File)]);
    node.after(60);
    let mut listing = listing("static", "static");
    listing.pods.get_mut("static").unwrap().containers =
        BTreeMap::from([("c0".into(), ("c".into(), RunState::Running))]);
    node.handle(Event::Listed { seq: node.lab.node.pods.sequences.seq, result: Ok(listing) });
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    let mut mirror = Pod::clone(&manifest("static", 0, Source::Api).pod);
    mirror.metadata.uid = Some("mirror".into());
    mirror.metadata.annotations = Some([(CONFIG_MIRROR.to_owned(), "static".to_owned())].into());
    mirror.status = Some(node.status("static"));
    assert_eq!(mirror.status.as_ref().unwrap().phase.as_deref(), Some("Failed"));
    let change = SourceChange::Put(Manifest { pod: Arc::new(mirror), origin: "api".into() });
    node.handle(Event::Source { source: Source::Api, change });
    node.handle(Event::Shutdown { request: None });
    assert_eq!((node.state("static"), attempts(&node, "static")), (Some(State::Syncing), (Some(1), Some(1))));
}

#[test]
fn a_sandbox_that_was_made_less_than_a_second_before_the_shutdown_is_replaced_after_that_second() {
    let mut node = ShutdownLab::running(&[("static", 0, Source::File)]);
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    node.handle(Event::Shutdown { request: None });
    assert_eq!((node.state("static"), attempts(&node, "static")), (Some(State::Syncing), (None, None)));
    node.after(1);
    assert_eq!(attempts(&node, "static"), (Some(1), Some(1)), "the delay of sandboxes that die at once");
}

#[test]
fn an_agent_that_restarts_in_a_shutdown_starts_pods_of_this_node_when_it_is_cancelled_or_after_the_boot() {
    let pods = [("static", 0, Source::File), ("local", 0, Source::Local)];
    let mut node = ShutdownLab::running(&pods);
    node.after(60);
    node.shut_down(1);
    node.handle(Event::ShutdownAnnounced);
    for is_booted in [false, true] {
        let mut records: Vec<PodRecord> = node.lab.records.values().cloned().collect();
        if is_booted {
            let endings = records.iter_mut().filter_map(|record| record.life.termination_mut());
            endings.for_each(|ending| ending.deadline.boot_id = "the boot before".into());
        }
        let mut next = ShutdownLab::with(config(), records, node.runtime.clone(), &pods);
        if !is_booted {
            assert_eq!(attempts(&next, "static"), (None, None), "the host has not reported yet");
            next.handle(Event::Shutdown { request: None });
        }
        next.after(60);
        for uid in ["static", "local"] {
            assert_eq!(attempts(&next, uid), (Some(1), Some(1)), "{uid}, booted: {is_booted}");
        }
    }
}
