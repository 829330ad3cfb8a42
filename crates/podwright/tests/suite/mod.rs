//! Tests on a real runtime, run on every flavor of it.

pub(crate) mod blocking_proxy;
pub(crate) mod cgroups;
pub(crate) mod container_output;
pub(crate) mod cri;
pub(crate) mod deletion;
pub(crate) mod features;
pub(crate) mod fs_group;
pub(crate) mod garbage_collection;
pub(crate) mod graceful_shutdown;
pub(crate) mod health_server;
pub(crate) mod hooks;
pub(crate) mod hung_mount;
pub(crate) mod image_pulls;
pub(crate) mod invalid_input;
pub(crate) mod journal;
pub(crate) mod local_client;
pub(crate) mod lost_journal;
pub(crate) mod manifest_edits;
pub(crate) mod many_pods;
pub(crate) mod noisy_neighbours;
pub(crate) mod poison_pod;
pub(crate) mod probes;
pub(crate) mod reboot;
pub(crate) mod record_replay;
pub(crate) mod resources;
pub(crate) mod restarts;
pub(crate) mod security;
pub(crate) mod status_matrix;
pub(crate) mod supervision;
pub(crate) mod systemd_notify;
pub(crate) mod termination;
pub(crate) mod volumes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime, leftovers, wait_until};
use serde_json::{Value, json};

/// The tests of this suite on one flavor of the runtime.
#[macro_export]
macro_rules! suite_on {
    ($flavor:expr, $($module:ident::$test:ident($($arg:expr)?)),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                suite::$module::$test($flavor $(, $arg)?);
            }
        )+
    };
}

/// The list of all tests.
#[macro_export]
macro_rules! all_on {
    ($flavor:expr) => {
        $crate::suite_on!(
            $flavor,
            many_pods::a_pod_runs_and_is_removed_with_its_manifest(),
            many_pods::sixty_pods_start_and_terminate_at_once(),
            status_matrix::pods_of_every_kind_get_the_documented_status(),
            restarts::killing_the_agent_at_random_loses_no_pod_and_restarts_no_container(10),
            restarts::restarting_the_runtime_restarts_no_container(),
            graceful_shutdown::pods_end_by_priority_before_the_host_shuts_down(),
            reboot::after_a_reboot_pods_follow_their_restart_policy(),
            lost_journal::after_loss_of_the_journal_desired_pods_keep_running(),
            termination::hooks_signals_and_sidecars_follow_order_and_grace_period(),
            termination::a_hanging_hook_and_an_ignored_signal_share_one_grace_period(),
            manifest_edits::after_200_edits_the_last_version_runs_and_two_never_overlap(),
            manifest_edits::after_20_edits_with_a_fixed_uid_the_last_version_runs(),
            manifest_edits::a_new_image_with_a_fixed_uid_restarts_only_the_container(),
            invalid_input::invalid_manifests_are_reported_and_do_not_affect_other_pods(),
            invalid_input::the_systemd_driver_without_systemd_is_rejected(),
            hooks::hooks_of_every_kind_run_after_start_and_before_stop(),
            hooks::a_failed_post_start_hook_kills_its_container_with_an_event(),
            hooks::a_container_is_running_only_after_its_post_start_hook(),
            resources::the_cgroup_of_all_pods_is_limited_to_node_allocatable(),
            cgroups::a_pod_whose_cgroup_was_removed_restarts_in_a_new_cgroup(),
            features::pods_get_what_their_specs_request(),
            security::containers_get_the_users_and_privileges_of_their_specs(),
            volumes::volumes_have_the_right_content_and_can_not_be_escaped(),
            garbage_collection::dead_containers_are_removed_with_their_logs_and_large_logs_are_rotated(),
            garbage_collection::unused_images_are_removed_except_the_sandbox_image(),
            fs_group::fs_group_applies_once_to_pod_volumes_and_never_to_host_paths(),
            probes::probes_of_every_kind_with_every_handler_work(),
            probes::readiness_does_not_change_when_the_agent_is_killed(20),
            image_pulls::images_are_pulled_and_failures_are_reported(),
            image_pulls::a_hanging_registry_delays_only_its_own_pods(),
            hung_mount::a_hanging_mount_delays_only_its_own_pods(),
            hung_mount::a_hanging_manifest_directory_changes_no_pod(),
            record_replay::a_recorded_run_with_faults_replays_identically(60),
            supervision::a_failed_task_ends_the_agent_with_an_error_that_names_it(),
            noisy_neighbours::a_noisy_neighbour_slows_no_other_pod_down(),
            poison_pod::a_pod_in_which_the_agent_dies_twice_is_quarantined_and_the_others_start(),
            systemd_notify::systemd_is_notified_and_pods_survive_the_stop_of_the_agent(),
            deletion::a_pod_can_be_deleted_at_every_step(),
            deletion::pods_deleted_while_the_runtime_is_frozen_are_removed_after_it_resumes(),
        );
    };
}

