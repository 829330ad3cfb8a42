//! A node of a real cluster on the agent's own engine: the tests of `cluster` that involve the runtime, and eviction.

mod eviction;
#[expect(dead_code, reason = "only the helpers of the suite are used here")]
mod suite;

#[path = "cluster/agent_kills.rs"]
mod agent_kills;
#[path = "cluster/changes.rs"]
mod changes;
#[path = "cluster/cluster_node.rs"]
#[expect(dead_code, reason = "the tests of the API server's faults use more of it")]
mod cluster_node;
#[path = "cluster/deletion.rs"]
mod deletion;
#[path = "cluster/job_exit_codes.rs"]
mod job_exit_codes;
#[path = "cluster/kubectl.rs"]
mod kubectl;
#[path = "cluster/kubelet_api.rs"]
mod kubelet_api;
#[path = "cluster/metrics_server.rs"]
mod metrics_server;
#[path = "cluster/pod_watch.rs"]
mod pod_watch;
#[path = "cluster/referenced_objects.rs"]
mod referenced_objects;
#[path = "cluster/resize.rs"]
mod resize;
#[path = "cluster/workloads.rs"]
mod workloads;

use podwright_testbed::Flavor;

/// The runtime of the nodes of this program.
const FLAVOR: Flavor = Flavor::Engine;

#[test]
fn readiness_and_containers_of_30_pods_survive_10_agent_kills() {
    agent_kills::readiness_and_containers_survive_agent_kills(10);
}

#[test]
fn fifty_jobs_report_their_exit_codes_despite_deletes_and_agent_kills() {
    job_exit_codes::jobs_report_their_exit_codes_despite_deletes_and_agent_kills(50);
}
