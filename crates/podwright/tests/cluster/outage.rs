//! The API server goes away and comes back.

use std::time::{Duration, Instant};

use podwright_testbed::{Component, ControlPlane, Scratch};

use crate::joined::Joined;
use crate::story::Story;

/// It is away for this long, and forgot the past.
pub(crate) fn an_api_server_that_is_away_costs_nothing(away: Duration) {
    let cluster = Scratch::new().expect("a scratch");
    let plane = ControlPlane::start(&cluster).expect("a control plane");
    let node = Joined::start(&plane, "outage");
    let story = Story::begin(&node);
    plane.stop(Component::ApiServer).expect("stopped");
    let began = Instant::now();
    story.goes_on(&node);
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    plane.compact().expect("compacted");
    plane.start_again(Component::ApiServer).expect("started");
    let began = Instant::now();
    story.ends_well(&node);
    // Whether the watch hears that its past is gone, or a server that is not quite there sends it to a new list first, is chance.
    let gone = node.agent.log().contains("the watch is too far behind");
    println!("all told and gone {:?} after the API server was back (410: {gone})", began.elapsed());
}
