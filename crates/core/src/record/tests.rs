//! Recordings are replayed as they were written, and others are rejected.

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::NodeConfig;

fn now(seconds: u64) -> Now {
    let wall = Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap()).unwrap();
    Now { boot: Duration::from_secs(seconds), wall }
}

/// The first events of a node, recorded.
fn recording() -> Vec<String> {
    let mut node = Node::new(NodeConfig::default(), vec![]);
    let mut lines = vec![begin(&node, now(1)).unwrap()];
    for (at, event) in [(1, Event::Wake), (2, Event::EventStream { up: true }), (90, Event::Wake)] {
        let mut out = Out::default();
        let (event, at) = (event, now(at));
        let copy = event.clone();
        node.handle(event, at, &mut out);
        lines.push(step(at, &copy, &out).unwrap());
    }
    lines.push(end("enough").unwrap());
    lines
}

#[test]
fn a_replay_makes_the_same_decisions() {
    let mut replay = Replay::default();
    let mut same = 0;
    for line in recording() {
        match replay.feed(&line).unwrap() {
            Replayed::Step(step) => {
                assert!(step.is_same(), "{step:?}");
                same += 1;
            }
            Replayed::Began { pods, .. } => assert_eq!(pods, 0),
            Replayed::Ended(why) => assert_eq!(why, "enough"),
        }
    }
    assert_eq!(same, 3);
}

#[test]
fn a_changed_input_is_found_by_its_checksum() {
    let mut lines = recording();
    lines[3] = lines[3].replace("\"secs\":90", "\"secs\":3");
    let mut replay = Replay::default();
    let found = lines.iter().filter_map(|line| match replay.feed(line).unwrap() {
        Replayed::Step(step) => Some(step.is_same()),
        _ => None,
    });
    assert!(found.collect::<Vec<_>>().contains(&false));
}

#[test]
fn other_versions_and_other_files_are_rejected() {
    let lines = recording();
    let other = lines[0].replace(CORE, "0.0.9+0123");
    let error = Replay::default().feed(&other).unwrap_err().to_string();
    assert!(error.contains("0.0.9+0123") && error.contains(CORE), "{error}");
    assert!(Replay::of_any_version().feed(&other).is_ok());
    let error = Replay::default().feed(&lines[0].replace("\"format\":1", "\"format\":7")).unwrap_err().to_string();
    assert!(error.contains("format 7"), "{error}");
    for text in ["", "kind: Pod", "{}", "[1]", lines[1].as_str()] {
        let error = Replay::default().feed(text).unwrap_err();
        assert!(matches!(error, ReplayError::NotARecording(_)), "{text}: {error}");
    }
}
