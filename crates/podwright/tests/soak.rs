//! The long versions: what must hold for minutes holds for hours.

#[expect(dead_code, reason = "the suite is shared; only its long tests run here")]
mod suite;

#[path = "cluster/ends.rs"]
mod ends;
#[path = "cluster/joined.rs"]
#[expect(dead_code, reason = "the short tests of a cluster use more of it")]
mod joined;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/outage.rs"]
mod outage;
#[path = "cluster/story.rs"]
mod story;
#[path = "cluster/watched.rs"]
mod watched;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_testbed::Flavor;
use suite::{Bed, one, sleeper};

#[test]
fn kill_9_ninety_times_without_an_event_stream() {
    suite::restarts::kill_9_at_random_moments_loses_nothing_and_restarts_nothing(Flavor::Debian16, 90);
}

#[test]
fn kill_9_ninety_times_with_an_event_stream() {
    suite::restarts::kill_9_at_random_moments_loses_nothing_and_restarts_nothing(Flavor::V2, 90);
}

#[test]
fn killed_100_times_under_30_pods_of_a_cluster_no_ready_flips_and_nothing_restarts() {
    kills::no_ready_flips_and_nothing_restarts(100);
}

#[test]
fn jobs_end_rightly_500_times_while_they_are_deleted_and_the_agent_is_killed() {
    ends::jobs_end_rightly_while_they_are_deleted_and_the_agent_is_killed(500);
}

#[test]
fn an_api_server_that_is_away_for_ten_minutes_costs_nothing() {
    outage::an_api_server_that_is_away_costs_nothing(Duration::from_secs(600));
}

#[test]
fn ten_minutes_of_faults_are_replayed_bit_for_bit() {
    suite::record_replay::a_run_with_faults_is_recorded_and_replayed_bit_for_bit(Flavor::V2, 600);
}

#[test]
fn a_thousand_edits() {
    for _ in 0..5 {
        suite::manifest_edits::edited_200_times_the_last_content_runs_and_never_two_at_once(Flavor::Debian16);
    }
    for _ in 0..5 {
        suite::manifest_edits::edited_20_times_with_a_fixed_uid_the_last_content_runs(Flavor::V2);
    }
}

/// Pods that come and go at a time, and how often.
const BATCH: usize = 10;
const BATCHES: usize = 50;
/// Stories of pods that are gone are kept, up to 200 of them: growth before that is meant.
const SETTLED: usize = 25;
/// What 250 pods may add to the agent's memory once it has settled.
const GROWTH_MAX: i64 = 1 << 20;

#[test]
fn five_hundred_pods_come_and_go_and_the_agent_does_not_grow() {
    let bed = Bed::start(Flavor::Debian16);
    let mut sizes = vec![];
    for batch in 0..BATCHES {
        let begin = Instant::now();
        let names: Vec<String> = (0..BATCH).map(|n| format!("churn-{batch}-{n}")).collect();
        names.iter().for_each(|name| bed.put(name, &one(&sleeper("c"))));
        names.iter().for_each(|name| _ = bed.wait_phase(name, "Running"));
        names.iter().for_each(|name| bed.remove(name));
        bed.wait_nothing_left();
        let size = anonymous(bed.agent.pid()).expect("it lives");
        println!("batch {batch}: {} KiB, {} ms", size >> 10, begin.elapsed().as_millis());
        sizes.push(size);
    }
    let (early, late) = (median(&sizes[SETTLED..SETTLED + 8]), median(&sizes[BATCHES - 8..]));
    println!("settled at {} KiB, ended at {} KiB", early >> 10, late >> 10);
    assert!(late - early < GROWTH_MAX, "the agent grows: {sizes:?}");
}

fn median(sizes: &[i64]) -> i64 {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes[sizes.len() / 2]
}

/// The memory that is a process' alone, in bytes.
fn anonymous(pid: u32) -> Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kib: i64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
