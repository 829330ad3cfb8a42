//! Differences that are there on purpose, each with its reason; `docs/kubelet-map.md` names them too.

use crate::difference::{Accepted, end_without_a_reason, lost_exit, lost_last_exit, older_than_the_sandbox};

/// Of pods without a cluster.
pub(crate) const ACCEPTED: &[Accepted] = &[
    Accepted {
        fits: |d| d.theirs.is_none() && (d.path.starts_with("status.hostIP") || d.path.starts_with("status.podIP")),
        sometimes: false,
        why: "without an API server the Go kubelet does not know the node's addresses",
    },
    Accepted {
        fits: lost_exit,
        sometimes: true,
        why: "the Go kubelet removes the dead sidecar before its exit is in the status; here no exit code is lost",
    },
    Accepted {
        fits: lost_last_exit,
        sometimes: false,
        why: "the Go kubelet removes containers that a rule restarts before their exits are in the status; here none is lost",
    },
    Accepted {
        fits: |d| d.case.starts_with("bad-command") && d.ours.is_none() && d.path.ends_with("terminated.startedAt"),
        sometimes: false,
        why: "the Go kubelet shows the year 1970 for a start that never was",
    },
    Accepted {
        fits: older_than_the_sandbox,
        sometimes: true,
        why: "the Go kubelet's last status of an ended pod may be older than the end of its sandbox",
    },
    Accepted {
        fits: end_without_a_reason,
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
