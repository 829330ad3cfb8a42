//! Recordings on disk: bounded, cut where they can be replayed, and for the owner only.

use std::os::unix::fs::PermissionsExt;

use podwright_core::NodeConfig;
use podwright_core::record::{Replay, Replayed};

use super::*;

fn now(seconds: u64) -> Now {
    let wall = jiff::Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap()).unwrap();
    Now { boot: Duration::from_secs(seconds), wall }
}

/// Records a node that handles this many events.
async fn record(config: RecorderConfig, turns: u64) {
    let mut recorder = Recorder::start(config).unwrap();
    let mut node = Node::new(NodeConfig::default(), vec![]);
    for n in 0..turns {
        let (event, mut out) = (Event::Wake, Out::default());
        let copy = recorder.before(&node, &event, now(n));
        node.handle(event, now(n), &mut out);
        if let Some(copy) = copy {
            recorder.step(now(n), copy, &out);
        }
        if n % 50 == 0 {
            // As in a real agent, the disk is faster than the events.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    recorder.finish().await;
}

/// Steps in a part, all of them decided as before.
fn replay(path: &Path) -> u64 {
    let mut replay = Replay::default();
    let mut steps = 0;
    for line in fs::read_to_string(path).unwrap().lines() {
        if let Replayed::Step(step) = replay.feed(line).unwrap() {
            assert!(step.is_same(), "{}: step {}", path.display(), step.number);
            steps += 1;
        }
    }
    steps
}

#[tokio::test]
async fn a_recording_can_be_replayed_and_a_second_run_keeps_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let config = RecorderConfig { path: path.clone(), max_size: 1 << 20 };
    record(config.clone(), 10).await;
    assert_eq!(replay(&path), 10);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&path).unwrap().contains("{\"end\":\"the agent ended\"}"));
    record(config, 5).await;
    assert_eq!((replay(&path), replay(&dir.path().join("recording.1"))), (5, 10));
}

#[tokio::test]
async fn a_long_recording_is_split_and_every_part_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let max_size = 500_000;
    record(RecorderConfig { path: dir.path().join("recording"), max_size }, 5_000).await;
    let mut parts: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.sort();
    assert_eq!(parts.len(), 4, "{parts:?}");
    let size: u64 = parts.iter().map(|part| fs::metadata(part).unwrap().len()).sum();
    assert!(size <= max_size, "{size}");
    let steps: u64 = parts.iter().map(|part| replay(part)).sum();
    assert!(steps > 500, "{steps}");
}

#[tokio::test]
async fn a_limit_smaller_than_the_state_ends_the_recording_only() {
    let dir = tempfile::tempdir().unwrap();
    record(RecorderConfig { path: dir.path().join("recording"), max_size: 100 }, 50).await;
    assert!(fs::metadata(dir.path().join("recording")).unwrap().len() < 100);
}

#[test]
fn a_path_that_is_not_a_regular_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Recorder::start(RecorderConfig { path: dir.path().to_owned(), max_size: 1 << 20 }).is_err());
    assert!(Recorder::start(RecorderConfig { path: "/dev/null".into(), max_size: 1 << 20 }).is_err());
}
