//! Pending resizes: allocated if the node has the resources, else tried again when others free some (Go kubelet: `allocation`).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Admission;
use crate::admission::{self, Requests};
use crate::eviction;
use crate::model::{Now, Out, Pod, PodUid, ResizeRefusal, Time, spec_of};
use crate::node::pods::Pods;
use crate::pod::{self, PodFacts, State};
use crate::qos;
use crate::resize;
use crate::shutdown::{NOT_ADMITTED, priority_of};

/// Interval of the retries (Go kubelet: `retryDelay`).
const RESIZE_RETRY: Duration = Duration::from_secs(180);

impl Admission {
    /// Tries all pending resizes if one of these pods has one that was not tried yet.
    pub(in crate::node) fn try_new_resizes(
        &mut self,
        touched: &BTreeSet<PodUid>,
        pods: &mut Pods,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        let is_new = |pod: &PodFacts| {
            let pending = pod.record().resize.pending.as_ref();
            pending.is_some_and(|pending| pending.refusal.is_none()) && is_resizable(pod)
        };
        match touched.iter().filter_map(|uid| pods.workers.get(uid)).any(is_new) {
            true => self.try_resizes(pods, now, out),
            false => BTreeSet::new(),
        }
    }

    /// Tries all pending resizes; returns the pods that changed, and the held pods, which may use what a resize freed.
    pub(in crate::node) fn try_resizes(&mut self, pods: &mut Pods, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let pending = pods.workers.iter().filter(|(_, pod)| is_resizable(pod) && is_open(pod));
        let mut pending: Vec<PodUid> = pending.map(|(uid, _)| uid.clone()).collect();
        pending.sort_by_cached_key(|uid| rank(pods, uid));
        pending.retain(|uid| {
            pods.set_current(Some(uid.clone()));
            let changed = self.try_resize(uid, pods, now, out);
            pods.set_current(None);
            changed
        });
        let deferred = pods.workers.iter().any(|(_, pod)| pod.state() == State::Syncing && is_open(pod));
        self.resize_at = deferred.then_some(now.boot + RESIZE_RETRY);
        let held = if pending.is_empty() { BTreeSet::new() } else { pods.held() };
        pending.into_iter().chain(held).collect()
    }

    /// Pending resizes are due for a retry.
    pub(in crate::node) fn resizes_due(&mut self, now: Time) -> bool {
        self.resize_at.take_if(|at| *at <= now).is_some()
    }

    fn try_resize(&mut self, uid: &PodUid, pods: &mut Pods, now: Now, out: &mut Out) -> bool {
        let Some((allocated, desired)) = pods.workers.get(uid).and_then(desired_pod) else { return false };
        match self.check_resize(uid, &allocated, &desired, pods) {
            Ok(()) => {
                self.ledger.reserve(uid.clone(), Requests::of(&desired));
                pods.with(uid, now, out, |machine, ctx, out| pod::allocate_resize(machine, desired, ctx, out))
            }
            Err(refusal) => {
                pods.with(uid, now, out, |machine, ctx, out| pod::refuse_resize(machine, &desired, refusal, ctx, out))
            }
        }
    }

    /// A resize passes the same checks as an admission. A missing resource only defers it: the node may have it later.
    fn check_resize(&self, uid: &PodUid, allocated: &Pod, desired: &Pod, pods: &Pods) -> Result<(), ResizeRefusal> {
        resize::check_feasible(allocated, desired)?;
        let deferred = |message: String| ResizeRefusal { infeasible: false, message };
        if self.closed {
            return Err(deferred(NOT_ADMITTED.into()));
        }
        let source = pods.workers.get(uid).map(|pod| pod.record().source);
        if let Some(message) = source.and_then(|source| eviction::refusal(desired, source, &pods.pressures)) {
            return Err(deferred(message));
        }
        admission::admit(desired, &self.ledger, &pods.config).map_err(|rejection| deferred(rejection.message))
    }
}

/// Before it was observed, it is unknown which instances have the resources that are allocated now.
fn is_resizable(pod: &PodFacts) -> bool {
    pod.state() == State::Syncing && !pod.is_quarantined() && pod.observed_at().is_some()
}

/// It has a pending resize that may be allocated.
fn is_open(pod: &PodFacts) -> bool {
    let pending = pod.record().resize.pending.as_ref();
    pending.is_some_and(|pending| pending.refusal.as_ref().is_none_or(|refusal| !refusal.infeasible))
}

/// The pod with the resources it has, and with those it wants.
fn desired_pod(pod: &PodFacts) -> Option<(Arc<Pod>, Arc<Pod>)> {
    let record = pod.record();
    let desired = &record.resize.pending.as_ref()?.desired;
    Some((Arc::clone(&record.pod), resize::with_resources(&record.pod, desired)))
}

/// First those that request no more, then by priority, then guaranteed pods, then the oldest.
fn rank(pods: &Pods, uid: &PodUid) -> impl Ord + use<> {
    let pod = pods.workers.get(uid)?;
    let (allocated, desired) = desired_pod(pod)?;
    let since = pod.record().resize.pending.as_ref().map(|pending| pending.since);
    let is_guaranteed = qos::qos_class(&allocated) == qos::GUARANTEED;
    let priority = priority_of(spec_of(&allocated));
    Some((resize::is_increase(&allocated, &desired), Reverse(priority), !is_guaranteed, since, uid.clone()))
}
