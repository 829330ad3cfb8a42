//! Suggestions for users: one for each reason a pod or container may be waiting for.

use super::shortage::Shortage;

/// The suggestion for this reason, if there is something to do. `message` is the text that came with the reason.
pub(super) fn for_reason(reason: &str, message: &str) -> Option<&'static str> {
    let exceeds_node = reason != "OutOfpods" && Shortage::of(message).is_some_and(|shortage| shortage.exceeds_node());
    let reason = if exceeds_node { EXCEEDS_NODE } else { reason };
    let matches = |rule: &&Hint| {
        let named = rule
            .reasons
            .iter()
            .any(|known| *known == reason || known.strip_suffix('*').is_some_and(|start| reason.starts_with(start)));
        let message = message.to_ascii_lowercase();
        named && (rule.messages.is_empty() || rule.messages.iter().any(|part| message.contains(part)))
    };
    HINTS.iter().find(matches).map(|rule| rule.hint)
}

/// Stands for `OutOf*` if the node has less than the pod requests.
const EXCEEDS_NODE: &str = "ExceedsNode";

/// One row of [`HINTS`].
struct Hint {
    /// `OutOf*` stands for every reason that begins with `OutOf`.
    reasons: &'static [&'static str],
    /// One of them, in lower case, must be a part of the message; none: every message matches.
    messages: &'static [&'static str],
    hint: &'static str,
}

const fn hint(reasons: &'static [&'static str], hint: &'static str) -> Hint {
    Hint { reasons, messages: &[], hint }
}

/// The reasons of a failed image pull.
const PULL: &[&str] = &["ErrImagePull", "ImagePullBackOff"];

/// The reasons of a probe that fails.
const PROBE: &[&str] = &["NotReady", "NotStarted", "LivenessFailed", "StartupFailed"];
/// What the error of a connection that nothing accepts contains.
const REFUSED: &[&str] = &["connection refused"];

