//! What a person can do about it: a hint for each reason a pod may wait for.

/// A hint for this reason, and what was said with it, if there is anything to be done.
pub(super) fn for_reason(reason: &str, message: &str) -> Option<&'static str> {
    Some(match reason {
        "ErrImagePull" | "ImagePullBackOff" => {
            "Check the image's name and tag, that this machine reaches its registry, and the credentials for it (docker's \
             config.json in the agent's root directory). It is tried again by itself; an edited manifest is tried at once."
        }
        "ErrImageNeverPull" => {
            "The manifest forbids pulling (imagePullPolicy: Never) and the image is not here: import it into the runtime, or \
             let it be pulled with imagePullPolicy: IfNotPresent."
        }
        "InvalidImageName" => "The image's name can't be read: it must be like registry/name:tag, in small letters.",
        "ImageInspectError" => "The runtime can't tell about the image: look into the runtime's own log.",
        "CrashLoopBackOff" => {
            "The container starts and ends again. Its log says why (podwright logs POD -c CONTAINER, with -p that of the start \
             before); if it was OOMKilled, raise limits.memory. It is started again by itself, after a wait that grows; an edited \
             manifest or `podwright restart` starts it at once."
        }
        "CreateContainerConfigError" => {
            "The container's settings can't be met; the message names which. Change them in the manifest."
        }
        "CreateContainerError" => {
            "The runtime refused to make the container; the message is its own. Check mounts, devices and security settings."
        }
        "RunContainerError" | "StartError" => {
            "The container could not be started: check that its command exists in the image, may be executed, and that the \
             working directory is there."
        }
        "PostStartHookError" => {
            "The postStart hook failed, so the container was ended: run the hook by hand to see why."
        }
        "FailedMount" | "FailedAttachVolume" => {
            "A volume can't be set up; the message says which and why. Check that the path is there and of the wanted type. It \
             is tried again by itself."
        }
        "Mounting" => {
            "A volume takes long to set up: the file system behind it may hang. Other pods are not held up by it."
        }
        "FailedCreatePodSandBox" if message.contains("RuntimeClass") => {
            "The pod's runtimeClassName must be one that the API server has; a node alone has none. Change it, or remove it to \
             get the runtime's usual handler."
        }
        "FailedCreatePodSandBox" => {
            "The runtime can't make the pod's sandbox: look at its message, its log and its network configuration. It is tried \
             again by itself."
        }
        "FailedCreatePodContainer" => {
            "The pod's cgroup can't be made: check cgroupRoot and cgroupDriver in the configuration."
        }
        "FailedKillPod" => "The runtime can't end it: look into the runtime's log. It is tried again by itself.",
        "NetworkNotReady" => {
            "The runtime has no network for pods: put a CNI configuration where it looks for it (mostly /etc/cni/net.d). Pods \
             with hostNetwork: true don't wait for it."
        }
        "NodePorts" => {
            "Another pod has the same hostPort: change it, or remove the other (`podwright get pods -A -o yaml` shows who has \
             which). It begins by itself when the port is free."
        }
        "NodeAffinity" | "NodeName" | "PodOSSelectorNodeLabelDoesNotMatch" | "PodOSNotSupported" => {
            "The pod asks for another kind of node: change its selector, or give this node the labels (--node-labels)."
        }
        "WaitingForPredecessor" => {
            "Nothing: it begins when the pod of the same name before it has ended. If that takes long, its own story tells why."
        }
        "RunPodSandbox" | "CreateContainer" | "StartContainer" | "StopPodSandbox" | "InDoubt" => {
            "The runtime takes long to answer: look into its log, and at the load of the machine. Nothing is begun twice meanwhile."
        }
        "PodInitializing" => "Wait for the init container to end; its log tells how far it is.",
        "Pulling" => "Wait: the image is on its way.",
        "PreStopHook" => {
            "Wait: the hook has until the end of the grace period, then the container is killed. `podwright stop POD \
             --grace-period 1` makes that sooner. A hook that hangs again and again needs a look at its command."
        }
        "PostStartHook" => "The container counts as started when the hook is done: check that it ends.",
        "NotReady" => {
            "The readiness probe has to pass: check that the server answers where the probe asks, and gets enough time \
             (timeoutSeconds, initialDelaySeconds)."
        }
        "NotStarted" => {
            "The startup probe has to pass: check that the server answers where the probe asks; if it starts slowly, raise \
             failureThreshold."
        }
        "StopContainer" | "Terminating" => "Wait: what has not ended by itself at that time is killed.",
        "Stopped" => {
            "It stays as it is: `podwright restart` gives it another life. It ends for good with its manifest, or with `podwright delete` if it was applied."
        }
        "NoRuntime" => {
            "Check that the runtime runs and that --container-runtime-endpoint is its socket. Pods go on running meanwhile."
        }
        "Quarantined" => "This is a bug in podwright: please report it with this text. Restarting the agent may help.",
        "DeadlineExceeded" => "The pod lived longer than its activeDeadlineSeconds: raise it to let it live longer.",
        "OOMKilled" => "It used more memory than its limit: raise limits.memory, or make it use less.",
        "OutOfpods" => {
            "This node has as many pods as it may have: remove another one, or raise maxPods in the configuration \
             (--max-pods). It begins by itself when there is room."
        }
        reason if reason.starts_with("OutOf") => {
            "There is no room for what it requests: remove another pod, or lower its requests. It begins by itself when there \
             is room."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_people_meet_has_a_hint() {
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
        let class = for_reason("FailedCreatePodSandBox", "couldn't get RuntimeClass \"x\"");
        assert!(class.is_some_and(|hint| hint.contains("runtimeClassName")));
    }
}