/// Generous, because the host is shared; slowness is not a failure here.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// An agent with its own runtime.
pub(crate) struct TestNode {
    pub(crate) scratch: Scratch,
    pub(crate) runtime: TestRuntime,
    pub(crate) agent: Agent,
}

impl TestNode {
    pub(crate) fn start(flavor: Flavor) -> Self {
        Self::configured(flavor, json!({}))
    }

    /// With changes to the testbed's KubeletConfiguration.
    pub(crate) fn configured(flavor: Flavor, changes: Value) -> Self {
        let scratch = Scratch::new().expect("a scratch");
        let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
        let agent = Agent::new(&scratch).runtime(&runtime).config(changes).start().expect("the agent starts");
        Self { scratch, runtime, agent }
    }

    pub(crate) fn put(&self, name: &str, spec: &Value) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.scratch.put_manifest(&format!("{name}.json"), &pod).expect("written");
    }

    pub(crate) fn remove(&self, name: &str) {
        self.scratch.remove_manifest(&format!("{name}.json")).expect("removed");
    }

    /// As [`Self::put`], with the name as the label `app` too.
    pub(crate) fn put_labeled(&self, name: &str, spec: &Value) {
        let metadata = json!({"name": name, "labels": {"app": name}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        self.scratch.put_manifest(&format!("{name}.json"), &pod).expect("written");
    }

    /// Removes every manifest.
    pub(crate) fn remove_all(&self) {
        for entry in std::fs::read_dir(self.scratch.manifests().expect("there")).expect("there").flatten() {
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }

    /// A pod by the name in its manifest.
    pub(crate) fn pod(&self, name: &str) -> Result<Value> {
        self.agent.pod(&format!("{name}-node"))?.with_context(|| format!("{name} is unknown to the agent"))
    }

    pub(crate) fn phase(&self, name: &str, wanted: &str) -> Result<Value> {
        let pod = self.pod(name)?;
        ensure!(pod["status"]["phase"] == wanted, "{name}: {:#}", pod["status"]);
        Ok(pod)
    }

    pub(crate) fn wait_phase(&self, name: &str, wanted: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be {wanted}"), || self.phase(name, wanted))
    }

    /// Kills the agent from outside, at any moment. What it worked on is not suspect for that: a pod that is hit twice by chance would be
    /// quarantined.
    pub(crate) fn kill_agent(&mut self) {
        self.agent.kill9().expect("killed");
        let suspects = self.scratch.run_dir().expect("there").join("suspects.json");
        assert!(std::fs::remove_file(&suspects).is_ok() || !suspects.exists(), "{} stays", suspects.display());
    }

    /// Waits until the agent has no pod and nothing of the pods is left on the host.
    pub(crate) fn wait_nothing_left(&self) {
        self.wait_nothing_left_but(|_| false);
    }

    /// The same, except for leftovers that are known bugs of the runtime.
    pub(crate) fn wait_nothing_left_but(&self, known: fn(&str) -> bool) {
        wait_until(LIMIT, "the agent to have no pod", || {
            let pods = self.agent.pods()?;
            let left = pods["items"].as_array().context("a list")?.len();
            ensure!(left == 0, "{left} pods are left, the first: {:#}", pods["items"][0]);
            Ok(())
        });
        wait_until(Duration::from_secs(20), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.runtime)?;
            left.extend(journal::pods(&self.scratch)?);
            ensure!(left.iter().all(|left| known(left)), "{left:#?}");
            Ok(())
        });
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.agent.log();
            let tail: Vec<&str> = log.lines().rev().take(80).collect();
            eprintln!("--- end of the agent's log ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// The status of one container, init containers included.
pub(crate) fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten())
        .find(|c| c["name"] == name)
        .unwrap_or(&Value::Null)
}

/// The id of a container in its runtime, without the name of the runtime; empty if it has none.
pub(crate) fn container_id(status: &Value) -> String {
    let id = status["containerID"].as_str().unwrap_or_default();
    id.split_once("://").map_or(id, |(_, id)| id).to_owned()
}

pub(crate) fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let mut all = pod["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

/// A container that runs a shell script.
pub(crate) fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": podwright_testbed::image::BUSYBOX, "command": ["sh", "-c", script]})
}

/// A container that runs until SIGTERM, and then exits at once.
pub(crate) fn sleeper(name: &str) -> Value {
    sh(name, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
}

/// A pod with one container.
pub(crate) fn one(container: &Value) -> Value {
    json!({"terminationGracePeriodSeconds": 2, "containers": [container]})
}
