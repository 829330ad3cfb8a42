//! The engine on real shims, images, cgroups and networks. This program is its own zygote, so it has its own `main`; it has a
//! network and mount namespace of its own, so that nothing of it is seen on the host.
//!
//! `cargo test -p podwright-engine --test engine [parts of names]`. Needs root and the programs of `hack/debs`.

#[path = "engine/bed.rs"]
mod bed;
#[path = "engine/calls.rs"]
mod calls;
#[path = "engine/forwards.rs"]
mod forwards;
#[path = "engine/handlers.rs"]
mod handlers;
#[path = "engine/images.rs"]
mod images;
#[path = "engine/isolation.rs"]
mod isolation;
#[path = "engine/lifecycle.rs"]
mod lifecycle;
#[path = "engine/lost_state.rs"]
mod lost_state;
#[path = "engine/old_kernel.rs"]
mod old_kernel;
#[path = "engine/recovery.rs"]
mod recovery;
#[path = "engine/stops.rs"]
mod stops;
#[path = "engine/usage.rs"]
mod usage;

use std::future::Future;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Command, ExitCode};

use podwright_linux::namespace::{self, flags};
use podwright_testbed::run_on_main_thread;
use rustix::mount::{MountPropagationFlags, mount_change};

use bed::Bed;

type Case = fn(Bed) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => { &[$((stringify!($name), |bed| Box::pin($module::$name(bed)))),*] };
}

