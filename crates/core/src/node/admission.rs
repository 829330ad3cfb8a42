//! Which pods may start: a pod is held until no other pod of its name exists and the node has the resources it requests.

mod resizes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::object_stores::warning;
use super::pods::Pods;
use crate::actions::Waiting;
use crate::admission::{self, Ledger, Rejection, Requests};
use crate::eviction::{self, EVICTED};
use crate::model::{Cause, Now, Out, Pod, PodListed, PodRecord, PodUid, Source, Time, full_name};
use crate::pod::{KillOptions, PodFacts, State};
use crate::preemption::{self, Contender, PREEMPTED, PREEMPTING};
use crate::shutdown::{NODE_SHUTDOWN, NOT_ADMITTED};

/// Interval of the retries of held pods: no event reports that they could be admitted.
const RETRY: Duration = Duration::from_secs(10);
/// Upper bound of the time until the labels of the Node object are known.
const LABELS_LATE: SignedDuration = SignedDuration::from_secs(9);
/// Reason of a pod that does not fit, and that may run already.
const NOT_LISTED: &str = "WaitingForRuntime";

/// Resources of admitted pods, and the next retry of held ones.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Admission {
    ledger: Ledger,
    retry_at: Option<Time>,
    /// The next retry of pending resizes.
    #[serde(default)]
    resize_at: Option<Time>,
    /// The node shuts down: no pod is admitted.
    #[serde(default)]
    closed: bool,
    /// Pods that were ended for a critical one and have not been stepped since.
    #[serde(skip)]
    preempted: BTreeSet<PodUid>,
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

    /// The pods that were ended for critical ones since the last call.
    pub(super) fn take_preempted(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.preempted)
    }

    /// No pod is admitted while it is closed.
    pub(super) fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Held pods are due for a retry.
    pub(super) fn retry_due(&mut self, now: Time) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    pub(super) fn wake(&self) -> Option<Time> {
        self.retry_at.into_iter().chain(self.resize_at).min()
    }

    /// Of several waiting pods those that run are admitted first, then critical ones, then the oldest: resources may not suffice for all.
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
        // A rejected pod of an API server is replaced on another node; pods of other sources exist on this node only, so they
        // wait.
        let (pod, may_wait, first_seen) = (Arc::clone(&record.pod), record.source != Source::Api, record.first_seen);
        let pressed = eviction::refusal(&pod, record.source, &pods.pressures);
        let pressed = pressed.map(|message| Rejection { reason: EVICTED, message });
        let admitted = match (self.closed, pressed) {
            (true, _) => Err(Rejection { reason: NODE_SHUTDOWN, message: NOT_ADMITTED.into() }),
            (false, Some(pressed)) => Err(pressed),
            (false, None) => admission::admit(&pod, &self.ledger, &pods.config),
        };
        // A pod that runs was admitted by another agent, or by one whose journal is lost: a change of agents ends no pod.
        let runs = pods.runtime.pleg.listing.pods.get(uid).is_some_and(PodListed::is_active);
        let rejection = match admitted {
            Err(rejection) if self.closed || !runs => rejection,
            _ => {
                self.ledger.reserve(uid.clone(), Requests::of(&pod));
                pods.workers.get_mut(uid)?.admitted();
                return None;
            }
        };
        if !self.closed && pods.runtime.pleg.as_of.is_none() {
            let message = "waiting for the first list of the runtime: the pod may run already".into();
            return Some(self.hold(Waiting { reason: NOT_LISTED.into(), message }, now));
        }
        let preempted = if self.closed { Ok(false) } else { self.preempt(uid, pods, now, out) };
        let rejection = match preempted {
            Ok(true) => {
                let message = "waiting for the end of pods that are preempted for this critical pod".into();
                return Some(self.hold(Waiting { reason: PREEMPTING.into(), message }, now));
            }
            // The message for a pod that waits names the resource that it lacks.
            Err(instead) if !may_wait => instead,
            Ok(false) | Err(_) => rejection,
        };
        let (reason, message) = (rejection.reason.to_owned(), rejection.message);
        // The scheduler may know a label that was set on the Node object a moment ago.
        let age = first_seen.duration_until(now.wall);
        if !may_wait && rejection.reason == admission::NODE_AFFINITY && age.abs() < LABELS_LATE {
            return Some(self.hold(Waiting { reason, message }, now));
        }
        let (full_name, known) = (full_name(&pod), pods.workers.get(uid)?.is_held_for(&reason));
        if !known || !may_wait {
            out.effects.push(warning(Some(uid.clone()), full_name, rejection.reason, message.clone()));
        }
        if let (false, Some(detail)) = (known, self.port_holder(rejection.reason, &pod, pods)) {
            pods.with(uid, now, out, |machine, ctx, _| machine.record_rejection(&detail, ctx));
        }
        if may_wait {
            return Some(self.hold(Waiting { reason, message }, now));
        }
        let rejected = (reason, format!("Pod was rejected: {message}"));
        let options = KillOptions { evicted: Some(rejected), ..KillOptions::default() };
        pods.with(uid, now, out, |machine, ctx, _| machine.kill(Cause::Ended, options, ctx));
        None
    }

    /// Ends pods for a critical pod that lacks nothing but resources (Go kubelet: `HandleAdmissionFailure`). True if enough of them
    /// end, now or already; the resources stay reserved until they have ended.
    fn preempt(&mut self, uid: &PodUid, pods: &mut Pods, now: Now, out: &mut Out) -> Result<bool, Rejection> {
        let Some(own) = contender(pods, uid).filter(Contender::is_critical) else { return Ok(false) };
        admission::admit_with_any_resources(&own.pod, &self.ledger, &pods.config)?;
        let shortages = admission::shortages(&own.pod, &self.ledger, &pods.config);
        // A pod in quarantine after an internal error does not end.
        let is_broken = |other: &PodUid| pods.workers.get(other).is_some_and(PodFacts::is_broken);
        let others = self.ledger.uids().filter(|other| *other != uid && !is_broken(other));
        let others: Vec<Contender> = others.filter_map(|other| contender(pods, other)).collect();
        let ends = |other: &Contender| pods.workers.get(&other.uid).is_some_and(|m| m.state() > State::Syncing);
        let (ending, running): (Vec<Contender>, Vec<Contender>) = others.into_iter().partition(ends);
        let shortages = preemption::without(&shortages, &ending);
        let victims = preemption::victims(&own, &running, &shortages).map_err(|error| Rejection {
            reason: "UnexpectedAdmissionError",
            message: format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
                 pods to preempt: {error}"
            ),
        })?;
        for victim in victims {
            let Some(name) = pods.workers.get(&victim).map(|m| m.full_name().clone()) else { continue };
            out.effects.push(warning(Some(victim.clone()), name, PREEMPTING, PREEMPTED.into()));
            let options =
                KillOptions { evicted: Some((PREEMPTING.into(), PREEMPTED.into())), ..KillOptions::default() };
            pods.with(&victim, now, out, |machine, ctx, _| machine.kill(Cause::Evicted, options, ctx));
            self.preempted.insert(victim);
        }
        Ok(true)
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
    let critical = contender(pods, uid).is_some_and(|pod| pod.is_critical());
    let age = record.map(|r| r.pod.metadata.creation_timestamp.as_ref().map_or(r.first_seen, |t| t.0));
    (!runs, !critical, age, record.map(|r| (r.origin.clone(), full_name(&r.pod))))
}

fn contender(pods: &Pods, uid: &PodUid) -> Option<Contender> {
    let record = pods.workers.get(uid)?.record();
    Some(Contender { uid: uid.clone(), pod: Arc::clone(&record.pod), source: record.source })
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
