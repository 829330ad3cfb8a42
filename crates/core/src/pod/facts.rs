//! The facts of one pod: its record, its observed state, its calls and its history.

use std::time::Duration;

use jiff::Timestamp;

use super::calls::Calls;
use super::journaled::Journaled;
use super::observed::Observed;
use super::{History, State};
use crate::actions::{self, Waiting};
use crate::model::{
    Call, Cause, Effect, FullName, KubeEvent, Name, Now, Out, PodRecord, PodSeen, RuntimeCall, SandboxId, Seq, Time,
    full_name, spec_of,
};

/// The facts of one pod. Every part of its machine reads them.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct PodFacts {
    pub(super) record: Journaled,
    full_name: FullName,
    /// A source wants it. An orphan has none.
    pub(super) has_config: bool,
    /// Why it is not admitted yet: reason and message.
    pub(super) hold: Option<Waiting>,
    pub(super) observed: Observed,
    pub(super) calls: Calls,
    pub(super) history: History,
    /// Nothing is done for this pod.
    pub(super) quarantine: Option<Quarantine>,
    /// Until then no dead container is kept.
    #[serde(default)]
    pub(super) reclaim_until: Time,
    #[serde(default)]
    pub(super) object_status: ObjectStatus,
}

/// Whether the status of the pod's object was compared with the record: another agent may have reported meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) enum ObjectStatus {
    /// Not yet, and the journal did not have the pod.
    #[default]
    New,
    /// Not yet. In the journal, the last change of a condition was at this time.
    Restored(Option<Timestamp>),
    /// Compared, or not to be compared.
    Done,
}

/// Why a pod is left as it is, and for how long.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Quarantine {
    /// The internal error, or how the agent died.
    pub(crate) why: String,
    /// `None`: after an internal error, until the agent restarts.
    pub(crate) until: Option<Time>,
    /// After one death: for some seconds, until the other suspects have been tried.
    pub(crate) is_hold: bool,
}

impl PodFacts {
    pub(super) fn new(record: Journaled) -> Self {
        Self {
            full_name: full_name(&record.pod),
            history: History::restored(&record.history),
            record,
            has_config: true,
            hold: None,
            observed: Observed::default(),
            calls: Calls::default(),
            quarantine: None,
            reclaim_until: Time::ZERO,
            object_status: ObjectStatus::New,
        }
    }

    /// What its object said when this agent first saw it is known.
    pub(crate) fn has_met_object(&self) -> bool {
        self.object_status == ObjectStatus::Done
    }

    /// Containers or sandboxes of it are being removed.
    pub(crate) fn is_removing(&self) -> bool {
        let removes = |call: &Call| {
            matches!(call, Call::Runtime(RuntimeCall::RemoveContainer { .. } | RuntimeCall::RemoveSandbox { .. }))
        };
        self.calls.any(removes)
    }

    /// Its phase on this node.
    pub fn state(&self) -> State {
        self.record.life.state()
    }

    /// Its record.
    pub fn record(&self) -> &PodRecord {
        &self.record
    }

    /// Its state in the runtime, as last observed.
    pub fn seen(&self) -> &PodSeen {
        &self.observed.seen
    }

    /// Its last transitions.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Namespace and name.
    pub fn full_name(&self) -> &FullName {
        &self.full_name
    }

    /// A source wants it.
    pub fn has_config(&self) -> bool {
        self.has_config
    }

    pub(crate) fn is_static(&self) -> bool {
        self.record.source.is_static()
    }

    /// It terminates and its source had dropped it at some time since, maybe under a former agent: a source that has it now wants
    /// a new instance.
    pub(crate) fn left_config(&self) -> bool {
        let left = self.record.termination().is_some_and(|e| e.deleted && self.is_static());
        self.state() >= State::Terminating && (!self.has_config || left)
    }

    /// Its claim on its name: whether something of it runs, and whether it was admitted.
    pub(crate) fn claim(&self) -> (bool, bool) {
        (!self.observed.seen.is_stopped(), self.record.was_admitted())
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    /// It is in quarantine after an internal error, which no request ends.
    pub(crate) fn is_broken(&self) -> bool {
        self.quarantine.as_ref().is_some_and(|quarantine| quarantine.until.is_none())
    }

    /// The quarantine after deaths of the agent is over. That after an internal error is not: the state of the machine is unknown.
    pub(super) fn end_quarantine(&mut self, why: &str, now: Now) {
        if self.quarantine.take_if(|quarantine| quarantine.until.is_some()).is_some() {
            self.history.record(now, "quarantine ended", why);
            self.observed.mark_dirty();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    pub(crate) fn is_held_for(&self, reason: &str) -> bool {
        self.hold.as_ref().is_some_and(|h| h.reason == reason)
    }

    /// The sequence number of the newest observation; `None` before the first.
    pub(crate) fn observed_at(&self) -> Option<Seq> {
        self.observed.at()
    }

    /// Its dead containers, directories and logs are to be removed.
    pub(crate) fn content_should_go(&self) -> bool {
        self.record
            .termination()
            .is_some_and(|e| e.cause == Cause::Evicted || (e.deleted && self.record.is_terminated()))
    }

    /// Something of it may run that the last observation does not show.
    pub(super) fn may_run_unseen(&self) -> bool {
        !self.observed.fresh() || self.calls.starting() || self.calls.in_doubt()
    }

    /// When `activeDeadlineSeconds` ends it.
    pub(super) fn active_deadline(&self, now: Now) -> Option<Time> {
        let allowed = spec_of(&self.record.pod).active_deadline_seconds?;
        let start = self.record.status.as_ref()?.start_time.as_ref()?.0;
        let due = start.checked_add(jiff::SignedDuration::from_secs(allowed)).ok()?;
        Some(now.boot + Duration::try_from(due.duration_since(now.wall)).unwrap_or(Duration::ZERO))
    }

    pub(super) fn current_sandbox(&self) -> Option<SandboxId> {
        actions::current_sandbox(&self.observed.seen, &self.record).map(|s| s.id.clone())
    }

    pub(super) fn ips(&self) -> Vec<String> {
        let current = self.current_sandbox();
        self.observed.seen.sandboxes.iter().find(|s| Some(&s.id) == current.as_ref()).map_or(vec![], |s| s.ips.clone())
    }

    /// Starts the delay before the next try of a call.
    pub(super) fn call_failed(&mut self, call: &Call, now: Now, delay: Duration, message: Option<&str>) {
        self.calls.failed(call.key(), now.boot, delay, message, self.record.uid.as_str());
    }

    pub(super) fn event(
        &self,
        warning: bool,
        reason: &'static str,
        container: Option<&Name>,
        message: String,
        out: &mut Out,
    ) {
        out.effects.push(Effect::Event(KubeEvent {
            annotations: vec![],
            uid: Some(self.record.uid.clone()),
            pod: self.full_name.clone(),
            container: container.cloned(),
            warning,
            reason,
            message,
        }));
    }
}
