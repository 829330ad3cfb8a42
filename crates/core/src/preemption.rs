//! Preemption: which pods end so that a critical pod can be admitted (Go kubelet: `preemption.getPodsToPreempt`).
//!
//! Guaranteed pods end only for what all others could not free, then Burstable ones for what BestEffort ones could not, then
//! BestEffort ones. Within a class, the pod that leaves the least of the shortage is taken, repeatedly; of equal pods the
//! smaller.

use std::fmt;
use std::sync::Arc;

use crate::model::{Pod, PodUid, Source};
use crate::qos::{BEST_EFFORT, BURSTABLE, GUARANTEED, pod_requests, qos_class};

/// Kubernetes: `SystemCriticalPriority`.
const CRITICAL: i32 = 2_000_000_000;
/// The reason of the event and the status of a pod that ends for a critical one.
pub(crate) const PREEMPTING: &str = "Preempting";
/// The message to that reason.
pub(crate) const PREEMPTED: &str = "Preempted in order to admit critical pod";
/// The message of the condition `DisruptionTarget`.
pub(crate) const PREEMPTED_CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// A resource that a pod lacks for its admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// `cpu`, `memory`, `pods`, …
    pub resource: String,
    /// In the unit of admission: thousandths of a core, bytes, pods. Above zero.
    pub missing: i64,
}

/// A pod that runs, or one that wants to.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its source: static pods are critical.
    pub source: Source,
}

/// No set of pods frees enough: what would still be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotEnough(pub Vec<Shortage>);

/// Kubernetes: `IsCriticalPod`.
pub(crate) fn is_critical(pod: &Pod, source: Source) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    source.is_static() || priority.is_some_and(|priority| priority >= CRITICAL)
}

impl Contender {
    /// Preempts others, and is not preempted itself by pods that are not critical.
    pub(crate) fn is_critical(&self) -> bool {
        is_critical(&self.pod, self.source)
    }

    /// Kubernetes: `Preemptable`.
    fn may_preempt(&self, other: &Self) -> bool {
        if self.is_critical() && !other.is_critical() {
            return true;
        }
        matches!((self.priority(), other.priority()), (Some(own), Some(other)) if own > other)
    }

    fn priority(&self) -> Option<i32> {
        self.pod.spec.as_ref().and_then(|spec| spec.priority)
    }

    /// The amount that its end frees.
    fn frees(&self, resource: &str) -> i64 {
        if resource == "pods" {
            return 1;
        }
        let amount = pod_requests(&self.pod).get(resource).copied();
        match (resource, amount) {
            (_, None) => 0,
            ("cpu", Some(amount)) => amount.milli_value(),
            (_, Some(amount)) => amount.value(),
        }
    }
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no set of running pods found to reclaim resources: [")?;
        self.0.iter().try_for_each(|s| write!(f, "(res: {}, q: {}), ", s.resource, s.missing))?;
        write!(f, "]")
    }
}

/// The pods that end so that `preemptor` gets what it lacks.
pub(crate) fn victims(
    preemptor: &Contender,
    pods: &[Contender],
    shortages: &[Shortage],
) -> Result<Vec<PodUid>, NotEnough> {
    let of_class = |class: &str| -> Vec<&Contender> {
        pods.iter().filter(|pod| preemptor.may_preempt(pod) && qos_class(&pod.pod) == class).collect()
    };
    let (best_effort, burstable, guaranteed) = (of_class(BEST_EFFORT), of_class(BURSTABLE), of_class(GUARANTEED));
    let lower = [&best_effort[..], &burstable[..]].concat();
    let unmet = subtract(shortages, &[&lower[..], &guaranteed[..]].concat());
    if !unmet.is_empty() {
        return Err(NotEnough(unmet));
    }
    let guaranteed = nearest(guaranteed, subtract(shortages, &lower))?;
    let burstable = nearest(burstable, subtract(shortages, &[&best_effort[..], &guaranteed[..]].concat()))?;
    let best_effort = nearest(best_effort, subtract(shortages, &[&burstable[..], &guaranteed[..]].concat()))?;
    let chosen = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(chosen.map(|pod| pod.uid.clone()).collect())
}

/// What is missing once these pods have ended.
pub(crate) fn without(shortages: &[Shortage], pods: &[Contender]) -> Vec<Shortage> {
    subtract(shortages, &pods.iter().collect::<Vec<_>>())
}