const CASES: &[(&str, Case)] = cases![
    lifecycle::a_container_on_the_host_network_runs_to_its_exit,
    lifecycle::a_pod_on_the_bridge_has_the_address_that_its_status_shows,
    lifecycle::pods_without_options_share_a_pid_namespace_that_ends_with_them,
    lifecycle::a_program_that_does_not_exist_is_a_failed_start,
    lifecycle::a_container_beyond_its_memory_is_oom_killed,
    lifecycle::users_groups_and_environment_are_those_of_image_and_request,
    lifecycle::devices_of_the_host_can_not_be_opened,
    lifecycle::files_of_the_sandbox_are_in_its_containers,
    lifecycle::a_full_pid_cgroup_is_named_and_costs_no_other_container,
    stops::a_stop_waits_for_the_exit_and_the_signal_is_sent_once,
    stops::a_stop_without_grace_kills,
    stops::a_shorter_second_stop_shortens_the_first,
    stops::a_caller_that_leaves_does_not_kill,
    stops::the_stop_signal_of_the_image_is_sent,
    stops::a_sandbox_stops_and_removes_its_containers,
    stops::a_stop_ends_although_the_shim_hangs,
    stops::a_frozen_pod_is_stopped,
    stops::a_fork_bomb_is_stopped,
    forwards::forwards_that_hang_delay_no_other_call_of_their_pod,
    calls::exec_sync_returns_output_and_code,
    calls::an_exec_that_takes_too_long_is_killed,
    calls::the_output_of_an_exec_is_cut,
    calls::the_outputs_of_many_execs_are_cut_together,
    calls::names_are_reserved_and_unknown_ids_can_be_removed,
    calls::a_beginning_of_two_ids_is_refused_by_every_call,
    calls::lists_are_filtered_and_ordered_by_creation,
    calls::a_log_is_reopened_after_a_rename,
    calls::limits_are_changed_while_a_container_runs,
    calls::a_change_of_limits_that_fails_changes_nothing,
    calls::limits_that_change_during_a_start_are_those_of_the_cgroup,
    calls::events_follow_a_pod_from_creation_to_deletion,
    calls::the_pod_cidr_of_the_node_is_used_for_new_pods,
    calls::pods_wait_for_the_pod_cidr_if_the_configuration_asks_for_it,
    calls::status_and_version_name_what_callers_rely_on,
    calls::a_user_namespace_is_refused_by_name_if_the_kernel_can_not_map_a_tmpfs,
    recovery::a_new_engine_finds_the_pods_of_the_last_one,
    recovery::an_exit_without_an_engine_is_reported_to_the_next_one,
    recovery::a_killed_shim_is_replaced_and_exit_codes_are_kept,
    recovery::an_exit_that_the_kernel_forgets_is_recorded_before_it_is_reaped,
    recovery::an_oom_kill_that_no_shim_has_seen_is_reported,
    recovery::a_pod_whose_engine_and_shim_died_is_taken_over,
    recovery::after_a_reboot_nothing_runs,
    recovery::a_container_is_shown_as_running_while_its_shim_is_replaced,
    recovery::an_exec_waits_while_the_shim_is_replaced,
    recovery::a_container_whose_files_can_not_be_read_is_not_gone,
    recovery::a_sandbox_whose_record_can_not_be_read_is_left_alone,
    recovery::a_container_whose_record_can_not_be_read_is_left_alone,
    recovery::a_record_that_can_not_be_written_shows_in_the_status_until_it_is,
    recovery::a_container_whose_start_can_not_be_recorded_is_not_launched,
    recovery::a_stopped_pod_has_no_address_in_its_record,
    recovery::an_address_that_a_stopped_pod_left_is_free_after_a_restart,
    recovery::a_pod_without_a_record_is_ended_before_its_files_are_removed,
    recovery::what_an_ended_container_left_behind_is_killed_by_the_next_engine,
    recovery::an_engine_with_another_root_is_refused_while_pods_run,
    recovery::an_engine_with_another_run_directory_is_refused_while_pods_run,
    recovery::a_pod_that_runs_in_an_unknown_cgroup_is_left_alone,
    recovery::a_pod_with_an_unreadable_container_is_not_swept,
    recovery::after_a_reboot_a_container_with_a_damaged_specification_is_removed,
    lost_state::a_pod_is_taken_over_with_its_own_namespaces,
    lost_state::a_pod_without_its_namespaces_is_not_ready_and_its_container_runs_on,
    lost_state::an_engine_without_the_files_of_running_containers_is_refused,
    lost_state::an_engine_without_the_files_of_ended_containers_starts,
    images::what_a_failed_pull_has_brought_is_swept,
    images::layers_of_a_removed_image_are_swept_after_its_last_container,
    handlers::a_container_of_runc_runs_logs_executes_and_exits,
    handlers::a_handler_that_is_not_configured_is_an_error_and_a_failed_start_names_the_program,
    handlers::a_container_of_runc_outlives_the_engine_and_its_shim,
    handlers::containers_of_other_programs_in_the_state_of_a_runtime_are_left_alone,
    isolation::a_container_opens_only_the_devices_that_it_was_given,
    isolation::a_container_has_the_limit_of_open_files_of_the_settings,
    usage::metrics_are_described_and_show_what_a_pod_uses,
    usage::pods_that_do_not_run_have_no_metrics,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if podwright_shim::is_zygote(&arguments) {
        return podwright_shim::zygote::main();
    }
    if std::env::var_os(INSIDE).is_none() {
        return enter_own_namespaces(&arguments);
    }
    if old_kernel::is_pretended() {
        old_kernel::pretend();
    }
    podwright_net::loopback_up().expect("the loopback interface");
    let result = run_on_main_thread(CASES, |case| bed::run(&case));
    bed::remove_images();
    result
}

/// Set in the process that has its own namespaces.
const INSIDE: &str = "PODWRIGHT_ENGINE_TEST_INSIDE";

/// Executed again: the zygote is a clone of the executable, which must be on a mount of the own namespace.
fn enter_own_namespaces(arguments: &[String]) -> ExitCode {
    namespace::unshare(flags::NEWNET | flags::NEWNS).expect("namespaces need root");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private mounts");
    let program = std::env::current_exe().expect("the path of the test");
    let error = Command::new(program).args(&arguments[1..]).env(INSIDE, "1").exec();
    panic!("{error}");
}
