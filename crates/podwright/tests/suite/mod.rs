//! What is shown on a real runtime, the same on every flavor of it.

pub(crate) mod blocking_proxy;
pub(crate) mod cgroups;
pub(crate) mod container_output;
pub(crate) mod corrupting_proxy;
pub(crate) mod cri;
pub(crate) mod deletion;
pub(crate) mod features;
pub(crate) mod fs_group;
pub(crate) mod garbage_collection;
pub(crate) mod health_server;
pub(crate) mod hooks;
pub(crate) mod hung_mount;
pub(crate) mod image_pulls;
pub(crate) mod invalid_input;
pub(crate) mod journal;
pub(crate) mod lost_journal;
pub(crate) mod manifest_edits;
pub(crate) mod many_pods;
pub(crate) mod probes;
pub(crate) mod reboot;
pub(crate) mod record_replay;
pub(crate) mod resources;
pub(crate) mod restarts;
pub(crate) mod security;
pub(crate) mod status_matrix;
pub(crate) mod systemd_notify;
pub(crate) mod termination;
pub(crate) mod volumes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, leftovers, wait_until};
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

/// Every test, named once.
#[macro_export]
macro_rules! all_on {
    ($flavor:expr) => {
        $crate::suite_on!(
            $flavor,
            many_pods::a_manifest_becomes_a_running_pod_and_goes_without_a_trace(),
            many_pods::sixty_manifests_at_once_all_run_and_all_go(),
            status_matrix::pods_of_every_kind_end_in_the_documented_statuses(),
            restarts::kill_9_at_random_moments_loses_nothing_and_restarts_nothing(10),
            restarts::containerd_killed_and_restarted_under_the_pods_restarts_none(),
            reboot::after_a_reboot_pods_come_back_as_their_policy_says(),
            lost_journal::a_lost_journal_touches_nothing_that_is_wanted(),
            cgroups::a_pod_whose_cgroup_was_removed_comes_back_inside_of_one(),
            termination::hooks_signals_and_sidecars_keep_their_order_and_their_time(),
            termination::a_hook_and_a_signal_that_nobody_obeys_take_one_grace_together(),
            manifest_edits::edited_200_times_the_last_content_runs_and_never_two_at_once(),
            manifest_edits::edited_20_times_with_a_fixed_uid_the_last_content_runs(),
            manifest_edits::a_new_image_under_a_fixed_uid_restarts_the_container_only(),
            invalid_input::broken_manifests_are_named_and_touch_nothing_else(),
            invalid_input::a_runtime_that_answers_garbage_is_survived(),
            invalid_input::a_cgroup_driver_that_is_not_there_is_refused(),
            hooks::hooks_of_every_means_run_after_the_start_and_before_the_end(),
            hooks::a_hook_that_fails_after_the_start_ends_its_container_and_is_told(),
            hooks::a_container_runs_once_its_hook_after_the_start_has_ended(),
            resources::the_group_of_all_pods_is_held_to_what_is_not_reserved(),
            features::pods_find_what_their_specs_ask_for(),
            security::containers_are_and_may_what_their_specs_say(),
            volumes::volumes_hold_what_they_should_and_nobody_gets_out(),
            garbage_collection::dead_containers_go_with_their_logs_and_logs_that_grow_are_rotated(),
            garbage_collection::unused_images_go_and_the_sandboxes_image_stays(),
            fs_group::a_group_gets_what_is_made_for_its_pod_once_and_nothing_of_the_machine(),
            probes::probes_of_every_kind_by_every_means(),
            probes::readiness_never_flips_when_the_agent_dies(20),
            image_pulls::images_come_from_registries_and_failures_are_told(),
            image_pulls::a_registry_that_hangs_hurts_only_who_needs_it(),
            hung_mount::a_mount_that_hangs_hurts_only_who_needs_it(),
            hung_mount::manifests_that_hang_change_nothing(),
            record_replay::a_run_with_faults_is_recorded_and_replayed_bit_for_bit(60),
            systemd_notify::a_service_manager_is_told_and_fed_and_the_end_keeps_the_pods(),
            deletion::a_pod_can_be_deleted_at_every_step(),
            deletion::pods_deleted_while_the_runtime_is_frozen_go_when_it_thaws(),
        );
    };
}

/// Generous: the machine is shared, and what is slow is not wrong here.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// An agent on a runtime of its own.
pub(crate) struct Bed {
    pub(crate) scratch: Scratch,
    pub(crate) containerd: Containerd,
    pub(crate) agent: Agent,
}

impl Bed {
    pub(crate) fn start(flavor: Flavor) -> Self {
        Self::configured(flavor, json!({}))
    }

    /// With fields of KubeletConfiguration laid over the testbed's.
    pub(crate) fn configured(flavor: Flavor, changes: Value) -> Self {
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, flavor).expect("containerd starts");
        let agent = Agent::new(&scratch).runtime(&containerd).config(changes).start().expect("the agent starts");
        Self { scratch, containerd, agent }
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

    /// Every manifest goes.
    pub(crate) fn remove_all(&self) {
        for entry in std::fs::read_dir(self.scratch.manifests().expect("there")).expect("there").flatten() {
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }

    /// A pod by the name in its manifest.
    pub(crate) fn pod(&self, name: &str) -> Result<Value> {
        self.agent.pod(&format!("{name}-node"))?.with_context(|| format!("{name} is not known"))
    }

    pub(crate) fn phase(&self, name: &str, wanted: &str) -> Result<Value> {
        let pod = self.pod(name)?;
        ensure!(pod["status"]["phase"] == wanted, "{name}: {:#}", pod["status"]);
        Ok(pod)
    }

    pub(crate) fn wait_phase(&self, name: &str, wanted: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be {wanted}"), || self.phase(name, wanted))
    }

    /// Every pod of the agent is gone, and nothing of them is left on the machine.
    pub(crate) fn wait_nothing_left(&self) {
        self.wait_nothing_left_but(|_| false);
    }

    /// As above, but for what is known to be the runtime's own.
    pub(crate) fn wait_nothing_left_but(&self, known: fn(&str) -> bool) {
        wait_until(LIMIT, "no pod to be known", || {
            let pods = self.agent.pods()?;
            let left = pods["items"].as_array().context("a list")?.len();
            ensure!(left == 0, "{left} pods are left, the first: {:#}", pods["items"][0]);
            Ok(())
        });
        wait_until(Duration::from_secs(20), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.containerd)?;
            left.extend(journal::pods(&self.scratch)?);
            ensure!(left.iter().all(|left| known(left)), "{left:#?}");
            Ok(())
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.agent.log();
            let tail: Vec<&str> = log.lines().rev().take(80).collect();
            eprintln!("--- the agent's last lines ---");
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

pub(crate) fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let mut all = pod["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

/// A container that runs a shell script.
pub(crate) fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": podwright_testbed::image::BUSYBOX, "command": ["sh", "-c", script]})
}

/// A container that runs until it is told to end, and then ends at once.
pub(crate) fn sleeper(name: &str) -> Value {
    sh(name, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
}

/// A pod of one container.
pub(crate) fn one(container: &Value) -> Value {
    json!({"terminationGracePeriodSeconds": 2, "containers": [container]})
}