/// Kubernetes: `getPodsToPreemptByDistance`.
fn nearest(mut pods: Vec<&Contender>, mut shortages: Vec<Shortage>) -> Result<Vec<&Contender>, NotEnough> {
    let mut chosen = Vec::new();
    while !shortages.is_empty() {
        let mut best: Option<(f64, usize)> = None;
        for (index, pod) in pods.iter().enumerate() {
            let distance = distance(&shortages, pod);
            let nearer = best.is_none_or(|(least, at)| {
                distance < least || (distance == least && is_smaller_or_equal(pod, pods[at]))
            });
            if nearer {
                best = Some((distance, index));
            }
        }
        let Some((_, index)) = best else { return Err(NotEnough(shortages)) };
        let pod = pods.swap_remove(index);
        shortages = subtract(&shortages, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The sum of the squares of the fractions that are still missing without this pod.
#[expect(clippy::cast_precision_loss, reason = "fractions are compared; the Go kubelet computes them in float64 too")]
fn distance(shortages: &[Shortage], pod: &Contender) -> f64 {
    let unmet = shortages.iter().map(|shortage| (shortage, shortage.missing - pod.frees(&shortage.resource)));
    unmet.filter(|(_, left)| *left > 0).map(|(shortage, left)| (left as f64 / shortage.missing as f64).powi(2)).sum()
}

/// What is still missing without these pods.
fn subtract(shortages: &[Shortage], pods: &[&Contender]) -> Vec<Shortage> {
    let left = shortages.iter().map(|shortage| {
        let freed = pods.iter().fold(0i64, |sum, pod| sum.saturating_add(pod.frees(&shortage.resource)));
        Shortage { resource: shortage.resource.clone(), missing: shortage.missing.saturating_sub(freed) }
    });
    left.filter(|shortage| shortage.missing > 0).collect()
}

/// Kubernetes: `smallerResourceRequest`.
fn is_smaller_or_equal(pod: &Contender, other: &Contender) -> bool {
    let key = |pod: &Contender| (pod.frees("memory"), pod.frees("cpu"));
    key(pod) <= key(other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn contender(name: &str, priority: Option<i32>, resources: Value) -> Contender {
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]});
        let pod = serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).unwrap();
        Contender { uid: name.into(), pod: Arc::new(pod), source: Source::Api }
    }

    /// The pods of the Go kubelet's `getTestPods`.
    fn named(name: &str) -> Contender {
        let requests = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
        let equal = |cpu: &str, memory: &str| {
            let amounts = json!({"cpu": cpu, "memory": memory});
            json!({"requests": amounts, "limits": amounts})
        };
        let (priority, resources) = match name {
            "cluster-critical" => (Some(CRITICAL), requests("100m", "100Mi")),
            "node-critical" => (Some(CRITICAL + 100), requests("100m", "100Mi")),
            "best-effort" => (None, json!({})),
            "burstable" => (None, requests("100m", "100Mi")),
            "high-burstable" => (None, requests("300m", "300Mi")),
            "guaranteed" => (None, equal("100m", "100Mi")),
            "high-guaranteed" => (None, equal("300m", "300Mi")),
            other => panic!("{other}"),
        };
        contender(name, priority, resources)
    }

    /// Thousandths of a core, MiB, pods: `getAdmissionRequirementList`.
    fn shortages(cpu: i64, memory: i64, pods: i64) -> Vec<Shortage> {
        let all = [("cpu", cpu), ("memory", memory << 20), ("pods", pods)];
        let given = all.into_iter().filter(|(_, missing)| *missing > 0);
        given.map(|(resource, missing)| Shortage { resource: resource.into(), missing }).collect()
    }

    /// The vectors of the Go kubelet's `TestGetPodsToPreempt`; `None`: no set of pods is enough.
    #[test]
    fn victims_are_those_of_the_go_kubelet() {
        let all = ["best-effort", "burstable", "high-burstable", "guaranteed", "high-guaranteed"];
        type Row<'a> = (&'a str, &'a [&'a str], (i64, i64, i64), Option<&'a [&'a str]>);
        let table: [Row<'_>; 14] = [
            ("cluster-critical", &[], (0, 0, 0), Some(&[])),
            ("cluster-critical", &[], (0, 0, 1), None),
            ("cluster-critical", &["burstable"], (100, 100, 1), Some(&["burstable"])),
            ("cluster-critical", &["burstable"], (200, 200, 2), None),
            ("cluster-critical", &["burstable", "best-effort"], (0, 0, 1), Some(&["best-effort"])),
            ("cluster-critical", &["burstable", "guaranteed"], (0, 0, 1), Some(&["burstable"])),
            ("cluster-critical", &["best-effort", "high-burstable", "burstable"], (100, 100, 0), Some(&["burstable"])),
            (
                "cluster-critical",
                &["best-effort", "burstable", "high-burstable"],
                (150, 150, 0),
                Some(&["high-burstable"]),
            ),
            ("cluster-critical", &all, (350, 350, 0), Some(&["burstable", "high-burstable"])),
            ("cluster-critical", &all, (0, 550, 0), Some(&["high-burstable", "high-guaranteed"])),
            ("node-critical", &["cluster-critical"], (100, 0, 0), Some(&["cluster-critical"])),
            ("cluster-critical", &["node-critical"], (100, 0, 0), None),
            ("cluster-critical", &["cluster-critical"], (0, 0, 1), None),
            ("cluster-critical", &["best-effort"], (0, 1, 0), None),
        ];
        for (preemptor, pods, (cpu, memory, count), expected) in table {
            let pods: Vec<Contender> = pods.iter().map(|name| named(name)).collect();
            let found = victims(&named(preemptor), &pods, &shortages(cpu, memory, count));
            let found = found.ok().map(|mut uids| {
                uids.sort();
                uids
            });
            let expected = expected.map(|names| names.iter().map(|name| PodUid::from(*name)).collect::<Vec<_>>());
            assert_eq!(found, expected, "{preemptor} {cpu} {memory} {count}");
        }
    }

    #[test]
    fn a_static_pod_is_critical_and_takes_no_other_critical_pod() {
        let mut own = named("burstable");
        assert!(victims(&own, &[named("best-effort")], &shortages(0, 0, 1)).is_err(), "an API pod of no priority");
        own.source = Source::File;
        assert_eq!(victims(&own, &[named("best-effort")], &shortages(0, 0, 1)).unwrap(), [PodUid::from("best-effort")]);
        let error = victims(&own, &[named("cluster-critical")], &shortages(100, 0, 1)).unwrap_err();
        let text = "no set of running pods found to reclaim resources: [(res: cpu, q: 100), (res: pods, q: 1), ]";
        assert_eq!(error.to_string(), text);
    }
}
