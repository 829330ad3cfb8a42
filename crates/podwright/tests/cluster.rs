//! A node of a real cluster: pods come from a kube-apiserver, run on containerd 2.x, and are told of there.

#[expect(dead_code, reason = "of the suite only its containers are used here")]
mod suite;

#[path = "cluster/changes.rs"]
mod changes;
#[path = "cluster/credentials.rs"]
mod credentials;
#[path = "cluster/deletion.rs"]
mod deletion;
#[path = "cluster/ends.rs"]
mod ends;
#[path = "cluster/faults.rs"]
mod faults;
#[path = "cluster/joined.rs"]
mod joined;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/kubectl.rs"]
mod kubectl;
#[path = "cluster/objects.rs"]
mod objects;
#[path = "cluster/outage.rs"]
mod outage;
#[path = "cluster/readiness.rs"]
mod readiness;
#[path = "cluster/secrets.rs"]
mod secrets;
#[path = "cluster/story.rs"]
mod story;
#[path = "cluster/watched.rs"]
mod watched;
#[path = "cluster/workloads.rs"]
mod workloads;

// The long versions of these are in `soak`.

#[test]
fn killed_10_times_under_30_pods_no_ready_flips_and_nothing_restarts() {
    kills::no_ready_flips_and_nothing_restarts(10);
}

#[test]
fn jobs_end_rightly_50_times_while_they_are_deleted_and_the_agent_is_killed() {
    ends::jobs_end_rightly_while_they_are_deleted_and_the_agent_is_killed(50);
}

#[test]
fn an_api_server_that_is_away_for_30_s_and_forgot_the_past_costs_nothing() {
    outage::an_api_server_that_is_away_costs_nothing(std::time::Duration::from_secs(30));
}
