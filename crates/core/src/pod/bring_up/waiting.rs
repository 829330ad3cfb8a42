//! Why containers do not run: what `state.waiting` shows.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::actions::{Waiting, format_pod};
use crate::model::history_text::container_text;
use crate::model::{CallKey, Name, RunState};
use crate::pod::PodFacts;
use crate::pod::calls::RETRY;
use crate::pod::step::PodStep;

const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Kubernetes: ErrCreateContainerConfig.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The reason of each container that waits.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(in crate::pod) struct WaitingContainers(BTreeMap<Name, Waiting>);

impl Deref for WaitingContainers {
    type Target = BTreeMap<Name, Waiting>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl WaitingContainers {
    pub(in crate::pod) fn insert(&mut self, name: Name, waiting: Waiting) {
        self.0.insert(name, waiting);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// A container cannot be started now: reports why, and waits.
    pub(super) fn start_failed(&mut self, name: &Name, reason: &str, message: &str, step: &mut PodStep<'_, '_>) {
        if self.retry_later(name, reason, message, step) {
            step.warn("Failed", Some(name), format!("Error: {message}"));
        }
    }

    /// It is tried again later. True if the reason is new.
    pub(super) fn retry_later(&mut self, name: &Name, reason: &str, message: &str, step: &mut PodStep<'_, '_>) -> bool {
        let waiting = Waiting { reason: reason.to_owned(), message: message.to_owned() };
        let is_new = self.0.get(name) != Some(&waiting);
        if is_new {
            step.history(&container_text(name, format_args!("is waiting: {reason}")), message);
            self.0.insert(name.clone(), waiting);
        }
        let (key, now) = (CallKey::Container(name.clone()), step.now().boot);
        step.facts.calls.failed(key, now, RETRY, Some(message), step.facts.record.uid.as_str());
        is_new
    }

    /// Takes the reasons from the plan; running containers have none.
    pub(in crate::pod) fn follow_plan(&mut self, planned: &BTreeMap<Name, Waiting>, step: &mut PodStep<'_, '_>) {
        let seen = &step.facts.observed.seen;
        let runs = |name: &Name| seen.containers.iter().any(|c| c.name == *name && c.state == RunState::Running);
        self.0.retain(|name, w| !runs(name) && (w.reason != CRASH_LOOP || planned.contains_key(name)));
        for (name, waiting) in planned {
            // The next instance is being created: the journaled backoff applies to the instance after it.
            let coming = step.facts.calls.busy(&CallKey::Container(name.clone()));
            if !coming && self.0.get(name) != Some(waiting) {
                if waiting.reason == CRASH_LOOP {
                    step.history(
                        &container_text(name, format_args!("is waiting: {}", waiting.reason)),
                        &waiting.message,
                    );
                    let pod = format_pod(&step.facts.record.pod);
                    let message = format!("Back-off restarting failed container {name} in pod {pod}");
                    step.warn("BackOff", Some(name), message);
                }
                self.0.insert(name.clone(), waiting.clone());
            }
        }
    }

    /// Containers that wait because an object was missing are tried again at once.
    pub(in crate::pod) fn objects_changed(&self, facts: &mut PodFacts) {
        for (name, _) in self.0.iter().filter(|(_, waiting)| waiting.reason == CONFIG_ERROR) {
            facts.calls.reset_backoff_of(&CallKey::Container(name.clone()));
        }
    }
}
