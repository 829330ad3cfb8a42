//! Differences that are there on purpose; `docs/kubelet-map.md` names them with their reasons.

use crate::difference::Accepted;

/// Of pods in a cluster.
pub(crate) const ACCEPTED: &[Accepted] = &[
    Accepted {
        fits: |d| {
            let none = d.ours.is_none() && d.theirs.is_some_and(|v| v == "9007199254740988Ki");
            none && d.path == "status.resources.limits.memory"
        },
        // Not on cgroup v2.
        sometimes: true,
        why: "on cgroup v1 the Go kubelet takes the kernel's word for \"no limit\" for a limit",
    },
    Accepted {
        fits: |d| d.ended && d.theirs.is_none() && d.path.starts_with("status.resources."),
        sometimes: true,
        why: "of a pod that has ended the Go kubelet may find no cgroup to read its resources from",
    },
    Accepted {
        fits: |d| d.theirs.is_none() && d.path == "status.conditions[AllContainersRestarting].observedGeneration",
        sometimes: false,
        why: "every condition of the node's says which generation it is of; the Go kubelet forgets it for this one",
    },
    Accepted {
        fits: |d| d.case == "sidecar-fails-job" && d.path == "event BackOff",
        sometimes: true,
        why: "whether the sidecar was in its back-off when the job ended is a matter of moments",
    },
    Accepted {
        fits: |d| d.case == "http" && d.path == "event Unhealthy",
        sometimes: true,
        why: "whether the first probe came before the server listened is a matter of moments",
    },
    Accepted {
        fits: |d| d.path == "event MissingClusterDNS" && d.ours.is_none(),
        sometimes: false,
        why: "not sent: it is the node that lacks the setting, and every pod of it would have the event",
    },
];
