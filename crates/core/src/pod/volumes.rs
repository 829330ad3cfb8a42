//! A pod's volumes: set up before its containers start, and again whenever what they show has changed.

use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;

use super::sync::SETUP_LIMIT;
use super::{Ctx, Machine};
use crate::model::{CallKey, HostCall, Name, Out, spec_of};

impl Machine {
    /// Asks for what is missing or shows something old, all side by side. Whether all stand.
    pub(super) fn set_up_volumes(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let wanted = self.volumes(|_| true);
        for volume in &wanted {
            if !self.setup.volumes.contains(volume) || self.setup.stale.contains(volume) {
                self.ask(HostCall::MountVolume { volume: volume.clone() }, SETUP_LIMIT, ctx, out);
            }
        }
        wanted.iter().all(|volume| self.setup.volumes.contains(volume))
    }

    /// The pod changed: volumes that show it to its containers are set up again. What runs stays.
    pub(super) fn refresh_volumes(&mut self) {
        let shown = self.volumes(|v| v.downward_api.is_some() || v.projected.is_some());
        for name in &shown {
            self.setup.volumes.remove(name);
        }
        self.set_up_again(shown);
    }

    /// Objects it refers to have changed: the volumes that show them are set up again, and what waits because one was missing is
    /// tried at once. A volume that stands is used as it is until then: an object that is gone stops nothing that has it.
    pub(crate) fn objects_changed(&mut self) {
        let shown = self.volumes(|v| v.config_map.is_some() || v.secret.is_some() || v.projected.is_some());
        self.calls.reset_volume_backoff();
        self.set_up_again(shown);
        let waiting = self.bring_up.waiting.iter().filter(|(_, waiting)| waiting.reason == CONFIG_ERROR);
        let waiting: Vec<Name> = waiting.map(|(name, _)| name.clone()).collect();
        for name in &waiting {
            self.calls.reset_container_backoff(name);
        }
    }

    fn set_up_again(&mut self, volumes: Vec<Name>) {
        for name in volumes {
            if self.calls.busy(&CallKey::Volume(name.clone())) {
                self.setup.outdated.insert(name.clone());
            }
            self.setup.stale.insert(name);
        }
    }

    /// A volume is set up, from what was there when it was asked for.
    pub(super) fn volume_is_set_up(&mut self, volume: Name) {
        if !self.setup.outdated.remove(&volume) {
            self.setup.stale.remove(&volume);
            self.setup.volumes.insert(volume);
        }
    }

    /// A volume that can't be had is tried again: 0.5 s ×2 up to two minutes, as the kubelet's mounts.
    pub(super) fn mount_delay(&self, volume: &Name) -> Duration {
        let failures = self.calls.failures(&CallKey::Volume(volume.clone()));
        (Duration::from_millis(500) * 2u32.pow(failures.min(8))).min(Duration::from_secs(122))
    }

    fn volumes(&self, test: impl Fn(&Volume) -> bool) -> Vec<Name> {
        let all = spec_of(&self.record.pod).volumes.iter().flatten();
        all.filter(|volume| test(volume)).map(|volume| Name::from(volume.name.as_str())).collect()
    }
}

/// Kubernetes: ErrCreateContainerConfig.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::actions::Waiting;
    use crate::model::{CallId, Now, Pod, Source};

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
        m.volume_is_set_up("map".into());
        m.volume_is_set_up("dir".into());
        m.objects_changed();
        assert_eq!((names(&m.setup.volumes), names(&m.setup.stale)), (vec!["dir", "map"], vec!["map"]));
        let at = Duration::from_secs(1);
        m.calls.sent(CallId(1), HostCall::MountVolume { volume: "map".into() }.into(), at, SETUP_LIMIT);
        m.objects_changed();
        m.calls.returned(CallId(1));
        m.volume_is_set_up("map".into());
        assert_eq!(names(&m.setup.stale), ["map"], "it changed while it was written");
        m.volume_is_set_up("map".into());
        assert!(m.setup.stale.is_empty());
    }

    #[test]
    fn a_container_that_waits_for_an_object_is_tried_at_once_and_others_keep_their_pace() {
        let mut m = machine();
        let later = Duration::from_secs(10);
        for (name, reason) in [("c", "CreateContainerConfigError"), ("d", "ImageInspectError")] {
            m.bring_up.waiting.insert(name.into(), Waiting { reason: reason.into(), message: "why".into() });
            m.calls.failed(CallKey::Container(name.into()), Duration::ZERO, later, None, "u");
        }
        m.calls.failed(CallKey::Volume("map".into()), Duration::ZERO, later, None, "u");
        m.objects_changed();
        let may = |key| m.calls.may_send(&key, Duration::from_secs(1));
        assert!(may(CallKey::Volume("map".into())) && may(CallKey::Container("c".into())));
        assert!(!may(CallKey::Container("d".into())));
    }
}