/// The first row that matches is used.
const HINTS: &[Hint] = &[
    Hint {
        reasons: PULL,
        messages: &["401", "403", "unauthorized", "authorization failed", "access denied", "insufficient_scope"],
        hint: "The registry refuses the credentials, or there are none: add them to docker's config.json in the agent's root directory, or \
               check the image name, since many registries refuse names that do not exist. The pull is retried automatically.",
    },
    Hint {
        reasons: PULL,
        messages: &["404", "not found", "manifest unknown"],
        hint: "The registry has no such image or tag: check the name and the tag. The pull is retried automatically; after an edit of \
               the manifest it is retried at once.",
    },
    Hint {
        reasons: PULL,
        messages: &[
            "connection refused",
            "no such host",
            "name or service not known",
            "failed to lookup",
            "name resolution",
            "timeout",
            "timed out",
            "unreachable",
            "no route to host",
        ],
        hint: "This node cannot reach the registry: check the registry's name and port, the network and DNS of this node, and whether the \
               registry runs. The pull is retried automatically.",
    },
    hint(
        PULL,
        "Check the image name and tag, whether this node can reach the registry, and the registry credentials (docker's config.json \
         in the agent's root directory). The pull is retried automatically; after an edit of the manifest it is retried at once.",
    ),
    hint(
        &["ErrImageNeverPull"],
        "imagePullPolicy is Never and the image is not present on this node: import it into the container runtime, or set \
         imagePullPolicy: IfNotPresent.",
    ),
    hint(&["InvalidImageName"], "The image name is not valid: it must look like registry/name:tag, in lower case."),
    hint(&["ImageInspectError"], "The container runtime could not inspect the image: check the runtime's log."),
    hint(
        &["CrashLoopBackOff"],
        "The container keeps exiting. Check its log (podwright logs POD -c CONTAINER; -p shows the previous instance); if it was \
         OOMKilled, raise limits.memory. It is restarted automatically after an increasing delay; an edit of the manifest or \
         `podwright restart` restarts it at once.",
    ),
    hint(
        &["ExitLoop"],
        "The container ends without an error, and restartPolicy: Always starts it again: let its process stay in the foreground, or set \
         restartPolicy: OnFailure or Never for a task that ends.",
    ),
    hint(
        &["SidecarExitLoop"],
        "The sidecar ends without an error, and its restartPolicy: Always starts it again: let its process stay in the foreground, or \
         remove restartPolicy from the init container if it is a task that ends.",
    ),
    hint(
        &["InitCrashLoop"],
        "Check the log of the init container (podwright logs POD -c CONTAINER): the containers after it start when it has exited \
         with 0. It is restarted automatically after an increasing delay; `podwright restart` restarts it at once.",
    ),
    Hint {
        reasons: PROBE,
        messages: &["statuscode: 404"],
        hint: "The server has no such path (404): check path and port of the probe's httpGet, and that this version of the server \
               has the path.",
    },
    Hint {
        reasons: PROBE,
        messages: &["statuscode: 401", "statuscode: 403"],
        hint: "The server wants a login for the path of the probe: choose a path without one, or add a header with the credentials to \
               the probe (httpGet.httpHeaders).",
    },
    Hint {
        reasons: PROBE,
        messages: &["statuscode: 5"],
        hint: "The server answers, and reports an error of its own: check its log (podwright logs POD -c CONTAINER), and whether the \
               services that it needs can be reached.",
    },
    Hint {
        reasons: PROBE,
        messages: &["command timed out"],
        hint: "The command of the probe does not end within timeoutSeconds (1 if unset): run it with podwright exec to see how long it \
               takes, or raise timeoutSeconds.",
    },
    Hint {
        reasons: PROBE,
        messages: &[
            "no answer within",
            "i/o timeout",
            "timed out",
            "did not complete within",
            "timeout: failed to connect",
        ],
        hint: "There is no answer within the probe's timeoutSeconds (1 if unset): check whether the server hangs or has too little CPU, \
               or raise timeoutSeconds.",
    },
    Hint {
        reasons: &["LivenessFailed"],
        messages: REFUSED,
        hint: "Nothing listens where the probe connects: check the port, and that the server listens on all addresses and not only on \
               127.0.0.1. If it only starts slowly, add a startupProbe.",
    },
    Hint {
        reasons: &["NotStarted", "StartupFailed"],
        messages: REFUSED,
        hint: "Nothing listens where the probe connects: check the port, and that the server listens on all addresses and not only on \
               127.0.0.1. If it only starts slowly, raise failureThreshold or periodSeconds of the startup probe.",
    },
    Hint {
        reasons: &["NotReady"],
        messages: REFUSED,
        hint: "Nothing listens where the probe connects: check the port, and that the server listens on all addresses and not only on \
               127.0.0.1. The pod is ready as soon as the probe passes.",
    },
    hint(
        &["LivenessFailed"],
        "The container runs, but does not pass its liveness probe: check that the server listens where the probe connects, and that the \
         probe allows enough time (timeoutSeconds, failureThreshold); a slow start belongs into a startupProbe.",
    ),
    hint(
        &["StartupFailed"],
        "The container does not pass its startup probe in time: check that the server listens where the probe connects; if it starts \
         slowly, raise failureThreshold or periodSeconds of the startup probe.",
    ),
    Hint {
        reasons: &["CreateContainerConfigError"],
        messages: &["runasnonroot"],
        hint: "runAsNonRoot is set, and the image runs as root: set runAsUser to another user, or use an image that does not run as \
               root, or remove runAsNonRoot.",
    },
    hint(
        &["CreateContainerConfigError"],
        "The container's configuration cannot be applied; the message names the setting. Change it in the manifest.",
    ),
    hint(
        &["CreateContainerError"],
        "The container runtime failed to create the container; the message is the runtime's. Check mounts, devices and security \
         settings.",
    ),
    hint(
        &["RunContainerError", "StartError"],
        "The container could not be started: check that its command exists in the image and is executable, and that the working \
         directory exists.",
    ),
    hint(
        &["PostStartHookError"],
        "The postStart hook failed, so the container was killed: run the hook's command by hand to see why.",
    ),
    Hint {
        reasons: &["FailedMount", "FailedAttachVolume"],
        messages: &["not supported", "unsupported"],
        hint: "This agent cannot mount volumes of this type, now or later: use a hostPath of a directory that the host has mounted, or \
               remove the volume. docs/FIELDS.md lists the volume types that work.",
    },
    Hint {
        reasons: &["FailedMount"],
        messages: &[" hangs"],
        hint: "The file system of this volume does not respond: check its server or device; its file system may hang until then. Other \
               pods are not blocked by it.",
    },
    hint(
        &["FailedMount", "FailedAttachVolume"],
        "A volume cannot be set up; the message says which one and why. Check that the path exists and has the requested type. \
         The mount is retried automatically.",
    ),
    hint(&["Mounting"], "Setting up a volume takes long: its file system may hang. Other pods are not blocked by it."),
    Hint {
        reasons: &["FailedCreatePodSandBox"],
        messages: &["runtimeclass"],
        hint: "The pod's runtimeClassName must exist in the API server; a standalone node has none. Change it, or remove it to use \
               the runtime's default handler.",
    },
    hint(
        &["FailedCreatePodSandBox"],
        "The container runtime cannot create the pod's sandbox: check its message, its log and its CNI configuration. The \
         creation is retried automatically.",
    ),
    hint(
        &["FailedCreatePodContainer"],
        "The pod's cgroup cannot be created: check cgroupRoot and cgroupDriver in the configuration.",
    ),
    hint(
        &["FailedKillPod"],
        "The container runtime cannot stop the pod: check the runtime's log. The stop is retried automatically.",
    ),
    hint(
        &["NetworkNotReady"],
        "The container runtime has no pod network: install a CNI configuration (usually in /etc/cni/net.d). Pods with \
         hostNetwork: true are not affected.",
    ),
    hint(
        &["NodePorts"],
        "Another pod uses the same hostPort: change the port, or delete the other pod, which the history \
         names. The pod starts automatically when the port is free.",
    ),
    hint(
        &["PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported"],
        "This node runs Linux: change os.name and the label kubernetes.io/os of the pod, or run it on a node with its system.",
    ),
    hint(
        &["NodeAffinity", "NodeName"],
        "This node does not match the pod's node selector or affinity: change it, or add the labels to this node (--node-labels).",
    ),
    hint(
        &["SysctlForbidden"],
        "Remove the sysctl from the pod, or allow it on this node with allowedUnsafeSysctls in the configuration \
         (--allowed-unsafe-sysctls).",
    ),
    Hint {
        reasons: &["UnexpectedAdmissionError"],
        messages: &["no healthy devices"],
        hint: "Nothing on this node provides this extended resource, now or later: remove it from the requests and limits, or run the \
               pod on a node of a cluster that has it.",
    },
    hint(
        &["AppArmor"],
        "The kernel of this node does not enforce AppArmor: remove appArmorProfile, or start the kernel with AppArmor.",
    ),
    hint(
        &["SupplementalGroupsPolicyNotSupported"],
        "The container runtime does not support supplementalGroupsPolicy: Strict: remove it, or use the embedded engine.",
    ),
    hint(
        &["WaitingForPredecessor"],
        "The pod starts when the previous pod of the same name has terminated. If that takes long, check the history of the \
         previous pod.",
    ),
    hint(
        &["RunPodSandbox", "CreateContainer", "StartContainer", "StopPodSandbox", "InDoubt"],
        "The container runtime is slow to respond: check its log and the load of this node. No call is made twice meanwhile.",
    ),
    hint(&["PodInitializing"], "Wait for the init container to complete; its log shows the progress."),
    hint(
        &["Pulling"],
        "Wait for the image pull to complete. If it does not get further, check the network of this node and the registry.",
    ),
    hint(
        &["PreStopHook"],
        "Wait: the preStop hook may run until the grace period ends, then the container is killed. `podwright stop POD \
         --grace-period 1` shortens it. If the hook hangs every time, check its command.",
    ),
    hint(
        &["PostStartHook"],
        "The container counts as started when the postStart hook has completed: check that the hook terminates.",
    ),
    hint(
        &["NotReady"],
        "The readiness probe must pass: check that the server listens where the probe connects, and that the probe allows enough \
         time (timeoutSeconds, initialDelaySeconds).",
    ),
    hint(
        &["NotStarted"],
        "The startup probe must pass: check that the server listens where the probe connects; if it starts slowly, raise \
         failureThreshold.",
    ),
    hint(
        &["StopContainer", "Terminating"],
        "Wait: containers that still run when the grace period ends are killed. A process that ignores SIGTERM uses up all of it; \
         `podwright stop POD --grace-period 1` shortens it.",
    ),
    hint(
        &["ReadinessGate"],
        "Another program must set this condition in the status of the pod: check that it runs, or remove the readiness gate.",
    ),
    hint(&["Started", "ContainerCreating"], "Wait a moment: the agent continues with the next step."),
    hint(
        &["Stopped"],
        "The pod was stopped by a user: `podwright start` starts it again. To delete it, remove its manifest, or use \
         `podwright delete` if it was created by apply.",
    ),
    hint(
        &["RuntimeStarting"],
        "Wait a moment. If this lasts, see `podwright status` and the log of the agent. Running containers are not affected.",
    ),
    hint(
        &["NoRuntime"],
        "Check that the container runtime is running and that --container-runtime-endpoint is its socket. Running containers are \
         not affected.",
    ),
    Hint {
        reasons: &["Quarantined"],
        messages: &["the agent died"],
        hint: "Its containers keep running, and the agent tries the pod again at the time shown. To try it at once, change its spec; to give \
               it up, delete it. Check the log of the agent: if it ran out of memory, raise MemoryMax of its unit; else this is a bug in \
               podwright, please report it with this output.",
    },
    hint(
        &["Quarantined"],
        "Its containers keep running. This is a bug in podwright: please report it with this output. The agent tries the pod again when it is \
         restarted.",
    ),
    hint(
        &["DeadlineExceeded"],
        "The pod was active longer than its activeDeadlineSeconds: raise it if the pod needs more time.",
    ),
    hint(
        &["Failed"],
        "Check its log (podwright logs POD). `podwright start` runs the pod once more; for a restart after each failure set \
         restartPolicy: OnFailure or Always.",
    ),
    hint(
        &["OOMKilled"],
        "The container used more memory than its limit: raise limits.memory, or reduce its memory usage.",
    ),
    hint(
        &["OutOfpods"],
        "This node runs its maximum number of pods: delete another pod, or raise maxPods in the configuration (--max-pods). The \
         pod starts automatically when there is capacity.",
    ),
    hint(
        &[EXCEEDS_NODE],
        "Lower the request: the pod would not fit if it were the only one. Of its CPUs, memory and disk space a node reserves some for \
         itself (kubeReserved, systemReserved, evictionHard).",
    ),
    hint(
        &["OutOf*"],
        "This node has not enough free resources for the pod's requests: delete another pod, or lower the requests. The pod \
         starts automatically when there is capacity.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_reasons_have_a_hint() {
        for reason in [
            "ErrImagePull",
            "ImagePullBackOff",
            "CrashLoopBackOff",
            "CreateContainerConfigError",
            "FailedMount",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfpods",
            "WaitingForPredecessor",
            "NetworkNotReady",
            "ErrImageNeverPull",
            "RunContainerError",
        ] {
            assert!(for_reason(reason, "").is_some_and(|hint| hint.len() > 20), "{reason}");
        }
        assert_eq!(for_reason("SomethingElse", ""), None);
    }

    #[test]
    fn advice_for_a_failed_pull_depends_on_the_error() {
        for (message, part) in [
            ("unexpected status from HEAD request: 401 Unauthorized", "refuses the credentials"),
            ("failed to resolve reference: not found", "no such image or tag"),
            ("dial tcp 127.0.0.1:1: connect: connection refused", "cannot reach the registry"),
            ("something else", "Check the image name and tag"),
        ] {
            let hint = for_reason("ImagePullBackOff", message).unwrap();
            assert!(hint.contains(part), "{message}: {hint}");
        }
        let nfs = for_reason("FailedMount", "volume \"data\": type nfs is not supported").unwrap();
        assert!(nfs.contains("now or later"), "{nfs}");
    }

    #[test]
    fn advice_for_a_failed_probe_depends_on_the_error() {
        for (message, part) in [
            ("HTTP probe failed with statuscode: 404", "no such path"),
            ("HTTP probe failed with statuscode: 401", "wants a login"),
            ("HTTP probe failed with statuscode: 403", "wants a login"),
            ("HTTP probe failed with statuscode: 503", "an error of its own"),
            ("Get \"http://10.0.0.1:80/\": no answer within 1s", "There is no answer"),
            ("dial tcp 10.0.0.1:80: i/o timeout", "There is no answer"),
            ("timeout: health rpc did not complete within 1s", "There is no answer"),
            ("command timed out: \"sleep 9\" timed out after 1s", "The command of the probe"),
            ("dial tcp 10.0.0.1:80: Connection refused (os error 111)", "Nothing listens"),
        ] {
            for reason in PROBE {
                let hint = for_reason(reason, &format!("Readiness probe failed: {message}")).unwrap();
                assert!(hint.contains(part), "{reason}: {message}: {hint}");
            }
        }
        for (reason, part) in [
            ("NotReady", "The pod is ready as soon"),
            ("NotStarted", "raise failureThreshold"),
            ("StartupFailed", "raise failureThreshold"),
            ("LivenessFailed", "add a startupProbe"),
        ] {
            let hint = for_reason(reason, "dial tcp 10.0.0.1:80: connection refused").unwrap();
            assert!(hint.contains(part), "{reason}: {hint}");
        }
        for (reason, part) in [
            ("NotReady", "The readiness probe must pass"),
            ("NotStarted", "The startup probe must pass"),
            ("StartupFailed", "does not pass its startup probe"),
            ("LivenessFailed", "does not pass its liveness probe"),
        ] {
            let hint = for_reason(reason, "Liveness probe failed: no 404 here").unwrap();
            assert!(hint.contains(part), "{reason}: {hint}");
        }
    }

    #[test]
    fn special_cases_come_before_general_ones() {
        let class = for_reason("FailedCreatePodSandBox", "couldn't get RuntimeClass \"x\"");
        assert!(class.is_some_and(|hint| hint.contains("runtimeClassName")));
        assert!(for_reason("OutOfpods", "").is_some_and(|hint| hint.contains("maxPods")));
        assert!(for_reason("OutOfcpu", "").is_some_and(|hint| !hint.contains("maxPods")));
    }
}
