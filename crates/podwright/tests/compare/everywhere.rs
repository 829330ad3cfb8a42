//! Differences that are there on purpose wherever the pods come from; `docs/kubelet-map.md` names them with their reasons.

use crate::difference::{Accepted, Difference};

/// Those of everywhere, and these.
pub(crate) fn and(own: &'static [Accepted]) -> Vec<&'static Accepted> {
    EVERYWHERE.iter().chain(own).collect()
}

const EVERYWHERE: &[Accepted] = &[
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
        fits: |d| d.case == "no-volume" && d.path.ends_with("state.waiting.message") && d.theirs.is_none(),
        sometimes: false,
        why: "why a container waits for its volumes is told by its status too, not by an event only",
    },
];

/// The Go kubelet removes the dead sidecar of a job that is over before its exit is in the status.
fn lost_exit(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("initContainerStatuses[side].state.terminated.") else { return false };
    d.case == "sidecar-fails-job"
        && match field {
            "exitCode" => d.ours.is_some_and(|v| *v == 9) && d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.is("Error", "ContainerStatusUnknown"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// When a rule restarts all containers, the Go kubelet removes them before their ends are in the status.
fn lost_last_exit(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("].lastState.terminated.") else { return false };
    d.case == "restarts-all"
        && match field {
            "exitCode" => d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.theirs.is_some_and(|v| v == "RestartingAllContainers"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// Its last status of an ended pod may be older than the end of its sandbox.
fn older_than_the_sandbox(d: &Difference<'_>) -> bool {
    d.ended && d.path == "status.conditions[PodReadyToStartContainers].status" && d.is("False", "True")
}

/// containerd may hear of the end before it hears why, and then tells an error.
fn end_without_a_reason(d: &Difference<'_>) -> bool {
    d.case == "hungry"
        && d.path.ends_with("terminated.reason")
        && (d.is("OOMKilled", "Error") || d.is("Error", "OOMKilled"))
}
