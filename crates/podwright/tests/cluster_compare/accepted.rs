//! Differences that are there on purpose; `docs/kubelet-map.md` names them with their reasons.

/// Parts of a difference's description, all of which must be there.
const ACCEPTED: &[&[&str]] = &[
    // The Go kubelet removes the dead sidecar before its exit is in the status; here no exit code is lost.
    &["sidecar-fails-job", "initContainerStatuses[side].state.terminated"],
    // The Go kubelet shows the year 1970 for a start that never was.
    &["bad-command", "terminated.startedAt: ours absent"],
    // The Go kubelet's last status of an ended pod may be older than the end of its sandbox.
    &["conditions[PodReadyToStartContainers].status: ours \"False\", the Go kubelet's \"True\""],
    // On cgroup v1 the Go kubelet takes the kernel's word for "no limit" for a limit.
    &["status.resources.limits.memory: ours absent, the Go kubelet's \"9007199254740988Ki\""],
    // Of a pod that has ended it may find no cgroup to read them from any more.
    &["status.resources.", "the Go kubelet's absent"],
    // Seen in some runs only; taken for chance: whether the sidecar was in its back-off when the job ended.
    &["sidecar-fails-job event BackOff"],
    // Seen on a busy machine only: whether the first probe came before the server listened.
    &["http event Unhealthy"],
    // Not sent: it is the node that lacks the setting, and every pod of it would have the event.
    &["event MissingClusterDNS: ours absent"],
    // containerd may hear of the end before it hears why, and then tells an error.
    &["hungry", "terminated.reason: ours ", "\"OOMKilled\"", "\"Error\""],
    // Why a container waits for its volumes is told by its status too, not by an event only.
    &["no-volume", "state.waiting.message", "the Go kubelet's absent"],
];

/// The rule that allows this difference.
pub(crate) fn why(difference: &str) -> Option<usize> {
    ACCEPTED.iter().position(|words| words.iter().all(|word| difference.contains(word)))
}
