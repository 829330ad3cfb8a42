//! An outage of the API server.

use std::time::{Duration, Instant};

use podwright_testbed::{Component, ControlPlane, Scratch};

use crate::cluster_node::ClusterNode;
use crate::mixed_workload::MixedWorkload;

/// The API server is down for this long, and has lost its watch history afterwards.
pub(crate) fn an_api_server_outage_affects_no_pod(away: Duration) {
    let cluster = Scratch::new().expect("a scratch");
    let plane = ControlPlane::start(&cluster).expect("a control plane");
    let node = ClusterNode::start(&plane, "outage");
    let story = MixedWorkload::begin(&node);
    plane.stop(Component::ApiServer).expect("stopped");
    let began = Instant::now();
    story.progress(&node);
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    plane.compact().expect("compacted");
    plane.start_again(Component::ApiServer).expect("started");
    let began = Instant::now();
    story.verify(&node);
    // Whether the watch gets a 410, or another error of the starting server causes a new list first, depends on timing.
    let gone = node.agent.log().contains("pod watch is too far behind");
    println!("all reported and gone {:?} after the API server was back (410: {gone})", began.elapsed());
}
