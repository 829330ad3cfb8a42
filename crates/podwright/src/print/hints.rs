//! Suggestions for users: one for each reason a pod or container may be waiting for.

/// The suggestion for this reason, if there is something to do. `message` is the text that came with the reason.
pub(super) fn for_reason(reason: &str, message: &str) -> Option<&'static str> {
    let matches = |rule: &&Hint| {
        let named = rule
            .reasons
            .iter()
            .any(|known| *known == reason || known.strip_suffix('*').is_some_and(|start| reason.starts_with(start)));
        named && message.contains(rule.message)
    };
    HINTS.iter().find(matches).map(|rule| rule.hint)
}

/// One row of [`HINTS`].
struct Hint {
    /// `OutOf*` stands for every reason that begins with `OutOf`.
    reasons: &'static [&'static str],
    /// Must be a part of the message; empty matches every message.
    message: &'static str,
    hint: &'static str,
}

const fn hint(reasons: &'static [&'static str], hint: &'static str) -> Hint {
    Hint { reasons, message: "", hint }
}

/// The first row that matches is used.
const HINTS: &[Hint] = &[
    hint(
        &["ErrImagePull", "ImagePullBackOff"],
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
    hint(
        &["FailedMount", "FailedAttachVolume"],
        "A volume cannot be set up; the message says which one and why. Check that the path exists and has the requested type. \
         The mount is retried automatically.",
    ),
    hint(&["Mounting"], "Setting up a volume takes long: its file system may hang. Other pods are not blocked by it."),
    Hint {
        reasons: &["FailedCreatePodSandBox"],
        message: "RuntimeClass",
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
        &["NodeAffinity", "NodeName", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported"],
        "This node does not match the pod's node selector or affinity: change it, or add the labels to this node (--node-labels).",
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
    hint(&["Pulling"], "Wait for the image pull to complete."),
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
    hint(&["StopContainer", "Terminating"], "Wait: containers that still run when the grace period ends are killed."),
    hint(
        &["Stopped"],
        "The pod was stopped by a user: `podwright restart` starts it again. To delete it, remove its manifest, or use \
         `podwright delete` if it was created by apply.",
    ),
    hint(
        &["NoRuntime"],
        "Check that the container runtime is running and that --container-runtime-endpoint is its socket. Running containers are \
         not affected.",
    ),
    hint(
        &["Quarantined"],
        "This is a bug in podwright: please report it with this output. Restarting the agent may help.",
    ),
    hint(
        &["DeadlineExceeded"],
        "The pod was active longer than its activeDeadlineSeconds: raise it if the pod needs more time.",
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
        assert_eq!(for_reason("ContainerCreating", ""), None);
    }

    #[test]
    fn special_cases_come_before_general_ones() {
        let class = for_reason("FailedCreatePodSandBox", "couldn't get RuntimeClass \"x\"");
        assert!(class.is_some_and(|hint| hint.contains("runtimeClassName")));
        assert!(for_reason("OutOfpods", "").is_some_and(|hint| hint.contains("maxPods")));
        assert!(for_reason("OutOfcpu", "").is_some_and(|hint| !hint.contains("maxPods")));
    }
}
