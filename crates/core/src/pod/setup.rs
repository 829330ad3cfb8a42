//! Host-side work before containers start: the pod's cgroup, its directories, its volumes.
//!
//! Volumes are set up again whenever what they show has changed.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;

use super::PodFacts;
use super::step::PodStep;
use super::termination::{ContainerStops, container_grace};
use crate::model::{CallKey, HostCall, Name, Now, SandboxId, spec_of};

/// The limit of host work that depends on the kernel: cgroups, directories, unmounts.
pub(super) const HOST_LIMIT: Duration = Duration::from_secs(120);

/// The limit for one volume or one container's files: they take milliseconds, or hang, and then the pod should report it soon.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(20);

/// What this process has set up on the host for the pod. Every step may be repeated after a restart.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Setup {
    cgroup: bool,
    dirs: bool,
    volumes: BTreeSet<Name>,
    /// Volumes to be set up again: what they show has changed. Those that stand can be used meanwhile.
    #[serde(default)]
    stale: BTreeSet<Name>,
    /// Volumes that are being set up from what has changed since.
    outdated: BTreeSet<Name>,
    /// Sandboxes that ran before the cgroup was made: they run outside of it.
    #[serde(default)]
    outside_pod_cgroup: BTreeSet<SandboxId>,
    /// The network was missing, and an event was sent.
    network_missing: bool,
}

impl Setup {
    /// Cgroup and directories in parallel, then all volumes in parallel. True if all is there.
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
            step.ask(HostCall::MakeCgroup, HOST_LIMIT);
        }
        if !self.dirs {
            step.ask(HostCall::MakeDirs, HOST_LIMIT);
        }
        self.cgroup && self.dirs && self.plan_volumes(step)
    }

    /// Asks for the volumes that are missing or stale, in parallel. True if all stand.
    fn plan_volumes(&self, step: &mut PodStep<'_, '_>) -> bool {
        let wanted = volumes(step.facts, |_| true);
        for volume in &wanted {
            if !self.volumes.contains(volume) || self.stale.contains(volume) {
                step.ask(HostCall::MountVolume { volume: volume.clone() }, SETUP_LIMIT);
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

    /// The pod changed: volumes that show it to its containers are set up again. A volume that stands is used as it is until then:
    /// if an object that it also shows is gone, the restarts and probes of the pod go on.
    pub(super) fn pod_changed(&mut self, facts: &PodFacts) {
        let shown = volumes(facts, |v| v.downward_api.is_some() || v.projected.is_some());
        self.set_up_again(shown, facts);
    }

    /// Objects it refers to have changed: the volumes that show them are set up again. A volume that stands is used as it is until
    /// then: the removal of an object stops nothing that has it.
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

    /// A volume is set up, from what was there when it was asked for.
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

    /// The cgroup is there. What ran before it had to be made runs outside of its limits.
    pub(super) fn cgroup_made(&mut self, made: bool, facts: &mut PodFacts, now: Now) {
        self.cgroup = true;
        if made && facts.observed.seen.alive().next().is_some() {
            facts.history.record(now, "the cgroup of the pod was missing", "containers outside of it are restarted");
            let ready = facts.observed.seen.sandboxes.iter().filter(|s| s.ready);
            self.outside_pod_cgroup = ready.map(|s| s.id.clone()).collect();
            self.void_outside(facts);
        }
    }

    /// What runs outside is replaced, also by a successor of this agent; unless the pod's policy is Never.
    fn void_outside(&self, facts: &mut PodFacts) {
        if spec_of(&facts.record.pod).restart_policy.as_deref() == Some("Never") {
            return;
        }
        for c in facts.observed.seen.alive().filter(|c| self.outside_pod_cgroup.contains(&c.sandbox)) {
            facts.record.edit_container(&c.name, |memory| memory.voided = Some(c.id.clone()));
        }
    }

    /// Stops what runs outside of the pod's cgroup, sandbox included. The plan starts it again inside, unless its policy is Never.
    /// True while there is something left to stop.
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
    fn what_stands_stays_until_it_is_set_up_again() {
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
    fn a_container_that_waits_for_an_object_is_tried_at_once_and_others_keep_their_pace() {
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
