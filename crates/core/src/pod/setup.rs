//! Host-side work before containers start: the pod's cgroup, its directories, its volumes.
//!
//! Volumes are set up again when their content has changed.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;

use super::PodFacts;
use super::step::PodStep;
use super::termination::{ContainerStops, container_grace};
use crate::model::{CallKey, HostCall, Name, Now, SandboxId, spec_of};
use crate::resize::{self, PodCgroupValues};

/// The limit of host work that depends on the kernel: cgroups, directories, unmounts.
pub(super) const HOST_LIMIT: Duration = Duration::from_secs(120);

/// The timeout for one volume or the files of one container: they take milliseconds or hang, and then the pod should report it
/// soon.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(20);

/// What this process has set up on the host for the pod. Every step may be repeated after a restart.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Setup {
    cgroup: bool,
    /// The limits of the cgroup, as last requested.
    #[serde(default)]
    cgroup_values: Option<PodCgroupValues>,
    dirs: bool,
    volumes: BTreeSet<Name>,
    /// Volumes whose content has changed and that are set up again. They can be used meanwhile.
    #[serde(default)]
    stale: BTreeSet<Name>,
    /// Volumes whose content changed while they are being set up.
    outdated: BTreeSet<Name>,
    /// Sandboxes that ran before the cgroup was made: they run outside of it.
    #[serde(default)]
    outside_pod_cgroup: BTreeSet<SandboxId>,
    /// The network was missing, and an event was sent.
    network_missing: bool,
}

impl Setup {
    /// Cgroup and directories in parallel, then all volumes in parallel. True if all exist.
    pub(super) fn plan(&mut self, step: &mut PodStep<'_, '_>) -> bool {
        if let Some(why) = step.ctx.no_network
            && spec_of(&step.facts.record.pod).host_network != Some(true)
            && step.facts.observed.seen.sandbox().is_none_or(|s| !s.ready)
        {
            if !std::mem::replace(&mut self.network_missing, true) {
                step.warn("NetworkNotReady", None, format!("network is not ready: {why}"));
            }
            return false;
        }
        self.network_missing = false;
        if !self.cgroup {
            self.make_cgroup(step);
        }
        if !self.dirs {
            step.request(HostCall::MakeDirs, HOST_LIMIT);
        }
        self.cgroup && self.dirs && self.plan_volumes(step)
    }

    /// Requests the volumes that are missing or stale, in parallel. True if all can be used.
    fn plan_volumes(&self, step: &mut PodStep<'_, '_>) -> bool {
        let wanted = volumes(step.facts, |_| true);
        for volume in &wanted {
            if !self.volumes.contains(volume) || self.stale.contains(volume) {
                step.request(HostCall::MountVolume { volume: volume.clone() }, SETUP_LIMIT);
            }
        }
        wanted.iter().all(|volume| self.volumes.contains(volume))
    }

    pub(super) fn is_network_missing(&self) -> bool {
        self.network_missing
    }

    pub(super) fn dirs_made(&mut self) {
        self.dirs = true;
    }

    // --- volumes ---

    /// The pod changed: its downwardAPI volumes are set up again. Until then they can be used as they are: restarts and probes
    /// continue even if an object that such a volume also contains is gone.
    pub(super) fn pod_changed(&mut self, facts: &PodFacts) {
        let shown = volumes(facts, |v| v.downward_api.is_some() || v.projected.is_some());
        self.set_up_again(shown, facts);
    }

    /// Objects it refers to have changed: their volumes are set up again. Until then they can be used as they are: the removal of
    /// an object does not affect running containers.
    pub(super) fn objects_changed(&mut self, facts: &PodFacts) {
        let shown = volumes(facts, |v| v.config_map.is_some() || v.secret.is_some() || v.projected.is_some());
        self.set_up_again(shown, facts);
    }

    fn set_up_again(&mut self, volumes: Vec<Name>, facts: &PodFacts) {
        for name in volumes {
            if facts.calls.busy(&CallKey::Volume(name.clone())) {
                self.outdated.insert(name.clone());
            }
            self.stale.insert(name);
        }
    }

    /// A volume is set up, with its content at the time of the request.
    pub(super) fn volume_mounted(&mut self, volume: Name) {
        if !self.outdated.remove(&volume) {
            self.stale.remove(&volume);
            self.volumes.insert(volume);
        }
    }

    // --- cgroup ---

    /// The next sandbox is created in a new cgroup: after the stop of a sandbox nothing holds the old one, and it may be removed.
    pub(super) fn sandbox_stopped(&mut self) {
        self.cgroup = false;
    }

    /// While a resize is in progress, containers may have more than is allocated.
    fn make_cgroup(&mut self, step: &mut PodStep<'_, '_>) {
        let pod = resize::largest_pod(&step.facts.record, &step.facts.observed.seen);
        let values = PodCgroupValues::of(&pod);
        if step.request_for(pod, HostCall::MakeCgroup, HOST_LIMIT) {
            self.cgroup_values = Some(values);
        }
    }

    /// The limits that a resize changes; `None` while there is no cgroup.
    pub(super) fn cgroup_values(&self) -> Option<&PodCgroupValues> {
        self.cgroup_values.as_ref().filter(|_| self.cgroup)
    }

    /// Limits were set by a resize.
    pub(super) fn cgroup_resized(&mut self, cpu_shares: Option<u64>, quota_us: Option<i64>, memory: Option<i64>) {
        if let Some(values) = &mut self.cgroup_values {
            *values = values.changed(cpu_shares, quota_us, memory);
        }
    }

