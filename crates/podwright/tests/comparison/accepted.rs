//! The differences that are accepted, each with its reason; `docs/kubelet-map.md` lists them too.

use podwright_testbed::Flavor;
use serde_json::Value;

use super::difference::{AcceptedDifference, Difference};
use super::pair::{Kubelet, Pair};

/// Where the pods of a comparison come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// From manifests; there is no API server.
    Standalone,
    /// From an API server.
    Cluster,
}

/// The rules for a pair that is compared with the Go kubelet on containerd.
pub(crate) fn rules(setting: Setting, pair: Pair) -> Vec<&'static AcceptedDifference> {
    let of_kubelet: [&[AcceptedDifference]; 2] = match (pair.kubelet, setting) {
        (Kubelet::Podwright, Setting::Standalone) => [KUBELETS, STANDALONE],
        (Kubelet::Podwright, Setting::Cluster) => [KUBELETS, CLUSTER],
        (Kubelet::Go, _) => [GO_KUBELETS, &[]],
    };
    let of_runtime = if pair.runtime == Flavor::Engine { RUNTIMES } else { &[] };
    EVERYWHERE.iter().chain(of_kubelet.into_iter().flatten()).chain(of_runtime).collect()
}

/// What varies from run to run, by the Go kubelet or by containerd.
const EVERYWHERE: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: lost_exit_code,
        intermittent: true,
        reason: "the Go kubelet removes the dead sidecar before its exit code is in the status; here no exit code is lost",
    },
    AcceptedDifference {
        matches: status_older_than_sandbox,
        intermittent: true,
        reason: "the Go kubelet's last status of a terminated pod may be older than the end of its sandbox",
    },
    AcceptedDifference {
        matches: exit_without_reason,
        intermittent: true,
        reason: "containerd may learn of the exit before its reason, and then reports Error",
    },
];

/// Between the kubelets.
const KUBELETS: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: lost_last_exit_code,
        intermittent: false,
        reason: "the Go kubelet removes containers that a rule restarts before their exit codes are in the status; here none is lost",
    },
    AcceptedDifference {
        matches: |d| d.case.starts_with("bad-command") && d.ours.is_none() && d.path.ends_with("terminated.startedAt"),
        intermittent: false,
        reason: "the Go kubelet reports a start time in 1970 for a container that never started",
    },
    AcceptedDifference {
        matches: |d| d.case == "no-volume" && d.path.ends_with("state.waiting.message") && d.theirs.is_none(),
        intermittent: false,
        reason: "the reason why a container waits for its volumes is in its status too, not only in an event",
    },
];

/// Between two runs of the Go kubelet.
const GO_KUBELETS: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: |d| d.terminated && d.path == "status.conditions[PodReadyToStartContainers].status",
        intermittent: true,
        reason: "the Go kubelet's last status of a terminated pod may be older than the end of its sandbox",
    },
    AcceptedDifference {
        matches: |d| d.case == "sidecar-fails-job" && d.path.starts_with("status.initContainerStatuses[side]."),
        intermittent: true,
        reason: "how often the sidecar restarts before the job ends, and whether its last exit is seen, depends on timing",
    },
];

/// Between the engine and containerd.
const RUNTIMES: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: |d| d.path.ends_with(".containerID") && d.is("podwright://given", "containerd://given"),
        intermittent: false,
        reason: "the id of a container begins with the name of its runtime",
    },
    AcceptedDifference {
        matches: error_of_the_runtime,
        intermittent: false,
        reason: "why a start or a pull failed is told in the words of the runtime",
    },
];

const STANDALONE: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: |d| d.theirs.is_none() && d.path == "runtime.sandbox.annotations.podwright.dev/manifest-hash",
        intermittent: false,
        reason: "the sandbox of a static pod has the hash of its manifest: a pod that was edited while no agent ran is found by it",
    },
    AcceptedDifference {
        matches: |d| d.theirs.is_none() && (d.path.starts_with("status.hostIP") || d.path.starts_with("status.podIP")),
        intermittent: false,
        reason: "without an API server the Go kubelet does not know the node's addresses",
    },
    AcceptedDifference {
        matches: host_addresses_of_the_pod,
        intermittent: false,
        reason: "without an API server the Go kubelet gives a container on the host network no addresses of its pod",
    },
    AcceptedDifference {
        matches: |d| d.path == "metadata.resourceVersion" && d.theirs.is_none(),
        intermittent: false,
        reason: "here every pod is an object of the local API, which can be watched from a resource version",
    },
    AcceptedDifference {
        matches: |d| {
            let redacted = d.ours.is_some_and(|value| value == "<redacted>");
            redacted && d.path.contains(".env[") && d.path.ends_with("].value")
        },
        intermittent: false,
        reason: "here the listener shows no values of environment variables to local users",
    },
];

