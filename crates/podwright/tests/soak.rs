//! Long versions of tests of the suite and the cluster.

mod shim_kills;
#[expect(dead_code, reason = "the suite is shared; only its long tests run here")]
mod suite;

#[path = "cluster/agent_kills.rs"]
mod agent_kills;
#[path = "cluster/api_outage.rs"]
mod api_outage;
#[path = "cluster/cluster_node.rs"]
#[expect(dead_code, reason = "the short cluster tests use more of it")]
mod cluster_node;
#[path = "cluster/job_exit_codes.rs"]
mod job_exit_codes;
#[path = "cluster/mixed_workload.rs"]
mod mixed_workload;
#[path = "cluster/pod_watch.rs"]
mod pod_watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_testbed::Flavor;
use suite::{TestNode, one, sleeper};

/// The runtime of the nodes of a cluster.
const FLAVOR: Flavor = Flavor::V2;

#[test]
fn ninety_agent_kills_without_an_event_stream() {
    suite::restarts::killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(Flavor::Debian16, 90);
}

#[test]
fn ninety_agent_kills_with_an_event_stream() {
    suite::restarts::killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(Flavor::V2, 90);
}

#[test]
fn ninety_agent_kills_on_the_engine() {
    suite::restarts::killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(Flavor::Engine, 90);
}

#[test]
fn ninety_kills_of_the_agent_or_the_shims() {
    shim_kills::killing_agent_and_shims_at_random_restarts_no_container(90);
}

#[test]
fn readiness_and_containers_of_30_pods_survive_100_agent_kills() {
    agent_kills::readiness_and_containers_survive_agent_kills(100);
}

#[test]
fn five_hundred_jobs_report_their_exit_codes_despite_deletes_and_agent_kills() {
    job_exit_codes::jobs_report_their_exit_codes_despite_deletes_and_agent_kills(500);
}

#[test]
fn a_ten_minute_api_server_outage_affects_no_pod() {
    api_outage::an_api_server_outage_affects_no_pod(Duration::from_secs(600));
}

#[test]
fn ten_minutes_of_faults_replay_identically() {
    suite::record_replay::a_recorded_run_with_faults_replays_identically(Flavor::V2, 600);
}

#[test]
fn a_thousand_edits() {
    for _ in 0..5 {
        suite::manifest_edits::after_200_edits_the_last_version_runs_and_two_never_overlap(Flavor::Debian16);
    }
    for _ in 0..5 {
        suite::manifest_edits::after_20_edits_with_a_fixed_uid_the_last_version_runs(Flavor::V2);
    }
}

/// Pods that are created and removed together, and the number of rounds.
const BATCH: usize = 10;
const BATCHES: usize = 50;
/// The first batch that counts: histories of up to 200 removed pods are kept, so memory grows until then.
const SETTLED: usize = 25;
/// Bytes that 250 pods may add to the agent's memory after that.
const GROWTH_MAX: i64 = 1 << 20;

#[test]
fn five_hundred_pods_do_not_grow_the_memory_of_the_agent() {
    let node = TestNode::start(Flavor::Debian16);
    let mut sizes = vec![];
    for batch in 0..BATCHES {
        let begin = Instant::now();
        let names: Vec<String> = (0..BATCH).map(|n| format!("churn-{batch}-{n}")).collect();
        names.iter().for_each(|name| node.put(name, &one(&sleeper("c"))));
        names.iter().for_each(|name| _ = node.wait_phase(name, "Running"));
        names.iter().for_each(|name| node.remove(name));
        node.wait_nothing_left();
        let size = anonymous(node.agent.pid()).expect("the agent runs");
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

/// The anonymous memory of a process, in bytes.
fn anonymous(pid: u32) -> Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kib: i64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
