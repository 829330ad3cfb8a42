//! Which pods may start: a pod is held until no other pod of its name exists and the node has the resources it requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::object_stores::warning;
use super::pods::Pods;
use crate::actions::Waiting;
use crate::admission::{self, Ledger, Requests};
use crate::model::{Cause, Now, Out, Pod, PodRecord, PodUid, Time, full_name};
use crate::pod::{KillOptions, PodFacts, State};

/// Interval of the retries of held pods: no event tells that they would be admitted now.
const RETRY: Duration = Duration::from_secs(10);
/// Upper bound of the time until the labels of the Node object are known.
const LABELS_LATE: SignedDuration = SignedDuration::from_secs(9);

/// Resources of admitted pods, and the next retry of held ones.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Admission {
    ledger: Ledger,
    retry_at: Option<Time>,
}

impl Admission {
    /// A journaled pod that was admitted keeps its resources.
    pub(super) fn restore(&mut self, record: &PodRecord) {
        if record.was_admitted() && !record.is_terminated() {
            self.ledger.reserve(record.uid.clone(), Requests::of(&record.pod));
        }
    }

    /// True if the pod had resources.
    pub(super) fn release(&mut self, uid: &PodUid) -> bool {
        self.ledger.release(uid.as_str())
    }

    /// Held pods are due for a retry.
    pub(super) fn retry_due(&mut self, now: Time) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    pub(super) fn wake(&self) -> Option<Time> {
        self.retry_at
    }

    /// Of several waiting pods those that run are admitted first, then the oldest: resources may not suffice for all.
    pub(super) fn try_admit_waiting(&mut self, touched: &BTreeSet<PodUid>, pods: &mut Pods, now: Now, out: &mut Out) {
        let is_waiting = |m: &PodFacts| m.state() == State::Waiting && !m.is_quarantined();
        let waiting = touched.iter().filter(|uid| pods.workers.get(uid).is_some_and(is_waiting));
        let mut waiting: Vec<PodUid> = waiting.cloned().collect();
        if waiting.len() < 2 {
            return;
        }
        waiting.sort_by_cached_key(|uid| rank(pods, uid));
        for uid in waiting {
            pods.set_current(Some(uid.clone()));
            self.try_admit(&uid, pods, now, out);
            pods.set_current(None);
        }
    }

    /// Admits the pod, or holds it with the reason.
    pub(super) fn try_admit(&mut self, uid: &PodUid, pods: &mut Pods, now: Now, out: &mut Out) {
        let Some(machine) = pods.workers.get(uid) else { return };
        if machine.state() > State::Syncing {
            return;
        }
        // An admitted pod continues, unless nothing of it runs and an unknown pod of its name does: a record can be lost.
        let hold = if machine.record().was_admitted() {
            let idle = machine.observed_at().is_some() && machine.seen().is_stopped();
            let namesake = || pods.workers.running_namesake(uid).or_else(|| conflicting_runtime_pod(pods, uid));
            if idle { namesake() } else { None }
        } else {
            let predecessor = pods.workers.predecessor(uid).or_else(|| conflicting_runtime_pod(pods, uid));
            predecessor.or_else(|| self.admit(uid, pods, now, out))
        };
        pods.with(uid, now, out, |machine, ctx, _| machine.hold(hold, ctx));
    }

    fn admit(&mut self, uid: &PodUid, pods: &mut Pods, now: Now, out: &mut Out) -> Option<Waiting> {
        let record = pods.workers.get(uid)?.record();
        let (pod, is_static, first_seen) = (Arc::clone(&record.pod), record.source.is_static(), record.first_seen);
        let Err(rejection) = admission::admit(&pod, &self.ledger, &pods.config) else {
            self.ledger.reserve(uid.clone(), Requests::of(&pod));
            pods.workers.get_mut(uid)?.admitted();
            return None;
        };
        let (reason, message) = (rejection.reason.to_owned(), rejection.message);
        // The scheduler may know a label that was set on the Node object a moment ago.
        let age = first_seen.duration_until(now.wall);
        if !is_static && rejection.reason == admission::NODE_AFFINITY && age.abs() < LABELS_LATE {
            return Some(self.hold(Waiting { reason, message }, now));
        }
        let (full_name, known) = (full_name(&pod), pods.workers.get(uid)?.is_held_for(&reason));
        if !known || !is_static {
            out.effects.push(warning(Some(uid.clone()), full_name, rejection.reason, message.clone()));
        }
        if let (false, Some(detail)) = (known, self.port_holder(rejection.reason, &pod, pods)) {
            pods.with(uid, now, out, |machine, ctx, _| machine.record_rejection(&detail, ctx));
        }
        if is_static {
            return Some(self.hold(Waiting { reason, message }, now));
        }
        let rejected = (reason, format!("Pod was rejected: {message}"));
        let options = KillOptions { evicted: Some(rejected), ..KillOptions::default() };
        pods.with(uid, now, out, |machine, ctx, _| machine.kill(Cause::Ended, options, ctx));
        None
    }

    /// Which pod uses the host port, for the history: the kubelet's message does not name it.
    fn port_holder(&self, reason: &str, pod: &Pod, pods: &Pods) -> Option<String> {
        let (port, uid) = admission::port_conflict(pod, &self.ledger).filter(|_| reason == admission::NODE_PORTS)?;
        let name = pods.workers.get(&uid).map_or_else(|| uid.to_string(), |m| m.full_name().to_string());
        Some(format!("port {}/{} is used by pod {name}", port.port, port.protocol))
    }

    /// Holds a pod until the next retry.
    fn hold(&mut self, waiting: Waiting, now: Now) -> Waiting {
        self.retry_at.get_or_insert(now.boot + RETRY);
        waiting
    }
}

/// Order of admission. Files have no meaningful age: static pods follow the names of their files.
fn rank(pods: &Pods, uid: &PodUid) -> impl Ord + use<> {
    let runs = pods.runtime.pleg.listing.pods.get(uid).is_some_and(|listed| listed.is_active());
    let record = pods.workers.get(uid).map(PodFacts::record);
    let age = record.map(|r| r.pod.metadata.creation_timestamp.as_ref().map_or(r.first_seen, |t| t.0));
    (!runs, age, record.map(|r| (r.origin.clone(), full_name(&r.pod))))
}

/// A pod of this name that runs and has no machine yet is terminated first.
fn conflicting_runtime_pod(pods: &Pods, uid: &PodUid) -> Option<Waiting> {
    let machine = pods.workers.get(uid).filter(|m| m.is_static())?;
    let mut listed = pods.runtime.pleg.listing.pods.iter();
    let conflict = listed.find(|(other, l)| {
        *other != uid
            && l.full_name == *machine.full_name()
            && l.is_active()
            // Known and not observed yet: it may have been admitted before.
            && pods.workers.get(other).is_none_or(|m| m.observed_at().is_none() && m.state() < State::Finished)
    });
    conflict.map(|(other, _)| Waiting {
        reason: "WaitingForPredecessor".into(),
        message: format!("waiting for a pod of the same name with UID {other}, which runs"),
    })
}
