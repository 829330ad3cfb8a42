//! A node of a real cluster: pods come from a kube-apiserver, run on containerd 2.x, and report their status to it.

#[expect(dead_code, reason = "only the container helpers of the suite are used here")]
mod suite;

#[path = "cluster/agent_kills.rs"]
mod agent_kills;
#[path = "cluster/api_outage.rs"]
mod api_outage;
#[path = "cluster/certificates.rs"]
mod certificates;
#[path = "cluster/changes.rs"]
mod changes;
#[path = "cluster/cluster_node.rs"]
mod cluster_node;
#[path = "cluster/credentials.rs"]
mod credentials;
#[path = "cluster/deletion.rs"]
mod deletion;
#[path = "cluster/faults.rs"]
mod faults;
#[path = "cluster/job_exit_codes.rs"]
mod job_exit_codes;
#[path = "cluster/kubectl.rs"]
mod kubectl;
#[path = "cluster/kubelet_api.rs"]
mod kubelet_api;
#[path = "cluster/metrics_server.rs"]
mod metrics_server;
#[path = "cluster/mixed_workload.rs"]
mod mixed_workload;
#[path = "cluster/pod_watch.rs"]
mod pod_watch;
#[path = "cluster/readiness.rs"]
mod readiness;
#[path = "cluster/referenced_objects.rs"]
mod referenced_objects;
#[path = "cluster/resize.rs"]
mod resize;
#[path = "cluster/route_answers.rs"]
mod route_answers;
#[path = "cluster/secrets.rs"]
mod secrets;
#[path = "cluster/supervision.rs"]
mod supervision;
#[path = "cluster/takeover.rs"]
mod takeover;
#[path = "cluster/takeover_pods.rs"]
mod takeover_pods;
#[path = "cluster/workloads.rs"]
mod workloads;

use podwright_testbed::Flavor;

/// The runtime of the nodes of this program.
const FLAVOR: Flavor = Flavor::V2;

// `soak` has long versions of these.

#[test]
fn readiness_and_containers_of_30_pods_survive_10_agent_kills() {
    agent_kills::readiness_and_containers_survive_agent_kills(10);
}

#[test]
fn fifty_jobs_report_their_exit_codes_despite_deletes_and_agent_kills() {
    job_exit_codes::jobs_report_their_exit_codes_despite_deletes_and_agent_kills(50);
}

#[test]
fn a_30_s_api_server_outage_with_lost_history_affects_no_pod() {
    api_outage::an_api_server_outage_affects_no_pod(std::time::Duration::from_secs(30));
}