    /// The cgroup exists. If it had to be created, containers that already run are outside of its limits.
    pub(super) fn cgroup_made(&mut self, made: bool, facts: &mut PodFacts, now: Now) {
        self.cgroup = true;
        if made && facts.observed.seen.alive().next().is_some() {
            facts.history.record(now, "the cgroup of the pod was missing", "containers outside of it are restarted");
            let ready = facts.observed.seen.sandboxes.iter().filter(|s| s.ready);
            self.outside_pod_cgroup = ready.map(|s| s.id.clone()).collect();
            self.void_outside(facts);
        }
    }

    /// Marks containers outside of the cgroup for replacement, which a restarted agent continues; unless the policy of the pod is
    /// Never.
    fn void_outside(&self, facts: &mut PodFacts) {
        if spec_of(&facts.record.pod).restart_policy.as_deref() == Some("Never") {
            return;
        }
        for c in facts.observed.seen.alive().filter(|c| self.outside_pod_cgroup.contains(&c.sandbox)) {
            facts.record.edit_container(&c.name, |memory| memory.voided = Some(c.id.clone()));
        }
    }

    /// Stops the containers and sandboxes outside of the pod's cgroup. The plan starts them again inside, unless the policy is
    /// Never. True while something is left to stop.
    pub(super) fn stop_outside(&mut self, stops: &mut ContainerStops, step: &mut PodStep<'_, '_>) -> bool {
        let seen = &step.facts.observed.seen;
        self.outside_pod_cgroup.retain(|id| seen.sandboxes.iter().any(|s| s.id == *id && s.ready));
        if self.outside_pod_cgroup.is_empty() {
            return false;
        }
        let outside = seen.alive().filter(|c| self.outside_pod_cgroup.contains(&c.sandbox));
        let outside: Vec<_> = outside.map(|c| (c.name.clone(), c.id.clone(), c.sandbox.clone())).collect();
        self.void_outside(step.facts);
        let deadline = step.now().boot + container_grace(step.facts);
        for (name, id, _) in &outside {
            let message = format!("Container {name} runs outside of its pod's cgroup, which was missing");
            stops.add(id, deadline, &message);
        }
        stops.proceed(step);
        for id in &self.outside_pod_cgroup {
            if !outside.iter().any(|(.., sandbox)| sandbox == id) {
                step.stop_sandbox(id);
            }
        }
        true
    }
}

/// The delay after a failed mount: 0.5 s ×2 up to two minutes, as the kubelet's mounts.
pub(super) fn mount_delay(facts: &PodFacts, volume: &Name) -> Duration {
    let failures = facts.calls.failures(&CallKey::Volume(volume.clone()));
    (Duration::from_millis(500) * 2u32.pow(failures.min(8))).min(Duration::from_secs(122))
}

fn volumes(facts: &PodFacts, test: impl Fn(&Volume) -> bool) -> Vec<Name> {
    let all = spec_of(&facts.record.pod).volumes.iter().flatten();
    all.filter(|volume| test(volume)).map(|volume| Name::from(volume.name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::actions::Waiting;
    use crate::model::{CallId, Now, Pod, Source};
    use crate::pod::Machine;

    fn machine() -> Machine {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}, {"name": "d"}], "volumes": [
                {"name": "map", "configMap": {"name": "m"}}, {"name": "dir", "emptyDir": {}}]},
        }))
        .unwrap();
        let now = Now { boot: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH };
        Machine::new("u".into(), Source::Api, Arc::new(pod), None, now)
    }

    fn names<'a>(all: impl IntoIterator<Item = &'a Name>) -> Vec<&'a str> {
        all.into_iter().map(Name::as_str).collect()
    }

    #[test]
    fn a_volume_stays_usable_until_it_is_set_up_again() {
        let mut m = machine();
        m.progress.setup.volume_mounted("map".into());
        m.progress.setup.volume_mounted("dir".into());
        m.objects_changed();
        assert_eq!(
            (names(&m.progress.setup.volumes), names(&m.progress.setup.stale)),
            (vec!["dir", "map"], vec!["map"])
        );
        let at = Duration::from_secs(1);
        m.facts.calls.sent(CallId(1), HostCall::MountVolume { volume: "map".into() }.into(), at, SETUP_LIMIT);
        m.objects_changed();
        m.facts.calls.returned(CallId(1));
        m.progress.setup.volume_mounted("map".into());
        assert_eq!(names(&m.progress.setup.stale), ["map"], "it changed while it was written");
        m.progress.setup.volume_mounted("map".into());
        assert!(m.progress.setup.stale.is_empty());
    }

    #[test]
    fn a_container_that_waits_for_an_object_is_retried_at_once_and_others_keep_their_delay() {
        let mut m = machine();
        let later = Duration::from_secs(10);
        for (name, reason) in [("c", "CreateContainerConfigError"), ("d", "ImageInspectError")] {
            m.progress.bring_up.waiting.insert(name.into(), Waiting { reason: reason.into(), message: "why".into() });
            m.facts.calls.failed(CallKey::Container(name.into()), Duration::ZERO, later, None, "u");
        }
        m.facts.calls.failed(CallKey::Volume("map".into()), Duration::ZERO, later, None, "u");
        m.objects_changed();
        let may = |key| m.facts.calls.may_send(&key, Duration::from_secs(1));
        assert!(may(CallKey::Volume("map".into())) && may(CallKey::Container("c".into())));
        assert!(!may(CallKey::Container("d".into())));
    }
}
