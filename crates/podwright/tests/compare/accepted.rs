//! Differences that are there on purpose, each with its reason; `docs/kubelet-map.md` names them too.

use std::collections::BTreeSet;

use serde_json::Value;

/// One field that is not the same.
pub(crate) struct Difference<'a> {
    pub(crate) case: &'a str,
    pub(crate) path: &'a str,
    pub(crate) ours: Option<&'a Value>,
    pub(crate) theirs: Option<&'a Value>,
}

/// One kind of difference.
struct Accepted {
    fits: fn(&Difference<'_>) -> bool,
    /// Not in every run: the Go kubelet itself says now this, now that.
    sometimes: bool,
    why: &'static str,
}

const ACCEPTED: &[Accepted] = &[
    Accepted {
        fits: |d| d.theirs.is_none() && (d.path.starts_with("status.hostIP") || d.path.starts_with("status.podIP")),
        sometimes: false,
        why: "without an API server the Go kubelet does not know the node's addresses",
    },
    Accepted {
        fits: |d| d.case == "sidecar-fails-job" && d.path.contains("initContainerStatuses[side].state.terminated"),
        sometimes: true,
        why: "the Go kubelet removes the dead sidecar before its exit is in the status; here no exit code is lost",
    },
    Accepted {
        fits: |d| d.case.starts_with("bad-command") && d.ours.is_none() && d.path.ends_with("terminated.startedAt"),
        sometimes: false,
        why: "the Go kubelet shows the year 1970 for a start that never was",
    },
    Accepted {
        fits: |d| {
            let stopped = d.ours.is_some_and(|v| v == "False") && d.theirs.is_some_and(|v| v == "True");
            stopped && d.path == "status.conditions[PodReadyToStartContainers].status"
        },
        sometimes: true,
        why: "the Go kubelet's last status of an ended pod may be older than the end of its sandbox",
    },
    Accepted {
        fits: |d| {
            let word = |v: Option<&Value>| v.is_some_and(|v| v == "OOMKilled" || v == "Error");
            d.case == "hungry" && d.path.ends_with("terminated.reason") && word(d.ours) && word(d.theirs)
        },
        sometimes: true,
        why: "containerd may hear of the end before it hears why, and then tells an error",
    },
    Accepted {
        fits: |d| d.path == "metadata.resourceVersion" && d.theirs.is_none(),
        sometimes: false,
        why: "here every pod is an object of the local API, which can be watched from a version on",
    },
    Accepted {
        fits: |d| d.case == "no-volume" && d.path.ends_with("state.waiting.message") && d.theirs.is_none(),
        sometimes: false,
        why: "why a container waits for its volumes is told by its status too, not by an event only",
    },
];

/// The rule that allows this difference, and its reason.
pub(crate) fn why(difference: &Difference<'_>) -> Option<(usize, &'static str)> {
    let found = ACCEPTED.iter().enumerate().find(|(_, rule)| (rule.fits)(difference));
    found.map(|(n, rule)| (n, rule.why))
}

/// Rules that allowed nothing: the list must not outlive its reasons.
pub(crate) fn unused(seen: &BTreeSet<usize>) -> Vec<&'static str> {
    let unused = ACCEPTED.iter().enumerate().filter(|(n, rule)| !rule.sometimes && !seen.contains(n));
    unused.map(|(_, rule)| rule.why).collect()
}