const CLUSTER: &[AcceptedDifference] = &[
    AcceptedDifference {
        matches: |d| d.theirs.is_some_and(|v| v == "9007199254740988Ki") && d.path == "status.resources.limits.memory",
        // Does not occur on cgroup v2.
        intermittent: true,
        reason: "on cgroup v1 the Go kubelet reports the kernel's value for \"no limit\" as a limit",
    },
    AcceptedDifference {
        matches: |d| d.terminated && d.theirs.is_none() && d.path.starts_with("status.resources."),
        intermittent: true,
        reason: "the Go kubelet may find no cgroup of a terminated pod to read its resources from",
    },
    AcceptedDifference {
        matches: |d| d.theirs.is_none() && d.path == "status.conditions[AllContainersRestarting].observedGeneration",
        intermittent: false,
        reason: "every condition that the node sets has observedGeneration; the Go kubelet omits it for this one",
    },
    AcceptedDifference {
        matches: |d| d.case == "sidecar-fails-job" && matches!(d.path, "event BackOff" | "event Killing"),
        intermittent: true,
        reason: "whether the sidecar ran or was in back-off when the job ended depends on timing",
    },
    AcceptedDifference {
        matches: |d| d.case.starts_with("http") && d.path.starts_with("event Unhealthy"),
        intermittent: true,
        reason: "whether the first probe ran before the server listened depends on timing",
    },
    AcceptedDifference {
        matches: |d| d.case == "restarts-all" && d.path.starts_with("event Killing of"),
        intermittent: false,
        reason: "the Go kubelet's message is \"killing\"; here it says that the container was requested to restart",
    },
    AcceptedDifference {
        matches: |d| d.case == "no-volume" && d.path.starts_with("event FailedMount of"),
        intermittent: false,
        reason: "the message has the system's error, too",
    },
    AcceptedDifference {
        matches: |d| d.path.starts_with("event MissingClusterDNS") && d.ours.is_none(),
        intermittent: false,
        reason: "not sent: the setting is missing on the node, and every pod would get the event",
    },
];

/// The Go kubelet removes the dead sidecar of a completed job before its exit code is in the status.
fn lost_exit_code(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("initContainerStatuses[side].state.terminated.") else { return false };
    d.case == "sidecar-fails-job"
        && match field {
            "exitCode" => d.ours.is_some_and(|v| *v == 9) && d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.is("Error", "ContainerStatusUnknown"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// The lines of a termination message of the downward cases that differ, as (ours, theirs).
fn differing_lines<'a>(d: &Difference<'a>) -> Option<Vec<(&'a str, &'a str)>> {
    if !d.case.starts_with("downward-") || !d.path.ends_with("state.terminated.message") {
        return None;
    }
    let (ours, theirs) = (d.ours?.as_str()?, d.theirs?.as_str()?);
    (ours.lines().count() == theirs.lines().count())
        .then(|| ours.lines().zip(theirs.lines()).filter(|(ours, theirs)| ours != theirs).collect())
}

fn host_addresses_of_the_pod(d: &Difference<'_>) -> bool {
    d.case == "downward-env-host" && differing_lines(d).is_some_and(|lines| lines.iter().all(is_unknown_address))
}

fn is_unknown_address((ours, theirs): &(&str, &str)) -> bool {
    let name = ours.split('=').next().unwrap_or_default();
    matches!(name, "F_POD_IP" | "F_POD_IPS") && theirs.strip_prefix(name) == Some("=")
}

/// When a rule restarts all containers, the Go kubelet removes them before their exit codes are in the status.
fn lost_last_exit_code(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("].lastState.terminated.") else { return false };
    d.case == "restarts-all"
        && match field {
            "exitCode" => d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.theirs.is_some_and(|v| v == "RestartingAllContainers"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// The Go kubelet's last status of a terminated pod may be older than the end of its sandbox.
fn status_older_than_sandbox(d: &Difference<'_>) -> bool {
    d.terminated && d.path == "status.conditions[PodReadyToStartContainers].status" && d.is("False", "True")
}

/// The text of a failed start, of a failed pull, or of the event of either.
fn error_of_the_runtime(d: &Difference<'_>) -> bool {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    match d.case {
        "bad-command" | "bad-command-always" => {
            (d.path.ends_with(".message") && text(d.ours) == "exec /none: no such file or directory")
                || d.path.starts_with("event Failed of \"spec.containers{c}\": Error: ")
        }
        "no-registry" => {
            let start = "Back-off pulling image \"localhost:1/none:1\": ErrImagePull: ";
            d.path.ends_with("state.waiting.message") && [d.ours, d.theirs].iter().all(|v| text(*v).starts_with(start))
        }
        _ => false,
    }
}

/// containerd may learn of the exit before its reason, and then reports Error.
fn exit_without_reason(d: &Difference<'_>) -> bool {
    d.case == "hungry"
        && d.path.ends_with("terminated.reason")
        && (d.is("OOMKilled", "Error") || d.is("Error", "OOMKilled"))
}
