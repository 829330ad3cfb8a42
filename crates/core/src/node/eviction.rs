//! Eviction applied to the pods of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::object_stores::warning;
use super::pods::Pods;
use crate::eviction::{
    Action, Candidate, EVICTED, Eviction, ExceededLimit, LimitedVolume, Threshold, eviction_message, exceeded_limit,
    has_storage_limits, rank,
};
use crate::model::{
    Cause, Effect, FullName, NodePressure, NodeReading, Now, Out, PodRecord, PodUid, Seq, StarvedResource, Time,
    spec_of,
};
use crate::pod::{KillOptions, PodFacts, State, reclaim_dead};

/// Kubernetes: `immediateEvictionGracePeriodSeconds`.
const GRACE: Duration = Duration::from_secs(1);
/// Dead containers are removed for this long after a request.
const RECLAIM: Duration = Duration::from_secs(15);

/// Evicts pods of the node.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct PodEviction {
    control: Eviction,
}

impl PodEviction {
    /// The pressure conditions that hold.
    pub(super) fn pressures(&self) -> &BTreeSet<NodePressure> {
        self.control.pressures()
    }

    /// Requests a reading of the node if one is due.
    pub(super) fn schedule(&mut self, pods: &mut Pods, now: Time, effects: &mut Vec<Effect>) {
        let workers = &pods.workers;
        let limited = || workers.iter().any(|(_, pod)| is_active(pod) && is_limited(pod.record()));
        let (config, seq) = (&pods.config.eviction, &mut pods.sequences.seq);
        if let Some((seq, pods)) = self.control.begin(config, limited, seq, now) {
            effects.push(Effect::ReadNode { seq, pods });
        }
    }

    pub(super) fn wake(&self, pods: &Pods) -> Option<Time> {
        self.control.wake(&pods.config.eviction)
    }

    /// The kernel reports that memory is short.
    pub(super) fn hint(&mut self, now: Time) {
        self.control.hint(now);
    }

    /// Unused images were removed.
    pub(super) fn images_removed(&mut self, seq: Seq, now: Time) {
        self.control.images_removed(seq, now);
    }

    /// Nothing of the pod is left.
    pub(super) fn ended(&mut self, uid: &PodUid, now: Time) {
        self.control.ended(uid, now);
    }

    /// The node was read: conditions change, and pods are evicted.
    pub(super) fn on_read(
        &mut self,
        seq: Seq,
        reading: &NodeReading,
        pods: &mut Pods,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        if !self.control.arrived(seq) {
            return BTreeSet::new();
        }
        let mut touched = BTreeSet::new();
        if self.control.observe(reading, &pods.config.eviction, now.boot) {
            pods.pressures = self.control.pressures().clone();
            out.effects.push(Effect::RuntimeChanged);
            touched.extend(pods.held());
        }
        let evicted = self.enforce_storage_limits(reading, pods, now, out);
        if !evicted.is_empty() {
            touched.extend(evicted);
            return touched;
        }
        match self.control.decide(reading, now.boot) {
            Action::None => {}
            Action::Reclaim(resource) => {
                report_attempt(resource, pods, out);
                touched.extend(remove_dead_containers(pods, now, out));
            }
            Action::Evict { threshold, met, reclaimed } => {
                if !reclaimed {
                    report_attempt(threshold.signal.resource(), pods, out);
                }
                touched.extend(self.evict(&threshold, &met, reading, pods, now, out));
            }
        }
        touched
    }

    /// Dead containers are removed first: images that only they use are unused afterwards.
    pub(super) fn advance_reclaim(&mut self, pods: &mut Pods, now: Now, out: &mut Out) {
        if !self.control.is_removing_containers() {
            return;
        }
        let removing = pods.workers.iter().any(|(_, pod)| pod.is_removing());
        let seq = &mut pods.sequences.seq;
        if let Some(seq) = self.control.next_removal(removing, seq, now.boot) {
            out.effects.push(Effect::RemoveUnusedImages { seq });
        }
    }

