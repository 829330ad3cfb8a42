//! The agent on Debian's containerd 1.6, which has no event stream: what depends on the client of the CRI, and the commands. `make
//! test-peers` runs the whole suite on it.

mod cli;
mod eviction;
mod fixture;
#[path = "images/elsewhere.rs"]
mod images_elsewhere;
mod proxied_runtime;
#[expect(dead_code, reason = "the suite is shared; a part of it runs here")]
mod suite;

use podwright_testbed::Flavor;

/// The runtime of the agents of this program.
const FLAVOR: Flavor = Flavor::Debian16;

suite_on!(
    FLAVOR,
    many_pods::a_pod_runs_and_is_removed_with_its_manifest(),
    status_matrix::pods_of_every_kind_get_the_documented_status(),
    restarts::killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(10),
    restarts::restarting_the_runtime_restarts_no_container(),
    reboot::after_a_reboot_pods_follow_their_restart_policy(),
    termination::hooks_signals_and_sidecars_follow_order_and_grace_period(),
    invalid_input::the_systemd_driver_without_systemd_is_rejected(),
    features::pods_get_what_their_specs_request(),
    garbage_collection::dead_containers_are_removed_with_their_logs_and_large_logs_are_rotated(),
    probes::probes_of_every_kind_with_every_handler_work(),
    image_pulls::images_are_pulled_and_failures_are_reported(),
    deletion::pods_deleted_while_the_runtime_is_frozen_are_removed_after_it_resumes(),
);