    /// Evicts the first pod in the order of eviction.
    fn evict(
        &mut self,
        threshold: &Threshold,
        met: &[Threshold],
        reading: &NodeReading,
        pods: &mut Pods,
        now: Now,
        out: &mut Out,
    ) -> Option<PodUid> {
        let (resource, usages) = (threshold.signal.resource(), reading.pods.as_ref()?);
        let active = pods.workers.iter().filter(|(_, pod)| is_active(pod));
        let candidates: Vec<Candidate<'_>> = active
            .map(|(uid, pod)| {
                let record = pod.record();
                Candidate { uid, pod: &record.pod, source: record.source, usage: usages.get(uid) }
            })
            .collect();
        // A threshold of a disk is acted upon only if the layout is known; others do not depend on it.
        let first = rank(&candidates, threshold.signal, reading.layout.unwrap_or_default()).into_iter().next()?;
        let (uid, own) = (first.uid.clone(), spec_of(first.pod).termination_grace_period_seconds);
        let (message, annotations) = eviction_message(resource, first.pod, first.usage, met, &reading.signals);
        let own = Duration::from_secs(own.map_or(30, |own| u64::try_from(own).unwrap_or(0)));
        let grace = if threshold.is_hard() { GRACE } else { own.min(pods.config.eviction.max_pod_grace) };
        let evicted = Some((EVICTED.into(), message));
        let options = KillOptions { grace: Some(grace), evicted, exceeded_limit: false, annotations };
        pods.with(&uid, now, out, |machine, ctx, out| machine.end_by_others(Cause::Evicted, options, ctx, out));
        out.effects.push(Effect::Evicted { signal: threshold.signal.as_str() });
        self.control.evicting(&uid, threshold, reading, now.boot);
        Some(uid)
    }

    /// An emptyDir volume exceeds its limit.
    pub(super) fn on_empty_dir_exceeded(
        &mut self,
        uid: PodUid,
        volume: &str,
        pods: &mut Pods,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        let Some(pod) = pods.workers.get(&uid).filter(|pod| is_active(pod)) else { return BTreeSet::new() };
        let limited = LimitedVolume::of(&pod.record().pod, pod.record().source);
        let exceeded = limited.iter().find(|limited| limited.volume == volume).map(LimitedVolume::exceeded);
        if let Some(exceeded) = exceeded.filter(|_| pods.config.eviction.storage_limits) {
            self.evict_for_limit(&uid, exceeded, pods, now, out);
        }
        BTreeSet::from([uid])
    }

    fn enforce_storage_limits(
        &mut self,
        reading: &NodeReading,
        pods: &mut Pods,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        let exceeded = exceeded_limits(reading, pods).into_iter();
        exceeded
            .map(|(uid, exceeded)| {
                self.evict_for_limit(&uid, exceeded, pods, now, out);
                uid
            })
            .collect()
    }

    fn evict_for_limit(&mut self, uid: &PodUid, exceeded: ExceededLimit, pods: &mut Pods, now: Now, out: &mut Out) {
        let evicted = Some((EVICTED.into(), exceeded.message));
        let options = KillOptions { grace: Some(GRACE), evicted, exceeded_limit: true, annotations: vec![] };
        pods.with(uid, now, out, |machine, ctx, out| machine.end_by_others(Cause::Evicted, options, ctx, out));
        out.effects.push(Effect::Evicted { signal: exceeded.signal });
        self.control.evicting_for_limit(uid, now.boot);
    }
}

fn remove_dead_containers(pods: &mut Pods, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
    let uids = pods.uids();
    for uid in &uids {
        pods.with(uid, now, out, |machine, _, _| reclaim_dead(machine, now.boot + RECLAIM));
    }
    uids
}

/// The pods that exceed a limit of their storage.
fn exceeded_limits(reading: &NodeReading, pods: &Pods) -> BTreeMap<PodUid, ExceededLimit> {
    if !pods.config.eviction.storage_limits {
        return BTreeMap::new();
    }
    let usages = reading.pods.iter().flatten();
    let exceeded = usages.filter_map(|(uid, usage)| {
        let pod = pods.workers.get(uid).filter(|pod| is_active(pod))?.record();
        Some((uid.clone(), exceeded_limit(&pod.pod, pod.source, usage, reading.layout)?))
    });
    exceeded.collect()
}

fn report_attempt(resource: StarvedResource, pods: &Pods, out: &mut Out) {
    let node = FullName { namespace: "".into(), name: pods.config.node_name.as_str().into() };
    let message = format!("Attempting to reclaim {}", resource.as_str());
    out.effects.push(warning(None, node, "EvictionThresholdMet", message));
}

/// Something of it may run, and it was not evicted already.
fn is_active(pod: &PodFacts) -> bool {
    let evicted = pod.record().termination().is_some_and(|termination| termination.status_override.is_some());
    matches!(pod.state(), State::Syncing | State::Terminating) && !evicted
}

fn is_limited(record: &PodRecord) -> bool {
    has_storage_limits(&record.pod, record.source)
}
